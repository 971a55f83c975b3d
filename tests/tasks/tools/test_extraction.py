"""Finding the plan in what a model says."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palaestra.tasks.tools.extraction import Asked, Reference, extract_calls, extract_program

PROGRAM = 'a = weekday("2024-01-01")\nanswer(a)\n'
CALL = {"name": "weekday", "arguments": {"date": "2024-01-01"}}


@pytest.mark.parametrize(
    "text",
    [
        PROGRAM,
        f"```python\n{PROGRAM}```",
        f"Let me see.\n\n```python\n{PROGRAM}```\nThat gives the weekday.",
        f"```\n{PROGRAM}",
        "First:\n```python\na = weekday('2024-01-01')\n```\nand then\n```python\nanswer(a)\n```",
        f"A first try:\n```python\nanswer(1)\n```\nNo, better:\n```python\n{PROGRAM}```\nIt prints\n```\nMonday\n```",
        f"We need weekday.\n{PROGRAM}\nThat is all, isn't it?",
    ],
)
def test_programs_are_found_among_prose(text: str) -> None:
    scope: dict[str, Any] = {"weekday": lambda date: f"day of {date}", "answer": lambda value: said.append(value)}
    said: list[str] = []
    exec(extract_program(text), scope)
    assert said == ["day of 2024-01-01"]


@pytest.mark.parametrize(
    "text", ["", "I do not know.", "```python\nprint(1)\n```", "```python\nanswer(\n```", "answer"]
)
def test_what_does_not_answer_is_no_program(text: str) -> None:
    assert extract_program(text) == ""


@pytest.mark.parametrize(
    "text",
    [
        json.dumps([CALL]),
        f"Here:\n```json\n{json.dumps([CALL], indent=2)}\n```\nDone [1].",
        json.dumps({"tool_calls": [CALL]}),
        json.dumps([{"id": "call_1", "type": "function", "function": {**CALL, "arguments": json.dumps(CALL["arguments"])}}]),
        json.dumps([{"type": "function", "function": CALL}]),
        f"<tool_call>\n{json.dumps(CALL)}\n</tool_call>",
        f"A list such as [1, 2] or {{}}, a first try {json.dumps([{'name': 'month_end', 'arguments': {}}])}, and now: {json.dumps([CALL])}",
    ],
)  # fmt: skip
def test_calls_are_found_in_every_form(text: str) -> None:
    assert extract_calls(text) == [Asked("call_1", "weekday", {"date": "2024-01-01"})]


def test_results_are_referred_to_by_id_or_place() -> None:
    calls = [
        {"id": "x7", "function": {"name": "mean", "arguments": {"numbers": [1, 2]}}},
        {"id": "y8", "function": {"name": "total", "arguments": {"numbers": [{"$result": "x7"}, "$x7", "$call_1", {"$result": "$call_1"}, "$5"]}}},
    ]  # fmt: skip
    found = extract_calls(json.dumps(calls))
    assert [call.name for call in found] == ["x7", "y8"]
    assert found[1].arguments == {"numbers": [Reference("x7")] * 4 + ["$5"]}


def test_calls_that_stand_alone_are_taken_in_their_order() -> None:
    text = "\n".join(json.dumps({"name": name, "arguments": {}}) for name in ("one", "two"))
    assert [(call.name, call.tool) for call in extract_calls(text)] == [("call_1", "one"), ("call_2", "two")]


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "[1, 2]", '{"name": 3}', '[{"name": "x", "arguments": "{"}]', '[{"name": "x", "arguments": [1]}]',
        "[" * 60_000, '{"name": "x", "arguments": {"a": ' + "[" * 500 + "]" * 500 + "}}", '[{"function": "x"}]',
    ],
)  # fmt: skip
def test_what_is_no_call_is_left(text: str) -> None:
    assert extract_calls(text) == []


@given(st.text(alphabet='[]{}":,$ \n`answer(call_1)x'))
def test_no_text_breaks_the_search(text: str) -> None:
    assert isinstance(extract_calls(text), list)
    assert isinstance(extract_program(text), str)
