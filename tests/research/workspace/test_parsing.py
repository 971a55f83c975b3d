"""Output parsers: accepted messages, format errors, and robustness."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from timing import measure

from palaestra.core.errors import UnknownNameError
from palaestra.core.records import ImagePart, Message, TextPart, ToolCall
from palaestra.research.workspace.parsing import PARSERS, Action, FormatError, make_parser


def parse(name: str, text: str) -> Action | FormatError:
    return make_parser(name)(Message("assistant", text))


def parse_text(name: str, text: str) -> str:
    action = parse(name, text)
    assert isinstance(action, Action), action
    return action.text


def parse_error(name: str, text: str) -> str:
    result = parse(name, text)
    assert isinstance(result, FormatError), result
    return result.message


def test_every_parser_follows_its_own_instructions() -> None:
    assert PARSERS.names() == ["identity", "json", "last_block", "one_block", "tool_call", "xml"]
    for name in ("last_block", "one_block", "xml", "json"):
        assert parse_text(name, make_parser(name).instructions) == "ls -la"
    with pytest.raises(UnknownNameError, match="'last_block'"):
        make_parser("lastblock")


def test_the_last_block_is_the_action_and_the_rest_is_thought() -> None:
    action = parse("last_block", "First this.\n```bash\nls\n```\nThen this.\n```\ncd x\npwd\n```\nDone.")
    assert action == Action("cd x\npwd", thought="First this.\n```bash\nls\n```\nThen this.\n\nDone.")
    assert parse_text("last_block", "~~~sh\nls\n~~~") == "ls"
    assert parse_text("last_block", "  1. so:\n     ```sh\n     ls\n     ```") == "     ls"
    assert parse_text("last_block", "a\r\n```\r\nls\r\npwd\r\n```\r\n") == "ls\npwd"


def test_exactly_one_block_is_exactly_one() -> None:
    assert parse_text("one_block", "Now:\n```\nls\n```") == "ls"
    assert "your message has 2" in parse_error("one_block", "```\nls\n```\n```\npwd\n```")


@pytest.mark.parametrize("name", ["last_block", "one_block"])
@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("````\ncat <<X\n```\ncode\n```\nX\n````", "cat <<X\n```\ncode\n```\nX"),
        ("```bash\ncat > README.md <<'EOF'\n# T\n```\nplain fence\n```\nEOF\nls\n```", "cat > README.md <<'EOF'\n# T\n```\nplain fence\n```\nEOF\nls"),
        ("```\ncreate README.md\n# T\n```\nx\n```\nend_of_file\n```", "create README.md\n# T\n```\nx\n```\nend_of_file"),
        ("```\nedit 1:2\n```python\nend_of_edit\n```", "edit 1:2\n```python\nend_of_edit"),
        ("```markdown\ntext\n```python\nprint()\n```\nmore\n```", "text\n```python\nprint()\n```\nmore"),
        ("```\necho `date` ``\n```", "echo `date` ``"),
        ("```\ncat <<EOF\nno end\n```", "cat <<EOF\nno end"),
        ("Use `ls` or ```inline```.\n```\nls\n```", "ls"),
        ("```\n\n  indented\n\n```", "\n  indented\n"),
    ],
)  # fmt: skip
def test_fences_within_a_command_are_text(name: str, text: str, action: str) -> None:
    assert parse_text(name, text) == action


@pytest.mark.parametrize("name", ["last_block", "one_block"])
def test_messages_without_a_whole_block_are_told_what_to_do(name: str) -> None:
    assert "your message has none" in parse_error(name, "I would run ls.")
    assert "your message has none" in parse_error(name, "")
    assert "not closed" in parse_error(name, "```\nls\n")
    assert "not closed" in parse_error(name, "```\nls\n```\nthen\n```bash\nrm -r")
    assert "not closed" in parse_error(name, "```bash\nls\n```bash\npwd\n```")
    assert "empty" in parse_error(name, "```\n  \n```")


def test_what_a_reasoning_model_thinks_is_no_action() -> None:
    output = "```\nls\n```"
    for thought in (f"<think>maybe\n{output}\n</think>\n", f"maybe\n{output}\n</think>\n"):
        action = parse("one_block", thought + "So:\n```\npwd\n```")
        assert action == Action("pwd", thought=f"maybe\n{output}\n\nSo:")
    unfinished = parse("last_block", f"<think>still thinking\n{output}")
    assert isinstance(unfinished, FormatError)
    assert unfinished.thought.startswith("still thinking")


def test_xml() -> None:
    assert parse("xml", "I look.\n<command>\nls -la\n</command>\nOK") == Action("ls -la", thought="I look.\n\nOK")
    assert parse_text("xml", "<command>echo a && echo 'b < c' > d</command>") == "echo a && echo 'b < c' > d"
    assert parse_text("xml", "<command>\necho '<command>x</command>'\n</command>") == "echo '<command>x</command>'"
    assert parse_text("xml", "<command>\n  indented\n</command>") == "  indented"
    assert "has none" in parse_error("xml", "ls")
    assert "has 2" in parse_error("xml", "<command>a</command><command>b</command>")
    assert "without its </command>" in parse_error("xml", "<command>ls")
    assert "empty" in parse_error("xml", "<command> </command>")
    assert "has none" in parse_error("xml", "</command>ls")


def test_json() -> None:
    assert parse("json", '{"thought": "why", "command": "ls"}') == Action("ls", thought="why")
    assert parse("json", 'Well.\n```json\n{"command": "echo \\"a\\"\\nls"}\n```') == Action('echo "a"\nls')
    assert parse_text("json", '{"command": "a\nb"}') == "a\nb"  # a line break that should be escaped
    assert parse_text("json", 'with {braces} first {"command": "ls"}') == "ls"
    call = parse("json", '{"thought": 1, "command": {"name": "open", "arguments": {"path": "x"}}}')
    assert call == Action(calls=(ToolCall("open", '{"path": "x"}'),), thought="1")
    assert "none that can be read" in parse_error("json", '{"command": "ls')
    assert "none that can be read" in parse_error("json", '{"cmd": "ls"}')
    assert "got 5" in parse_error("json", '{"command": 5}')
    assert "got " in parse_error("json", '{"command": " "}')


def test_tool_calls_of_the_message_go_first() -> None:
    calls = (ToolCall("open", '{"path": "x"}', "1"), ToolCall("bash", "no json", "2"))
    assert make_parser("tool_call")(Message("assistant", " so ", calls)) == Action(calls=calls, thought="so")


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call>',
        '<tool_call>{"name": "bash", "arguments": {"command": "ls"}}',
        '<tool_call><function=bash><parameter=command>\nls\n</parameter></function></tool_call>',
        '<function=bash>{"command": "ls"}</function>',
        "<function=bash>\n<parameter=command>\nls\n</parameter>\n</function>",
        '[TOOL_CALLS][{"name": "bash", "arguments": {"command": "ls"}}]',
        '<|python_tag|>{"name": "bash", "parameters": {"command": "ls"}}',
        '{"name": "bash", "arguments": {"command": "ls"}}',
        '```json\n{"type": "function", "function": {"name": "bash", "arguments": "{\\"command\\": \\"ls\\"}"}}\n```',
    ],
)  # fmt: skip
def test_calls_in_text_are_read_in_the_forms_of_local_models(text: str) -> None:
    action = parse("tool_call", text)
    assert isinstance(action, Action), action
    (call,) = action.calls
    assert (call.name, json.loads(call.arguments), call.id) == ("bash", {"command": "ls"}, "call_1")
    if not text.startswith("```"):
        action = parse("tool_call", f"<think>hm</think>I look.\n{text}")
        assert isinstance(action, Action)
        assert action.thought == "hm\n\nI look."


def test_several_calls_and_broken_ones() -> None:
    item = '<tool_call>{"name": "open", "arguments": {"path": "a </tool_call> b"}}</tool_call>'
    action = parse("tool_call", f"{item}\n{item}")
    assert isinstance(action, Action)
    assert [json.loads(call.arguments) for call in action.calls] == [{"path": "a </tool_call> b"}] * 2
    assert [call.id for call in action.calls] == ["call_1", "call_2"]
    code = parse(
        "tool_call",
        "<function=create><parameter=path>x.html</parameter><parameter=text><a>\n</a>\n</parameter></function>",
    )
    assert isinstance(code, Action)
    assert json.loads(code.calls[0].arguments) == {"path": "x.html", "text": "<a>\n</a>"}
    assert "this is not: '<tool_call>{bash: ls}" in parse_error("tool_call", "<tool_call>{bash: ls}</tool_call>")
    assert "this is not: '<tool_call>{bash: ls}" in parse_error(
        "tool_call", f"<tool_call>{{bash: ls}}</tool_call>\n{item}"
    )
    assert "has none" in parse_error("tool_call", "ls")
    assert "this is not" in parse_error("tool_call", "[TOOL_CALLS] ls")
    assert "this is not" in parse_error("tool_call", "<function=bash>ls</function>")


def test_identity_takes_everything() -> None:
    assert parse_text("identity", "edit 1:1\r\nx\r\nend_of_edit\n") == "edit 1:1\nx\nend_of_edit"
    assert "empty" in parse_error("identity", " \n")


def test_images_are_no_text() -> None:
    message = Message("assistant", (TextPart("```\nls\n"), ImagePart("x.png"), TextPart("```")))
    assert make_parser("last_block")(message) == Action("ls")


PIECES = st.sampled_from(
    ["```", "````", "~~~", "```bash", "\n", "\r\n", " ", "<command>", "</command>", "<tool_call>", "</tool_call>", "<function=f>", "</function>",
     "<parameter=p>", "</parameter>", '{"command": "ls"}', '{"name": "f", "arguments": {}}', '{"name": "f", "arguments": [[', "{", "}", "[", '"', "\\",
     "<think>", "</think>", "[TOOL_CALLS]", "cat <<EOF", "EOF", "edit 1:1", "end_of_edit", "\0", "\ud800", "é", "\u2028"]
)  # fmt: skip


@settings(max_examples=300)
@given(st.lists(PIECES, max_size=40).map("".join) | st.text())
def test_no_message_breaks_a_parser(text: str) -> None:
    for name in PARSERS.names():
        result = parse(name, text)
        if isinstance(result, Action):
            assert result.text.strip() or result.calls
        else:
            assert result.message


@pytest.mark.parametrize("name", ["last_block", "one_block", "xml", "json", "tool_call", "identity"])
@pytest.mark.parametrize(
    "piece",
    ["```\n", "```bash\n", "`", "``` `", "x <<A\n", "x <<'", "<command>", "</command>", "{", '{"', "[[{", '{"a":', "<tool_call>{", "</tool_call>",
     '<tool_call>{"', "<function=f>", "<parameter=p>", "<think>", "[TOOL_CALLS]{", " " * 20 + "```" + " " * 20 + "`\n"],
)  # fmt: skip
def test_parsers_are_linear_in_the_length_of_a_text(name: str, piece: str) -> None:
    parser, text = make_parser(name), piece * (200_000 // len(piece))
    assert measure(lambda: parser(Message("assistant", text))) < 1.0
