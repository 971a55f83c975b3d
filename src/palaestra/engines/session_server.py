"""A capture server for agents that are started by hand or by another program: `palaestra serve --capture`.

A session is opened by its first call, or by `POST /sessions` with a seed. `POST /sessions/NAME/end` ends it and returns
what was recorded. The reward comes from the environment; a session without one takes it from the body of this request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat

from palaestra.core.records import Failure
from palaestra.core.seeding import Seeds
from palaestra.engines.base import Engine
from palaestra.engines.capture import CaptureSession, EpisodePlayer
from palaestra.engines.gateway import CaptureServer
from palaestra.engines.server import RequestError, read_body

if TYPE_CHECKING:
    from starlette.requests import Request as HttpRequest
    from starlette.responses import Response as HttpResponse

    from palaestra.engines.server import Handler


class StandalonePlayer(EpisodePlayer, Protocol):
    """A player that is not part of a training run."""

    rewards: list[float]
    failure: Failure | None
    stop_reason: Any

    def finish(self) -> None:
        """End the episode, if it is in progress, and release the environment."""
        ...


class OpenBody(BaseModel):
    """Arguments of a new session."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field("", pattern=r"^[\w.-]*$", max_length=128)
    seed: int | None = None
    """The seed of the episode. Sessions with the same seed start from the same state."""


class EndBody(BaseModel):
    """The reward of a session without an environment."""

    model_config = ConfigDict(extra="forbid")

    reward: FiniteFloat | None = None


class SessionServer(CaptureServer):
    """Opens, shows and ends sessions on request. See `CaptureServer` for the other arguments.

    Arguments:
        seeds: for sampling, by the name of the session, and for episodes without a seed of their own.
        make_player: makes the environment of a session from a seed; `None` if agents have their own.
        on_end: receives the record of each session when it ends.
    """

    def __init__(
        self,
        engine: Engine,
        name: str = "",
        *,
        seeds: Seeds = Seeds(0),
        make_player: Callable[[int], StandalonePlayer] | None = None,
        on_end: Callable[[dict[str, Any]], None] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(engine, name, open_unknown=self._open, **options)
        self.seeds, self.make_player, self.on_end = seeds, make_player, on_end
        self._ended: set[str] = set()

    def _list_routes(self) -> list[tuple[str, str, Handler]]:
        return [
            ("POST", "/sessions", self._open_session),
            ("GET", "/sessions/{session}", self._show_session),
            ("POST", "/sessions/{session}/end", self._end_session),
            *super()._list_routes(),
        ]

    def _open(self, name: str, seed: int | None = None) -> CaptureSession:
        if name in self._ended or name in self.sessions:
            state = "has ended" if name in self._ended else "is open already"
            raise RequestError(f"the session '{name}' {state}; use another name", 409, "session_exists")
        own = self.seeds.derive("session", name)
        seed = own.derive("episode").integer() % 2**31 if seed is None else seed
        return self.open_session(own, None if self.make_player is None else self.make_player(seed), name)

    async def _open_session(self, http: HttpRequest) -> HttpResponse:
        from starlette.responses import JSONResponse

        body = await read_body(http, OpenBody)
        session = self._open(body.name or f"session-{len(self.sessions) + len(self._ended)}", body.seed)
        url = f"{str(http.base_url).rstrip('/')}/sessions/{session.name}"
        return JSONResponse({"session": session.name, "base_url": f"{url}/v1", "env_url": f"{url}/env"})

    async def _show_session(self, http: HttpRequest) -> HttpResponse:
        from starlette.responses import JSONResponse

        return JSONResponse(self._find(http).to_plain())

    async def _end_session(self, http: HttpRequest) -> HttpResponse:
        from starlette.responses import JSONResponse

        body, session = await read_body(http, EndBody), self._find(http)
        player: Any = session.player
        if player is not None and body.reward is not None:
            raise RequestError("the reward of this session comes from its environment; got another one")
        self.close_session(session)
        self._ended.add(session.name)
        record: dict[str, Any] = {**session.to_plain(), "reward": body.reward, "stop_reason": None, "failure": None}
        if player is not None:
            await asyncio.get_running_loop().run_in_executor(self._steps, player.finish)
            record["stop_reason"] = player.stop_reason
            if player.failure is None:
                record["reward"] = float(sum(player.rewards))
            else:
                record["failure"] = f"{player.failure.cause}: {player.failure.message}"
        if self.on_end is not None:
            self.on_end(record)
        return JSONResponse(record)

    def _find(self, http: HttpRequest) -> CaptureSession:
        """The session of a request, which is not opened if it does not exist."""
        name = str(http.path_params["session"])
        if name not in self.sessions:
            raise RequestError(f"the session '{name}' does not exist or has ended", 404, "session_not_found")
        return self.sessions[name]
