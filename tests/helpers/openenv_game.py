"""A game of OpenEnv for the tests, with faults: `app` serves it with the real package, `serve_game` with `websockets` alone.

`uvicorn openenv_game:app` needs the package `openenv`; the rest needs neither it nor pydantic.
"""

from __future__ import annotations

import itertools
import json
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

CALLS = itertools.count()
"""Differs in every call, like the clock."""
SCHEMA = {
    "properties": {"guess": {"type": "integer"}, "metadata": {"type": "object"}},
    "required": ["guess"],
    "type": "object",
}


class Guessing:
    """Guess a number from 1 to 8 in three turns, with a fault that `reset` chooses."""

    def start(self, seed: int | None, fault: str) -> str:
        self.fault, self.turns = fault, 0
        if fault == "raises_in_reset":
            raise RuntimeError("no start")
        if fault == "blocks_in_reset":
            threading.Event().wait(1)
        self.secret = random.Random(next(CALLS) if fault == "ignores_seed" else seed).randint(1, 8)
        return f"Guess a number from 1 to 8.{f' Try {next(CALLS)}.' if fault == 'ignores_seed' else ''}"

    def play(self, guess: int) -> tuple[str, float | None, bool]:
        if self.fault == "raises_in_step":
            raise RuntimeError("no step")
        if self.fault == "blocks_in_step":
            threading.Event().wait(1)
        self.turns += 1
        if self.fault == "never_ends":
            return "Higher.", 0.0, False
        if self.fault == "nan":
            return "Higher.", float("nan"), self.turns == 2
        if self.fault == "no_reward":
            return "Higher.", None, False
        if guess == self.secret:
            return "Right.", 1.0, True
        return "Higher." if guess < self.secret else "Lower.", 0.0, self.turns == 3


@contextmanager
def serve_game() -> Iterator[str]:
    """Serve the game with OpenEnv's messages in a thread. Yields the address."""
    from websockets.sync.server import ServerConnection, serve

    def answer_request(connection: ServerConnection, request: Any) -> Any:
        if request.path == "/schema":
            return connection.respond(200, json.dumps({"action": SCHEMA}))
        return None

    def answer(game: Guessing, message: dict[str, Any]) -> dict[str, Any]:
        if message["type"] == "state":
            return {"type": "state", "data": {}}
        if message["type"] == "reset":
            text, reward, done = game.start(message["data"]["seed"], message["data"].get("fault", "")), None, False
        elif not isinstance(message["data"].get("guess"), int):
            return {"type": "error", "data": {"message": "Invalid message", "code": "VALIDATION_ERROR", "errors": []}}
        else:
            text, reward, done = game.play(message["data"]["guess"])
        return {"type": "observation", "data": {"observation": {"hint": text}, "reward": reward, "done": done}}

    def handle(connection: ServerConnection) -> None:
        game = Guessing()
        for text in connection:
            message = json.loads(text)
            if message["type"] == "close":
                break
            try:
                response = answer(game, message)
            except RuntimeError as error:
                response = {"type": "error", "data": {"message": str(error), "code": "EXECUTION_ERROR"}}
            if message["type"] == "step" and game.fault == "closes":
                break
            if message["type"] == "step" and game.fault == "breaks_the_protocol":
                response = {"observation": "Higher."}
            connection.send(json.dumps(response))

    with serve(handle, "127.0.0.1", 0, process_request=answer_request) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.socket.getsockname()[1]}"


def make_app() -> Any:
    """The game as a server of the real package, with an environment of MCP tools at `/tools`."""
    from openenv.core.env_server.http_server import create_app
    from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation

    app = create_app(GuessingEnvironment, GuessAction, GuessObservation, env_name="guessing", max_concurrent_envs=64)
    app.mount("/tools", create_app(AddingEnvironment, CallToolAction, CallToolObservation, env_name="adding"))
    return app


def __getattr__(name: str) -> Any:
    if name == "app":
        return make_app()
    raise AttributeError(name)


try:
    from fastmcp import FastMCP
    from openenv.core.env_server.interfaces import Environment
    from openenv.core.env_server.mcp_environment import MCPEnvironment
    from openenv.core.env_server.types import Action, Observation, State
except ImportError:
    pass
else:

    class GuessAction(Action):
        guess: int

    class GuessObservation(Observation):
        hint: str = ""

    class GuessingEnvironment(Environment):
        SUPPORTS_CONCURRENT_SESSIONS = True

        def __init__(self) -> None:
            super().__init__()
            self.game = Guessing()

        def reset(self, seed: int | None = None, episode_id: str | None = None, fault: str = "") -> GuessObservation:
            return GuessObservation(hint=self.game.start(seed, fault))

        def step(self, action: GuessAction) -> GuessObservation:
            hint, reward, done = self.game.play(action.guess)
            return GuessObservation(hint=hint, reward=reward, done=done)

        @property
        def state(self) -> State:
            return State()

    class AddingEnvironment(MCPEnvironment):
        def __init__(self) -> None:
            mcp = FastMCP("adding")

            @mcp.tool
            def add(first: int, second: int) -> int:
                """Add two numbers."""
                return first + second

            super().__init__(mcp)

        def reset(self, seed: int | None = None, episode_id: str | None = None, **options: Any) -> Observation:
            return Observation(metadata={"message": "Add."})

        def _step_impl(self, action: Action, timeout_s: float | None = None, **options: Any) -> Observation:
            return Observation()

        @property
        def state(self) -> State:
            return State()
