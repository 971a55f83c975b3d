"""The state of an environment as data: a fresh environment continues exactly, and reading runs nothing."""

from __future__ import annotations

import json
import random
from collections import OrderedDict, deque
from enum import Enum
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.wrappers import RecordEpisodeStatistics

from palaestra.envs.factory import make_control_env
from palaestra.envs.state import StateError, load_state, save_state


class Phase(Enum):
    DAY = 1
    NIGHT = 2


class Board:
    def __init__(self) -> None:
        self.cells = np.zeros((2, 2), dtype=np.int8)


class Village(gymnasium.Env[Any, Any]):
    """An environment whose state has every kind of value, shared values and references to itself."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self) -> None:
        self.phase, self.board, self.memory = Phase.DAY, Board(), deque([1.5], maxlen=3)
        self.named: dict[Any, Any] = OrderedDict({(0, "a"): {3}, None: frozenset({b"x"})})
        self.shared = self.again = [float("nan"), np.float32(2.5)]
        self.dice, self.legacy = random.Random(1), np.random.RandomState(2)
        self.children = list(np.random.default_rng(np.random.SeedSequence(5)).spawn(2))
        self.bonus = lambda: self.dice.random() + len(self.memory)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(2, dtype=np.float32), {}

    def step(self, action: Any) -> Any:
        self.phase = Phase.NIGHT if self.phase is Phase.DAY else Phase.DAY
        self.board.cells[0, 0] += 1
        self.memory.append(self.np_random.random())
        self.shared.append(self.children[0].random() + self.children[1].spawn(1)[0].random())
        value = self.bonus() + self.legacy.rand() + self.phase.value + int(self.board.cells.sum())
        return np.array([value, sum(self.again[1:])], dtype=np.float32), float(value), False, False, {}


@pytest.mark.parametrize("name", ["CartPole-v1", "Acrobot-v1", "Pendulum-v1", "FrozenLake-v1"])
def test_a_fresh_environment_continues_the_episodes(name: str) -> None:
    first, second = (make_control_env(name, 2, {}) for _ in range(2))
    first.reset(seed=3)
    for _ in range(20):
        first.step(first.action_space.sample())
    load_state(save_state(first), second)
    for _ in range(40):
        action = first.action_space.sample()
        assert np.array_equal(action, second.action_space.sample())
        for mine, theirs in zip(first.step(action)[:4], second.step(action)[:4], strict=True):
            assert np.array_equal(mine, theirs)


def test_every_kind_of_value_is_restored() -> None:
    first, second = (RecordEpisodeStatistics(Village()) for _ in range(2))
    first.reset(seed=1)
    for _ in range(5):
        first.step(0)
    text = save_state(first)
    load_state(text, second)
    assert save_state(second) == text
    village = second.unwrapped
    assert isinstance(village, Village)
    assert village.again is village.shared
    assert village.bonus.__closure__[0].cell_contents is village
    for _ in range(5):
        assert np.array_equal(first.step(1)[0], second.step(1)[0])


class Attack:
    def __reduce__(self) -> Any:
        return print, ("attack",)


@pytest.mark.parametrize("value", [Attack(), iter([1]), np.array([object()]), memoryview(b"x"), open])
def test_what_is_not_data_is_refused(value: Any) -> None:
    village = Village()
    village.board.cells = value
    with pytest.raises(StateError):
        save_state(village)


@pytest.mark.parametrize(
    "node",
    [
        {"object": "os._wrap_close", "attributes": {}},
        {"object": "subprocess.Popen", "attributes": {"args": "true"}},
        {"function": "os.system", "cells": []},
        {"method": "Village.reset", "self": None},
        {"kept": "builtins.type"},
        {"enum": "test_state.Phase", "member": "DAY"},
        {"generator": {"dict": [["bit_generator", "system"]]}, "seeds": {"list": [0, None, 4, 0]}},
        {"array": ["O", [1], "AAAAAAAAAAA="]},
        {"pickle": "gASVAAAA"},
    ],
)
def test_a_state_names_no_class_of_its_own(node: Any) -> None:
    village = Village()
    with pytest.raises((StateError, KeyError, TypeError, ValueError)):
        load_state(json.dumps({"object": "test_state.Village", "attributes": {"board": 1, "extra": node}}), village)
