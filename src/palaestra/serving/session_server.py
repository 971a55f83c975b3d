"""A capture server for agents that are started by hand or by another program: `palaestra serve --capture`.

A session is opened by its first call, or by `POST /sessions` with a seed. `POST /sessions/NAME/end` ends it and returns
what was recorded. The reward comes from the environment; a session without one takes it from the body of this request.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING, Any, Protocol

from pydantic import Field, FiniteFloat

from palaestra.core.records import Engine, Failure, Json
from palaestra.core.seeding import Seeds
from palaestra.serving.capture import CaptureSession, EpisodePlayer
from palaestra.serving.gateway import CaptureServer, check_session_name
from palaestra.serving.request_bodies import MAX_SEED, RequestError, StrictBody
from palaestra.serving.server import to_json_response

if TYPE_CHECKING:
    from starlette.requests import Request as HttpRequest
    from starlette.responses import Response as HttpResponse

    from palaestra.serving.server import Handler


_MAX_ENDED = 2**16
"""Number of ended sessions whose names are not used again."""


class StandalonePlayer(EpisodePlayer, Protocol):
    """A player that is not part of a training run."""

    rewards: list[float]
    failure: Failure | None
    stop_reason: Any

    def finish(self) -> None:
        """End the episode, if it is in progress, and release the environment."""
        ...


class OpenBody(StrictBody):
    """Arguments of a new session."""

    name: str = ""
    seed: int | None = Field(None, ge=0, le=MAX_SEED)
    """The seed of the episode. Sessions with the same seed start from the same state."""


class EndBody(StrictBody):
    """The reward of a session without an environment."""

    reward: FiniteFloat | None = None


class SessionServer(CaptureServer):
    """Opens, shows and ends sessions on request. See `CaptureServer` for the other arguments.

    Arguments:
        seeds: for sampling, by the name of the session, and for episodes without a seed of their own.
        make_player: makes the environment of a session from a seed; `None` if agents have their own.
        on_end: receives the record of each session when it ends.
        max_sessions: maximum number of open sessions; a further one is rejected with status 429.
    """

    def __init__(
        self,
        engine: Engine,
        name: str = "",
        *,
        seeds: Seeds = Seeds(0),
        make_player: Callable[[int], StandalonePlayer] | None = None,
        on_end: Callable[[Json], None] | None = None,
        max_sessions: int = 1024,
        **options: Any,
    ) -> None:
        super().__init__(engine, name, open_unknown=self._open, **options)
        self.seeds, self.make_player, self.on_end, self.max_sessions = seeds, make_player, on_end, max_sessions
        self._ended: dict[str, None] = {}
        self._lock = threading.Lock()

    def _list_routes(self) -> list[tuple[str, str, Handler]]:
        return [
            ("POST", "/sessions", self._open_session),
            ("GET", "/sessions/{session}", self._show_session),
            ("POST", "/sessions/{session}/end", self._end_session),
            *super()._list_routes(),
        ]

    def _open(self, name: str, seed: int | None = None, must_be_new: bool = False) -> CaptureSession:
        """Open a session, unless another call has opened it and it need not be new. Runs in threads."""
        check_session_name(name)
        with self._lock:
            if name in self.sessions and not must_be_new:
                return self.sessions[name]
            if name in self._ended or name in self.sessions:
                state = "has ended" if name in self._ended else "is open already"
                raise RequestError(f"the session '{name}' {state}; use another name", "session_exists")
            if len(self.sessions) >= self.max_sessions:
                raise RequestError(
                    f"{self.max_sessions} sessions are open already; end one first", "rate_limit_exceeded"
                )
            own = self.seeds.derive("session", name)
            seed = own.derive("episode").integer() % 2**31 if seed is None else seed
            return self.open_session(own, None if self.make_player is None else self.make_player(seed), name)

    async def _open_session(self, http: HttpRequest) -> HttpResponse:
        body = await self._read(http, OpenBody)
        numbers = count(len(self.sessions) + len(self._ended))
        unused = (n for n in map("session-{}".format, numbers) if n not in self.sessions and n not in self._ended)
        session = await self._step_in_thread(self._open, body.name or next(unused), body.seed, True)
        url = f"{str(http.base_url).rstrip('/')}/sessions/{session.name}"
        return to_json_response({"session": session.name, "base_url": f"{url}/v1", "env_url": f"{url}/env"})

    async def _show_session(self, http: HttpRequest) -> HttpResponse:
        return to_json_response(await self._encode(self._get_session(http, opens=False).to_plain))

    async def _end_session(self, http: HttpRequest) -> HttpResponse:
        body = await self._read(http, EndBody)
        session = self._get_session(http, opens=False)
        if session.player is not None and body.reward is not None:
            raise RequestError("the reward of this session comes from its environment; got another one")
        self.close_session(session)
        self._ended[session.name] = None
        if len(self._ended) > _MAX_ENDED:
            del self._ended[next(iter(self._ended))]
        return to_json_response(await self._step_in_thread(self._finish, session, body.reward))

    def _finish(self, session: CaptureSession, reward: float | None) -> Json:
        """End the episode of a session. Returns its record."""
        player: Any = session.player
        record: Json = {**session.to_plain(), "reward": reward, "stop_reason": None, "failure": None}
        if player is not None:
            player.finish()
            record["stop_reason"] = player.stop_reason
            if player.failure is None:
                record["reward"] = float(sum(player.rewards))
            else:
                record["failure"] = f"{player.failure.cause}: {player.failure.message}"
        if self.on_end is not None:
            with self._lock:  # Records of other sessions may be written at the same time.
                self.on_end(record)
        return record
