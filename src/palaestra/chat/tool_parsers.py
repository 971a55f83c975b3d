"""Parsers of tool calls, one per format of `palaestra.chat.tool_formats.TOOL_FORMATS`."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from palaestra.chat.tool_formats import ParsedMessage, Schemas, ToolFormat, split_reasoning
from palaestra.core.records import Json, ToolCall, Values

_DECODER = json.JSONDecoder(strict=False)
"""Accepts line breaks inside of strings, which models often write."""


def _parse_hermes(text: str, schemas: Schemas) -> ParsedMessage:
    """JSON objects between `<tool_call>` tags: Hermes, Qwen2.5, Qwen3, and models whose template does not support tools.

    >>> _parse_hermes('Look.<tool_call>{"name": "ls", "arguments": {"all": true}}</tool_call>', {})
    ParsedMessage(text='Look.', calls=(ToolCall(name='ls', arguments='{"all": true}', id=''),))
    """
    return _parse_blocks(text, "<tool_call>", "</tool_call>", _read_json_call)


def _parse_qwen3_coder(text: str, schemas: Schemas) -> ParsedMessage:
    """`<function=NAME>` with a `<parameter=NAME>` for each argument: Qwen3-Coder, Qwen3.5, Nemotron 3.

    >>> written = "<tool_call>\\n<function=add>\\n<parameter=a>\\n1\\n</parameter>\\n</function>\\n</tool_call>"
    >>> _parse_qwen3_coder(written, {}).calls
    (ToolCall(name='add', arguments='{"a": 1}', id=''),)
    """
    reasoning, rest = split_reasoning(text)
    outside, blocks = _cut_blocks(rest, "<function=", "</function>")
    outside, broken = _cut_blocks(outside, "<tool_call>", "</tool_call>")
    calls = [_read_function(block, schemas) for block in blocks]
    calls += [ToolCall("", block.strip()) for block in broken if block.strip()]
    return ParsedMessage(reasoning + outside.rstrip(), tuple(calls)) if calls else ParsedMessage(text)


def _read_function(block: str, schemas: Schemas) -> ToolCall:
    name, separator, body = block.partition(">")
    pairs, rest = _find_pairs(r"<parameter=([^>]*)>\n?(.*?)\n?</parameter>", body)
    if not separator or rest:
        return ToolCall(name.strip() if separator else "", f"<function={block}".strip())
    return ToolCall(name.strip(), _to_json(pairs, schemas.get(name.strip(), {})))


def _parse_glm(text: str, schemas: Schemas) -> ParsedMessage:
    """A name with `<arg_key>` and `<arg_value>` pairs between `<tool_call>` tags: GLM-4.5 and later.

    >>> _parse_glm("<tool_call>add\\n<arg_key>a</arg_key>\\n<arg_value>1</arg_value>\\n</tool_call>", {}).calls
    (ToolCall(name='add', arguments='{"a": 1}', id=''),)
    """

    def read_block(block: str) -> ToolCall:
        pairs, name = _find_pairs(r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>", block)
        if not re.fullmatch(r"[\w.-]+", name):  # Anything else besides the name is a broken argument.
            return ToolCall("", block.strip())
        return ToolCall(name, _to_json(pairs, schemas.get(name, {})))

    return _parse_blocks(text, "<tool_call>", "</tool_call>", read_block)


def _parse_llama3(text: str, schemas: Schemas) -> ParsedMessage:
    """A message that is JSON with a name and parameters: Llama 3.1 and later, and xLAM, which writes a list.

    JSON that does not begin like a call is an answer.

    >>> _parse_llama3('{"name": "add", "parameters": {"a": 1}}', {}).calls
    (ToolCall(name='add', arguments='{"a": 1}', id=''),)
    """
    before, tag, body = text.partition("<|python_tag|>")
    if not tag:
        before, body = "", text
        if not re.match(r"\[?\s*\{\s*\"(name|type|function)\"", text.lstrip()):
            return ParsedMessage(text)
    values, rest = _decode_values(body)
    calls = [call for value in values if (call := _to_call(value)) is not None]
    if not calls or len(calls) < len(values):
        return ParsedMessage(before.rstrip(), (ToolCall("", body.strip()),))
    return ParsedMessage((before + rest).rstrip(), tuple(calls))


def _parse_mistral(text: str, schemas: Schemas) -> ParsedMessage:
    """Calls after `[TOOL_CALLS]`: a JSON list, or in later versions a name, `[ARGS]` and a JSON object.

    >>> _parse_mistral('[TOOL_CALLS] [{"name": "add", "arguments": {"a": 1}}]', {}).calls
    (ToolCall(name='add', arguments='{"a": 1}', id=''),)
    >>> _parse_mistral('[TOOL_CALLS]add[ARGS]{"a": 1}', {}).calls
    (ToolCall(name='add', arguments='{"a": 1}', id=''),)
    """
    before, *parts = text.split("[TOOL_CALLS]")
    calls = [call for part in parts for call in _read_mistral(part)]
    return ParsedMessage(before.rstrip(), tuple(calls)) if calls else ParsedMessage(text)


def _read_mistral(part: str) -> list[ToolCall]:
    name, mark, arguments = part.partition("[ARGS]")
    if mark:
        _, rest = _decode_values(arguments)
        decoded = arguments.strip().removesuffix(rest).strip()
        return [ToolCall(name.partition("[CALL_ID]")[0].strip(), decoded or arguments.strip())]
    values, _ = _decode_values(part)
    return [_to_call(value) or ToolCall("", str(value)) for value in values] or [ToolCall("", part.strip())]


def _parse_deepseek(text: str, schemas: Schemas) -> ParsedMessage:
    """Calls between special tokens: DeepSeek V3, V3.1 and R1.

    V3 writes `function`, the name and a fenced block, V3.1 the name and the arguments.

    >>> written = '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>add<｜tool▁sep｜>{"a": 1}<｜tool▁call▁end｜><｜tool▁calls▁end｜>'
    >>> _parse_deepseek(written, {}).calls
    (ToolCall(name='add', arguments='{"a": 1}', id=''),)
    """
    reasoning, rest = split_reasoning(text)
    outside, blocks = _cut_blocks(rest, "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>")
    before = outside.partition("<｜tool▁calls▁begin｜>")[0]
    return (
        ParsedMessage(reasoning + before.rstrip(), tuple(map(_read_deepseek, blocks)))
        if blocks
        else ParsedMessage(text)
    )


def _read_deepseek(block: str) -> ToolCall:
    name, separator, arguments = block.partition("<｜tool▁sep｜>")
    if name.strip() == "function":
        name, _, arguments = arguments.partition("\n")
    if not separator:
        return ToolCall("", block.strip())
    return ToolCall(name.strip(), re.sub(r"^```(?:json)?\s*|\s*```$", "", arguments.strip()))


def _parse_harmony(text: str, schemas: Schemas) -> ParsedMessage:
    """Messages in channels: gpt-oss. Reasoning is in `analysis`, the answer in `final`; a call has a recipient.

    Reasoning is written between `<think>` tags, as most models do.

    >>> _parse_harmony('<|channel|>analysis<|message|>Two.<|end|><|start|>assistant<|channel|>final<|message|>2', {})
    ParsedMessage(text='<think>\\nTwo.\\n</think>\\n\\n2', calls=())
    >>> _parse_harmony(' to=functions.add<|channel|>commentary json<|message|>{"a": 1}', {}).calls
    (ToolCall(name='add', arguments='{"a": 1}', id=''),)
    """
    end = r"(?:<\|end\|>|<\|call\|>|<\|return\|>|(?=<\|start\|>)|$)"
    parts = re.findall(rf"(.*?)<\|message\|>(.*?){end}", text, re.DOTALL)
    if not parts:
        return ParsedMessage(text)
    reasoning: list[str] = []
    words: list[str] = []
    calls: list[ToolCall] = []
    for header, body in parts:
        if recipient := re.search(r"to=(?:functions\.)?([^\s<]+)", header):
            calls.append(ToolCall(recipient[1], body.strip()))
        elif "<|channel|>analysis" in header:
            reasoning.append(body)
        else:
            words.append(body)
    thoughts = "<think>\n" + "\n".join(reasoning) + "\n</think>\n\n" if reasoning else ""
    return ParsedMessage(thoughts + "\n".join(words), tuple(calls))


def _parse_pythonic(text: str, schemas: Schemas) -> ParsedMessage:
    """A list of Python calls: LFM2 (between special tokens), Llama 4, ToolACE (the whole message).

    >>> _parse_pythonic('Look.<|tool_call_start|>[add(a=1), ls()]<|tool_call_end|>', {}).calls
    (ToolCall(name='add', arguments='{"a": 1}', id=''), ToolCall(name='ls', arguments='{}', id=''))
    """
    reasoning, rest = split_reasoning(text)
    before, mark, body = rest.partition("<|tool_call_start|>")
    if not mark:
        before, body = "", rest
        if not re.match(r"\[\s*[A-Za-z_][\w.]*\(", rest.lstrip()):
            return ParsedMessage(text)
    body, _, after = body.partition("<|tool_call_end|>")
    return ParsedMessage(reasoning + (before + after).rstrip(), tuple(_read_python_list(body.strip())))


def _read_python_list(body: str) -> list[ToolCall]:
    # Without an end mark, special tokens may follow the list.
    written = body[: body.rfind("]") + 1]
    try:
        tree = ast.parse(written, mode="eval").body
        if not isinstance(tree, ast.List) or not tree.elts:
            raise ValueError("not a list of calls")
        return [_read_python_call(node) for node in tree.elts]
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return [ToolCall("", body)]


def _read_python_call(node: ast.expr) -> ToolCall:
    if not isinstance(node, ast.Call) or node.args or any(keyword.arg is None for keyword in node.keywords):
        raise ValueError("not a call with named arguments")
    values = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in node.keywords}
    return ToolCall(ast.unparse(node.func), json.dumps(values, ensure_ascii=False))


def _parse_blocks(text: str, start: str, end: str, read: Callable[[str], ToolCall]) -> ParsedMessage:
    """Parse a message in which every call is a block between two marks."""
    reasoning, rest = split_reasoning(text)
    outside, blocks = _cut_blocks(rest, start, end)
    return ParsedMessage(reasoning + outside.rstrip(), tuple(map(read, blocks))) if blocks else ParsedMessage(text)


def _cut_blocks(text: str, start: str, end: str) -> tuple[str, list[str]]:
    """Cut the blocks between two marks out of a text. A block without an end reaches to the next one.

    >>> _cut_blocks("Look. <a>1</a><a>2", "<a>", "</a>")
    ('Look. ', ['1', '2'])
    """
    outside, *parts = text.split(start)
    blocks = []
    for part in parts:
        block, _, rest = part.partition(end)
        blocks.append(block)
        outside += rest
    return outside, blocks


def _read_json_call(text: str) -> ToolCall:
    """Read a call that is one JSON object: a name, and `arguments` or `parameters`."""
    try:
        value = _DECODER.decode(text.strip())
    except (ValueError, RecursionError):
        value = None
    return _to_call(value) or ToolCall("", text.strip())


def _to_call(value: Any) -> ToolCall | None:
    """Return the call in a JSON value; `None` if it is no call."""
    if isinstance(value, dict) and isinstance(value.get("function"), dict):
        value = value["function"]
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return None
    arguments = value.get("arguments", value.get("parameters", {}))
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return ToolCall(value["name"], text)


def _decode_values(text: str) -> tuple[list[Any], str]:
    """Decode the JSON values at the start of a text, one after the other. Returns them and the rest of the text.

    The elements of a list are separate values.

    >>> _decode_values('{"a": 1}; [{"b": 2}] words')
    ([{'a': 1}, {'b': 2}], 'words')
    """
    values: list[Any] = []
    rest = text.lstrip()
    while rest.startswith(("{", "[")):
        try:
            value, length = _DECODER.raw_decode(rest)
        except (ValueError, RecursionError):
            break
        values += value if isinstance(value, list) else [value]
        rest = rest[length:].lstrip("; ,\n")
    return values, rest


def _find_pairs(pattern: str, text: str) -> tuple[list[tuple[str, str]], str]:
    """Find the names and values of tagged arguments. Returns them, and the text that is not part of any."""
    tag = re.compile(pattern, re.DOTALL)
    return [(match[1].strip(), match[2]) for match in tag.finditer(text)], tag.sub("", text).strip()


def _to_json(pairs: Sequence[tuple[str, str]], properties: Values) -> str:
    """Return tagged arguments as JSON text. A value is a text if the tool's schema says so or it is not JSON.

    >>> _to_json([("n", "3"), ("code", "3")], {"code": {"type": "string"}})
    '{"n": 3, "code": "3"}'
    """
    values: Json = dict(pairs)
    for name, text in pairs:
        if properties.get(name, {}).get("type") != "string":
            with suppress(ValueError, RecursionError):
                values[name] = json.loads(text)
    return json.dumps(values, ensure_ascii=False)


HERMES = ToolFormat("<tool_call>", _parse_hermes)
QWEN3_CODER = ToolFormat("<function=", _parse_qwen3_coder)
GLM = ToolFormat("<arg_key>", _parse_glm)
LLAMA3 = ToolFormat("<|python_tag|>", _parse_llama3)
MISTRAL = ToolFormat("[TOOL_CALLS]", _parse_mistral)
DEEPSEEK = ToolFormat("<｜tool▁call▁begin｜>", _parse_deepseek)
HARMONY = ToolFormat("<|channel|>", _parse_harmony, has_channels=True)
PYTHONIC = ToolFormat("<|tool_call_start|>", _parse_pythonic)
