"""The prompts of requests and the responses of lessons, for each form of the answer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from palaestra.tasks.tools.library import LIBRARY
from palaestra.tasks.tools.plans import CallResult, Plan, refer

FORMS = ("program", "calls")
PROMPTS = ("full", "short")

_HOW = {
    "program": (
        "Answer with a short Python program in a fenced code block. Call the tools as functions, give each the results "
        "that it needs, and end with answer(value)."
    ),
    "calls": (
        'Answer with the tool calls as JSON in a fenced code block: [{"id": "call_1", "type": "function", "function": '
        '{"name": ..., "arguments": "{...}"}}, ...]. The argument {"$result": "call_1"} stands for the result of call_1. '
        "The last call gives the answer."
    ),
}
_SHORT = {"program": "Program:", "calls": "Calls:"}
_TOKENS = {
    ("program", "short"): (36, 28),
    ("calls", "short"): (32, 64),
    ("program", "full"): (256, 64),
    ("calls", "full"): (256, 128),
}


def longest(form: str, prompt: str, most_calls: int) -> int:
    """Maximum length of an answer in tokens: that of lessons with the smallest tokenizer, with room for reasoning if wanted."""
    start, each = _TOKENS[form, prompt]
    return start + each * most_calls


def format_prompt(question: str, offered: Sequence[str], form: str, prompt: str) -> str:
    """The prompt: the tools, the request, and the form of the answer."""
    tools = [LIBRARY[name] for name in offered]
    if prompt == "short":
        return f"{', '.join(tool.short_signature for tool in tools)}\n{question}\n{_SHORT[form]}"
    lines = "\n".join(f"{tool.signature}: {tool.description}" for tool in tools)
    return f"Tools:\n{lines}\n\n{question}\n\n{_HOW[form]}"


def response(plan: Plan, form: str, prompt: str) -> str:
    """The worked answer: the tools with their purpose, then the plan."""
    if prompt == "short":
        if form == "program":
            return plan.program().rstrip("\n")
        return json.dumps(short_calls(plan), ensure_ascii=False, separators=(",", ":"))
    thoughts = reasoning(plan)
    if form == "program":
        return f"{thoughts}\n\n```python\n{plan.program()}```"
    return f"{thoughts}\n\n```json\n{json.dumps(openai_calls(plan), ensure_ascii=False)}\n```"


def reasoning(plan: Plan) -> str:
    """A line for each call: the tool, its result, and its inputs."""
    lines = []
    for place, call in enumerate(plan.calls, 1):
        steps = [str(need + 1) for need in sorted(call.needs())]
        source = f", given the result of step {' and step '.join(steps)}" if steps else ""
        description = LIBRARY[call.tool].description
        lines.append(f"{place}. {call.tool} gives {description[0].lower()}{description[1:]}{source}.")
    return "\n".join(lines)


def openai_calls(plan: Plan) -> list[dict[str, Any]]:
    """The plan as OpenAI's tool calls."""
    return [
        {
            "id": f"call_{place}",
            "type": "function",
            "function": {"name": call.tool, "arguments": json.dumps(refer(call.arguments), ensure_ascii=False)},
        }
        for place, call in enumerate(plan.calls, 1)
    ]


def short_calls(plan: Plan) -> list[dict[str, Any]]:
    """The plan as calls with names and arguments alone, and `"$call_1"` for the result of the first."""
    return [{"name": call.tool, "arguments": _name_results(call.arguments)} for call in plan.calls]


def _name_results(value: Any) -> Any:
    if isinstance(value, CallResult):
        return f"$call_{value.call + 1}"
    if isinstance(value, list):
        return [_name_results(item) for item in value]
    return {name: _name_results(inner) for name, inner in value.items()} if isinstance(value, dict) else value
