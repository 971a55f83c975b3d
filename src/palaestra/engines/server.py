"""Any engine behind an OpenAI-compatible endpoint: chat completions, completions and models.

Concurrent requests are answered in one batch of the engine. Parameters that the engine does not support are rejected with
status 400; no parameter that would change an answer is ignored. In addition to OpenAI's format, `return_token_ids` returns
the exact ids, as in vLLM's server.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import Future
from functools import lru_cache
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from palaestra.core.errors import MissingExtraError
from palaestra.core.records import Completion, Failure, FailureCause, ImagePart, Message, StopReason, ToolCall
from palaestra.engines.base import Answer, Engine, Request, Sampling, reads_schema
from palaestra.engines.batching import Batcher, TextStream
from palaestra.engines.call_reader import CallReader
from palaestra.engines.openai_format import parse_message, to_chat_call

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request as HttpRequest
    from starlette.responses import Response as HttpResponse

    Handler = Callable[[HttpRequest], Awaitable[HttpResponse]]

MAX_BODY = 64 * 2**20
"""Maximum bytes of a request's body."""
STATUS = {
    FailureCause.CONTEXT_LENGTH: (400, "context_length_exceeded"),
    FailureCause.INVALID_REQUEST: (400, "invalid_request"),
    FailureCause.REFUSED: (400, "content_filter"),
    FailureCause.UNAVAILABLE: (503, "unavailable"),
}
"""HTTP status and code by cause; other causes have status 500."""
FINISH = {StopReason.END: "stop", StopReason.STOP: "stop", StopReason.LENGTH: "length"}
_make_sampling = lru_cache(256)(Sampling)


class RequestError(Exception):
    """A request that cannot be answered: status, code and message of the response."""

    def __init__(self, message: str, status: int = 400, code: str = "invalid_request") -> None:
        super().__init__(message)
        self.status, self.code = status, code


class CommonBody(BaseModel):
    """The parameters that both kinds of completions share."""

    model_config = ConfigDict(extra="forbid")

    model: str = ""
    max_tokens: int | None = Field(None, ge=1)
    temperature: float = Field(1.0, ge=0, le=2)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=-1)
    n: int = Field(1, ge=1, le=128)
    seed: int | None = None
    stop: str | list[str] | None = None
    stream: bool = False
    stream_options: dict[str, Any] | None = None
    return_token_ids: bool = False
    user: str | None = None
    metadata: dict[str, str] | None = None
    store: bool | None = None
    presence_penalty: Literal[0] | None = None
    frequency_penalty: Literal[0] | None = None
    logit_bias: dict[str, float] | None = Field(None, max_length=0)

    def to_sampling(self, limit: int) -> Sampling:
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        return _make_sampling(limit, self.temperature, self.top_p, max(self.top_k, 0), stop, self.n)


class ChatBody(CommonBody):
    messages: list[dict[str, Any]] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool = False
    top_logprobs: Literal[0] | None = None
    response_format: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Literal["auto", "none"] | None = None
    parallel_tool_calls: bool | None = None

    def to_tools(self) -> str:
        """The offered tools as JSON text; empty for none."""
        return json.dumps(self.tools) if self.tools and self.tool_choice != "none" else ""


class TextBody(CommonBody):
    prompt: str | list[int] | list[str] | list[list[int]]
    logprobs: Literal[0, 1] | None = None
    echo: Literal[False] = False
    best_of: Literal[1] | None = None


Body = TypeVar("Body", bound=BaseModel)


class OpenAIServer:
    """The endpoint's handlers.

    Arguments:
        engine: generates the completions.
        name: the model's name for clients.
        api_key: clients must send it as a bearer token; empty for none.
        max_tokens: the token limit of requests without one.
    """

    def __init__(
        self,
        engine: Engine,
        name: str = "",
        *,
        api_key: str = "",
        max_tokens: int = 512,
        max_batch: int = 128,
        max_wait: float = 0.01,
    ) -> None:
        self.engine, self.name, self.api_key, self.max_tokens = engine, name or engine.name, api_key, max_tokens
        self.tokenizer: Any = getattr(engine, "tokenizer", None)
        self.batcher = Batcher(engine, max_batch, max_wait)
        self.started = int(time.time())
        self._calls = CallReader(self.tokenizer, self.name)
        self._decode_token = lru_cache(2**16)(lambda token: str(self.tokenizer.decode([token])))

    def make_app(self) -> Starlette:
        """Return the ASGI application.

        Raises:
            MissingExtraError: Starlette is not installed.
        """
        try:
            from starlette.applications import Starlette
            from starlette.responses import JSONResponse, PlainTextResponse
            from starlette.routing import Route
        except ImportError as error:
            raise MissingExtraError("starlette", "serve", "serving a model") from error

        async def health(request: HttpRequest) -> HttpResponse:
            return PlainTextResponse("ok")

        def guard(handler: Handler) -> Handler:
            async def handle(request: HttpRequest) -> HttpResponse:
                try:
                    self._check_key(request.headers.get("authorization", ""))
                    return await handler(request)
                except RequestError as error:
                    detail = {"message": str(error), "type": "invalid_request_error", "code": error.code, "param": None}
                    return JSONResponse({"error": detail}, error.status)

            return handle

        routes = [Route(path, guard(handler), methods=[method]) for method, path, handler in self._list_routes()]
        return Starlette(routes=[Route("/health", health), *routes])

    def _list_routes(self) -> list[tuple[str, str, Handler]]:
        """The method, path and handler of each route that needs the API key."""
        return [
            ("GET", "/v1/models", self._list_models),
            ("POST", "/v1/chat/completions", self._chat),
            ("POST", "/v1/completions", self._complete),
        ]

    def close(self) -> None:
        self.batcher.close()

    def _check_key(self, header: str) -> None:
        if self.api_key and not hmac.compare_digest(header.encode(), f"Bearer {self.api_key}".encode()):
            raise RequestError("the API key is missing or wrong", 401, "invalid_api_key")

    async def _list_models(self, http: HttpRequest) -> HttpResponse:
        from starlette.responses import JSONResponse

        card = {"id": self.name, "object": "model", "created": self.started, "owned_by": "palaestra"}
        return JSONResponse({"object": "list", "data": [card]})

    async def _chat(self, http: HttpRequest) -> HttpResponse:
        body = await read_body(http, ChatBody)
        self._check_model(body.model)
        request = self._to_request(body)
        reads_calls = bool(request.tools)

        def to_choice(index: int, answer: Completion) -> dict[str, Any]:
            text, calls = self._calls.split(answer, request.tools) if reads_calls else (answer.text, ())
            return self._to_chat_choice(body, index, answer, text, (*answer.tool_calls, *calls))

        if body.stream:
            return self._stream(body, request, "chat.completion.chunk", reads_calls, to_choice)
        return await self._answer(http, body, [request], "chat.completion", to_choice)

    def _to_chat_choice(
        self, body: ChatBody, index: int, answer: Completion, text: str, calls: Sequence[ToolCall]
    ) -> dict[str, Any]:
        """A choice of the response, with the fields that the request asks for."""
        message: dict[str, Any] = {"role": "assistant", "content": text if text or not calls else None}
        if calls:
            message["tool_calls"] = [to_chat_call(call) for call in calls]
        choice = {"index": index, "message": message, "finish_reason": _finish(answer, calls)}
        if body.logprobs:
            choice["logprobs"] = {"content": self._list_logprobs(answer), "refusal": None}
        return choice | ({"token_ids": list(answer.token_ids)} if body.return_token_ids else {})

    async def _complete(self, http: HttpRequest) -> HttpResponse:
        body = await read_body(http, TextBody)
        self._check_model(body.model)
        prompts: list[Any] = body.prompt if _is_list_of_prompts(body.prompt) else [body.prompt]  # type: ignore[assignment]
        if self.tokenizer is None:
            raise RequestError(f"{self.name} completes conversations only; use /v1/chat/completions")
        requests = []
        for prompt in prompts:
            ids = tuple(self.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt)
            sampling = body.to_sampling(body.max_tokens or 16)
            requests.append(Request((), sampling, _choose_seed(body.seed), prompt_ids=ids))

        def to_choice(index: int, answer: Completion) -> dict[str, Any]:
            choice: dict[str, Any] = {"index": index, "text": answer.text, "finish_reason": _finish(answer, [])}
            if body.logprobs is not None:
                tokens = self._list_logprobs(answer)
                choice["logprobs"] = {
                    "tokens": [token["token"] for token in tokens],
                    "token_logprobs": [token["logprob"] for token in tokens],
                    "top_logprobs": None,
                    "text_offset": [],
                }
            return choice | ({"token_ids": list(answer.token_ids)} if body.return_token_ids else {})

        if body.stream:
            if len(requests) > 1:
                raise RequestError("expected one prompt for a stream; got several")
            return self._stream(body, requests[0], "text_completion", False, to_choice)
        return await self._answer(http, body, requests, "text_completion", to_choice)

    def _check_model(self, model: str) -> None:
        if model not in ("", self.name):
            raise RequestError(
                f"the model '{model}' does not exist; this server has '{self.name}'", 404, "model_not_found"
            )

    def _to_request(self, body: ChatBody) -> Request:
        messages = parse_messages(body)
        for part in (part for m in messages if not isinstance(m.content, str) for part in m.content):
            if isinstance(part, ImagePart) and not part.url.startswith("data:"):
                raise RequestError("expected images as data: URLs; this server does not fetch URLs or files")
        limit = body.max_completion_tokens or body.max_tokens or self.max_tokens
        return Request(
            messages,
            body.to_sampling(limit),
            _choose_seed(body.seed),
            self._read_schema(body.response_format),
            body.to_tools(),
        )

    def _read_schema(self, form: dict[str, Any] | None) -> str:
        """Return the JSON schema of a response format, as text."""
        if form is None or form.get("type") == "text":
            return ""
        if not reads_schema(self.engine):
            raise RequestError(f"{self.name} does not support response_format")
        match form:
            case {"type": "json_schema", "json_schema": {"schema": dict(schema)}}:
                return json.dumps(schema)
            case {"type": "json_object"}:
                return json.dumps({"type": "object"})
        raise RequestError("expected a response_format of text, json_object, or json_schema with its schema")

    def _list_logprobs(self, answer: Completion) -> list[dict[str, Any]]:
        if len(answer.logprobs) != len(answer.token_ids) or self.tokenizer is None:
            raise RequestError(f"{self.name} does not return log-probabilities", 400, "unsupported")
        tokens = [self._decode_token(token) for token in answer.token_ids]
        return [
            {"token": token, "logprob": logprob, "bytes": list(token.encode()), "top_logprobs": []}
            for token, logprob in zip(tokens, answer.logprobs, strict=True)
        ]

    def _submit(
        self, request: Request, on_token: Callable[[int, int, int], None] | None = None
    ) -> Future[list[Answer]]:
        """Queue a request; see `Batcher.submit`."""
        return self.batcher.submit(request, on_token)

    async def _answer(
        self,
        http: HttpRequest,
        body: CommonBody,
        requests: Sequence[Request],
        kind: str,
        to_choice: Callable[[int, Completion], Any],
    ) -> HttpResponse:
        """Send whole completions. `to_choice` is not called if the client has left meanwhile."""
        import orjson
        from starlette.responses import Response

        futures = [asyncio.wrap_future(self._submit(request)) for request in requests]
        completions = [_check_answer(answer) for future in futures for answer in await future]
        if await http.is_disconnected():
            raise RequestError("the client has left", 499, "client_closed_request")
        response = self._envelope(kind) | {
            "choices": [to_choice(index, completion) for index, completion in enumerate(completions)],
            "usage": _count_usage(completions, requests[0].sampling.count),
        }
        if body.return_token_ids:
            response["prompt_token_ids"] = list(completions[0].prompt_ids)
        return Response(orjson.dumps(response), media_type="application/json")

    def _stream(
        self, body: CommonBody, request: Request, kind: str, whole: bool, to_choice: Callable[[int, Completion], Any]
    ) -> HttpResponse:
        """Send completions as they grow.

        Arguments:
            whole: send each text when it is complete, because tool calls are parsed from it.
        """
        from starlette.responses import StreamingResponse

        chat, loop = kind.startswith("chat"), asyncio.get_running_loop()
        pieces: asyncio.Queue[tuple[int, int, int] | None] = asyncio.Queue()

        def on_token(completion: int, position: int, token: int) -> None:
            loop.call_soon_threadsafe(pieces.put_nowait, (completion, position, token))

        envelope = self._envelope(kind)

        def to_event(choices: list[dict[str, Any]], **more: Any) -> str:
            return f"data: {json.dumps(envelope | {'choices': choices} | more)}\n\n"

        def to_delta(index: int, text: str) -> dict[str, Any]:
            content = {"delta": {"content": text}} if chat else {"text": text}
            return {"index": index, "finish_reason": None, **content}

        async def events() -> AsyncIterator[str]:
            streams = [TextStream(self.tokenizer, request.sampling.stop) for _ in range(request.sampling.count)]
            future = self._submit(request, None if whole or self.tokenizer is None else on_token)
            future.add_done_callback(lambda _: loop.call_soon_threadsafe(pieces.put_nowait, None))
            if chat:
                first = {"role": "assistant", "content": ""}
                yield to_event([{"index": k, "delta": first, "finish_reason": None} for k in range(len(streams))])
            while (token := await pieces.get()) is not None:
                if text := streams[token[0]].add(token[1], token[2]):
                    yield to_event([to_delta(token[0], text)])
            try:
                completions = [_check_answer(answer) for answer in future.result()]
                for index, completion in enumerate(completions):
                    choice = to_choice(index, completion)
                    if chat:
                        message = choice.pop("message")
                        rest = streams[index].finish(message["content"] or "")
                        calls = [call | {"index": k} for k, call in enumerate(message.get("tool_calls", ()))]
                        delta = ({"content": rest} if rest else {}) | ({"tool_calls": calls} if calls else {})
                        yield to_event([choice | {"delta": delta}])
                    else:
                        yield to_event([choice | {"text": streams[index].finish(choice["text"])}])
                if (body.stream_options or {}).get("include_usage"):
                    yield to_event([], usage=_count_usage(completions, len(completions)))
                yield "data: [DONE]\n\n"
            except RequestError as error:
                yield f"data: {json.dumps({'error': {'message': str(error), 'code': error.code}})}\n\n"

        return StreamingResponse(events(), media_type="text/event-stream")

    def _envelope(self, kind: str) -> dict[str, Any]:
        start = "chatcmpl" if kind.startswith("chat") else "cmpl"
        return {"id": f"{start}-{uuid.uuid4().hex}", "object": kind, "created": int(time.time()), "model": self.name}


async def read_body(http: HttpRequest, kind: type[Body]) -> Body:
    """Read and validate the JSON body of a request.

    Raises:
        RequestError: the body is invalid or too large.
    """
    data = b""
    async for chunk in http.stream():
        data += chunk
        if len(data) > MAX_BODY:
            raise RequestError(f"the body is larger than {MAX_BODY} bytes", 413, "too_large")
    try:
        return kind.model_validate_json(data)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "body"
        reason = "this parameter is not supported" if first["type"] == "extra_forbidden" else first["msg"]
        raise RequestError(f"{place}: {reason}") from error


def parse_messages(body: ChatBody) -> tuple[Message, ...]:
    """Parse the messages of a request. Newer clients call the role `system` `developer`.

    Raises:
        RequestError: a message is invalid.
    """
    try:
        return tuple(
            parse_message({**message, "role": "system"} if message.get("role") == "developer" else message)
            for message in body.messages
        )
    except ValueError as error:
        raise RequestError(str(error)) from error


def _is_list_of_prompts(prompt: Any) -> bool:
    return isinstance(prompt, list) and bool(prompt) and not isinstance(prompt[0], int)


def _choose_seed(seed: int | None) -> int:
    """Return the request's seed, or a new one."""
    return seed if seed is not None else uuid.uuid4().int >> 65


def _check_answer(answer: Answer) -> Completion:
    if isinstance(answer, Failure):
        status, code = STATUS.get(answer.cause, (500, str(answer.cause)))
        raise RequestError(answer.message, status, code)
    return answer


def _finish(answer: Completion, calls: Sequence[ToolCall]) -> str:
    return "tool_calls" if calls else FINISH.get(answer.stop_reason, "stop")


def _count_usage(completions: Sequence[Completion], per_prompt: int) -> dict[str, int]:
    prompt = sum(completion.usage.prompt_tokens for completion in completions[::per_prompt])
    generated = sum(completion.usage.completion_tokens for completion in completions)
    return {"prompt_tokens": prompt, "completion_tokens": generated, "total_tokens": prompt + generated}


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach a server on `host`."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
