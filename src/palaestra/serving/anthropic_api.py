"""Anthropic's Messages API: requests become chat requests, and answers become content blocks."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from palaestra.core.records import Completion, Json, Request, StopReason
from palaestra.core.text import mask
from palaestra.serving.request_bodies import ChatBody, RequestError, StrictBody, convert_body
from palaestra.serving.writers import AnswerWriter, to_event

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_ERRORS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
"""Anthropic's name of an error by its status."""
_STOP_REASONS = {"tool_calls": "tool_use", "length": "max_tokens", "stop": "end_turn"}


class ToolChoice(StrictBody):
    type: Literal["auto", "any", "tool", "none"]
    name: str = ""
    disable_parallel_tool_use: bool = False


class CacheControl(StrictBody):
    """Accepted, because caching cannot change an answer."""

    type: Literal["ephemeral"]
    ttl: str | None = None


class AnthropicTool(StrictBody):
    type: Literal["custom"] | None = None
    name: str
    description: str | None = None
    input_schema: Json
    strict: bool | None = None
    cache_control: CacheControl | None = None


class Thinking(StrictBody):
    """`adaptive` leaves it to the model, which samples freely anyway. A budget of tokens cannot be kept."""

    type: Literal["disabled", "adaptive"]
    display: str | None = None


class ClearedThinking(StrictBody):
    """Keeps all thinking blocks, so it has no effect."""

    type: Literal["clear_thinking_20251015"]
    keep: Literal["all"]


class ContextManagement(StrictBody):
    edits: list[ClearedThinking] | None = None


class OutputConfig(StrictBody):
    """`high` is the effort of calls without one."""

    effort: Literal["high"] | None = None


class CountBody(StrictBody):
    """A conversation whose tokens are counted."""

    model: str = ""
    messages: list[Json] = Field(min_length=1)
    system: str | list[Json] = ""
    tools: list[AnthropicTool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    context_management: ContextManagement | None = None
    output_config: OutputConfig | None = None
    cache_control: CacheControl | None = None

    def to_chat(self) -> ChatBody:
        """Convert to a request for a chat completion.

        Raises:
            RequestError: a block is of a kind that is not supported, or a parameter is invalid.
        """
        system = self.system if isinstance(self.system, str) else _join_texts("system", self.system)
        messages: list[Json] = [{"role": "system", "content": system}] if system else []
        for message in self.messages:
            messages += _to_chat_messages(message)
        if not messages or messages[-1]["role"] == "assistant":
            raise RequestError("messages: expected the last message to be the user's; an answer cannot be prefilled")
        functions = [tool.model_dump(include={"name", "description"}, exclude_none=True) for tool in self.tools or ()]
        data: Json = {"model": self.model, "messages": messages}
        if self.tools:
            data["tools"] = [
                {"type": "function", "function": {**function, "parameters": tool.input_schema}}
                for function, tool in zip(functions, self.tools, strict=True)
            ]
        if (choice := self.tool_choice) is not None:
            named = {"type": "function", "function": {"name": choice.name}}
            data["tool_choice"] = {"any": "required", "tool": named}.get(choice.type, choice.type)
            data["parallel_tool_calls"] = not choice.disable_parallel_tool_use
        return convert_body(data | self._list_options(), ChatBody)

    def _list_options(self) -> Json:
        return {}


class MessagesBody(CountBody):
    """A request for a message."""

    max_tokens: int = Field(ge=1)
    temperature: Annotated[float | None, Field(ge=0, le=1)] = None
    top_p: float | None = None
    top_k: int | None = None
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    metadata: Json | None = None
    service_tier: Literal["auto", "standard_only"] | None = None

    def _list_options(self) -> Json:
        names = ("max_tokens", "temperature", "top_p", "top_k", "stream")
        return {name: getattr(self, name) for name in names} | {"stop": self.stop_sequences}


def _to_chat_messages(message: Json) -> list[Json]:
    """Convert one message. Results of tools become messages of their own."""
    role, content = message.get("role"), message.get("content")
    if role not in ("user", "assistant", "system") or not isinstance(content, (str, list)):
        raise RequestError(
            "messages: expected the role user, assistant or system, and a text or a list of blocks as content"
        )
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    converted: list[Json] = []
    texts: list[Json] = []
    calls: list[Json] = []
    for block in blocks:
        match block:
            case {"type": "text", "text": str()}:
                texts.append(block)
            case {"type": "tool_use", "id": str(id), "name": str(name), "input": dict(given)} if role == "assistant":
                function = {"name": name, "arguments": json.dumps(given, ensure_ascii=False)}
                calls.append({"id": id, "type": "function", "function": function})
            case {"type": "tool_result", "tool_use_id": str(id)} if role == "user":
                result = block.get("content") or ""
                text = result if isinstance(result, str) else _join_texts("tool_result", result)
                converted.append({"role": "tool", "tool_call_id": id, "content": text})
            case _:
                kind = block.get("type") if isinstance(block, dict) else block
                raise RequestError(
                    f"messages: expected blocks of the types text, tool_use (assistant) and tool_result (user); "
                    f"got {str(kind)[:100]} of the {role}"
                )
    if texts or calls:
        text = _join_texts("messages", texts)
        converted.append({"role": role, "content": text} | ({"tool_calls": calls} if calls else {}))
    return converted


def _join_texts(place: str, blocks: Sequence[Any]) -> str:
    if not all(isinstance(block, dict) and isinstance(block.get("text"), str) for block in blocks):
        raise RequestError(f"{place}: expected a text or blocks of the type text")
    return "".join(block["text"] for block in blocks)


class AnthropicWriter(AnswerWriter):
    """Writes a message.

    Arguments:
        stop: the stop sequences of the request.
    """

    def __init__(self, name: str, stop: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> None:
        self.stop, self.tokenizer = stop, tokenizer
        self.envelope: Json = {
            "id": f"msg_{uuid.uuid4().hex[:24]}",
            "type": "message",
            "role": "assistant",
            "model": name,
        }
        self._blocks = 0
        self._has_text = False

    def write_whole(self, choices: list[Json], completions: Sequence[Completion], count: int) -> Json:
        usage = {
            "input_tokens": completions[0].usage.prompt_tokens,
            "output_tokens": completions[0].usage.completion_tokens,
        }
        ending = self._describe_end(choices[0], completions[0])
        return self.envelope | {"content": _list_blocks(choices[0]["message"]), "usage": usage} | ending

    def write_start(self, request: Request) -> Iterator[str]:
        usage = {"input_tokens": len(request.prompt_ids), "output_tokens": 0}
        message = self.envelope | {"content": [], "usage": usage, "stop_reason": None, "stop_sequence": None}
        yield to_event("message_start", message=message)

    def write_text(self, index: int, text: str) -> Iterator[str]:
        if not self._has_text:
            self._has_text = True
            yield from self._write_block_start({"type": "text", "text": ""})
        yield self._write_delta({"type": "text_delta", "text": text})

    def write_choice(self, choice: Json, completion: Completion, rest: str) -> Iterator[str]:
        if rest:
            yield from self.write_text(0, rest)
        if self._has_text:
            yield to_event("content_block_stop", index=self._blocks - 1)
        for block in _list_blocks(choice["message"]):
            if block["type"] == "tool_use":
                yield from self._write_block_start(block | {"input": {}})
                yield self._write_delta({"type": "input_json_delta", "partial_json": json.dumps(block["input"])})
                yield to_event("content_block_stop", index=self._blocks - 1)
        usage = {"output_tokens": completion.usage.completion_tokens}
        yield to_event("message_delta", delta=self._describe_end(choice, completion), usage=usage)

    def write_end(self, completions: Sequence[Completion]) -> Iterator[str]:
        yield to_event("message_stop")

    def write_error(self, error: RequestError) -> str:
        return to_event("error", error=describe_anthropic_error(error)["error"])

    def _write_block_start(self, block: Json) -> Iterator[str]:
        self._blocks += 1
        yield to_event("content_block_start", index=self._blocks - 1, content_block=block)

    def _write_delta(self, delta: Json) -> str:
        return to_event("content_block_delta", index=self._blocks - 1, delta=delta)

    def _describe_end(self, choice: Json, completion: Completion) -> Json:
        reason, sequence = _STOP_REASONS[choice["finish_reason"]], None
        if completion.stop_reason is StopReason.STOP and reason == "end_turn":
            text = str(self.tokenizer.decode(completion.token_ids, skip_special_tokens=True))
            places = [(text.find(stop), stop) for stop in self.stop if stop in text]
            reason, sequence = "stop_sequence", min(places)[1] if places else None
        return {"stop_reason": reason, "stop_sequence": sequence}


def describe_anthropic_error(error: RequestError) -> Json:
    """An error in Anthropic's form."""
    kind = "api_error" if error.status >= 500 else "invalid_request_error"
    return {"type": "error", "error": {"type": _ERRORS.get(error.status, kind), "message": mask(str(error))}}


def _list_blocks(message: Json) -> list[Json]:
    """The content blocks of a message of the chat format."""
    blocks: list[Json] = [{"type": "text", "text": message["content"]}] if message["content"] else []
    for call in message.get("tool_calls", ()):
        function = call["function"]
        given = json.loads(function["arguments"])
        blocks.append({"type": "tool_use", "id": call["id"], "name": function["name"], "input": given})
    return blocks
