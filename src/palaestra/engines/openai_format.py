"""What goes over the wire and what comes back, in the chat format that OpenAI set. No network here."""

from __future__ import annotations

import base64
import json
import mimetypes
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from palaestra.core.errors import EngineError
from palaestra.core.records import (
    Completion,
    Failure,
    FailureCause,
    ImagePart,
    Message,
    StopReason,
    TextPart,
    ToolCall,
    Usage,
)
from palaestra.core.seeding import Seeds
from palaestra.engines.base import Answer, Request
from palaestra.engines.openai_endpoint import Endpoint
from palaestra.engines.retry import server_wish
from palaestra.engines.schemas import instruct, response_format

OPTIONAL = ("temperature", "top_p", "seed", "stop", "logprobs", "response_format", "return_token_ids")
"""What can be left out of a request where a server refuses it. `stop` is then applied to the text that comes back,
and a schema is asked for in words; of the others the engine says that they have no effect."""
LIMITS = ("max_completion_tokens", "max_tokens")
"""The two names of the token limit. Some servers know only the one, some only the other."""
_TOO_LONG = re.compile(
    r"context.{0,12}(length|window|size)|too many tokens|maximum.{0,20}tokens|too long", re.IGNORECASE
)
MOST_TOKENS = 10**9
"""Of one call; a server that bills for more is wrong."""
REASONING = ("reasoning_content", "reasoning")
"""Fields of a message in which servers put what a model thought; it may have thought only."""
_FILTERED = ("content_filter", "content_policy_violation", "ResponsibleAIPolicyViolation")


class BrokenAnswerError(Exception):
    """The server sent something that is no chat completion.

    Arguments:
        usage: what the server billed for it, if it said so.
        silent: whether not even the header of an answer arrived.
    """

    def __init__(self, message: str, usage: Usage | None = None, silent: bool = False) -> None:
        super().__init__(message)
        self.usage, self.silent = usage, silent


@dataclass(frozen=True, slots=True)
class Dialect:
    """Which of the format's options a server understands: learned from what it refuses."""

    limit: str = "max_tokens"
    without: frozenset[str] = frozenset()


def body(
    endpoint: Endpoint, request: Request, sample: int, dialect: Dialect, extra: Mapping[str, Any]
) -> dict[str, Any]:
    """The JSON of one call: one completion of the request.

    Raises:
        ValueError: an image of the request cannot be read.
    """
    if request.prompt_ids:
        raise ValueError("a chat service takes messages; token ids can be continued only by a model on this machine")
    sampling, messages = request.sampling, request.messages
    options: dict[str, Any] = {"temperature": sampling.temperature, **extra}
    if sampling.top_p < 1:
        options["top_p"] = sampling.top_p
    if sampling.top_k:
        options["top_k"] = sampling.top_k
    if sampling.temperature > 0:
        # Some servers keep 32 bits of a seed, and some refuse more.
        options["seed"] = Seeds(request.seed).derive("completion", sample).integer() & 0x7FFFFFFF
    if sampling.stop:
        options["stop"] = list(sampling.stop)
    if request.schema:
        options["response_format"] = response_format(request.schema)
        if "response_format" in dialect.without:
            messages = instruct(messages, request.schema)
    if request.tools:
        options["tools"] = json.loads(request.tools)
    return {
        "model": endpoint.model,
        "messages": chat_messages(messages),
        dialect.limit: sampling.max_tokens,
        **{name: value for name, value in options.items() if name not in dialect.without},
    }


def chat_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """A conversation in the format, as plain dictionaries, in which a tool's message must answer a call that was made before it.

    One that answers none is to the model what it is told. Some servers refuse a call without an answer: those that
    the conversation leaves open are not sent.
    """
    made = {call.id for message in messages for call in message.tool_calls}
    answered = {message.tool_call_id for message in messages if message.role == "tool" and message.tool_call_id in made}
    return [_message(message, answered) for message in messages]


def _message(message: Message, answered: Collection[str]) -> dict[str, Any]:
    calls = [call for call in message.tool_calls if call.id in answered]
    if calls:
        return {
            "role": message.role,
            "content": message.text or None,
            "tool_calls": [chat_call(call) for call in calls],
        }
    if message.role == "tool" and message.tool_call_id in answered:
        return {"role": "tool", "tool_call_id": message.tool_call_id, "content": message.text}
    role = "user" if message.role == "tool" else message.role
    if isinstance(message.content, str):
        return {"role": role, "content": message.content}
    parts = [
        {"type": "text", "text": part.text}
        if isinstance(part, TextPart)
        else {"type": "image_url", "image_url": {"url": image_address(part)}}
        for part in message.content
    ]
    return {"role": role, "content": parts}


def chat_call(call: ToolCall) -> dict[str, Any]:
    """A call of a tool in the format."""
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def assistant_message(said: Mapping[str, Any]) -> Message:
    """An assistant's message from the format, as a server answers it.

    Raises:
        ValueError: it is none; says what is wrong with it.
    """
    try:
        content = said.get("content")
        if isinstance(content, list):
            content = "".join(part["text"] for part in content)
        if said["role"] != "assistant" or not isinstance(content, str | None):
            raise TypeError(f"role '{said['role']}' with content of type {type(content).__name__}")
        return Message("assistant", content or "", tuple(_call(call) for call in said.get("tool_calls") or ()))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"an assistant's message has the role 'assistant', a text and perhaps tool_calls; {type(error).__name__}: {error}"
        ) from error


def message_of(said: Mapping[str, Any]) -> Message:
    """A message of any role from the format, as `chat_messages` writes it.

    Raises:
        ValueError: it is none; says what is wrong with it.
    """
    role, content = said.get("role"), said.get("content")
    if role == "assistant":
        return assistant_message(said)
    if role not in ("system", "user", "tool"):
        raise ValueError(f"a message has the role system, user, assistant or tool; got {role!r}")
    if isinstance(content, (list, tuple)):
        parts = tuple(_part(part) for part in content)
        texts = [part.text for part in parts if isinstance(part, TextPart)]
        content = "".join(texts) if len(texts) == len(parts) else parts
    if not isinstance(content, (str, tuple)):
        raise ValueError(f"a message of the {role} has a text, or a list of parts; got {type(content).__name__}")
    return Message(role, content, tool_call_id=str(said.get("tool_call_id") or ""))


def _part(said: Any) -> TextPart | ImagePart:
    match said:
        case {"type": "text", "text": str(text)}:
            return TextPart(text)
        case {"type": "image_url", "image_url": {"url": str(url)}}:
            return ImagePart(url)
    raise ValueError("a part of a message is of the type text, with its text, or image_url, with its url")


def image_address(part: ImagePart) -> str:
    """The image as an address that a server far away can read: a file becomes a `data:` address.

    Raises:
        ValueError: there is no such file.
    """
    if part.url.startswith(("http://", "https://", "data:")):
        return part.url
    path = Path(unquote(urlsplit(part.url).path) if part.url.startswith("file:") else part.url)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ValueError(f"the image {path} cannot be read: {error.strerror or error}") from error
    kind = mimetypes.guess_type(path.name)[0] or "image/png"
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def read(data: Any, stop: Sequence[str] = ()) -> tuple[Answer, Usage | None]:
    """The answer in a server's JSON, and what it was billed for, if that is said.

    An answer with an impossible `usage` is a failure: its cost is unknown, and another call would say the same.

    Raises:
        BrokenAnswerError: it is no chat completion; has the `usage` that the server billed.
    """
    usage: Usage | None = None
    try:
        try:
            usage = read_usage(data.get("usage"))
        except ValueError as error:
            return Failure(FailureCause.MALFORMED, str(error)), None
        if not data.get("choices"):
            reported = data.get("error")  # Some gateways report errors with the status 200.
            words = reported.get("message") if isinstance(reported, Mapping) else reported
            raise ValueError("it has no choices" + (f"; the server says: {str(words)[:300]}" if words else ""))
        choice = data["choices"][0]
        message, finish = choice["message"], choice.get("finish_reason")
        text = message.get("content")
        if message.get("refusal"):
            return Failure(FailureCause.REFUSED, f"the model refused: {str(message['refusal'])[:300]}"), usage
        if finish == "content_filter":
            return Failure(FailureCause.REFUSED, "a content filter stopped the answer"), usage
        if isinstance(text, list):  # Some servers answer in parts.
            text = "".join(part.get("text", "") for part in text)
        if text is not None and not isinstance(text, str):
            raise TypeError(f"the content is of type {type(text).__name__}")
        if text is None and not (message.get("tool_calls") or finish == "length" or any(map(message.get, REASONING))):
            said = "the answer has no content: it is null, without a tool call, a refusal or a reasoning"
            return Failure(FailureCause.MALFORMED, said), usage
        text, ids = text or "", tuple(int(token) for token in choice.get("token_ids") or ())
        calls = tuple(_call(call) for call in message.get("tool_calls") or ())
        listed = (choice.get("logprobs") or {}).get("content") or ()
        logprobs = tuple(float(token["logprob"]) for token in listed)
        prompt = tuple(int(token) for token in data.get("prompt_token_ids") or ())
        stopped = isinstance(choice.get("stop_reason"), str)  # vLLM: the string that ended it.
    except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
        raise BrokenAnswerError(f"no chat completion: {type(error).__name__}: {error}", usage) from error
    for end in stop:
        before, found, _ = text.partition(end)
        if found:
            text, stopped = before, True
    reason = StopReason.LENGTH if finish == "length" and not stopped else StopReason.STOP if stopped else StopReason.END
    return Completion(text, ids, logprobs, reason, usage or Usage(), prompt, calls), usage


def _call(said: Any) -> ToolCall:
    """A call as a server gives it; the arguments of some are an object, and some number no calls."""
    arguments = said["function"].get("arguments") or "{}"
    written = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return ToolCall(str(said["function"]["name"]), written, str(said.get("id") or ""))


def read_usage(data: Any) -> Usage | None:
    """The tokens that a server billed; `None` if it does not say.

    Raises:
        ValueError: a count is no whole number from 0 to `MOST_TOKENS`.

    >>> read_usage({"prompt_tokens": 3, "completion_tokens": 2})
    Usage(prompt_tokens=3, completion_tokens=2)
    """
    if data is None:
        return None
    if not isinstance(data, dict):
        raise ValueError(f"the server's usage is no object of token counts; got {str(data)[:80]}")
    counts = [data.get(name) for name in ("prompt_tokens", "completion_tokens")]
    for count in counts:
        whole = type(count) is int or (isinstance(count, float) and count.is_integer())
        if count is not None and not (whole and 0 <= count <= MOST_TOKENS):
            raise ValueError(f"the server's usage has an impossible token count: {str(count)[:80]}")
    return None if counts == [None, None] else Usage(int(counts[0] or 0), int(counts[1] or 0))


@dataclass(frozen=True, slots=True)
class Trouble:
    """What a call that failed means.

    Arguments:
        failure: what the slot gets, if this was its last call.
        again: whether the same call may go well later.
        wish: seconds that the server asks to wait.
        refused: an option of the call that the server does not understand.
        fatal: what ends the run, because every other call will fail in the same way.
        billed: whether tokens may have been billed that nobody knows of.
        connected: whether a server answered anything at all.
    """

    failure: Failure
    again: bool = False
    wish: float | None = None
    refused: str = ""
    fatal: EngineError | None = None
    billed: bool = False
    connected: bool = True


def trouble(error: Exception, endpoint: Endpoint, sent: Mapping[str, Any]) -> Trouble:
    """Read the error of a call: the client's, the network's, or `BrokenAnswerError`."""
    status = getattr(error, "status_code", None)
    if not isinstance(status, int):
        # No answer, or none that can be read: the connection, a time limit, a proxy. It may go well next time.
        cause = error.__cause__ if error.__cause__ is not None else error
        said = str(error) if isinstance(error, BrokenAnswerError) else f"{type(cause).__name__}: {cause}"
        failure = Failure(FailureCause.UNAVAILABLE, f"{endpoint.name}: {said.strip().rstrip(':')[:300]}")
        connected = type(cause).__name__ not in ("ConnectError", "ConnectTimeout")
        answered = connected and not (isinstance(error, BrokenAnswerError) and error.silent)
        return Trouble(failure, again=True, billed=connected, connected=answered)
    said, code = _said(error), str(getattr(error, "code", None) or "")
    line = f"{endpoint.name} answered {status}: {said}"
    if status in (401, 403):
        fatal = EngineError(f"{endpoint.name} does not accept the key in {endpoint.variable} ({status}: {said})")
        return Trouble(Failure(FailureCause.ENGINE, line), fatal=fatal)
    if status == 404:
        fatal = EngineError(f"there is no model '{endpoint.model}' at {endpoint.url} ({status}: {said})")
        return Trouble(Failure(FailureCause.ENGINE, line), fatal=fatal)
    if code == "insufficient_quota":
        fatal = EngineError(f"the account behind {endpoint.variable} has no credit left ({status}: {said})")
        return Trouble(Failure(FailureCause.UNAVAILABLE, line), fatal=fatal)
    if status in (408, 409, 429) or status >= 500:
        wish = server_wish(getattr(getattr(error, "response", None), "headers", {}))
        return Trouble(Failure(FailureCause.UNAVAILABLE, line), again=True, wish=wish)
    if code in _FILTERED:
        return Trouble(Failure(FailureCause.REFUSED, line))
    if code == "context_length_exceeded":
        return Trouble(Failure(FailureCause.CONTEXT_LENGTH, line))
    if refused := _refused(error, said, sent):
        return Trouble(Failure(FailureCause.INVALID_REQUEST, line), refused=refused)
    cause_of = FailureCause.CONTEXT_LENGTH if _TOO_LONG.search(said) else FailureCause.INVALID_REQUEST
    return Trouble(Failure(cause_of, line))


def _said(error: Exception) -> str:
    """What the server said, in one line."""
    found = getattr(error, "body", None)
    if isinstance(found, dict):
        found = found.get("message") or found.get("error") or found.get("detail")
    return " ".join(str(found or error).split())[:300]


def _refused(error: Exception, said: str, sent: Mapping[str, Any]) -> str:
    """Which option of the call the server's words are about, if it is one that can be changed or left out."""
    names = [name for name in (*LIMITS, *OPTIONAL) if name in sent]
    parameter = str(getattr(error, "param", None) or "").split(".")[0]
    if not re.search(
        r"support|unknown|unrecogni[sz]ed|unexpected|not permitted|not allowed|extra|invalid schema", said, re.I
    ):
        return ""
    if parameter in names:
        return parameter
    return next((name for name in names if re.search(rf"\b{name}\b", said)), "")
