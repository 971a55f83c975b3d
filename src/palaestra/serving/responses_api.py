"""OpenAI's Responses API: requests become chat requests, and answers become output items."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

from pydantic import Field

from palaestra.core.records import Completion, Json, Request
from palaestra.serving.request_bodies import ChatBody, RequestError, StrictBody, convert_body
from palaestra.serving.writers import AnswerWriter, describe_error, to_event


class NamedChoice(StrictBody):
    type: Literal["function"]
    name: str


class FunctionTool(StrictBody):
    type: Literal["function"]
    name: str
    description: str | None = None
    parameters: Json | None = None
    strict: bool | None = None


class TextOptions(StrictBody):
    format: Json | None = None


class Reasoning(StrictBody):
    """No summary of the reasoning is written: what the model samples is the answer."""

    effort: Literal["none"] | None = None
    summary: str | None = None


class ResponsesBody(StrictBody):
    """A request for a response. `include`, `metadata`, `client_metadata` and the keys of caches have no effect, because they
    cannot change an answer."""

    model: str | None = None
    input: str | list[Json] = ""
    instructions: str | None = None
    previous_response_id: str | None = None
    tools: list[FunctionTool] | None = None
    tool_choice: Literal["auto", "none", "required"] | NamedChoice | None = None
    parallel_tool_calls: bool | None = None
    max_output_tokens: int | None = Field(None, ge=1)
    temperature: float | None = None
    top_p: float | None = None
    text: TextOptions | None = None
    stream: bool | None = None
    store: bool | None = None
    truncation: Literal["disabled"] | None = None
    background: Literal[False] | None = None
    service_tier: Literal["auto", "default"] | None = None
    include: list[str] | None = None
    reasoning: Reasoning | None = None
    metadata: Json | None = None
    client_metadata: Json | None = None
    user: str | None = None
    prompt_cache_key: str | None = None

    def to_chat(self, earlier: Sequence[Json] = ()) -> ChatBody:
        """Convert to a request for a chat completion.

        Arguments:
            earlier: the messages up to the previous response.

        Raises:
            RequestError: an item is of a kind that is not supported, or a parameter is invalid.
        """
        items = [{"role": "user", "content": self.input}] if isinstance(self.input, str) else self.input
        system = [{"role": "system", "content": self.instructions}] if self.instructions else []
        data: Json = {
            "messages": [*system, *earlier, *_to_chat_messages(items)],
            "max_completion_tokens": self.max_output_tokens,
        }
        for name in ("model", "parallel_tool_calls", "temperature", "top_p", "stream"):
            data[name] = getattr(self, name)
        functions = [tool.model_dump(exclude={"type"}, exclude_none=True) for tool in self.tools or ()]
        data["tools"] = [{"type": "function", "function": function} for function in functions] or None
        data["tool_choice"] = choice = self.tool_choice
        if isinstance(choice, NamedChoice):
            data["tool_choice"] = {"type": "function", "function": {"name": choice.name}}
        form = self.text.format if self.text is not None else None
        if form is not None:
            is_schema = form.get("type") == "json_schema"
            data["response_format"] = {"type": "json_schema", "json_schema": form} if is_schema else form
        return convert_body(data, ChatBody)


def _to_chat_messages(items: Sequence[Json]) -> list[Json]:
    """Convert input items. Function calls belong to the message of the assistant before them."""
    messages: list[Json] = []
    for item in items:
        match item:
            case {"type": "function_call", "call_id": str(id), "name": str(name), "arguments": str(arguments)}:
                if not messages or messages[-1]["role"] != "assistant":
                    messages.append({"role": "assistant", "content": ""})
                function = {"name": name, "arguments": arguments}
                messages[-1].setdefault("tool_calls", []).append({"id": id, "type": "function", "function": function})
            case {"type": "function_call_output", "call_id": str(id), "output": str() | list() as output}:
                messages.append({"role": "tool", "tool_call_id": id, "content": _join_texts(output)})
            case {
                "role": "user" | "assistant" | "system" | "developer" as role,
                "content": str() | list() as content,
            } if item.get("type") in (None, "message"):
                messages.append({"role": role, "content": _join_texts(content)})
            case _:
                raise RequestError(
                    "input: expected items of the types message, function_call and function_call_output; "
                    f"got {str(item.get('type') or item)[:100]}"
                )
    return messages


def _join_texts(content: str | list[Any]) -> str:
    if isinstance(content, str):
        return content
    for part in content:
        if not isinstance(part, dict) or not isinstance(part.get("text"), str):
            kind = part.get("type") if isinstance(part, dict) else part
            raise RequestError(f"input: expected parts of the types input_text and output_text; got {str(kind)[:100]}")
    return "".join(part["text"] for part in content)


class ResponsesWriter(AnswerWriter):
    """Writes a response.

    Arguments:
        on_message: receives the message of the assistant in the chat format.

    Attributes:
        id: the id of the response.
    """

    def __init__(self, body: ResponsesBody, name: str, on_message: Callable[[Json], None]) -> None:
        self.id, self.on_message = f"resp_{uuid.uuid4().hex}", on_message
        names = ("instructions", "previous_response_id", "temperature", "top_p", "max_output_tokens", "metadata")
        self.envelope: Json = {
            "id": self.id,
            "object": "response",
            "created_at": int(time.time()),
            "model": body.model or name,
            "error": None,
            "tools": [tool.model_dump() for tool in body.tools or ()],
            "tool_choice": body.model_dump()["tool_choice"] or "auto",
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            **{name: getattr(body, name) for name in names},
        }
        self._events = 0
        self._item: Json = {}
        """The message whose text is being sent."""
        self._text = ""
        self._end: Json = {}

    def write_whole(self, choices: list[Json], completions: Sequence[Completion], count: int) -> Json:
        message = choices[0]["message"]
        self.on_message(message)
        output = [_make_message(message["content"])] if message["content"] else []
        return self._finish([*output, *_list_calls(message)], choices[0], completions[0])

    def write_start(self, request: Request) -> Iterator[str]:
        response = self.envelope | {"output": [], "status": "in_progress", "incomplete_details": None, "usage": None}
        yield self._to_event("response.created", response=response)
        yield self._to_event("response.in_progress", response=response)

    def write_text(self, index: int, text: str) -> Iterator[str]:
        if not self._item:
            self._item = _make_message("")
            item = self._item | {"content": [], "status": "in_progress"}
            yield self._to_event("response.output_item.added", output_index=0, item=item)
            yield self._write_part("response.content_part.added", part=self._item["content"][0])
        self._text += text
        yield self._write_part("response.output_text.delta", delta=text, logprobs=[])

    def write_choice(self, choice: Json, completion: Completion, rest: str) -> Iterator[str]:
        self.on_message(choice["message"])
        if rest:
            yield from self.write_text(0, rest)
        output: list[Json] = []
        if self._item:
            output = [self._item | {"content": [_make_part(self._text)]}]
            yield self._write_part("response.output_text.done", text=self._text, logprobs=[])
            yield self._write_part("response.content_part.done", part=_make_part(self._text))
            yield self._to_event("response.output_item.done", output_index=0, item=output[0])
        for call in _list_calls(choice["message"]):
            place: Json = {"output_index": len(output), "item_id": call["id"]}
            added = call | {"arguments": "", "status": "in_progress"}
            yield self._to_event("response.output_item.added", output_index=len(output), item=added)
            yield self._to_event("response.function_call_arguments.delta", delta=call["arguments"], **place)
            done = {"arguments": call["arguments"], "name": call["name"]}
            yield self._to_event("response.function_call_arguments.done", **done, **place)
            yield self._to_event("response.output_item.done", output_index=len(output), item=call)
            output.append(call)
        self._end = self._finish(output, choice, completion)

    def write_end(self, completions: Sequence[Completion]) -> Iterator[str]:
        yield self._to_event(f"response.{self._end['status']}", response=self._end)

    def write_error(self, error: RequestError) -> str:
        data = describe_error(error)
        return self._to_event("error", code=data["code"], message=data["message"], param=None)

    def _finish(self, output: list[Json], choice: Json, completion: Completion) -> Json:
        prompt, generated = completion.usage.prompt_tokens, completion.usage.completion_tokens
        is_cut = choice["finish_reason"] == "length"
        return self.envelope | {
            "output": output,
            "status": "incomplete" if is_cut else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "usage": {
                "input_tokens": prompt,
                "input_tokens_details": {"cached_tokens": 0},
                "output_tokens": generated,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": prompt + generated,
            },
        }

    def _write_part(self, kind: str, **data: Any) -> str:
        return self._to_event(kind, item_id=self._item["id"], output_index=0, content_index=0, **data)

    def _to_event(self, kind: str, **data: Any) -> str:
        self._events += 1
        return to_event(kind, sequence_number=self._events - 1, **data)


def _make_part(text: str) -> Json:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _make_message(text: str) -> Json:
    return {
        "id": f"msg_{uuid.uuid4().hex}",
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [_make_part(text)],
    }


def _list_calls(message: Json) -> list[Json]:
    """The function calls of a message of the chat format, as items."""
    return [
        {
            "id": f"fc_{uuid.uuid4().hex}",
            "type": "function_call",
            "status": "completed",
            "call_id": call["id"],
            **call["function"],
        }
        for call in message.get("tool_calls", ())
    ]
