"""`palaestra/TextArena-v0`: the games of the package TextArena as turn environments."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from importlib.util import find_spec
from io import StringIO
from typing import Any

import numpy as np

from palaestra.core.errors import EnvError, MissingExtraError, UnknownNameError
from palaestra.core.plugins import is_reference, load_reference
from palaestra.envs.turn.foreign import ForeignEnv, ForeignStep, ForeignVectorEnv

RAW = "-raw"
MAX_PLAYERS = 15
MAX_OPPONENT_TURNS = 1000
Opponent = Callable[[str, np.random.Generator], str]
"""Chooses an action from what an opponent reads, with a seeded generator."""
_MOVE = re.compile(r"\[[^\[\]\n]{1,40}\]")


class TextArenaEnv(ForeignEnv):
    """A game of TextArena, alone or against scripted opponents.

    The agent reads the game's messages since its last turn. As in TextArena, brackets are added to an action without
    any, in games that expect them. The reward of the last turn is the game's outcome; other turns have 0. A game of
    several players ends with 1 for a win, -1 for a loss and 0 for a draw.

    Arguments:
        env_id: a TextArena id, for example `GuessTheNumber-v0`.
        player: the number of the agent among the players.
        opponent: how the others play: `random` chooses among the moves in square brackets of the last message that has
            some; or a function as `module:function` or `file.py:function` (see `Opponent`).
        arguments: arguments of `ForeignEnv`. The `options` of a reset are arguments of the game's `reset`.

    Example:
        >>> env = TextArenaEnv("GuessTheNumber-v0")  # doctest: +SKIP
        >>> env.step("[10]")[0].messages[-1].text  # doctest: +SKIP
        'The target number is higher.'
    """

    sample_actions = ("[1]", "[2]", "[10]", "[4]")

    def __init__(self, env_id: str, *, player: int = 0, opponent: str = "random", **arguments: Any) -> None:
        self.player, self._opponent = player, load_opponent(opponent)
        self._players, self._adds_brackets = 1, False
        self._generator = np.random.default_rng(0)
        super().__init__(env_id, **arguments)

    def make(self) -> Any:
        textarena = load_textarena()
        from textarena.envs.registration import ENV_REGISTRY

        name = self.env_id.removesuffix(RAW)
        if name not in ENV_REGISTRY:
            raise UnknownNameError("game of TextArena", name, [n for n in ENV_REGISTRY if not n.endswith(RAW)])
        wrappers = ENV_REGISTRY[name].default_wrappers or ()
        self._adds_brackets = any(kind.__name__ == "ActionFormattingWrapper" for kind in wrappers)
        # The raw game sends only new messages; the default wrapper repeats the whole history in every turn.
        with redirect_stdout(StringIO()):  # Some games download word lists and print that.
            env = textarena.make(name + RAW if name + RAW in ENV_REGISTRY else name, **self.env_options)
        while isinstance(env, textarena.Wrapper):
            env = env.env
        self._players = _count_players(env)
        if not 0 <= self.player < self._players:
            raise EnvError(f"{name} has {self._players} players; expected player below that; got {self.player}")
        return env

    def start(self, env: Any, seed: int | None, options: Mapping[str, Any]) -> str:
        if seed is not None:
            self._generator = np.random.default_rng(seed)
        env.reset(**{"num_players": self._players, "seed": seed, **options})
        self._play_opponents(env)
        return self._read(env)

    def play(self, env: Any, text: str) -> ForeignStep:
        if self._adds_brackets and "[" not in text and "]" not in text:
            text = f"[{text}]"
        done, _ = env.step(text)
        is_invalid = _is_refused(env, self.player)
        if not done:
            done = self._play_opponents(env)
        if not done:
            return ForeignStep(self._read(env), is_invalid=is_invalid)
        rewards, game_info = env.close()
        about = game_info[self.player] if isinstance(game_info, dict) and self.player in game_info else {}
        is_invalid = is_invalid or bool(about.get("invalid_move"))
        reward = float(rewards[self.player])
        return ForeignStep(str(about.get("reason") or ""), reward, terminated=True, is_invalid=is_invalid)

    def release(self, env: Any) -> None:
        """A game has nothing to close; its `close` returns the outcome."""

    def _play_opponents(self, env: Any) -> bool:
        """Play until it is the agent's turn. Returns whether the game has ended."""
        for _ in range(MAX_OPPONENT_TURNS):
            if env.state.current_player_id == self.player:
                return False
            _, messages = env.get_observation()
            action = self._opponent("\n".join(str(message[1]) for message in messages), self._generator)
            done, _ = env.step(action)
            if done:
                return True
        raise EnvError(f"the opponents of {self.env_id} played {MAX_OPPONENT_TURNS} turns in a row")

    def _read(self, env: Any) -> str:
        """The new messages for the agent, without its own."""
        _, messages = env.get_observation()
        kinds = load_textarena().ObservationType
        texts = [
            str(text) for sender, text, kind in messages if not (sender == self.player and kind is kinds.PLAYER_ACTION)
        ]
        return "\n".join(texts).strip()


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


def load_opponent(opponent: str) -> Opponent:
    """The function of an opponent: `random`, or a reference."""
    if opponent == "random":
        return play_randomly
    if not is_reference(opponent):
        raise EnvError(f"opponent must be random, module:function or file.py:function; got {opponent!r}")
    function: Opponent = load_reference(opponent)
    return function


def load_textarena() -> Any:
    """Import TextArena. Raises `MissingExtraError` if it is not installed."""
    if find_spec("textarena") is None:
        raise MissingExtraError("textarena", "textarena", "a game of TextArena")
    import textarena

    return textarena


def _count_players(env: Any) -> int:
    """The smallest number of players that a game accepts."""
    for players in range(1, MAX_PLAYERS + 1):
        try:
            env.reset(num_players=players)
        except AssertionError:
            continue
        return players
    raise EnvError(f"the game accepts no number of players from 1 to {MAX_PLAYERS}")


def _is_refused(env: Any, player: int) -> bool:
    """Whether the game has just answered an action of the agent as invalid. It may then try again."""
    messages = env.state.observations.get(player, ())
    return any(getattr(kind, "name", "") == "GAME_ADMIN" and "invalid move" in text for _, text, kind in messages)
