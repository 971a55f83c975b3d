"""Parsers of tool calls: each family's own format, calls that cannot be read, and texts without calls."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from published_templates import ENDS, load_tokenizer

from palaestra.chat.encoder import ChatEncoder
from palaestra.chat.rendering import find_shared_prefix, render_conversation
from palaestra.chat.tool_formats import TOOL_FORMATS, ToolFormat, is_malformed, read_schemas
from palaestra.core.errors import UnknownNameError
from palaestra.core.records import Message, ToolCall
from palaestra.models.registry import LoadedModel

TOOLS = json.dumps(
    [
        {
            "type": "function",
            "function": {
                "name": "add",
                "description": "Add numbers",
                "parameters": {
                    "type": "object",
                    "properties": {
                        "first": {"type": "integer", "description": "a number"},
                        "text": {"type": "string", "description": "a text"},
                        "more": {"type": "array", "items": {"type": "number"}, "description": "numbers"},
                    },
                    "required": ["first"],
                },
            },
        }
    ]
)
FORMATS = {
    "glm4moe": "glm", "gptoss": "harmony", "lfm2_2_5": "pythonic", "llama3_1": "llama3", "nemotron_3_nano": "qwen3_coder",
    "qwen2_5": "hermes", "qwen3": "hermes", "qwen3_5_think": "qwen3_coder", "qwen3_instruct_2507": "hermes",
}  # fmt: skip
"""The published templates that support tools. The others get a description of them, and `hermes`."""
ADD = ("add", {"first": 1})
DEEPSEEK_START, DEEPSEEK_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
WRITTEN: list[tuple[str, str, str, list[tuple[str, Any]]]] = [
    ("hermes", 'Look.\n<tool_call>\n{"name": "add", "arguments": {"first": 1}}\n</tool_call>', "Look.", [ADD]),
    ("hermes", '<tool_call>{"name": "add", "arguments": {"first": 1}}\n</tool_call><tool_call>{"name": "ls"}', "", [ADD, ("ls", {})]),
    ("hermes", '<think>\n<tool_call>no</tool_call>\n</think>\n<tool_call>{"name": "add", "arguments": "{\\"first\\": 1}"}</tool_call>',
     "<think>\n<tool_call>no</tool_call>\n</think>", [ADD]),
    ("llama3", '<|python_tag|>{"name": "add", "parameters": {"first": 1}}; {"name": "ls", "parameters": {}}', "", [ADD, ("ls", {})]),
    ("llama3", '[{"name": "add", "arguments": {"first": 1}}]', "", [ADD]),
    ("llama3", '{"type": "function", "function": {"name": "add", "parameters": {"first": 1}}}', "", [ADD]),
    ("mistral", 'Look.[TOOL_CALLS] [{"name": "add", "arguments": {"first": 1}}, {"name": "ls", "arguments": {}, "id": "abc123def"}]',
     "Look.", [ADD, ("ls", {})]),
    ("mistral", '[TOOL_CALLS]add[CALL_ID]abc123def[ARGS]{"first": 1}[TOOL_CALLS]ls[ARGS]{}', "", [ADD, ("ls", {})]),
    ("deepseek", f'Look.{DEEPSEEK_START}<｜tool▁call▁begin｜>function<｜tool▁sep｜>add\n```json\n{{"first": 1}}\n```<｜tool▁call▁end｜>\n'
     f'<｜tool▁call▁begin｜>function<｜tool▁sep｜>ls\n```json\n{{}}\n```<｜tool▁call▁end｜>{DEEPSEEK_END}', "Look.", [ADD, ("ls", {})]),
    ("deepseek", f'{DEEPSEEK_START}<｜tool▁call▁begin｜>add<｜tool▁sep｜>{{"first": 1}}<｜tool▁call▁end｜>{DEEPSEEK_END}', "", [ADD]),
    ("harmony", '<|channel|>analysis<|message|>Add.<|end|><|start|>assistant<|channel|>commentary to=functions.add <|constrain|>json'
     '<|message|>{"first": 1}<|call|>', "<think>\nAdd.\n</think>\n\n", [ADD]),
    ("qwen3_coder", "<tool_call>\n<function=add>\n<parameter=first>\n1\n</parameter>\n<parameter=text>\n1\n\n2\n</parameter>\n</function>\n"
     "</tool_call>", "", [("add", {"first": 1, "text": "1\n\n2"})]),
    ("glm", "<think>Add.</think>\n<tool_call>add\n<arg_key>first</arg_key>\n<arg_value>1</arg_value>\n<arg_key>text</arg_key>\n"
     "<arg_value>1</arg_value>\n</tool_call>", "<think>Add.</think>", [("add", {"first": 1, "text": "1"})]),
    ("pythonic", "Look.<|tool_call_start|>[add(first=1), ls()]<|tool_call_end|>", "Look.", [ADD, ("ls", {})]),
    ("pythonic", "[add(first=1)]", "", [ADD]),
]  # fmt: skip
BROKEN = [
    ("hermes", '<tool_call>\n{"name": "add", "arguments": {"fir', 1),
    ("hermes", '<tool_call>["add"]</tool_call><tool_call>{"name": "ls", "arguments": {}}</tool_call>', 2),
    ("hermes", '<tool_call>{"name": "add", "arguments": [1]}</tool_call>', 1),
    ("hermes", "<tool_call></tool_call>", 1),
    ("llama3", '{"name": "add", "parameters": {"first": 1', 1),
    ("llama3", "<|python_tag|>add.call(first=1)", 1),
    ("mistral", '[TOOL_CALLS] [{"name": "add", "arguments": {"first"', 1),
    ("mistral", '[TOOL_CALLS]add[ARGS]{"first": ', 1),
    ("deepseek", f"{DEEPSEEK_START}<｜tool▁call▁begin｜>add", 1),
    ("harmony", ' to=functions.add<|channel|>commentary json<|message|>{"first": ', 1),
    ("qwen3_coder", "<tool_call>\n<function=add>\n<parameter=first>\n1\n", 1),
    ("qwen3_coder", '<tool_call>{"name": "add", "arguments": {}}</tool_call>', 1),
    ("glm", "<tool_call>add\n<arg_key>first</arg_key>\n<arg_value>1", 1),
    ("pythonic", "<|tool_call_start|>[add(1)]<|tool_call_end|>", 1),
    ("pythonic", "[add(first=", 1),
]


def get_format(name: str) -> ToolFormat:
    tool_format = TOOL_FORMATS.get(name)
    assert isinstance(tool_format, ToolFormat)
    return tool_format


@pytest.mark.parametrize(
    ("name", "written", "text", "calls"), WRITTEN, ids=[f"{w[0]}-{k}" for k, w in enumerate(WRITTEN)]
)
def test_calls_are_read_in_the_format_of_the_family(
    name: str, written: str, text: str, calls: list[tuple[str, Any]]
) -> None:
    parsed = get_format(name).parse(written, read_schemas(TOOLS))
    assert [(call.name, json.loads(call.arguments)) for call in parsed.calls] == calls
    assert parsed.text == text
    assert not any(map(is_malformed, parsed.calls))


@pytest.mark.parametrize(("name", "written", "count"), BROKEN, ids=[f"{w[0]}-{k}" for k, w in enumerate(BROKEN)])
def test_a_call_that_cannot_be_read_stays_a_call(name: str, written: str, count: int) -> None:
    calls = get_format(name).parse(written, {}).calls
    assert len(calls) == count
    assert is_malformed(calls[0])
    assert calls[0].arguments in written


@pytest.mark.parametrize("name", TOOL_FORMATS.names())
@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.sampled_from([
            "words ", "{", "}", '{"name": "add"', ', "arguments": {}}', "[", "]", "(", ")", "\n", "<think>", "</think>", "<tool_call>",
            "</tool_call>", "<function=", "add>", "<parameter=a>", "</parameter>", "</function>", "<arg_key>", "</arg_key>", "<arg_value>",
            "</arg_value>", "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>", "<|message|>", "<|channel|>", "<|start|>", " to=functions.add", "<|call|>",
            "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>", "<|tool_call_start|>", "<|tool_call_end|>", "add(a=", "1",
        ])
    ).map("".join)
)  # fmt: skip
def test_no_text_breaks_a_parser(name: str, text: str) -> None:
    parsed = get_format(name).parse(text, read_schemas(TOOLS))
    if not parsed.calls and name != "harmony":
        assert parsed.text == text


def test_texts_without_calls_are_answers() -> None:
    for name in TOOL_FORMATS.names():
        for text in ('{"answer": 3}', "The list is [1, 2].", "<think>\nnone\n</think>\n\n3", ""):
            assert get_format(name).parse(text, {}).calls == ()
            assert get_format(name).parse(text, {}).text == text
    with pytest.raises(UnknownNameError, match="hermes"):
        TOOL_FORMATS.get("hermess")


@pytest.fixture(scope="module", params=sorted(ENDS))
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def draw_arguments(signs: str) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {},
        optional={
            "first": st.integers(-99, 99),
            "text": st.text(signs, min_size=1, max_size=8).map(str.strip).filter(bool),
            "more": st.lists(st.sampled_from([1, 2.5, -3]), max_size=3),
        },
    )


def test_what_a_template_renders_is_read_back(nano: LoadedModel, family: str) -> None:
    """The format is found from the template. Its calls are read from tokens, as the model would sample them."""
    tokenizer = load_tokenizer(nano, family)
    encoder = ChatEncoder(tokenizer, family, TOOLS)
    assert encoder.tool_format is get_format(FORMATS.get(family, "hermes"))
    if family not in FORMATS:
        assert "You can call these tools" in tokenizer.decode(encoder.encode_opening([Message("user", "Go.")]))
        return
    assert (
        '"add"' in (opening := tokenizer.decode(encoder.encode_opening([Message("user", "Go.")]))) or "add" in opening
    )
    question = [Message("user", "Go.")]
    start = render_conversation(tokenizer, question, TOOLS)

    # LFM2's template does not escape quotes and backslashes.
    drawn = draw_arguments("ab 1é{}" if family == "lfm2_2_5" else "ab 1é{}'\"\\")

    @settings(max_examples=8, deadline=None)
    @given(st.lists(drawn, min_size=1, max_size=min(3, encoder.template.max_calls)))
    def read_back(arguments: list[dict[str, Any]]) -> None:
        calls = tuple(ToolCall("add", json.dumps(a), f"call{k:05d}") for k, a in enumerate(arguments, 1))
        whole = render_conversation(
            tokenizer, [*question, Message("assistant", "", calls)], TOOLS, generation_prompt=False
        )
        written = whole.removeprefix(find_shared_prefix(start, whole)).rstrip()
        for end in ENDS[family]:
            written = written.removesuffix(end)
        message = encoder.decode_message(tokenizer.encode(written, add_special_tokens=False))
        assert [(call.id, call.name, json.loads(call.arguments)) for call in message.tool_calls] == [
            (call.id, call.name, json.loads(call.arguments)) for call in calls
        ]
        assert not message.text.replace("<think>", "").replace("</think>", "").strip()

    read_back()
