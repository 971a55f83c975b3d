"""The OpenAI chat format: requests, responses and errors, without any network access."""

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

from palaestra.chat.rendering import to_chat_call
from palaestra.chat.structured import instruct, response_format
from palaestra.core.errors import EngineError
from palaestra.core.records import (
    Answer,
    Completion,
    Failure,
    FailureCause,
    ImagePart,
    Json,
    Message,
    Request,
    StopReason,
    TextPart,
    ToolCall,
    Usage,
    Values,
)
from palaestra.core.seeding import Seeds
from palaestra.core.text import mask, mask_data
from palaestra.engines.openai_endpoint import Endpoint, parse_retry_after

_OPTIONAL = ("temperature", "top_p", "seed", "stop", "logprobs", "response_format", "return_token_ids")
"""Options that are left out if a server rejects them. `stop` is then applied to the returned text, and a schema is
described in the prompt. For the others the engine logs a warning."""
LIMITS = ("max_completion_tokens", "max_tokens")
"""The two names of the token limit. Some servers support only one of them."""
_TOO_LONG = re.compile(
    r"context.{0,12}(length|window|size)|too many tokens|maximum.{0,20}tokens|too long", re.IGNORECASE
)
_MAX_TOKENS = 10**9
"""Maximum plausible token count of one call."""
_REASONING = ("reasoning_content", "reasoning")
"""Fields of a message with the model's reasoning. An answer may consist of reasoning only."""
_FILTERED = ("content_filter", "content_policy_violation", "ResponsibleAIPolicyViolation")


class BrokenAnswerError(Exception):
    """The response is not a chat completion.

    Arguments:
        usage: the billed usage, if known.
        silent: whether not even the header of a response arrived.
    """

    def __init__(self, message: str, usage: Usage | None = None, silent: bool = False) -> None:
        super().__init__(message)
        self.usage, self.silent = usage, silent


def build_body(
    endpoint: Endpoint, request: Request, sample: int, without: Collection[str], extra: Mapping[str, object]
) -> Json:
    """Build the JSON body of one call, for one completion of the request.

    Arguments:
        without: the options that the server has rejected.
        extra: further fields.

    Raises:
        ValueError: an image of the request cannot be read, or the service cannot continue token ids.
    """
    if request.prompt_ids and endpoint.kind != "url":
        raise ValueError("expected messages; only a local model, vLLM's server and ours can continue token ids")
    sampling, messages = request.sampling, request.messages
    options: Json = {"temperature": sampling.temperature, **extra}
    if request.prompt_ids and options.get("logprobs"):
        options["logprobs"] = 0  # The form of completions: that of the sampled token, and no others.
    if sampling.top_p < 1:
        options["top_p"] = sampling.top_p
    if sampling.top_k:
        options["top_k"] = sampling.top_k
    if sampling.temperature > 0:
        # Some servers truncate seeds to 32 bits, and some reject larger ones.
        options["seed"] = Seeds(request.seed).derive("completion", sample).integer() & 0x7FFFFFFF
    if sampling.stop:
        options["stop"] = list(sampling.stop)
    if request.schema:
        options["response_format"] = response_format(request.schema)
        if "response_format" in without:
            messages = instruct(messages, request.schema)
    if request.tools:
        options["tools"] = json.loads(request.tools)
    limits = LIMITS[::-1] if endpoint.kind == "url" else LIMITS
    return {
        "model": endpoint.model,
        **({"prompt": list(request.prompt_ids)} if request.prompt_ids else {"messages": to_chat_messages(messages)}),
        next(name for name in limits if name not in without): sampling.max_tokens,
        **{name: value for name, value in options.items() if name not in without},
    }


def to_chat_messages(messages: Sequence[Message]) -> list[Json]:
    """Convert a conversation to dictionaries of the chat format.

    A tool message that answers no call becomes a user message. Calls without an answer are left out, because some servers
    reject them.
    """
    calls = {call.id for message in messages for call in message.tool_calls}
    answered = {m.tool_call_id for m in messages if m.role == "tool" and m.tool_call_id in calls}
    return [_message(message, answered) for message in messages]


def _message(message: Message, answered: Collection[str]) -> Json:
    calls = [call for call in message.tool_calls if call.id in answered]
    if calls:
        return {"role": message.role, "content": message.text or None, "tool_calls": list(map(to_chat_call, calls))}
    if message.role == "tool" and message.tool_call_id in answered:
        return {"role": "tool", "tool_call_id": message.tool_call_id, "content": message.text}
    role = "user" if message.role == "tool" else message.role
    if isinstance(message.content, str):
        return {"role": role, "content": message.content}
    parts = [
        {"type": "text", "text": part.text}
        if isinstance(part, TextPart)
        else {"type": "image_url", "image_url": {"url": image_url(part)}}
        for part in message.content
    ]
    return {"role": role, "content": parts}


def parse_message(data: Values) -> Message:
    """Parse a message of the chat format, as `to_chat_messages` writes it.

    Raises:
        ValueError: the message is invalid; the error says why.
    """
    role, content = data.get("role"), data.get("content")
    if role not in ("system", "user", "assistant", "tool"):
        raise ValueError(f"expected the role system, user, assistant or tool; got {role!r}")
    if isinstance(content, (list, tuple)):
        parts = tuple(_part(part) for part in content)
        texts = [part.text for part in parts if isinstance(part, TextPart)]
        content = "".join(texts) if len(texts) == len(parts) else parts
    elif content is None and role == "assistant":
        content = ""
    if not isinstance(content, (str, tuple)):
        raise ValueError(f"expected a text or a list of parts as content; got {type(content).__name__}")
    try:
        calls = tuple(_call(call) for call in data.get("tool_calls") or ())
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"expected a list of tool_calls with a function's name and arguments: {error!r}") from error
    return Message(role, content, calls, str(data.get("tool_call_id") or ""))


def _part(data: Any) -> TextPart | ImagePart:
    match data:
        case {"type": "text", "text": str(text)}:
            return TextPart(text)
        case {"type": "image_url", "image_url": {"url": str(url)}}:
            return ImagePart(url)
    raise ValueError("expected a message part of type text with a text, or image_url with a url")


def image_url(part: ImagePart) -> str:
    """Return an image as a URL for a remote server. A file becomes a `data:` URL.

    Raises:
        ValueError: the file cannot be read.
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


def decode_response(raw: bytes | bytearray) -> Any:
    """Decode the JSON of a response. Secrets that the service repeats are masked before anything else reads them.

    Token ids could be decoded to a masked text, so such a response has none.

    Raises:
        ValueError: the response is not JSON.
    """
    data = json.loads(raw)
    masked = mask_data(data)
    if masked != data and isinstance(masked, dict):
        for part in (masked, *(choice for choice in masked.get("choices") or () if isinstance(choice, dict))):
            for name in ("prompt_token_ids", "token_ids", "logprobs"):
                part.pop(name, None)
    return masked


def parse_response(data: Any, stop: Sequence[str] = ()) -> tuple[Answer, Usage | None]:
    """Parse a server's response into the answer and the billed usage, if the server reports it.

    The response is a chat completion, or the completion of a prompt.

    A response with an impossible `usage` is a failure, because its cost is unknown.

    Raises:
        BrokenAnswerError: the response is not a chat completion; `usage` is the billed usage.
    """
    usage: Usage | None = None
    try:
        try:
            usage = read_usage(data.get("usage"))
        except ValueError as error:
            return Failure(FailureCause.MALFORMED, str(error)), None
        if not data.get("choices"):
            reported = data.get("error")  # Some gateways report errors with the status 200.
            detail = reported.get("message") if isinstance(reported, Mapping) else reported
            raise ValueError("it has no choices" + (f"; the server says: {str(detail)[:300]}" if detail else ""))
        choice = data["choices"][0]
        message = {"content": choice["text"]} if "text" in choice else choice["message"]
        finish = choice.get("finish_reason")
        text = message.get("content")
        if message.get("refusal"):
            return Failure(FailureCause.REFUSED, f"the model refused: {str(message['refusal'])[:300]}"), usage
        if finish == "content_filter":
            return Failure(FailureCause.REFUSED, "a content filter stopped the answer"), usage
        if isinstance(text, list):  # Some servers answer in parts.
            text = "".join(part.get("text", "") for part in text)
        if text is not None and not isinstance(text, str):
            raise TypeError(f"the content is of type {type(text).__name__}")
        if text is None and not (message.get("tool_calls") or finish == "length" or any(map(message.get, _REASONING))):
            message = "the answer has no content: it is null, without a tool call, a refusal or reasoning"
            return Failure(FailureCause.MALFORMED, message), usage
        text, ids = text or "", tuple(int(token) for token in choice.get("token_ids") or ())
        calls = tuple(_call(call) for call in message.get("tool_calls") or ())
        listed = choice.get("logprobs") or {}
        values = listed.get("token_logprobs") or [token["logprob"] for token in listed.get("content") or ()]
        logprobs = tuple(map(float, values))
        prompt = tuple(int(token) for token in data.get("prompt_token_ids") or choice.get("prompt_token_ids") or ())
        stopped = isinstance(choice.get("stop_reason"), str)  # vLLM returns the stop string.
    except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
        raise BrokenAnswerError(f"not a chat completion: {type(error).__name__}: {error}", usage) from error
    for end in stop:
        before, match, _ = text.partition(end)
        if match:
            text, stopped = before, True
    reason = StopReason.LENGTH if finish == "length" and not stopped else StopReason.STOP if stopped else StopReason.END
    return Completion(text, ids, logprobs, reason, usage or Usage(), prompt, calls), usage


def _call(data: Any) -> ToolCall:
    """Parse a tool call. Some servers send the arguments as an object, and some send no id."""
    arguments = data["function"].get("arguments") or "{}"
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return ToolCall(str(data["function"]["name"]), text, str(data.get("id") or ""))


def read_usage(data: Any) -> Usage | None:
    """Parse the billed tokens; `None` if the server does not report them.

    Raises:
        ValueError: a count is not an integer from 0 to `_MAX_TOKENS`.

    >>> read_usage({"prompt_tokens": 3, "completion_tokens": 2})
    Usage(prompt_tokens=3, completion_tokens=2)
    """
    if data is None:
        return None
    if not isinstance(data, dict):
        raise ValueError(f"the server's usage is not an object of token counts; got {str(data)[:80]}")
    counts = [data.get(name) for name in ("prompt_tokens", "completion_tokens")]
    for count in counts:
        integral = type(count) is int or (isinstance(count, float) and count.is_integer())
        if count is not None and not (integral and 0 <= count <= _MAX_TOKENS):
            raise ValueError(f"the server's usage has an impossible token count: {str(count)[:80]}")
    return None if counts == [None, None] else Usage(int(counts[0] or 0), int(counts[1] or 0))


@dataclass(frozen=True, slots=True)
class CallError:
    """The consequences of a failed call.

    Arguments:
        failure: the failure of the slot, if this was its last call.
        again: whether the same call may succeed later.
        wish: seconds that the server asks to wait.
        refused: an option of the call that the server rejects.
        fatal: the error that ends the run, because every call would fail in the same way.
        billed: whether an unknown number of tokens may have been billed.
        connected: whether a server answered at all.
        lost: whether the connection failed or broke, or the server never answered.
    """

    failure: Failure
    again: bool = False
    wish: float | None = None
    refused: str = ""
    fatal: EngineError | None = None
    billed: bool = False
    connected: bool = True
    lost: bool = False


def classify_error(error: Exception, endpoint: Endpoint, body: Mapping[str, object]) -> CallError:
    """Classify the error of a call: the client's, the network's, or `BrokenAnswerError`."""
    status = getattr(error, "status_code", None)
    if not isinstance(status, int):
        # The connection, a timeout or a proxy failed. The next call may succeed.
        cause = error.__cause__ if error.__cause__ is not None else error
        reason = str(error) if isinstance(error, BrokenAnswerError) else f"{type(cause).__name__}: {cause}"
        failure = Failure(FailureCause.UNAVAILABLE, f"{endpoint.name}: {mask(reason).strip().rstrip(':')[:300]}")
        connected = type(cause).__name__ not in ("ConnectError", "ConnectTimeout")
        answered = connected and not (isinstance(error, BrokenAnswerError) and error.silent)
        lost = not isinstance(error, BrokenAnswerError) or error.silent
        return CallError(failure, again=True, billed=connected, connected=answered, lost=lost)
    reason, code = _read_reason(error), str(getattr(error, "code", None) or "")
    line = f"{endpoint.name} answered {status}: {reason}"
    if status in (401, 403):
        fatal = EngineError(f"{endpoint.name} does not accept the key in {endpoint.variable} ({status}: {reason})")
        return CallError(Failure(FailureCause.ENGINE, line), fatal=fatal)
    if status == 404:
        fatal = EngineError(f"there is no model '{endpoint.model}' at {mask(endpoint.url)} ({status}: {reason})")
        return CallError(Failure(FailureCause.ENGINE, line), fatal=fatal)
    if code == "insufficient_quota":
        fatal = EngineError(f"the account behind {endpoint.variable} has no credit left ({status}: {reason})")
        return CallError(Failure(FailureCause.UNAVAILABLE, line), fatal=fatal)
    if status in (408, 409, 429) or status >= 500:
        wish = parse_retry_after(getattr(getattr(error, "response", None), "headers", {}))
        return CallError(Failure(FailureCause.UNAVAILABLE, line), again=True, wish=wish)
    if code in _FILTERED:
        return CallError(Failure(FailureCause.REFUSED, line))
    if code == "context_length_exceeded":
        return CallError(Failure(FailureCause.CONTEXT_LENGTH, line))
    if refused := _find_refused_option(error, reason, body):
        return CallError(Failure(FailureCause.INVALID_REQUEST, line), refused=refused)
    too_long = _TOO_LONG.search(reason)
    return CallError(Failure(FailureCause.CONTEXT_LENGTH if too_long else FailureCause.INVALID_REQUEST, line))


def _read_reason(error: Exception) -> str:
    """Return the server's error message in one line."""
    reason = getattr(error, "body", None)
    if isinstance(reason, dict):
        reason = reason.get("message") or reason.get("error") or reason.get("detail")
    return " ".join(mask(str(reason or error)).split())[:300]


def _find_refused_option(error: Exception, reason: str, body: Mapping[str, object]) -> str:
    """Return the option that the server rejects, if it can be changed or left out; empty otherwise."""
    names = [name for name in (*LIMITS, *_OPTIONAL) if name in body]
    parameter = str(getattr(error, "param", None) or "").split(".")[0]
    if not re.search(
        r"support|unknown|unrecogni[sz]ed|unexpected|not permitted|not allowed|extra|invalid schema", reason, re.I
    ):
        return ""
    if parameter in names:
        return parameter
    return next((name for name in names if re.search(rf"\b{name}\b", reason)), "")
