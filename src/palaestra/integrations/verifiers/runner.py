"""Episodes of a verifiers environment, one model call at a time.

In verifiers an environment runs its episode and calls the model; in Gymnasium the agent calls the environment. An
`EpisodeRunner` runs episodes in an event loop of its own thread, with an OpenAI-compatible endpoint as the model. A call
of the endpoint waits until the agent answers it.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

import verifiers.v1 as vf
from aiohttp import web

from palaestra.chat.rendering import to_chat_call
from palaestra.core.errors import EnvError
from palaestra.core.records import Json, Message
from palaestra.engines.openai_format import parse_message

_MODEL = "policy"
"""The name of the model at the endpoint."""
_MAX_START_SECONDS = 60.0
"""Maximum time until the servers of an environment run."""


class EpisodeRunner:
    """Runs the episodes of an environment. `start` and `answer` return the messages of the next model call.

    Both return an `Episode` of verifiers at the end instead. They wait without a limit; the caller has one. `tools` are
    those of the last model call, in OpenAI's format.

    Arguments:
        env: an environment of verifiers.
    """

    def __init__(self, env: vf.Env) -> None:
        self.env = env
        self.tools: Sequence[Json] = ()
        self._loop = asyncio.new_event_loop()
        self._events: queue.Queue[Any] = queue.Queue()
        self._reply: asyncio.Future[Message] | None = None
        self._episode: Future[vf.Episode] | None = None
        self._ready: Future[str] = Future()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="verifiers")
        self._thread.start()
        self._url = self._ready.result(_MAX_START_SECONDS)

    def start(self, task: vf.Task) -> Sequence[Message] | vf.Episode:
        """Start an episode. An episode in progress is cancelled."""
        self._cancel()
        self._events = queue.Queue()
        context = vf.ModelContext(_MODEL, vf.EvalClientConfig(base_url=self._url, api_key_var="PALAESTRA_UNUSED_KEY"))
        self._episode = asyncio.run_coroutine_threadsafe(self.env.run_episode(task, context), self._loop)
        self._episode.add_done_callback(self._events.put)
        return self._wait()

    def answer(self, message: Message) -> Sequence[Message] | vf.Episode:
        """Answer the model call that waits."""
        if self._reply is None:
            raise EnvError("no model call waits for an answer")
        reply, self._reply = self._reply, None
        self._loop.call_soon_threadsafe(reply.set_result, message)
        return self._wait()

    def close(self) -> None:
        """Cancel the episode and stop the servers."""
        with suppress(RuntimeError):  # The loop may have ended with an error.
            self._cancel()
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(5)

    def _wait(self) -> Sequence[Message] | vf.Episode:
        event = self._events.get()
        if isinstance(event, Future):
            return event.result()
        messages, self.tools, self._reply = event
        return messages

    def _cancel(self) -> None:
        if self._episode is not None and not self._episode.done():
            self._episode.cancel()
            events, deadline = self._events, time.monotonic() + 5
            with suppress(queue.Empty):
                while not isinstance(events.get(timeout=max(0.0, deadline - time.monotonic())), Future):
                    pass
        self._episode = self._reply = None

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        except BaseException as error:  # Reported to the thread that waits for the address.
            if not self._ready.done():
                self._ready.set_exception(error)

    async def _serve(self) -> None:
        app = web.Application(client_max_size=1 << 28)
        app.router.add_post("/v1/chat/completions", self._complete)
        runner = web.AppRunner(app)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            host, port = runner.addresses[0][:2]
            async with self.env.serving():
                self._ready.set_result(f"http://{host}:{port}/v1")
                await self._stop.wait()
        finally:
            await runner.cleanup()

    async def _complete(self, request: web.Request) -> web.Response:
        """Answer a model call with the next action of the agent."""
        body = await request.json()
        reply: asyncio.Future[Message] = self._loop.create_future()
        self._events.put(([parse_message(message) for message in body["messages"]], body.get("tools") or (), reply))
        message = await reply
        data: Json = {"role": "assistant", "content": message.text}
        if message.tool_calls:
            data["tool_calls"] = [to_chat_call(call) for call in message.tool_calls]
        choice = {"index": 0, "message": data, "finish_reason": "tool_calls" if message.tool_calls else "stop"}
        usage = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
        answer = {"id": "palaestra", "object": "chat.completion", "created": int(time.time()), "model": _MODEL}
        return web.json_response({**answer, "choices": [choice], "usage": usage})
