"""A list of Python calls: LFM2 (between special tokens), Llama 4, ToolACE (the whole message)."""

from __future__ import annotations

import ast
import json
import re

from palaestra.core.records import ToolCall
from palaestra.engines.tool_formats.base import ParsedMessage, Schemas, ToolFormat, split_reasoning

_START, _END = "<|tool_call_start|>", "<|tool_call_end|>"
_LIST = re.compile(r"\[\s*[A-Za-z_][\w.]*\(")


def parse_pythonic(text: str, schemas: Schemas) -> ParsedMessage:
    """Parse a message.

    >>> parse_pythonic('Look.<|tool_call_start|>[add(a=1), ls()]<|tool_call_end|>', {}).calls
    (ToolCall(name='add', arguments='{"a": 1}', id=''), ToolCall(name='ls', arguments='{}', id=''))
    """
    reasoning, rest = split_reasoning(text)
    before, mark, body = rest.partition(_START)
    if not mark:
        before, body = "", rest
        if not _LIST.match(rest.lstrip()):
            return ParsedMessage(text)
    body, _, after = body.partition(_END)
    return ParsedMessage(reasoning + (before + after).rstrip(), tuple(_read_list(body.strip())))


def _read_list(body: str) -> list[ToolCall]:
    # Without an end mark, special tokens may follow the list.
    written = body[: body.rfind("]") + 1]
    try:
        tree = ast.parse(written, mode="eval").body
        if not isinstance(tree, ast.List) or not tree.elts:
            raise ValueError("not a list of calls")
        return [_read_call(node) for node in tree.elts]
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return [ToolCall("", body)]


def _read_call(node: ast.expr) -> ToolCall:
    if not isinstance(node, ast.Call) or node.args or any(keyword.arg is None for keyword in node.keywords):
        raise ValueError("not a call with named arguments")
    values = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in node.keywords}
    return ToolCall(ast.unparse(node.func), json.dumps(values, ensure_ascii=False))


FORMAT = ToolFormat(_START, parse_pythonic)
