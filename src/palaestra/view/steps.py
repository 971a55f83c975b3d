"""What a page shows of one step of a conversation: reasoning, prose, commands, outputs, changed files, cost."""

from __future__ import annotations

import json
from collections.abc import Iterator

from palaestra.core.records import ToolCall
from palaestra.envs.turn.base import transcript
from palaestra.report.formatting import shorten
from palaestra.report.parts import list_images, read_message
from palaestra.research.workspace.step_record import Step
from palaestra.view.reading import Row
from palaestra.view.texts import ShownText, cut_text, split_diff, split_message

TITLE = 90
"""Characters of the first line of an action."""
DIFF_LINES = 200
"""Lines of a diff on a page."""


def show_step(step: Step, address: str, most: int) -> Row:
    """Prepare a step for a page.

    Arguments:
        address: the address of the step; whole texts are below it.
        most: characters of each text.
    """
    message, action = step.message, step.action.strip()
    text = "" if message is None else read_message(message)
    shown = text[:most]
    # A script's message is its action; a model's message has it in a fenced block.
    parts = [("code", shown)] if action and text.strip() == action else [(p.kind, p.text) for p in split_message(shown)]
    first = next((line for line in step.action.splitlines() if line.strip()), "")
    return {
        "step": step, "address": address, "position": step.position, "parts": parts, "missing": max(0, len(text) - most),
        "title": shorten(first or ("no readable action" if message is not None else "ended from outside"), TITLE),
        "calls": [_show_call(call, k, address, most) for k, call in enumerate(message.tool_calls if message else ())],
        "outputs": [
            {"role": m.role, "text": cut_text(read_message(m), most, f"{address}/output-{k}.txt"), "images": list_images([m])}
            for k, m in enumerate(step.observation)
        ],
        "files": [
            {"path": f.path, "kind": f.kind, "lines": (lines := list(split_diff(f.diff)))[:DIFF_LINES], "link": f"{address}/file-{k}.txt",
             "hidden": max(0, len(lines) - DIFF_LINES), "missing": f.missing}
            for k, f in enumerate(step.files)
        ],
        "validated": [float(score) for score in step.info.get("validated") or ()],
        "note": step.note or str(step.info.get("format_error") or ""),
    }  # fmt: skip


def _show_call(call: ToolCall, place: int, address: str, most: int) -> Row:
    """A tool call with its arguments by name, or as they were written if they are not a JSON object."""
    link = f"{address}/call-{place}.txt"
    try:
        values = json.loads(call.arguments, strict=False)
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        return {"name": call.name, "arguments": [("", cut_text(call.arguments, most, link))]}
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in values.items()}
    return {"name": call.name, "arguments": [(name, cut_text(text, most, link)) for name, text in texts.items()]}


def read_step_text(step: Step, name: str) -> str | None:
    """Return a whole text of a step: `message`, `output-K`, `call-K` or `file-K`; `None` if there is none."""
    kind, _, number = name.partition("-")
    if kind == "message":
        return None if step.message is None else transcript(step.message)
    texts = {
        "output": [read_message(message) for message in step.observation],
        "call": [f"{call.name} {call.arguments}" for call in (step.message.tool_calls if step.message else ())],
        "file": [f"{change.kind} {change.path}\n{change.diff}" for change in step.files],
    }.get(kind, [])
    return texts[int(number)] if number.isdecimal() and int(number) < len(texts) else None


def list_texts(step: Step) -> Iterator[str]:
    """Yield the texts of a step that a search looks into."""
    for message in (*((step.message,) if step.message is not None else ()), *step.observation):
        yield read_message(message)
        for call in message.tool_calls:
            yield call.name
            for _, argument in _show_call(call, 0, "", len(call.arguments))["arguments"]:
                assert isinstance(argument, ShownText)
                yield argument.text
    yield step.action
    for change in step.files:
        yield f"{change.path}\n{change.diff}"


STEP_COLUMNS = (
    "episode", "step", "action", "message", "output", "files", "validated", "reward", "seconds", "thinking", "calls",
    "prompt_tokens", "completion_tokens", "money", "stop_reason", "failure",
)  # fmt: skip


def to_step_row(step: Step) -> Row:
    """A step as a row of a table."""
    return {
        "episode": step.episode, "step": step.position, "action": step.action,
        "message": "" if step.message is None else transcript(step.message),
        "output": "\n\n".join(read_message(message) for message in step.observation),
        "files": [{"path": change.path, "kind": change.kind, "diff": change.diff} for change in step.files],
        "validated": list(step.info.get("validated") or ()), "reward": step.reward, "seconds": round(step.seconds, 3),
        "thinking": round(step.thinking, 3), "calls": step.calls, "prompt_tokens": step.usage.prompt_tokens,
        "completion_tokens": step.usage.completion_tokens, "money": step.money, "stop_reason": step.stop_reason,
        "failure": "" if step.failure is None else f"{step.failure.cause}: {step.failure.message}",
    }  # fmt: skip
