"""An endpoint that records every call of an agent, for training: chat completions, completions and responses of OpenAI,
messages of Anthropic.

Each episode has a session with its own base URL, `/sessions/NAME/v1`. An agent needs no change: it gets the URL from the
environment variable `OPENAI_BASE_URL`. The environment of the episode is at `/sessions/NAME/env`.

The answer to a call is sampled freely, so that its log-probs are those of a forward pass. A required tool call is begun in
the prompt, and a response format is described there. The temperature, `top_p` and `top_k` of a request are recorded with
its tokens. The name of the model is not checked: the policy answers all calls.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from palaestra.chat.encoder import ChatEncoder
from palaestra.core.access import list_host_names
from palaestra.core.errors import EnvError, MissingExtraError
from palaestra.core.records import Answer, Completion, Engine, Json, Message, Request, Sampling
from palaestra.core.seeding import Seeds
from palaestra.core.settings import short_repr
from palaestra.engines.base import context_failure
from palaestra.serving.anthropic_api import AnthropicWriter, CountBody, MessagesBody, describe_anthropic_error
from palaestra.serving.capture import CapturedCall, CaptureSession, EpisodePlayer, decode_answer
from palaestra.serving.request_bodies import ChatBody, CommonBody, RequestError, StrictBody, TextBody
from palaestra.serving.responses_api import ResponsesBody, ResponsesWriter
from palaestra.serving.server import OpenAIServer, T, to_json_response
from palaestra.serving.writers import AnswerWriter, OpenAIWriter

if TYPE_CHECKING:
    from starlette.requests import Request as HttpRequest
    from starlette.responses import Response as HttpResponse

    from palaestra.serving.server import Handler

_MAX_ENCODERS = 64
"""Number of cached encoders. Each set of tools has its own."""
_MAX_STEPS = 128
"""Maximum number of environments that step at the same time."""


_SESSION_NAME = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9_.-]{1,128}\Z")
"""The names of sessions. They are parts of URLs."""


def check_session_name(name: str) -> None:
    """Raise if a name cannot be that of a session.

    Raises:
        RequestError: the name is empty, too long, or has other characters.
    """
    if not _SESSION_NAME.match(name):
        raise RequestError(
            f"expected a session name of 1 to 128 letters, digits and '_', '.' or '-'; got {short_repr(name)}"
        )


class StepBody(StrictBody):
    """The agent's message for the environment: a text, or a message with tool calls."""

    message: str | Json


@dataclass(frozen=True, slots=True)
class VersionedRequest(Request):
    """A request that notes the version of the weights that answer it."""

    versions: list[int] = field(default_factory=list, compare=False)


@dataclass(frozen=True, slots=True)
class _PendingCall:
    """A call that is being answered.

    Arguments:
        number: the number of earlier completions of the same prompt in the session.
        is_late: the episode was over when the call came. It cannot change the reward, so it is not recorded.
    """

    session: CaptureSession
    parent: CapturedCall | None
    messages: tuple[Message, ...]
    request: VersionedRequest
    number: int
    is_late: bool


class CaptureServer(OpenAIServer):
    """Records the calls of sessions. See `OpenAIServer` for the other arguments.

    Arguments:
        engine: generates exact completions; its log-probs are those of the sampled distribution.
        temperature: the policy's temperature, for calls without one of their own.
        context: maximum number of tokens of a conversation.
        max_tokens: maximum number of tokens of an answer.
        override_sampling: sample all calls with the policy's parameters.
        open_unknown: opens a session at the first call of an unknown name; `None` rejects such calls.

    Attributes:
        version: the number of updates of the weights.
    """

    def __init__(
        self,
        engine: Engine,
        name: str = "",
        *,
        temperature: float = 1.0,
        context: int = 0,
        override_sampling: bool = False,
        open_unknown: Callable[[str], CaptureSession] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(engine, name, **options)
        self.temperature, self.override_sampling, self.open_unknown = temperature, override_sampling, open_unknown
        self.context = context or int(getattr(engine, "context", 1 << 30))
        self.version = 0
        self.sessions: dict[str, CaptureSession] = {}
        self._chat_encoders: dict[str, ChatEncoder] = {}
        self._steps = ThreadPoolExecutor(_MAX_STEPS, "gateway-step")
        self._get_encoder("")  # Errors of the chat template are raised before any call.

    def open_session(
        self, seeds: Seeds = Seeds(0), player: EpisodePlayer | None = None, name: str = ""
    ) -> CaptureSession:
        """Open a session. By default its name cannot be guessed.

        Raises:
            RequestError: the name is invalid.
        """
        name = name or secrets.token_hex(16)
        check_session_name(name)
        session = CaptureSession(name, seeds, player)
        self.sessions[session.name] = session
        return session

    def close_session(self, session: CaptureSession) -> None:
        """Reject all further calls of a session. Calls in progress are not recorded."""
        self.sessions.pop(session.name, None)

    def update_weights(self, version: int, update: Callable[[], None]) -> None:
        """Change the weights between calls: wait for the calls in progress, and let new ones wait.

        Arguments:
            version: the number of updates of the new weights.
            update: changes the weights of the engine.
        """
        with self.batcher.pause():
            update()
            self.version = version

    def close(self) -> None:
        super().close()
        self._steps.shutdown(wait=False, cancel_futures=True)

    def _list_routes(self) -> list[tuple[str, str, Handler]]:
        session = "/sessions/{session}"
        return [
            *super()._list_routes(),
            ("GET", f"{session}/v1/models", self._list_models),
            ("POST", f"{session}/v1/chat/completions", self._capture_chat),
            ("POST", f"{session}/v1/completions", self._capture_texts),
            ("POST", f"{session}/v1/responses", self._capture_response),
            ("POST", f"{session}/v1/messages", self._capture_message),
            ("POST", f"{session}/v1/messages/count_tokens", self._count_tokens),
            ("GET", f"{session}/env", self._observe),
            ("POST", f"{session}/env", self._step),
            ("GET", f"{session}/v1/{{path:path}}", self._reject_path),
            ("POST", f"{session}/v1/{{path:path}}", self._reject_path),
        ]

    def _submit(
        self, request: Request, on_token: Callable[[int, int, int], None] | None = None
    ) -> Future[list[Answer]]:
        def note_version() -> None:
            if isinstance(request, VersionedRequest):
                request.versions.append(self.version)

        return self.batcher.submit(request, on_token, note_version)

    async def _capture_chat(self, http: HttpRequest) -> HttpResponse:
        body = await self._read(http, ChatBody)
        return await self._capture(http, body, OpenAIWriter(body, self.name, "chat.completion"))

    async def _capture_response(self, http: HttpRequest) -> HttpResponse:
        response = await self._read(http, ResponsesBody)
        session = await self._step_in_thread(self._get_session, http)
        earlier = session.responses.get(response.previous_response_id or "")
        if response.previous_response_id and earlier is None:
            raise RequestError(
                f"previous_response_id: this session has no response '{response.previous_response_id[:100]}'",
                "previous_response_not_found",
            )
        body = await self._encode(response.to_chat, earlier or ())

        def keep(message: Json) -> None:
            if response.store is not False:
                # The instructions of a response are not those of the next.
                session.responses[writer.id] = [*body.messages[bool(response.instructions) :], message]

        writer = ResponsesWriter(response, self.name, keep)
        return await self._capture(http, body, writer)

    async def _capture_message(self, http: HttpRequest) -> HttpResponse:
        message = await self._read(http, MessagesBody)
        body = await self._encode(message.to_chat)
        writer = AnthropicWriter(message.model or self.name, body.stop_strings, self.tokenizer)
        return await self._capture(http, body, writer)

    async def _count_tokens(self, http: HttpRequest) -> HttpResponse:
        body = await self._encode((await self._read(http, CountBody)).to_chat)
        session = await self._step_in_thread(self._get_session, http)
        ids = (await self._encode(self._encode_call, session, body))[-2]
        return to_json_response({"input_tokens": len(ids)})

    def _encode_call(
        self, session: CaptureSession, body: ChatBody
    ) -> tuple[ChatEncoder, tuple[Message, ...], CapturedCall | None, tuple[int, ...], tuple[int, ...]]:
        """The encoder, messages, continued call and prompt of a call, and the ids of the prompt that begin the answer."""
        messages = body.parse_messages()
        self._check_size(body.count_characters(messages), body.n)
        encoder, schema = self._get_encoder(body.to_tools()), body.to_schema()
        try:
            parent, ids = session.encode(encoder, messages, schema)
            start = () if body.forced_tool is None else encoder.encode_call_start(body.forced_tool)
        except Exception as error:  # A chat template may raise anything.
            raise RequestError(str(error)[:1000]) from error
        return encoder, messages, parent, (*ids, *start), start

    async def _capture(self, http: HttpRequest, body: ChatBody, writer: AnswerWriter) -> HttpResponse:
        """Answer a call of an agent and record it."""
        self._check_sampling(body)
        session = await self._step_in_thread(self._get_session, http)
        encoder, messages, parent, prompt_ids, start = await self._encode(self._encode_call, session, body)
        limit = body.max_completion_tokens or body.max_tokens or self.max_tokens
        pending = self._prepare(session, body, limit, parent, messages, prompt_ids)

        def to_choice(index: int, answer: Completion) -> Json:
            self._check_completion(answer)
            message = decode_answer(encoder, messages, answer, start)
            message = replace(message, tool_calls=body.limit_calls(message.tool_calls))
            if (call := self._finish_call(pending, message, answer, index)) is not None:
                session.record(encoder.tools, call)
            return self._to_chat_choice(body, index, answer, message.text, message.tool_calls)

        if body.stream:
            tool_format = encoder.tool_format
            whole = bool(encoder.tools) or (tool_format is not None and tool_format.has_channels)
            return self._stream(http, pending.request, writer, whole, to_choice)
        return await self._answer(http, [pending.request], writer, to_choice)

    async def _capture_texts(self, http: HttpRequest) -> HttpResponse:
        """Answer text completions and record them."""
        body = await self._read(http, TextBody)
        self._check_sampling(body)
        session = await self._step_in_thread(self._get_session, http)
        encoded = await self._encode(self._encode_texts, session, body)
        pendings = [self._prepare(session, body, body.max_tokens or 16, *parts) for parts in encoded]

        def to_choice(index: int, answer: Completion) -> Json:
            self._check_completion(answer)
            place, number = divmod(index, body.n)
            call = self._finish_call(pendings[place], Message("assistant", answer.text), answer, number)
            if call is not None:
                prompt, sampled = body.prompts[place], str(self.tokenizer.decode(answer.token_ids))
                text = prompt if isinstance(prompt, str) else str(self.tokenizer.decode(prompt))
                session.record_text(text + sampled, call)
            return self._to_text_choice(body, index, answer)

        return await self._answer_texts(http, body, [pending.request for pending in pendings], to_choice)

    def _encode_texts(
        self, session: CaptureSession, body: TextBody
    ) -> list[tuple[CapturedCall | None, tuple[Message, ...], tuple[int, ...]]]:
        """The continued call, messages and ids of each prompt."""
        self._check_prompts(body)
        for prompt in body.prompts:
            if not isinstance(prompt, str):
                self._check_ids(prompt)
        encoded = [session.encode_text(self._get_encoder(""), prompt) for prompt in body.prompts]
        if not all(ids for _, _, ids in encoded):
            raise RequestError("the prompt is empty")
        return encoded

    def _prepare(
        self,
        session: CaptureSession,
        body: CommonBody,
        limit: int,
        parent: CapturedCall | None,
        messages: tuple[Message, ...],
        prompt_ids: tuple[int, ...],
    ) -> _PendingCall:
        number, seed = session.draw_seed(prompt_ids, body.n, body.seed)
        sampling = self._choose_sampling(session, body, limit, prompt_ids)
        request = VersionedRequest((), sampling, seed, prompt_ids=prompt_ids)
        is_late = session.player is not None and session.player.is_over
        return _PendingCall(session, parent, messages, request, number, is_late)

    def _finish_call(
        self, pending: _PendingCall, message: Message, answer: Completion, index: int
    ) -> CapturedCall | None:
        """The record of an answer; `None` if it came too late to be recorded."""
        if pending.is_late:
            return None
        if self.sessions.get(pending.session.name) is not pending.session:
            raise RequestError(f"the session '{pending.session.name}' has ended", "session_not_found")
        request = pending.request
        version, number = request.versions[0], pending.number + index
        return CapturedCall(pending.parent, pending.messages, message, answer, version, number, request.sampling)

    async def _observe(self, http: HttpRequest) -> HttpResponse:
        return await self._play(http, lambda player: player.observe())

    async def _step(self, http: HttpRequest) -> HttpResponse:
        body = await self._read(http, StepBody)
        return await self._play(http, lambda player: player.step(body.message))

    async def _play(self, http: HttpRequest, play: Callable[[EpisodePlayer], Json]) -> HttpResponse:
        """Call the environment of a session in a thread, because it may take long."""
        player = (await self._step_in_thread(self._get_session, http)).player
        if player is None:
            raise RequestError("this session has no environment", "no_environment")
        try:
            result = await self._step_in_thread(play, player)
        except EnvError as error:
            raise RequestError(str(error), "invalid_action", 409 if player.is_over else 400) from error
        return to_json_response(result)

    async def _step_in_thread(self, function: Callable[..., T], *arguments: Any) -> T:
        """Run a function that may call an environment."""
        return await asyncio.get_running_loop().run_in_executor(self._steps, function, *arguments)

    async def _reject_path(self, http: HttpRequest) -> HttpResponse:
        raise RequestError(
            "a session offers /v1/chat/completions, /v1/completions, /v1/responses, /v1/messages and /v1/models; "
            f"got /v1/{http.path_params['path']}",
            "not_found",
        )

    def _describe_error(self, error: RequestError, path: str) -> Json:
        is_message = path.partition("/v1/")[2].startswith("messages")
        return describe_anthropic_error(error) if is_message else super()._describe_error(error, path)

    def _get_session(self, http: HttpRequest, opens: bool = True) -> CaptureSession:
        """The session of a request.

        Arguments:
            opens: open an unknown one, if the server does so.

        Raises:
            RequestError: the name is invalid, or there is no such session.
        """
        name = str(http.path_params["session"])
        check_session_name(name)
        session = self.sessions.get(name)
        if session is None and opens and self.open_unknown is not None:
            session = self.open_unknown(name)
        if session is None:
            raise RequestError(f"the session '{name}' does not exist or has ended", "session_not_found")
        return session

    def _get_encoder(self, tools: str) -> ChatEncoder:
        """Return the encoder for some tools."""
        encoder = self._chat_encoders.get(tools)
        if encoder is None:
            if len(self._chat_encoders) >= _MAX_ENCODERS:
                self._chat_encoders.clear()
            try:
                encoder = self._chat_encoders[tools] = ChatEncoder(self.tokenizer, self.name, tools)
            except Exception as error:  # A chat template may raise anything for a client's tools.
                if not tools:
                    raise
                raise RequestError(f"tools: {error}"[:1000]) from error
        return encoder

    def _check_sampling(self, body: CommonBody) -> None:
        """Reject a call whose tokens would have no log-probs to learn from."""
        if not self.override_sampling and body.temperature == 0:
            raise RequestError(
                "temperature: expected a number above 0, because a greedy answer is not a sample; got 0. The option "
                "--override-sampling of the server replaces it"
            )

    def _choose_sampling(
        self, session: CaptureSession, body: CommonBody, limit: int, prompt_ids: tuple[int, ...]
    ) -> Sampling:
        room = self.context - len(prompt_ids)
        if room < 1:
            session.context_exceeded = True
            failure = context_failure(self.name, len(prompt_ids), self.context)
            raise RequestError(failure.message, "context_length_exceeded")
        limit = min(limit, self.max_tokens, room)
        own = set() if self.override_sampling else body.model_fields_set
        temperature = body.temperature if "temperature" in own else self.temperature
        top_p, top_k = (body.top_p, max(body.top_k, 0)) if own else (1.0, 0)
        return Sampling(limit, temperature, top_p, top_k, body.stop_strings, body.n)

    def _check_completion(self, answer: Completion) -> None:
        if not answer.is_exact:
            raise RequestError(f"{self.name} returned no token ids or log-probs", "engine")
        if any(token >= len(self.tokenizer) for token in answer.token_ids):
            # Some models have more outputs than tokens. Clients repeat a call with this status, with another seed.
            raise RequestError("the model sampled an id that is not a token; repeat the call", "unavailable")


class ServerThread:
    """Runs a server in a thread of this process.

    Arguments:
        host: the address to listen on.
        port: the port; 0 for a free one.

    Raises:
        MissingExtraError: uvicorn is not installed.
    """

    def __init__(self, server: OpenAIServer, host: str = "127.0.0.1", port: int = 0) -> None:
        try:
            import uvicorn
        except ImportError as error:
            raise MissingExtraError("uvicorn", "serve", "serving a model") from error
        app = server.make_app(list_host_names(host))
        config = uvicorn.Config(app, host=host, port=port, log_level="critical", timeout_graceful_shutdown=1)
        socket = config.bind_socket()
        socket.listen()
        self.server, self.url = server, f"http://{host}:{socket.getsockname()[1]}"
        self._uvicorn = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._uvicorn.run, kwargs={"sockets": [socket]}, name="palaestra-gateway", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop the server and wait for it."""
        self._uvicorn.should_exit = True
        self._thread.join()
        self.server.close()
