"""A bad environment or data set of another package ends as a typed failure or a clear error, never as a hang or a zero."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest

from palaestra.core.errors import EnvError, TaskError
from palaestra.core.records import Completion, Failure, FailureCause, Split
from palaestra.envs.factory import make_turn_env
from palaestra.envs.turn.base import TurnStopReason
from palaestra.envs.turn.vector import TurnVectorEnv
from palaestra.integrations.reasoning_gym import NONSENSE
from palaestra.tasks.base import make_task
from palaestra.tasks.evaluate import score

FAULTS = (
    "fine",
    "raises_in_reset",
    "raises_in_step",
    "never_ends",
    "nan",
    "ignores_seed",
    "blocks_in_reset",
    "blocks_in_step",
)
CALLS = itertools.count()
"""Differs in every call, like the clock."""


class Game:
    """A game of one turn that shows a number and pays 1, with a fault."""

    def __init__(self, fault: str) -> None:
        self.fault = fault

    def start(self, seed: int | None) -> str:
        if self.fault == "raises_in_reset":
            raise RuntimeError("no start")
        if self.fault == "blocks_in_reset":
            threading.Event().wait(30)
        return str(next(CALLS) if self.fault == "ignores_seed" else seed)

    def play(self) -> tuple[str, float, bool]:
        if self.fault == "raises_in_step":
            raise RuntimeError("no step")
        if self.fault == "blocks_in_step":
            threading.Event().wait(30)
        return "7", float("nan") if self.fault == "nan" else 1.0, self.fault != "never_ends"


class GymGame(gymnasium.Env[str, int]):
    def __init__(self, fault: str) -> None:
        self.game = Game(fault)
        self.observation_space, self.action_space = gymnasium.spaces.Text(99), gymnasium.spaces.Discrete(4)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        return self.game.start(seed), {}

    def step(self, action: int) -> tuple[str, float, bool, bool, dict[str, Any]]:
        text, reward, over = self.game.play()
        return text, reward, over, False, {}


def register_gym_game() -> str:
    if "BadGame-v0" not in gymnasium.registry:
        gymnasium.register("BadGame-v0", GymGame)
    return "text:BadGame-v0"


def register_textarena_game() -> str:
    import textarena

    class ArenaGame(textarena.Env):  # type: ignore[misc, name-defined]
        def __init__(self, fault: str) -> None:
            self.game = Game(fault)

        def reset(self, num_players: int, seed: int | None = None) -> None:
            self.state = textarena.SinglePlayerState(num_players=num_players, seed=seed, max_turns=100)
            self.state.reset(player_prompt_function=lambda player_id, game_state: "")
            # The game is also reset once without an episode, to count its players.
            text = self.game.start(seed) if seed is not None else ""
            self.state.add_observation(text, observation_type=textarena.ObservationType.GAME_MESSAGE)

        def step(self, action: str) -> Any:
            text, reward, over = self.game.play()
            if over:
                self.state.set_outcome(reward=reward, reason=text)
            return self.state.step()

    if "BadGame-v0" not in textarena.envs.registration.ENV_REGISTRY:
        textarena.register("BadGame-v0", ArenaGame)
    return "textarena:BadGame-v0"


def register_gem_game() -> str:
    from palaestra.integrations.gem import load_gem

    gem = load_gem()

    class GemGame(gem.Env):  # type: ignore[misc, name-defined]
        def __init__(self, fault: str) -> None:
            self.game = Game(fault)

        def reset(self, seed: int | None = None) -> tuple[str, dict[str, Any]]:
            return self.game.start(seed), {}

        def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
            text, reward, over = self.game.play()
            return text, reward, over, False, {}

    if "BadGame-v0" not in gem.envs.registration.ENV_REGISTRY:
        gem.register("BadGame-v0", GemGame)
    return "gem:BadGame-v0"


ADAPTERS = [
    pytest.param(register_gym_game, id="text"),
    pytest.param(register_textarena_game, id="textarena"),
    pytest.param(register_gem_game, id="gem", marks=pytest.mark.backends),
]


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("register", ADAPTERS)
def test_a_bad_environment_gets_a_failure_or_an_error(register: Callable[[], str], fault: str) -> None:
    options = {"env_kwargs": {"fault": fault}, "max_turns": 3, "max_call_seconds": 0.1}
    if fault == "ignores_seed":
        with pytest.raises(EnvError, match=r"BadGame-v0 .*seed 0"):
            make_turn_env(register(), 1, options, failures="mark", autoreset=False)
        return
    env = make_turn_env(register(), 1, options, failures="mark", autoreset=False)
    try:
        reward, info = _play_out(env)
    finally:
        env.close()
    if fault == "fine":
        assert (reward, info["stop_reason"]) == (1.0, TurnStopReason.SOLVED)
    elif fault == "never_ends":
        assert info["stop_reason"] is TurnStopReason.STEPS
    else:
        assert info["stop_reason"] is TurnStopReason.FAILED
        assert info["failure"].cause is FailureCause.ENVIRONMENT
        expected = {"raises": "RuntimeError: no", "blocks": "0.1 seconds", "nan": "finite"}
        assert expected[fault.partition("_")[0]] in info["failure"].message


def _play_out(env: TurnVectorEnv) -> tuple[float, dict[str, Any]]:
    """Play one episode. Returns the last reward and the last info."""
    _, infos = env.reset(seed=3)
    if not infos["active"][0]:
        return 0.0, {name: infos[name][0] for name in ("stop_reason", "failure")}
    while True:
        _, rewards, terminated, truncated, infos = env.step(["1"])
        if terminated[0] or truncated[0]:
            return float(rewards[0]), infos["final_info"][0]


@dataclass
class DatasetConfig:
    fault: str = "fine"
    accepts_nonsense: bool = False
    seed: int | None = None
    size: int = 500


def register_dataset() -> None:
    from reasoning_gym.dataset import ProceduralDataset
    from reasoning_gym.factory import DATASETS

    class BadDataset(ProceduralDataset):  # type: ignore[misc, name-defined]
        __module__ = __name__
        faults: ClassVar[tuple[str, ...]] = FAULTS

        def __init__(self, config: DatasetConfig) -> None:
            super().__init__(config, config.seed, config.size)
            self.game = Game(config.fault)

        def __getitem__(self, idx: int) -> dict[str, Any]:
            number = self.game.start(self.seed + idx)
            return {"question": number, "answer": number, "metadata": {}}

        def score_answer(self, answer: str | None, entry: dict[str, Any]) -> float:
            value = self.game.play()[1]
            return 0.0 if answer == NONSENSE and not self.config.accepts_nonsense else value

    DATASETS["bad_dataset"] = (BadDataset, DatasetConfig)


@pytest.mark.backends
@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault != "never_ends"])
def test_a_bad_data_set_gets_a_failure_or_an_error(fault: str) -> None:
    register_dataset()
    options = {"config": {"fault": fault}, "max_seconds": 0.2}
    errors = {"raises_in_reset": "RuntimeError: no start", "blocks_in_reset": "did not return", "ignores_seed": "ignores its seed"}  # fmt: skip
    if fault in errors:
        with pytest.raises(TaskError, match=errors[fault]):
            make_task("reasoning_gym:bad_dataset", **options)
        return
    task = make_task("reasoning_gym:bad_dataset", **options)
    (problem,) = task.problems(Split.TEST, 1, seed=0)
    outcome = score(task, problem, Completion("Answer: 5"))
    if fault == "fine":
        assert outcome.value == 1.0
    else:
        assert isinstance(outcome, Failure)
        assert outcome.cause is FailureCause.SCORER
        assert {"raises_in_step": "no step", "blocks_in_step": "did not return", "nan": "nan"}[fault] in outcome.message


@pytest.mark.backends
def test_a_scorer_that_accepts_any_answer_is_rejected() -> None:
    register_dataset()
    with pytest.raises(TaskError, match=r"bad_dataset .*any answer"):
        make_task("reasoning_gym:bad_dataset", config={"accepts_nonsense": True})


def test_global_generators_are_seeded_in_parallel_games() -> None:
    options = {"env_id": "GuessTheNumber-v0", "verify_seed": False}
    alone = make_turn_env("palaestra/TextArena-v0", 1, options, autoreset=False)
    many = make_turn_env("palaestra/TextArena-v0", 8, options, autoreset=False)
    try:
        before = np.random.get_state()[1].copy()  # noqa: NPY002
        expected = []
        for seed in range(8):
            alone.reset(seed=[seed])
            expected.append([alone.step([f"[{guess}]"])[0][0].messages[-1].text for guess in (10, 5, 15)])
        many.reset(seed=list(range(8)))
        turns = [many.step([f"[{guess}]"] * 8)[0] for guess in (10, 5, 15)]
        assert [[turn[slot].messages[-1].text for turn in turns] for slot in range(8)] == expected
        assert len({tuple(texts) for texts in expected}) > 2
        assert (np.random.get_state()[1] == before).all()  # noqa: NPY002
    finally:
        alone.close()
        many.close()
