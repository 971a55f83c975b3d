"""`palaestra/TextArena-v0`: the games of the package TextArena as turn environments."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from palaestra.core.errors import EnvError, UnknownNameError
from palaestra.core.registry import is_reference, load_reference
from palaestra.envs.base import Options
from palaestra.envs.turn.foreign import ForeignEnv, ForeignStep, ForeignVectorEnv
from palaestra.integrations import load_library

if TYPE_CHECKING:
    import textarena

_RAW = "-raw"
_MAX_PLAYERS = 15
_MAX_OPPONENT_TURNS = 1000
_Opponent = Callable[[str, np.random.Generator], str]
"""Chooses an action from what an opponent reads, with a seeded generator."""
_MOVE = re.compile(r"\[[^\[\]\n]{1,40}\]")


class TextArenaEnv(ForeignEnv["textarena.Env"]):
    """A game of TextArena, alone or against scripted opponents.

    The agent reads the game's messages since its last turn. As in TextArena, brackets are added to an action without
    any, in games that expect them. The reward of the last turn is the game's outcome; other turns have 0. A game of
    several players ends with 1 for a win, -1 for a loss and 0 for a draw.

    Arguments:
        env_id: a TextArena id, for example `GuessTheNumber-v0`.
        player: the number of the agent among the players.
        opponent: how the others play: `random` chooses among the moves in square brackets of the last message that has
            some; or a function as `module:function` or `file.py:function` (see `_Opponent`).
        arguments: arguments of `ForeignEnv`. The `options` of a reset are arguments of the game's `reset`.

    Example:
        >>> env = TextArenaEnv("GuessTheNumber-v0")  # doctest: +SKIP
        >>> env.step("[10]")[0].messages[-1].text  # doctest: +SKIP
        'The target number is higher.'
    """

    sample_actions = ("[1]", "[2]", "[10]", "[4]")

    def __init__(self, env_id: str, *, player: int = 0, opponent: str = "random", **arguments: Any) -> None:
        _load_textarena()  # Its import takes seconds and is no call of the environment.
        self.player, self._opponent = player, _load_opponent(opponent)
        self._players, self._adds_brackets = 1, False
        self._generator = np.random.default_rng(0)
        super().__init__(env_id, **arguments)

    def make(self) -> textarena.Env:
        package = _load_textarena()
        from textarena.envs.registration import ENV_REGISTRY

        name = self.env_id.removesuffix(_RAW)
        if name not in ENV_REGISTRY:
            raise UnknownNameError("game of TextArena", name, [n for n in ENV_REGISTRY if not n.endswith(_RAW)])
        wrappers = ENV_REGISTRY[name].default_wrappers or ()
        self._adds_brackets = any(kind.__name__ == "ActionFormattingWrapper" for kind in wrappers)
        # The raw game sends only new messages; the default wrapper repeats the whole history in every turn.
        with redirect_stdout(StringIO()):  # Some games download word lists and print that.
            env = package.make(name + _RAW if name + _RAW in ENV_REGISTRY else name, **self.env_kwargs)
        while isinstance(env, package.Wrapper):
            env = env.env
        self._players = _count_players(env)
        if not 0 <= self.player < self._players:
            raise EnvError(f"{name} has {self._players} players; expected player below that; got {self.player}")
        return env

    def start(self, env: textarena.Env, seed: int | None, options: Options) -> str:
        if seed is not None:
            self._generator = np.random.default_rng(seed)
        env.reset(**{"num_players": self._players, "seed": seed, **options})
        self._play_opponents(env)
        return self._read(env)

    def play(self, env: textarena.Env, text: str) -> ForeignStep:
        if self._adds_brackets and "[" not in text and "]" not in text:
            text = f"[{text}]"
        done, _ = env.step(text)
        is_invalid = _is_refused(env, self.player)
        if not done and not self._play_opponents(env):
            return ForeignStep(self._read(env), is_invalid=is_invalid)
        rewards, game_info = env.close()
        about = game_info[self.player] if isinstance(game_info, dict) and self.player in game_info else {}
        is_invalid = is_invalid or bool(about.get("invalid_move"))
        return ForeignStep(str(about.get("reason") or ""), float(rewards[self.player]), True, is_invalid=is_invalid)

    def release(self, env: textarena.Env) -> None:
        """A game has nothing to close; its `close` returns the outcome."""

    def _play_opponents(self, env: textarena.Env) -> bool:
        """Play until it is the agent's turn. Returns whether the game has ended."""
        for _ in range(_MAX_OPPONENT_TURNS):
            if env.state.current_player_id == self.player:
                return False
            _, messages = env.get_observation()
            action = self._opponent("\n".join(str(message[1]) for message in messages), self._generator)
            done, _ = env.step(action)
            if done:
                return True
        raise EnvError(f"the opponents of {self.env_id} played {_MAX_OPPONENT_TURNS} turns in a row")

    def _read(self, env: textarena.Env) -> str:
        """The new messages for the agent, without its own."""
        _, messages = env.get_observation()
        own = (self.player, _load_textarena().ObservationType.PLAYER_ACTION)
        return "\n".join(str(text) for sender, text, kind in messages if (sender, kind) != own).strip()


class TextArenaVectorEnv(ForeignVectorEnv):
    """`TextArenaEnv` in slots. Takes the arguments of both."""

    kind = TextArenaEnv


def play_randomly(observation: str, generator: np.random.Generator) -> str:
    """Choose among the moves in square brackets of the last line that has some.

    Raises:
        EnvError: there are none; the game needs an opponent of its own.
    """
    for line in reversed(observation.splitlines()):
        if moves := _MOVE.findall(line):
            return str(moves[int(generator.integers(len(moves)))])
    raise EnvError("the random opponent found no moves in square brackets; set opponent to a function of your own")


def _load_opponent(opponent: str) -> _Opponent:
    """The function of an opponent: `random`, or a reference."""
    if opponent != "random" and not is_reference(opponent):
        raise EnvError(f"opponent must be random, module:function or file.py:function; got {opponent!r}")
    function: _Opponent = play_randomly if opponent == "random" else load_reference(opponent)
    return function


def _load_textarena() -> ModuleType:
    """Import TextArena. Raises `MissingExtraError` if it is not installed."""
    return load_library("textarena", "textarena", "textarena", "a game of TextArena")


def _count_players(env: textarena.Env) -> int:
    """The smallest number of players that a game accepts."""
    for players in range(1, _MAX_PLAYERS + 1):
        try:
            env.reset(num_players=players)
        except AssertionError:
            continue
        return players
    raise EnvError(f"the game accepts no number of players from 1 to {_MAX_PLAYERS}")


def _is_refused(env: textarena.Env, player: int) -> bool:
    """Whether the game has just answered an action of the agent as invalid. It may then try again."""
    messages = env.state.observations.get(player, ())
    return any(getattr(kind, "name", "") == "GAME_ADMIN" and "invalid move" in text for _, text, kind in messages)
