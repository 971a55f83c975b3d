"""Small environments and tasks from which something can be learned, and variants with one planted fault each.

`FAULTS` maps each variant to the id of the check that must find it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from planted import make_planter

from palaestra.core.records import Completion, Example, Message, Problem, Score, Split
from palaestra.envs.turn import Reply, TurnEnv

FAULTS: dict[type, str] = {}
_SIGNAL, _GAP, _SPREAD = "statistical.training_signal", "statistical.gameability_gap", "statistical.variance_bound"

plant = make_planter(FAULTS)


class Match(gymnasium.Env):
    """Eight times, choose the action that the observation shows. Six matches are a success."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(0.0, 1.0, (3,), np.float32)
        self.action_space = spaces.Discrete(3)
        self.wanted = self.count = self.matches = 0

    def observe(self) -> Any:
        return np.eye(3, dtype=np.float32)[self.wanted]

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.wanted, self.count, self.matches = int(self.np_random.integers(3)), 0, 0
        self.start = float(self.np_random.uniform())
        return self.observe(), {}

    def is_match(self, action: int) -> bool:
        return action == self.wanted

    def reward(self, action: int) -> float:
        return float(self.is_match(action))

    def step(self, action: Any) -> Any:
        reward = self.reward(int(action))
        self.matches += self.is_match(int(action))
        self.count += 1
        self.wanted = int(self.np_random.integers(3))
        return self.observe(), reward, self.count == 8, False, {"success": self.matches >= 6}


class Corridor(gymnasium.Env):
    """Walk to the right end. The reward is the progress; `info` says nothing about success."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-20.0, 20.0, (2,), np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.place, self.side, self.count = 0.0, 1.0, 0

    def observe(self) -> Any:
        return np.array([self.place, self.side], dtype=np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.place, self.count = float(self.np_random.uniform(-1, 1)), 0
        self.side = float(self.np_random.choice([-1.0, 1.0]))
        return self.observe(), {}

    def step(self, action: Any) -> Any:
        move = float(np.clip(action[0], -1, 1))
        self.place, self.count = self.place + move, self.count + 1
        return self.observe(), move * self.side, self.count == 8, False, {}


@plant(_SIGNAL)
class PaysNoise(Match):
    def reward(self, action: int) -> float:
        return float(self.np_random.normal())


@plant(_SIGNAL)
class HidesWanted(Match):
    def observe(self) -> Any:
        return np.full(3, 0.5, dtype=np.float32)


@plant(_SIGNAL)
class ShufflesActions(Match):
    def is_match(self, action: int) -> bool:
        return (action + int(self.count * 7 + self.start * 1000)) % 3 == self.wanted


@plant(_SIGNAL)
class StaleObservation(Match):
    """Shows what was wanted before."""

    def observe(self) -> Any:
        shown, self.shown = getattr(self, "shown", 0), self.wanted
        return np.eye(3, dtype=np.float32)[shown]


@plant(_SPREAD)
class PaysBySeed(Match):
    def reward(self, action: int) -> float:
        return self.start


@plant(_SPREAD)
class PaysNothing(Match):
    def reward(self, action: int) -> float:
        return 0.0


@plant(_GAP)
class PaysMistakes(Match):
    """The sign of the reward is inverted."""

    def reward(self, action: int) -> float:
        return -float(self.is_match(action))


@plant(_GAP)
class PaysForOneAction(Match):
    """The last action is worth more than a match."""

    def reward(self, action: int) -> float:
        return 2.0 if action == 2 else float(self.is_match(action))


class NameEven(TurnEnv):
    """Asks for an even number. `info` says whether it was one."""

    def __init__(self) -> None:
        super().__init__(max_turns=1)

    def opening(self, options: Mapping[str, Any]) -> Sequence[Message]:
        first, second = self.np_random.integers(10, 60, 2)
        return [Message("user", f"What is {first} + {second}? An even number will do.")]

    def is_right(self, text: str) -> bool:
        return "".join(filter(str.isdigit, text))[-1:] in tuple("02468")

    def reward(self, text: str) -> float:
        return float(self.is_right(text))

    def respond(self, message: Message) -> Reply:
        text = message.text
        return Reply(reward=self.reward(text), stop="submitted", info={"success": self.is_right(text)})


@plant(_GAP)
class PaysForFives(NameEven):
    def reward(self, text: str) -> float:
        return text.count("5") / 3


class Products:
    """Products that the smallest model cannot compute."""

    name = "products"
    max_tokens = 12
    is_procedural = True

    def skills(self) -> Mapping[str, tuple[str, ...]]:
        return {"products": ()}

    def ask(self, number: int) -> tuple[str, str]:
        return f"What is {number} * {number % 89 + 111}?", str(number * (number % 89 + 111))

    def problems(self, split: Split, per_skill: int, seed: int, skills: Sequence[str] = ()) -> list[Problem]:
        first = {Split.TRAIN: 200, Split.VALIDATION: 1000, Split.TEST: 2000}[split]
        asked = {number: self.ask(number) for number in range(first, first + per_skill)}
        return [Problem(f"products/{n}", (Message("user", q),), a, "products") for n, (q, a) in asked.items()]

    def value(self, problem: Problem, text: str) -> float:
        return float(text.strip() == f"Answer: {problem.reference}")

    def score(self, problem: Problem, completion: Completion) -> Score:
        return Score(self.value(problem, completion.text))


FAULTS[Products] = "statistical.reward_reachability"


@plant(_GAP)
class PaysForDigits(Products):
    def value(self, problem: Problem, text: str) -> float:
        return max(super().value(problem, text), min(0.9, sum(c == "1" for c in text) / 3))


@plant(_SPREAD)
class AcceptsAll(Products):
    def value(self, problem: Problem, text: str) -> float:
        return 1.0


@plant("statistical.headroom")
class AcceptsNumbers(Products):
    def value(self, problem: Problem, text: str) -> float:
        return float(any(character.isdigit() for character in text))


class Copies(Products):
    """A task that writes examples, of odd numbers. The problems are even ones."""

    def ask(self, number: int) -> tuple[str, str]:
        return self.copy(10 + 2 * number % 90)

    def copy(self, number: int) -> tuple[str, str]:
        return f"Copy {number}.", str(number)

    def write_examples(self, skill: str, subskill: str, count: int, generator: np.random.Generator) -> list[Example]:
        asked = [self.copy(11 + 2 * number) for number in generator.integers(45, size=count).tolist()]
        return [Example((Message("user", q),), f"Answer: {a}", skill, reference=a) for q, a in asked]


@plant(_SIGNAL)
class TeachesOthers(Copies):
    """Its examples have the answers to other questions."""

    def write_examples(self, skill: str, subskill: str, count: int, generator: np.random.Generator) -> list[Example]:
        examples = super().write_examples(skill, subskill, count, generator)
        return [
            replace(example, response=other.response)
            for example, other in zip(examples, examples[1:] + examples[:1], strict=True)
        ]


SOUND = {Match: "pass", Corridor: "skip", NameEven: "pass", Copies: "skip"}
"""The status of `statistical.gameability_gap`, which needs a measure of success and a reward that reinforcement learning raises."""
