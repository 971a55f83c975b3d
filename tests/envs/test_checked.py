"""A violation of Gymnasium's contract is a one-line error: class, method, value, expectation, file and line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import processes
import pytest
from gymnasium import spaces
from gymnasium.vector import VectorEnv

from palaestra import train
from palaestra.core.errors import EnvError
from palaestra.envs.wrappers import SlotVectorEnv
from palaestra.envs.wrappers.slots import CheckedVectorEnv, ReturnError, find_mismatch

GOOD = np.array([0.5, -0.5], dtype=np.float32)
FIVE = "expected the tuple (observation, reward, terminated, truncated, info)"
BOX = "expected an array of shape (2,) and dtype float32"


class Maze(gymnasium.Env[Any, Any]):
    """Returns from its second step, or from `reset`, what a test gives it."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, step: Callable[[], Any] | None = None, reset: Callable[[], Any] | None = None) -> None:
        self.on_step, self.on_reset, self.count = step, reset, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self.on_reset() if self.on_reset is not None else (GOOD, {})

    def step(self, action: Any) -> Any:
        self.count += 1
        return self.on_step() if self.on_step is not None and self.count == 2 else (GOOD, 1.0, False, False, {})


@pytest.mark.parametrize("limited", [False, True], ids=["bare", "in Gymnasium's wrappers"])
@pytest.mark.parametrize(
    ("result", "message"),
    [
        ((GOOD, 1.0, False, {}), f"Maze.step returned a tuple of 4; {FIVE}"),
        (None, f"Maze.step returned None; {FIVE}"),
        (GOOD, f"Maze.step returned an array of shape (2,) and dtype float32; {FIVE}"),
        ([GOOD, 1.0, False, False, {}], "Maze.step returned list ["),
        ((GOOD[:1], 1.0, False, False, {}), f"Maze.step returned an array of shape (1,) and dtype float32 as observation; {BOX}"),
        ((GOOD[None], 1.0, False, False, {}), f"Maze.step returned an array of shape (1, 2) and dtype float32 as observation; {BOX}"),
        ((1j * GOOD, 1.0, False, False, {}), "Maze.step returned an array of shape (2,) and dtype complex64 as observation; expected"),
        (("north", 1.0, False, False, {}), f"Maze.step returned str 'north' as observation; {BOX}"),
        ((None, 1.0, False, False, {}), f"Maze.step returned None as observation; {BOX}"),
        (([[1.0], [1.0, 2.0]], 1.0, False, False, {}), f"Maze.step returned list [[1.0], [1.0, 2.0]] as observation; {BOX}"),
        ((GOOD * 4, 1.0, False, False, {}), "Maze.step returned 2.0 at [0] of observation; expected from -1.0 to 1.0"),
        ((GOOD, None, False, False, {}), "Maze.step returned None as reward; expected a number"),
        ((GOOD, "1.0", False, False, {}), "Maze.step returned str '1.0' as reward; expected a number"),
        ((GOOD, [1.0, 2.0], False, False, {}), "Maze.step returned list [1.0, 2.0] as reward; expected a number"),
        ((GOOD, np.ones(2), False, False, {}), "Maze.step returned an array of shape (2,) and dtype float64 as reward; expected a number"),
        ((GOOD, np.ones(1), False, False, {}), "Maze.step returned an array of shape (1,) and dtype float64 as reward; expected a number"),
        ((GOOD, np.array(1.0), False, False, {}), "Maze.step returned an array of shape () and dtype float64 as reward; expected a number"),
        ((GOOD, [1.0], False, False, {}), "Maze.step returned list [1.0] as reward; expected a number"),
        ((GOOD.astype(float), 1.0, False, False, {}), f"Maze.step returned an array of shape (2,) and dtype float64 as observation; {BOX}"),
        ((GOOD, 1.0, None, False, {}), "Maze.step returned None as terminated; expected a bool"),
        ((GOOD, 1.0, False, "no", {}), "Maze.step returned str 'no' as truncated; expected a bool"),
        ((GOOD, 1.0, False, False, None), "Maze.step returned None as info; expected a dict"),
    ],
)  # fmt: skip
def test_a_wrong_result_of_step_is_told_at_once(result: Any, message: str, limited: bool) -> None:
    def make() -> Any:
        env: Any = Maze(lambda: result)
        return gymnasium.wrappers.TimeLimit(gymnasium.wrappers.OrderEnforcing(env), 9) if limited else env

    env = SlotVectorEnv(make, 2, "Maze-v0")
    env.reset(seed=0)
    env.step(np.zeros(2, dtype=int))
    with pytest.raises(ReturnError) as raised:
        env.step(np.zeros(2, dtype=int))
    lines = str(raised.value)
    assert lines.startswith(message)
    assert lines.endswith(f" (test_checked.py, line {Maze.step.__code__.co_firstlineno})")
    assert "\n" not in lines


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (GOOD, "Maze.reset returned an array of shape (2,) and dtype float32; expected the tuple (observation, info)"),
        ((GOOD,), "Maze.reset returned a tuple of 1; expected the tuple (observation, info)"),
        ((GOOD[:1], {}), f"Maze.reset returned an array of shape (1,) and dtype float32 as observation; {BOX}"),
        ((GOOD, GOOD), "Maze.reset returned an array of shape (2,) and dtype float32 as info; expected a dict"),
        ((GOOD * np.nan, {}), "Maze.reset returned nan at [0] of observation; expected finite numbers"),
    ],
)
def test_a_wrong_result_of_reset_is_told_at_once(result: Any, message: str) -> None:
    """An array of two numbers would pass for an observation and an info."""
    with pytest.raises(EnvError) as raised:
        SlotVectorEnv(lambda: Maze(reset=lambda: result), 2, "Maze-v0").reset(seed=0)
    assert str(raised.value).startswith(message)
    assert f"(test_checked.py, line {Maze.reset.__code__.co_firstlineno})" in str(raised.value)


@pytest.mark.parametrize("number", [np.nan, np.inf])
@pytest.mark.parametrize("where", ["observation", "reward"])
def test_a_number_that_is_not_finite_fails_its_own_episode(number: float, where: str) -> None:
    bad = (GOOD * np.float32(number), 1.0) if where == "observation" else (GOOD, number)
    makes = iter([Maze(lambda: (*bad, False, False, {})), Maze(), Maze()])
    env = SlotVectorEnv(lambda: next(makes), 2, "Maze-v0")
    env.reset(seed=0)
    env.step(np.zeros(2, dtype=int))
    _, rewards, _, truncated, infos = env.step(np.zeros(2, dtype=int))
    assert (rewards.tolist(), truncated.tolist(), infos["failed"].tolist()) == ([0, 1], [True, False], [True, False])
    assert infos["failures"][0].startswith("Maze.step returned ")
    assert "expected" in infos["failures"][0]


def test_a_wrapper_of_the_users_is_checked_as_well() -> None:
    class Half(gymnasium.ObservationWrapper[Any, Any, Any]):
        def observation(self, observation: Any) -> Any:
            return observation[:1]

    with pytest.raises(ReturnError, match=r"Half.reset .*shape \(1,\) .*observation"):
        SlotVectorEnv(lambda: Half(Maze()), 1, "Maze-v0").reset(seed=0)


PLACES = spaces.Dict(
    {"at": spaces.Discrete(4), "seen": spaces.Tuple([spaces.Box(0, 255, (2,), np.uint8), spaces.MultiBinary(2)])}
)


@pytest.mark.parametrize(
    ("space", "value", "what"),
    [
        (PLACES, {"at": 1, "seen": (np.zeros(2, np.uint8), np.zeros(2, np.int8))}, ""),
        (PLACES, {"at": 4, "seen": (np.zeros(2, np.uint8), np.zeros(2, np.int8))}, "int 4 as observation['at']"),
        (PLACES, {"at": 1, "seen": (np.zeros(2), np.zeros(2, np.int8))}, "an array of shape (2,) and dtype float64 as observation['seen'][0]"),
        (PLACES, {"at": 1}, "dict {'at': 1} as observation"),
        (PLACES, {"at": 1, "seen": (1,)}, "tuple (1,) as observation['seen']"),
        (spaces.Discrete(3), 1.5, "float 1.5 as observation"),
        (spaces.Box(-1, 1, (2,), np.float32), np.array([1.00001, 0.0], np.float32), ""),
        (spaces.Box(-1, 1, (2,), np.float32), np.zeros(2), "an array of shape (2,) and dtype float64 as observation"),
        (spaces.Box(-1, 1, (2,), np.float32), np.zeros(2, np.int64), "an array of shape (2,) and dtype int64 as observation"),
        (spaces.Box(-1, 1, (), np.float32), np.float64(0.5), "float64 np.float64(0.5) as observation"),
        (spaces.Box(-9, 9, (2,), np.int8), np.zeros(2, np.int64), "an array of shape (2,) and dtype int64 as observation"),
        (spaces.Box(-1, 1, (2,), np.float64), np.zeros(2, np.float32), ""),
        (spaces.Box(-1, 1, (2,), np.float32), [0.1, 0.2], ""),
        (spaces.Box(-1, 1, (2,), np.float32), [1, 0], ""),
        (spaces.Box(-np.inf, np.inf, (1,), np.float32), np.array([np.inf], np.float32), "inf at [0] of observation"),
        (spaces.Box(-1, 1, (), np.float32), 0.5, ""),
    ],
)  # fmt: skip
def test_members_of_every_space_are_told_from_others(space: Any, value: Any, what: str) -> None:
    mismatch = find_mismatch(space, value)
    assert (mismatch[0] if mismatch else "") == what


def test_the_command_refuses_a_wrong_environment_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through `palaestra train --env module:id`, as a user runs it."""
    (tmp_path / "wrong_mazes.py").write_text(
        "import gymnasium\nimport numpy as np\nfrom gymnasium import spaces\n\n\n"
        "class Maze(gymnasium.Env):\n"
        "    observation_space, action_space = spaces.Box(-1, 1, (2,)), spaces.Discrete(2)\n\n"
        "    def __init__(self, size=2):\n        self.size = 6 // size\n\n"
        "    def reset(self, *, seed=None, options=None):\n        return np.zeros(self.size, np.float32), {}\n\n"
        "    def step(self, action):\n        return np.zeros(2, np.float32), 0.0, False, {}\n\n\n"
        'gymnasium.register("WrongMaze-v0", Maze, max_episode_steps=5)\n'
    )
    name = "wrong_mazes:WrongMaze-v0"
    step = (
        "Maze.step returned a tuple of 4; expected the tuple (observation, reward, terminated, truncated, info) "
        "(wrong_mazes.py, line 15)"
    )
    result = processes.run_command(
        "train",
        "--env",
        name,
        "--env-option",
        "size=3",
        "--iterations",
        "1",
        "--out",
        tmp_path / "run",
        cwd=tmp_path,
        env={"COLUMNS": "100"},
    )
    assert result.returncode == 2, result
    assert result.stderr.strip() == f"error: {step}"
    monkeypatch.syspath_prepend(str(tmp_path))
    cases = {
        2: "Maze.reset returned an array of shape (3,) and dtype float32 as observation; expected an array of shape (2,) and dtype float32 "
        "(wrong_mazes.py, line 12)",
        0: f"cannot make {name}: ZeroDivisionError: integer division or modulo by zero (wrong_mazes.py, line 10)",
    }
    for size, message in cases.items():
        with pytest.raises(EnvError) as raised:
            train(env=name, env_kwargs={"size": size}, iterations=1, out=tmp_path / str(size))
        assert str(raised.value) == message


class NativeVector(VectorEnv[Any, Any, Any]):
    """Two slots, without a mistake; `changes` replace parts of what a step returns."""

    def __init__(self, reset: Callable[[], Any] | None = None, changes: dict[int, Any] | None = None) -> None:
        self.num_envs, self._reset, self._changes = 2, reset, changes or {}
        self.single_observation_space = spaces.Box(-1, 1, (3,), np.float32)
        self.observation_space = spaces.Box(-1, 1, (2, 3), np.float32)
        self.single_action_space, self.action_space = spaces.Discrete(2), spaces.MultiDiscrete([2, 2])

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return self._reset() if self._reset is not None else (np.zeros((2, 3), np.float32), {})

    def step(self, actions: Any) -> Any:
        parts = [np.zeros((2, 3), np.float32), np.ones(2), np.zeros(2, bool), np.zeros(2, bool), {}]
        for place, value in self._changes.items():
            parts[place] = value
        return tuple(part for part in parts if part is not ...)


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (3, ..., "a tuple of 4"),
        (0, np.zeros((2, 2), np.float32), r"shape \(2, 2\) .*observation"),
        (0, np.zeros((1, 3), np.float32), r"shape \(1, 3\) .*observation"),
        (0, np.full((2, 3), np.nan, np.float32), r"nan at \[0, 0\] of observation"),
        (1, np.ones(1), r"shape \(1,\) .*reward; .*2 numbers"),
        (1, 1.0, "float 1.0 as reward"),
        (1, None, "None as reward"),
        (1, ["a", "b"], "reward; .*2 numbers"),
        (1, np.array([1.0, np.nan]), r"\[ *1. +nan\] as reward; .*finite"),
        (2, None, "None as terminated; .*2 numbers"),
        (3, np.zeros(1, bool), "as truncated; .*2 numbers"),
        (4, None, "None as info; .*dict"),
    ],
)
def test_what_a_native_vector_environment_returns_is_checked(place: int, value: Any, message: str) -> None:
    env = CheckedVectorEnv(NativeVector(changes={place: value}))
    env.reset(seed=0)
    with pytest.raises(EnvError, match=rf"^NativeVector.step returned .*{message}.*\(test_checked.py, line \d+\)$"):
        env.step(np.zeros(2, int))


@pytest.mark.parametrize("result", [np.zeros((2, 3), np.float32), (np.zeros((2, 2), np.float32), {})])
def test_the_reset_of_a_native_vector_env_is_checked(result: Any) -> None:
    with pytest.raises(ReturnError, match=r"^NativeVector.reset .*shape"):
        CheckedVectorEnv(NativeVector(reset=lambda: result)).reset(seed=0)
