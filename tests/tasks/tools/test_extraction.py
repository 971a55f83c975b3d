"""Extracting the plan from a response."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from timing import measure

from palaestra.core.records import ToolCall
from palaestra.tasks.tools.extraction import Asked, CallReference, extract_calls, extract_program, read_native_calls
from palaestra.tasks.tools.library import LIBRARY

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
def test_programs_among_prose(text: str) -> None:
    scope: dict[str, Any] = {"weekday": lambda date: f"day of {date}", "answer": lambda value: wording.append(value)}
    wording: list[str] = []
    exec(extract_program(text), scope)
    assert wording == ["day of 2024-01-01"]


@pytest.mark.parametrize(
    "text", ["", "I do not know.", "```python\nprint(1)\n```", "```python\nanswer(\n```", "answer"]
)
def test_program_must_call_answer(text: str) -> None:
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
def test_forms_of_calls(text: str) -> None:
    assert extract_calls(text) == [Asked("call_1", "weekday", {"date": "2024-01-01"})]


def test_references_by_id_or_position() -> None:
    calls = [
        {"id": "x7", "function": {"name": "mean", "arguments": {"numbers": [1, 2]}}},
        {"id": "y8", "function": {"name": "total", "arguments": {"numbers": [{"$result": "x7"}, "$x7", "$call_1", {"$result": "$call_1"}, "$5"]}}},
    ]  # fmt: skip
    result = extract_calls(json.dumps(calls))
    assert [call.name for call in result] == ["x7", "y8"]
    assert result[1].arguments == {"numbers": [CallReference("x7")] * 4 + ["$5"]}


def test_single_calls_in_order() -> None:
    text = "\n".join(json.dumps({"name": name, "arguments": {}}) for name in ("one", "two"))
    assert [(call.name, call.tool) for call in extract_calls(text)] == [("call_1", "one"), ("call_2", "two")]


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "[1, 2]", '{"name": 3}', '[{"name": "x", "arguments": "{"}]', '[{"name": "x", "arguments": [1]}]',
        "[" * 60_000, '{"name": "x", "arguments": {"a": ' + "[" * 500 + "]" * 500 + "}}", '[{"function": "x"}]',
    ],
)  # fmt: skip
def test_other_json_is_no_call(text: str) -> None:
    assert extract_calls(text) == []


@given(st.text(alphabet='[]{}":,$ \n`answer(call_1)x'))
def test_any_text_is_accepted(text: str) -> None:
    assert isinstance(extract_calls(text), list)
    assert isinstance(extract_program(text), str)


@pytest.mark.parametrize("key", ["arguments", "parameters", "input"])
@pytest.mark.parametrize("as_text", [False, True])
def test_argument_keys_of_services(key: str, as_text: bool) -> None:
    given: Any = {"date": "2024-01-01"}
    call = {"name": "weekday", key: json.dumps(given) if as_text else given}
    wanted = [Asked("call_1", "weekday", given)]
    for wording in (call, [call], {"type": "function", "function": call}, {"tool_calls": [{"function": call}]}):
        assert extract_calls(f"I call it.\n{json.dumps(wording)}\nDone.") == wanted
        assert extract_calls(f"<tool_call>\n{json.dumps(wording)}\n</tool_call>") == wanted
    used = {"type": "tool_use", "id": "toolu_1", "name": "weekday", key: given}
    assert extract_calls(json.dumps(used)) == [Asked("toolu_1", "weekday", given)]


def test_tool_description_is_no_call() -> None:
    described = [tool.schema() for tool in list(LIBRARY.values())[:3]]
    assert extract_calls(json.dumps(described)) == []
    assert extract_calls(json.dumps(described[0]["function"])) == []
    assert extract_calls(f"{json.dumps(described)}\n{json.dumps(CALL)}") == [
        Asked("call_1", "weekday", CALL["arguments"])
    ]


def test_native_calls() -> None:
    calls = [
        ToolCall("add_days", '{"date": "2024-01-01", "days": 5}', "a"),
        ToolCall("weekday", '{"date": {"$result": "a"}}'),
    ]
    first = Asked("a", "add_days", {"date": "2024-01-01", "days": 5})
    assert read_native_calls(calls) == [first, Asked("call_2", "weekday", {"date": CallReference("a")})]
    by_place = ToolCall("weekday", '{"date": "$call_1"}', "b")
    assert read_native_calls([calls[0], by_place]) == [first, Asked("b", "weekday", {"date": CallReference("a")})]
    assert read_native_calls([ToolCall("month_end", "")]) == [Asked("call_1", "month_end", {})]
    for arguments in ("{", "[1]", "5", "null", '"text"', "[" * 10**5, '{"a": ' * 20 + "1" + "}" * 20, "9" * 5000):
        assert read_native_calls([calls[0], ToolCall("weekday", arguments)]) is None
    assert len(read_native_calls(calls * 500) or ()) == 17


HOSTILE = {
    "imports and an open bracket": "import a\n" * 2000 + "(\n" + "x,\n" * 2000,
    "open brackets": "f(\n" * 5000,
    "assignments": "a = 1\n" * 10_000,
    "an open string": "a = '''\n" + "x\n" * 5000,
    "fences": "```python\n" * 2000,
    "closed fences": "```python\nanswer(\n```\n" * 2000,
    "a deep list": "[" * 100_000,
    "a deep object": '{"a":' * 100_000,
    "a deep list that ends": "[" * 20_000 + "]" * 20_000,
    "unclosed lists of numbers": "[1," * 20_000,
    "a large number": '[{"name": "weekday", "arguments": {"date": ' + "9" * 5000 + "}}]",
    "an infinite number": '[{"name": "weekday", "arguments": {"date": 1e999}}]',
    "not a number": '[{"name": "weekday", "arguments": {"date": NaN}}]',
    "half a character": '[{"name": "weekday", "arguments": {"date": "\ud800"}}]\nanswer("\ud800")',
    "no character": "\x00" * 1000 + "answer(1)\x00",
    "a deep id": '[{"name": "weekday", "arguments": {}, "id": ' + "[" * 900 + "]" * 900 + "}]",
    "many calls": json.dumps([CALL] * 900),
    "many names": json.dumps([{**CALL, "id": f"c{k}"} for k in range(700)]),
    "ten million characters": "answer(1) " * 10**6,
    "minus signs": "answer(" + "-" * 40_000 + "1)",
    "nested calls": "answer(" * 10_000,
    "a chain": "answer(a" + ".a" * 20_000 + ")",
    "a sum": "answer(" + "1+" * 20_000 + "1)",
    "backslashes": "answer(1)" + "\\" * 49_000,
    "open brackets before an answer": "f(\n" * 198 + "answer(1)",
    "open lists before an answer": ("a = [" + "1," * 15 + "\n") * 199 + "answer(1)",
    "open functions before an answer": "def f(\n" * 199 + "answer(1)",
    "conditions before an answer": "if x:\n" * 199 + "answer(1)",
    "open strings before an answer": "a = 'x\n" * 199 + "answer(1)",
    "half characters before an answer": "a = '\ud800'\n" * 199 + "answer(1)",
    "no characters before an answer": "a = '\x00'\n" * 199 + "answer(1)",
    "tabs": "answer(1)\n" + " \t" * 20_000,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_extraction_is_bounded_in_time(name: str) -> None:
    for text in (HOSTILE[name], f"```python\n{HOSTILE[name][:49_000]}\n```", f"```json\n{HOSTILE[name]}\n```"):
        for extract in (extract_program, extract_calls):
            result = extract(text)  # type: ignore[operator]
            assert measure(partial(extract, text)) < 1.0  # type: ignore[arg-type]
            assert isinstance(result, str | list)
            assert len(result) <= 60_000


def test_answer_at_the_end_of_a_long_response() -> None:
    thoughts = "Let me think about the day of the week.\n" * 1100
    assert extract_program(f"{thoughts}```python\n{PROGRAM}```") == PROGRAM
    assert extract_calls(f"{thoughts * 5}{json.dumps([CALL])}") == [Asked("call_1", "weekday", CALL["arguments"])]


def test_unfenced_program_after_prose() -> None:
    prose = (
        "The request asks for the weekday of a date, so I call the tool for that and answer with what it says.\n" * 60
    )
    assert extract_program(f"{prose}{PROGRAM}") == PROGRAM
    assert extract_program(f"{prose}{PROGRAM}I hope that this helps (it should.\n") == PROGRAM
