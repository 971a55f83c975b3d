"""Read the tool calls in a completion, in the format of the model's chat template."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Any

from palaestra.core.records import Completion, ToolCall
from palaestra.engines.chat import offers_tools
from palaestra.engines.chat_template import ChatTemplate
from palaestra.engines.tool_formats.base import ToolFormat, is_malformed, read_schemas, remove_tokens
from palaestra.engines.tool_formats.detection import detect_format
from palaestra.engines.tool_formats.hermes import FORMAT as HERMES


class CallReader:
    """Splits completions into their text and their tool calls.

    Arguments:
        tokenizer: the tokenizer of the model; `None` if it is not known.
        name: the name of the model, for errors.
    """

    def __init__(self, tokenizer: Any, name: str) -> None:
        self.tokenizer, self.name = tokenizer, name
        self._format: ToolFormat | None = None

    def split(self, answer: Completion, tools: str) -> tuple[str, tuple[ToolCall, ...]]:
        """Split a completion. If a call cannot be read, the text is the whole answer and there are no calls.

        Arguments:
            tools: the offered tools as JSON text.
        """
        if self._format is None:
            offered = self.tokenizer is not None and offers_tools(self.tokenizer, tools)
            self._format = (
                detect_format(ChatTemplate(self.tokenizer, self.name, tools)) if offered else None
            ) or HERMES
        parsed = self._format.parse(answer.text, read_schemas(tools))
        text = parsed.text
        if not parsed.calls and answer.token_ids and self.tokenizer is not None:
            # The marks of some formats are special tokens, which are not part of the text.
            written = str(self.tokenizer.decode(answer.token_ids, skip_special_tokens=False))
            parsed = self._format.parse(written, read_schemas(tools))
            text = remove_tokens(parsed.text, self.tokenizer.all_special_tokens)
        if not parsed.calls or any(map(is_malformed, parsed.calls)):
            return answer.text, ()
        return text.strip(), tuple(replace(call, id=f"call_{uuid.uuid4().hex[:24]}") for call in parsed.calls)
