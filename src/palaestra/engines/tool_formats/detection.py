"""Find the tool format of a model from its chat template."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, cast

from palaestra.core.errors import EnvError
from palaestra.core.records import Message, ToolCall
from palaestra.engines.chat import find_shared_prefix
from palaestra.engines.tool_formats import TOOL_FORMATS
from palaestra.engines.tool_formats.base import ToolFormat

if TYPE_CHECKING:
    from palaestra.engines.chat_template import ChatTemplate

QUESTION = Message("user", "question")
CALL = ToolCall("probe", json.dumps({"value": "words"}), "call00000")


def detect_format(template: ChatTemplate) -> ToolFormat | None:
    """Return the format whose parser reads back the call that the template renders; `None` if there is none.

    A template that offers tools and renders no calls is searched for the marks of each format.
    """
    formats = [cast(ToolFormat, TOOL_FORMATS.get(name)) for name in TOOL_FORMATS.names()]
    if written := _render_call(template):
        readable = (known for known in formats if _reads_call(known, written))
        return next(readable, None)
    source = str(template.tokenizer.chat_template or "") if template.offered_tools else ""
    return next((known for known in formats if known.mark in source), None)


def _render_call(template: ChatTemplate) -> str:
    """The text of a message with one call; empty if the template cannot render it."""
    if not template.max_calls:
        return ""
    try:
        start = template.render([QUESTION])
        whole = template.render([QUESTION, Message("assistant", "", (CALL,))], generation_prompt=False)
    except EnvError:
        return ""
    return whole.removeprefix(find_shared_prefix(start, whole))


def _reads_call(known: ToolFormat, written: str) -> bool:
    calls = known.parse(written, {CALL.name: {"value": {"type": "string"}}}).calls
    return len(calls) == 1 and calls[0].name == CALL.name and json.loads(CALL.arguments) == _read(calls[0].arguments)


def _read(arguments: str) -> object:
    try:
        return json.loads(arguments)
    except ValueError:
        return None
