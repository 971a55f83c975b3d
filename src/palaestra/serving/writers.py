"""Write answers in the formats of APIs: whole, and as the events of a stream."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from palaestra.core.records import Completion, Json, Request
from palaestra.core.text import mask
from palaestra.serving.request_bodies import CommonBody, RequestError


class AnswerWriter(Protocol):
    """Writes the answer to one request.

    A choice is the dictionary of OpenAI's format, with the whole text or message.
    """

    def write_whole(self, choices: list[Json], completions: Sequence[Completion], count: int) -> Json:
        """The whole response.

        Arguments:
            count: the number of completions of each prompt.
        """

    def write_start(self, request: Request) -> Iterator[str]:
        """The events before the first token."""

    def write_text(self, index: int, text: str) -> Iterator[str]:
        """The events of a further piece of a text."""

    def write_choice(self, choice: Json, completion: Completion, rest: str) -> Iterator[str]:
        """The events at the end of a choice. `rest` is the text that was not sent yet."""

    def write_end(self, completions: Sequence[Completion]) -> Iterator[str]:
        """The events at the end of the stream."""

    def write_error(self, error: RequestError) -> str:
        """The event of an error."""


class OpenAIWriter(AnswerWriter):
    """Writes OpenAI's completions.

    Arguments:
        kind: `chat.completion` or `text_completion`.
    """

    def __init__(self, body: CommonBody, name: str, kind: str) -> None:
        self.body, self.is_chat = body, kind.startswith("chat")
        if body.stream and self.is_chat:
            kind += ".chunk"
        start = "chatcmpl" if self.is_chat else "cmpl"
        self.envelope = {
            "id": f"{start}-{uuid.uuid4().hex}",
            "object": kind,
            "created": int(time.time()),
            "model": name,
        }

    def write_whole(self, choices: list[Json], completions: Sequence[Completion], count: int) -> Json:
        response = self.envelope | {"choices": choices, "usage": count_usage(completions, count)}
        if self.body.return_token_ids:
            response["prompt_token_ids"] = list(completions[0].prompt_ids)
        return response

    def write_start(self, request: Request) -> Iterator[str]:
        if self.is_chat:
            first = {"role": "assistant", "content": ""}
            choices: list[Json] = [
                {"index": k, "delta": first, "finish_reason": None} for k in range(request.sampling.count)
            ]
            yield self._to_event(choices)

    def write_text(self, index: int, text: str) -> Iterator[str]:
        content = {"delta": {"content": text}} if self.is_chat else {"text": text}
        yield self._to_event([{"index": index, "finish_reason": None, **content}])

    def write_choice(self, choice: Json, completion: Completion, rest: str) -> Iterator[str]:
        if not self.is_chat:
            yield self._to_event([choice | {"text": rest}])
            return
        calls = [call | {"index": k} for k, call in enumerate(choice["message"].get("tool_calls", ()))]
        delta = ({"content": rest} if rest else {}) | ({"tool_calls": calls} if calls else {})
        yield self._to_event([{name: value for name, value in choice.items() if name != "message"} | {"delta": delta}])

    def write_end(self, completions: Sequence[Completion]) -> Iterator[str]:
        if self.body.stream_options is not None and self.body.stream_options.include_usage:
            yield self._to_event([], usage=count_usage(completions, len(completions)))
        yield "data: [DONE]\n\n"

    def write_error(self, error: RequestError) -> str:
        return f"data: {json.dumps({'error': describe_error(error)})}\n\n"

    def _to_event(self, choices: list[Json], **more: Any) -> str:
        return f"data: {json.dumps(self.envelope | {'choices': choices} | more)}\n\n"


def to_event(kind: str, **data: Any) -> str:
    """A server-sent event with a name, as Anthropic's API and the Responses API write it."""
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **data})}\n\n"


def describe_error(error: RequestError) -> Json:
    """An error in OpenAI's form."""
    kind = "server_error" if error.status >= 500 else "invalid_request_error"
    return {"message": mask(str(error)), "type": kind, "code": error.code, "param": None}


def count_usage(completions: Sequence[Completion], per_prompt: int) -> dict[str, int]:
    prompt = sum(completion.usage.prompt_tokens for completion in completions[::per_prompt])
    generated = sum(completion.usage.completion_tokens for completion in completions)
    return {"prompt_tokens": prompt, "completion_tokens": generated, "total_tokens": prompt + generated}
