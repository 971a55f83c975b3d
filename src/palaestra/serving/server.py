"""Any engine behind an OpenAI-compatible endpoint: chat completions, completions and models.

Concurrent requests are answered in one batch of the engine. A request whose client leaves is aborted. Parameters that the
engine does not support are rejected with status 400. In addition to OpenAI's format, `return_token_ids` returns the exact
ids, as in vLLM's server.

The event loop only moves bytes: bodies are parsed, and prompts rendered and tokenized, in threads.
"""

from __future__ import annotations

import asyncio
import hmac
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from concurrent.futures import CancelledError as FutureCancelledError
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel

from palaestra.chat.encoder import CallReader
from palaestra.chat.rendering import to_chat_call
from palaestra.core.access import find_access_error
from palaestra.core.errors import MissingExtraError
from palaestra.core.records import (
    Answer,
    Completion,
    Engine,
    Failure,
    FailureCause,
    Json,
    Request,
    StopReason,
    ToolCall,
    reads_schema,
)
from palaestra.core.text import remember_secret
from palaestra.engines.base import context_failure, encode_prompt
from palaestra.serving.batching import Batcher, TextStream
from palaestra.serving.request_bodies import ChatBody, RequestError, TextBody, parse_body, read_bytes
from palaestra.serving.writers import AnswerWriter, OpenAIWriter, describe_error

if TYPE_CHECKING:
    from starlette.requests import Request as HttpRequest
    from starlette.responses import Response as HttpResponse
    from starlette.types import ASGIApp, Receive, Scope, Send

    Handler = Callable[[HttpRequest], Awaitable[HttpResponse]]

_ENCODERS = 4
"""Number of threads that parse bodies and encode prompts."""
_CODES = {
    FailureCause.CONTEXT_LENGTH: "context_length_exceeded",
    FailureCause.INVALID_REQUEST: "invalid_request",
    FailureCause.REFUSED: "content_filter",
    FailureCause.UNAVAILABLE: "unavailable",
}
"""The code of an error by its cause; other causes have status 500."""
_FINISH = {StopReason.END: "stop", StopReason.STOP: "stop", StopReason.LENGTH: "length"}
Body = TypeVar("Body", bound=BaseModel)
T = TypeVar("T")


class OpenAIServer:
    """The endpoint's handlers.

    Arguments:
        engine: generates the completions.
        name: the model's name for clients.
        api_key: clients must send it as a bearer token; empty for none.
        max_tokens: the token limit of requests without one.
        max_batch, max_wait: as for `Batcher`.
        max_body: maximum bytes of a request's body; a larger one is rejected with status 413.
        max_characters: maximum characters of a request's messages and tools, or of its prompts. A token id counts as
            one character.
        max_prompts: maximum completions of a request: its prompts, each counted `n` times.
        max_requests: maximum number of open requests; a further one is rejected with status 429.
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
        max_body: int = 32 * 2**20,
        max_characters: int = 10 * 2**20,
        max_prompts: int = 2048,
        max_requests: int = 1024,
    ) -> None:
        self.engine, self.name, self.api_key, self.max_tokens = engine, name or engine.name, api_key, max_tokens
        self.max_body, self.max_characters = max_body, max_characters
        self.max_prompts, self.max_requests = max_prompts, max_requests
        remember_secret(api_key)
        self.tokenizer: Any = getattr(engine, "tokenizer", None)
        self.batcher = Batcher(engine, max_batch, max_wait)
        self.started = int(time.time())
        self._open_requests = 0
        self._encoders = ThreadPoolExecutor(_ENCODERS, "palaestra-encode")
        self._calls = CallReader(self.tokenizer, self.name)
        self._decode_token = lru_cache(2**16)(lambda token: str(self.tokenizer.decode([token])))

    def make_app(self, hosts: Collection[str] = ()) -> ASGIApp:
        """Return the ASGI application.

        Arguments:
            hosts: the accepted host names; empty accepts all. Without an API key, a site could otherwise resolve its
                name to this address and call the server from a browser on this machine.

        Raises:
            MissingExtraError: Starlette is not installed.
        """
        try:
            from starlette.applications import Starlette
            from starlette.exceptions import HTTPException
            from starlette.requests import Request as HttpRequest
            from starlette.responses import PlainTextResponse
            from starlette.routing import Route
        except ImportError as error:
            raise MissingExtraError("starlette", "serve", "serving a model") from error

        async def health(http: HttpRequest) -> HttpResponse:
            return PlainTextResponse("ok")

        async def explain(http: HttpRequest, error: Exception) -> HttpResponse:
            return self._to_error_response(error, http.url.path)

        routes = [Route(path, handler, methods=[method]) for method, path, handler in self._list_routes()]
        handlers: dict[Any, Any] = dict.fromkeys((RequestError, HTTPException, Exception), explain)
        app = Starlette(routes=[Route("/health", health), *routes], exception_handlers=handlers)

        async def guard(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http" or scope["path"] == "/health":
                await app(scope, receive, send)
                return
            try:
                self._check_access(HttpRequest(scope), hosts)
            except RequestError as error:
                await self._to_error_response(error, scope["path"])(scope, receive, send)
                return
            self._open_requests += 1
            try:
                await app(scope, receive, send)
            finally:
                self._open_requests -= 1

        return guard

    def _to_error_response(self, error: Exception, path: str) -> HttpResponse:
        error = to_request_error(error)
        return to_json_response(self._describe_error(error, path), error.status)

    def _describe_error(self, error: RequestError, path: str) -> Json:
        return {"error": describe_error(error)}

    def _check_access(self, http: HttpRequest, hosts: Collection[str]) -> None:
        """Check everything that is known before the body is read."""
        headers = http.headers
        if error := find_access_error(headers.get("host", ""), headers.get("origin"), hosts):
            raise RequestError(error, "forbidden")
        key = headers.get("authorization") or f"Bearer {headers.get('x-api-key', '')}"
        if self.api_key and not hmac.compare_digest(key.encode(), f"Bearer {self.api_key}".encode()):
            raise RequestError("the API key is missing or wrong", "invalid_api_key")
        if http.method == "POST":
            kind = headers.get("content-type", "").partition(";")[0].strip().lower()
            if kind != "application/json":
                raise RequestError(
                    f"expected the content type application/json; got {kind[:100] or 'none'}",
                    "unsupported_content_type",
                )
            length = headers.get("content-length", "")
            if length.isdecimal() and int(length[:20]) > self.max_body:
                raise RequestError(f"the body is larger than {self.max_body} bytes", "too_large")
        if self._open_requests >= self.max_requests:
            raise RequestError(f"{self.max_requests} requests are open already; try again later", "rate_limit_exceeded")

    def _list_routes(self) -> list[tuple[str, str, Handler]]:
        """The method, path and handler of each route that needs the API key."""
        return [
            ("GET", "/v1/models", self._list_models),
            ("POST", "/v1/chat/completions", self._chat),
            ("POST", "/v1/completions", self._complete),
            ("GET", "/metrics", self._show_metrics),
        ]

    def close(self) -> None:
        self.batcher.close()
        self._encoders.shutdown(wait=False, cancel_futures=True)

    async def _list_models(self, http: HttpRequest) -> HttpResponse:
        card = {"id": self.name, "object": "model", "created": self.started, "owned_by": "palaestra"}
        return to_json_response({"object": "list", "data": [card]})

    async def _show_metrics(self, http: HttpRequest) -> HttpResponse:
        """The load of the server in the text format of Prometheus."""
        from starlette.responses import PlainTextResponse

        metrics = {
            "completions_running": self.batcher.running,
            "requests_waiting": self.batcher.waiting,
            "requests_aborted_total": self.batcher.aborted,
        }
        return PlainTextResponse("".join(f"palaestra_{name} {value}\n" for name, value in metrics.items()))

    async def _encode(self, function: Callable[..., T], *arguments: Any) -> T:
        """Run a function in a thread, because it may take seconds for a long prompt."""
        return await asyncio.get_running_loop().run_in_executor(self._encoders, function, *arguments)

    async def _read(self, http: HttpRequest, kind: type[Body]) -> Body:
        return await self._encode(parse_body, await read_bytes(http, self.max_body), kind)

    async def _chat(self, http: HttpRequest) -> HttpResponse:
        body = await self._read(http, ChatBody)
        request = await self._encode(self._make_chat_request, body)
        reads_calls = bool(request.tools)

        def to_choice(index: int, answer: Completion) -> Json:
            text, calls = self._calls.split(answer, request.tools) if reads_calls else (answer.text, ())
            return self._to_chat_choice(body, index, answer, text, (*answer.tool_calls, *calls))

        writer = OpenAIWriter(body, self.name, "chat.completion")
        if body.stream:
            return self._stream(http, request, writer, reads_calls, to_choice)
        return await self._answer(http, [request], writer, to_choice)

    def _to_chat_choice(
        self, body: ChatBody, index: int, answer: Completion, text: str, calls: Sequence[ToolCall]
    ) -> Json:
        """A choice of the response, with the fields that the request asks for."""
        calls = body.limit_calls(calls)
        message: Json = {"role": "assistant", "content": text if text or not calls else None}
        if calls:
            message["tool_calls"] = list(map(to_chat_call, calls))
        choice = {"index": index, "message": message, "finish_reason": _finish(answer, calls)}
        if body.logprobs:
            content = [{k: v for k, v in token.items() if k != "offset"} for token in self._list_logprobs(answer)]
            choice["logprobs"] = {"content": content, "refusal": None}
        return choice | ({"token_ids": list(answer.token_ids)} if body.return_token_ids else {})

    async def _complete(self, http: HttpRequest) -> HttpResponse:
        body = await self._read(http, TextBody)
        requests = await self._encode(self._make_text_requests, body)

        return await self._answer_texts(http, body, requests, partial(self._to_text_choice, body))

    async def _answer_texts(
        self,
        http: HttpRequest,
        body: TextBody,
        requests: Sequence[Request],
        to_choice: Callable[[int, Completion], Json],
    ) -> HttpResponse:
        writer = OpenAIWriter(body, self.name, "text_completion")
        if body.stream:
            return self._stream(http, requests[0], writer, False, to_choice)
        return await self._answer(http, requests, writer, to_choice)

    def _to_text_choice(self, body: TextBody, index: int, answer: Completion) -> Json:
        """A choice of the response, with the fields that the request asks for."""
        choice: Json = {"index": index, "text": answer.text, "finish_reason": _finish(answer, [])}
        if body.logprobs is not None:
            tokens = self._list_logprobs(answer)
            values = [(token["token"], token["logprob"]) for token in tokens]
            choice["logprobs"] = {
                "tokens": [token for token, _ in values],
                "token_logprobs": [logprob for _, logprob in values],
                # Of a sampled token, only its own log-prob is known; a greedy one is the most likely.
                "top_logprobs": [{t: p} for t, p in values] if body.logprobs and not body.temperature else None,
                "text_offset": [token["offset"] for token in tokens],
            }
        return choice | ({"token_ids": list(answer.token_ids)} if body.return_token_ids else {})

    def _check_model(self, model: str) -> None:
        if model not in ("", self.name):
            raise RequestError(f"the model '{model}' does not exist; this server has '{self.name}'", "model_not_found")

    def _check_size(self, characters: int, prompts: int = 1) -> None:
        if characters > self.max_characters:
            raise RequestError(
                f"expected at most {self.max_characters} characters in a request; got {characters}",
                "string_above_max_length",
            )
        if prompts > self.max_prompts:
            raise RequestError(
                f"expected at most {self.max_prompts} completions in a request, n for each prompt; got {prompts}",
                "array_above_max_length",
            )

    def _make_chat_request(self, body: ChatBody) -> Request:
        """Make the request of a conversation. Text for a tokenizer of this process is encoded now, not in the batch."""
        self._check_model(body.model)
        messages = body.parse_messages()
        self._check_size(body.count_characters(messages), body.n)
        limit = body.max_completion_tokens or body.max_tokens or self.max_tokens
        schema, tools = body.to_schema(), body.to_tools()
        if schema and not reads_schema(self.engine):
            raise RequestError(f"{self.name} does not support response_format")
        if body.forced_tool is not None:
            raise RequestError("tool_choice: expected auto or none; the other choices need a server with --capture")
        request = Request(messages, body.to_sampling(limit), _choose_seed(body.seed), schema, tools)
        if self.tokenizer is None or getattr(self.engine, "processor", None) is not None:
            return request
        ids = _check_answer(encode_prompt(self.name, self.tokenizer, request))
        return replace(request, prompt_ids=self._check_context(self._check_ids(ids)))

    def _make_text_requests(self, body: TextBody) -> list[Request]:
        self._check_model(body.model)
        if self.tokenizer is None:
            raise RequestError(f"{self.name} completes conversations only; use /v1/chat/completions")
        self._check_prompts(body)
        requests = []
        for prompt in body.prompts:
            ids = self._check_ids(self.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt)
            ids = self._check_context(ids)
            sampling = body.to_sampling(body.max_tokens or 16)
            requests.append(Request((), sampling, _choose_seed(body.seed), prompt_ids=ids))
        return requests

    def _check_prompts(self, body: TextBody) -> None:
        if body.stream and len(body.prompts) > 1:
            raise RequestError("expected one prompt for a stream; got several")
        self._check_size(sum(map(len, body.prompts)), body.n * len(body.prompts))

    def _check_ids(self, ids: Sequence[int]) -> tuple[int, ...]:
        if not ids:
            raise RequestError("the prompt is empty")
        if min(ids) < 0 or max(ids) >= len(self.tokenizer):
            raise RequestError(f"expected token ids from 0 to {len(self.tokenizer) - 1}; got {min(ids)} to {max(ids)}")
        return tuple(ids)

    def _check_context(self, ids: tuple[int, ...]) -> tuple[int, ...]:
        context = getattr(self.engine, "context", 1 << 30)
        return _check_answer(ids if len(ids) < context else context_failure(self.name, len(ids), context))

    def _list_logprobs(self, answer: Completion) -> list[Json]:
        """List the tokens of an answer with their log-probs and the offsets of their text in the whole text.

        A token that completes a character has its text; other parts of the character have the same offset.
        """
        if len(answer.logprobs) != len(answer.token_ids) or self.tokenizer is None:
            raise RequestError(f"{self.name} does not return log-probabilities", "unsupported")
        stream, tokens = TextStream(self.tokenizer, ()), []
        for token_id, logprob in zip(answer.token_ids, answer.logprobs, strict=True):
            offset = len(stream.text)
            token = stream.extend(token_id) or self._decode_token(token_id)
            data = {"token": token, "logprob": logprob, "bytes": list(token.encode()), "top_logprobs": []}
            tokens.append(data | {"offset": offset})
        return tokens

    def _submit(
        self, request: Request, on_token: Callable[[int, int, int], None] | None = None
    ) -> Future[list[Answer]]:
        """Queue a request; see `Batcher.submit`."""
        return self.batcher.submit(request, on_token)

    async def _answer(
        self,
        http: HttpRequest,
        requests: Sequence[Request],
        writer: AnswerWriter,
        to_choice: Callable[[int, Completion], Json],
    ) -> HttpResponse:
        """Send whole completions. If the client leaves, they are aborted and `to_choice` is not called."""
        import orjson
        from starlette.responses import Response

        futures = [asyncio.wrap_future(self._submit(request)) for request in requests]
        completions = [_check_answer(answer) for answers in await _wait(http, futures) for answer in answers]
        choices = [to_choice(index, completion) for index, completion in enumerate(completions)]
        response = writer.write_whole(choices, completions, requests[0].sampling.count)
        return Response(orjson.dumps(response), media_type="application/json")

    def _stream(
        self,
        http: HttpRequest,
        request: Request,
        writer: AnswerWriter,
        whole: bool,
        to_choice: Callable[[int, Completion], Json],
    ) -> HttpResponse:
        """Send completions as they grow. If the client leaves, they are aborted.

        Arguments:
            whole: send each text when it is complete, because tool calls are parsed from it.
        """
        from starlette.responses import StreamingResponse

        loop = asyncio.get_running_loop()
        pieces: asyncio.Queue[tuple[int, int, int] | None] = asyncio.Queue()

        def on_token(completion: int, position: int, token: int) -> None:
            loop.call_soon_threadsafe(pieces.put_nowait, (completion, position, token))

        async def stream_answers(future: Future[list[Answer]]) -> AsyncIterator[str]:
            streams = [TextStream(self.tokenizer, request.sampling.stop) for _ in range(request.sampling.count)]
            for event in writer.write_start(request):
                yield event
            while (token := await pieces.get()) is not None:
                if text := streams[token[0]].add(token[1], token[2]):
                    for event in writer.write_text(token[0], text):
                        yield event
            completions = [_check_answer(answer) for answer in future.result()]
            for index, completion in enumerate(completions):
                choice = to_choice(index, completion)
                text = choice["message"]["content"] or "" if "message" in choice else choice["text"]
                for event in writer.write_choice(choice, completion, streams[index].finish(text)):
                    yield event
            for event in writer.write_end(completions):
                yield event

        async def events() -> AsyncIterator[str]:
            future = self._submit(request, None if whole or self.tokenizer is None else on_token)
            future.add_done_callback(lambda _: loop.call_soon_threadsafe(pieces.put_nowait, None))
            leaving = asyncio.create_task(_wait_for_disconnect(http))
            leaving.add_done_callback(lambda _: future.cancel())
            try:
                with suppress(FutureCancelledError):
                    async for event in stream_answers(future):
                        yield event
            except RequestError as error:
                yield writer.write_error(error)
            finally:
                leaving.cancel()  # Aborts the request if it is still running.

        return StreamingResponse(events(), media_type="text/event-stream")


def to_json_response(data: object, status: int = 200) -> HttpResponse:
    from starlette.responses import JSONResponse

    return JSONResponse(data, status)


def to_request_error(error: Exception) -> RequestError:
    from starlette.exceptions import HTTPException

    if isinstance(error, HTTPException):  # An unknown path or method.
        code = "not_found" if error.status_code == 404 else "invalid_request"
        return RequestError(error.detail, code, error.status_code)
    return (
        error if isinstance(error, RequestError) else RequestError(f"{type(error).__name__}: {error}", "server_error")
    )


async def _wait_for_disconnect(http: HttpRequest) -> None:
    """Return when the client has closed the connection. The body must have been read."""
    while (await http.receive())["type"] != "http.disconnect":
        pass


async def _wait(http: HttpRequest, futures: Sequence[asyncio.Future[T]]) -> list[T]:
    """Return the results of futures. Cancels them if the client leaves.

    Raises:
        RequestError: the client has left.
    """
    results, leaving = asyncio.gather(*futures), asyncio.create_task(_wait_for_disconnect(http))
    waiting: set[asyncio.Future[Any]] = {results, leaving}
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if leaving.done():
            raise RequestError("the client has left", "client_closed_request")
        return results.result()
    finally:
        leaving.cancel()
        results.cancel()


def _choose_seed(seed: int | None) -> int:
    """Return the request's seed, or a new one."""
    return seed if seed is not None else uuid.uuid4().int >> 65


def _check_answer(answer: T | Failure) -> T:
    """Return an answer; raises the error of a failure."""
    if isinstance(answer, Failure):
        known = answer.cause in _CODES
        raise RequestError(answer.message, _CODES.get(answer.cause, str(answer.cause)), 0 if known else 500)
    return answer


def _finish(answer: Completion, calls: Sequence[ToolCall]) -> str:
    return "tool_calls" if calls else _FINISH.get(answer.stop_reason, "stop")
