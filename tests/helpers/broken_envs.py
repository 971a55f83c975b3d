"""A sound environment of each kind, and variants with one planted fault each.

`FAULTS` maps each variant to the id of the check that must find it.
"""

from __future__ import annotations

import os
import random
import tempfile
import threading
import time
import uuid
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces
from planted import make_planter

FAULTS: dict[type[gymnasium.Env], str] = {}

plant = make_planter(FAULTS)


class Walk(gymnasium.Env):
    """A walk from a random place to either end of a line, with some noise."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["ansi"]}

    def __init__(self, render_mode: str | None = None) -> None:
        self.observation_space = spaces.Box(-20.0, 20.0, (2,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.render_mode = render_mode
        self.place, self.count = 0.0, 0

    def draw(self) -> float:
        return float(self.np_random.uniform(-1, 1))

    def observe(self) -> Any:
        return np.array([self.place, self.count / 10], dtype=np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.place, self.count = 3 * self.draw(), 0
        return self.observe(), {}

    def reward(self) -> Any:
        return float(self.place > 5)

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action)
        self.place += (1 if action == 1 else -1) + 0.1 * self.draw()
        self.count += 1
        return self.observe(), self.reward(), bool(abs(self.place) > 5), self.count >= 40, {}

    def render(self) -> Any:
        return f"{self.place:.1f}"


@plant("runtime.starts")
class NeedsArguments(Walk):
    def __init__(self, size: int) -> None:
        super().__init__()


@plant("runtime.starts")
class ResetWithoutSeed(Walk):
    def reset(self) -> Any:  # type: ignore[override]
        return super().reset()


@plant("runtime.starts")
class MissingFile(Walk):
    def __init__(self) -> None:
        super().__init__()
        with open("levels/that/are/not/there.txt") as file:
            self.levels = file.read()


@plant("runtime.api")
class OldReset(Walk):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return super().reset(seed=seed)[0]


@plant("runtime.api")
class OldStep(Walk):
    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward, terminated or truncated, info


@plant("runtime.api")
class NoReward(Walk):
    def reward(self) -> Any:
        return None


@plant("runtime.api")
class ArrayReward(Walk):
    def reward(self) -> Any:
        return np.array([super().reward()])


@plant("runtime.api")
class NumberAsEnd(Walk):
    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward, int(terminated), truncated, info


@plant("runtime.api")
class ListAsInfo(Walk):
    def step(self, action: Any) -> Any:
        return (*super().step(action)[:4], [])


@plant("runtime.api")
class NoActionSpace(Walk):
    def __init__(self) -> None:
        super().__init__()
        self.action_space = 2  # type: ignore[assignment]


@plant("runtime.api")
class RaisesInStep(Walk):
    def step(self, action: Any) -> Any:
        return super().step(action) if self.count < 3 else {}["key"]  # type: ignore[call-overload]


@plant("runtime.api")
class HangsInStep(Walk):
    def step(self, action: Any) -> Any:
        if self.count == 3:
            threading.Event().wait()
        return super().step(action)


@plant("runtime.api")
class EndsProcess(Walk):
    def step(self, action: Any) -> Any:
        os._exit(3)


@plant("runtime.observation_schema")
class WideNumbers(Walk):
    def observe(self) -> Any:
        return np.array([self.place, self.count / 10])


@plant("runtime.observation_schema")
class WrongShape(Walk):
    def observe(self) -> Any:
        return np.array([self.place], dtype=np.float32)


@plant("runtime.observation_schema")
class ListAsObservation(Walk):
    def observe(self) -> Any:
        return [self.place, self.count / 10]


@plant("runtime.observation_schema")
class OutsideBounds(Walk):
    def observe(self) -> Any:
        return super().observe() * (1 if self.count < 5 else 100)


@plant("runtime.observation_schema")
class NotANumber(Walk):
    def observe(self) -> Any:
        return super().observe() * (np.float32("nan") if self.count > 3 else 1)


@plant("runtime.observation_schema")
class OutsideAtTheEnd(Walk):
    def step(self, action: Any) -> Any:
        observation, *rest = super().step(action)
        return (observation if not rest[1] else observation * 100, *rest)


@plant("runtime.observation_schema")
class ChangesSpace(Walk):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        result = super().reset(seed=seed)
        self.action_space = spaces.Discrete(3)
        return result


@plant("runtime.observation_schema")
class DictWithoutKey(Walk):
    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Dict({"place": self.observation_space, "count": spaces.Discrete(50)})  # type: ignore

    def observe(self) -> Any:
        return {"place": super().observe()}


@plant("runtime.observation_schema")
class SharedArray(Walk):
    def observe(self) -> Any:
        self.memory = getattr(self, "memory", np.zeros(2, np.float32))
        self.memory[:] = super().observe()
        return self.memory


@plant("runtime.reward_well_formed")
class RewardNaN(Walk):
    def reward(self) -> Any:
        return float("nan") if self.count == 4 else 0.0


@plant("runtime.reward_well_formed")
class RewardInfinite(Walk):
    def reward(self) -> Any:
        return 1 / abs(self.place - self.place) if self.count == 2 else 0.0

    def step(self, action: Any) -> Any:
        try:
            return super().step(action)
        except ZeroDivisionError:
            return self.observe(), float("inf"), True, False, {}


@plant("runtime.reward_well_formed")
class RewardOutsideRange(Walk):
    reward_range = (0.0, 1.0)

    def reward(self) -> Any:
        return -0.1


@plant("runtime.seed_control")
class IgnoresSeed(Walk):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return super().reset(seed=None)


@plant("runtime.seed_control")
class SeedZeroIsNone(Walk):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return super().reset(seed=seed or None)


@plant("runtime.seed_control")
class SeedOnlyOnce(Walk):
    """The first seed holds; later ones are ignored."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        seed, self.is_seeded = (None if getattr(self, "is_seeded", False) else seed), True
        return super().reset(seed=seed)


@plant("runtime.seed_control")
class ConstantSeed(Walk):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return super().reset(seed=7)


@plant("runtime.seed_control")
class SeedsDoNotDiffer(Walk):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return super().reset(seed=None if seed is None else 7)


@plant("runtime.seed_control")
class RepeatsWithoutSeed(Walk):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return super().reset(seed=0 if seed is None else seed)


@plant("runtime.seed_control")
class ReseedsFromClock(Walk):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return super().reset(seed=time.time_ns() % 2**31 if seed is None else seed)


@plant("runtime.seed_control")
class OwnGenerator(Walk):
    """It is seeded when the module is imported."""

    numbers = random.Random(3)

    def draw(self) -> float:
        return self.numbers.uniform(-1, 1)


@plant("runtime.episode_determinism")
class NoiseFromSystem(Walk):
    def step(self, action: Any) -> Any:
        self.place += int.from_bytes(os.urandom(2)) / 2**17
        return super().step(action)


@plant("runtime.episode_determinism")
class RewardFromClock(Walk):
    def reward(self) -> Any:
        return time.perf_counter() % 1.0


@plant("runtime.episode_determinism")
class ObservesIdentity(Walk):
    def observe(self) -> Any:
        return np.array([self.place, (uuid.uuid4().int % 100) / 10 if self.count else 0], dtype=np.float32)


@plant("runtime.episode_determinism")
class KeepsCount(Walk):
    """The number of earlier episodes changes the rules."""

    episodes = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.episodes += 1
        return super().reset(seed=seed)

    def reward(self) -> Any:
        return float(self.episodes)


@plant("runtime.episode_determinism")
class ForgetsToReset(Walk):
    total = 0

    def reward(self) -> Any:
        self.total += 1
        return float(self.total > 30)


@plant("runtime.episode_determinism")
class NoiseOfInstance(Walk):
    def __init__(self) -> None:
        super().__init__()
        self.bias = np.random.default_rng().uniform()

    def reward(self) -> Any:
        return super().reward() + self.bias


@plant("runtime.global_random")
class GlobalPython(Walk):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if seed is not None:
            random.seed(seed)
        return super().reset(seed=seed)

    def draw(self) -> float:
        return random.uniform(-1, 1)


@plant("runtime.global_random")
class GlobalNumpy(Walk):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if seed is not None:
            np.random.seed(seed)  # noqa: NPY002
        return super().reset(seed=seed)


@plant("runtime.global_random")
class ShufflesGlobally(Walk):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        random.shuffle([1, 2, 3])
        return super().reset(seed=seed)


@plant("runtime.episode_isolation")
class ClassState(Walk):
    shared: ClassVar[dict[str, float]] = {}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        observation, info = super().reset(seed=seed)
        self.shared["place"] = self.place
        return observation, info

    def step(self, action: Any) -> Any:
        self.place = self.shared["place"]
        result = super().step(action)
        self.shared["place"] = self.place
        return result


@plant("runtime.episode_isolation")
class FileState(Walk):
    path = f"{tempfile.gettempdir()}/palaestra-check-walk-{os.getpid()}"

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        result = super().reset(seed=seed)
        self.save()
        return result

    def save(self) -> None:
        with open(self.path, "w") as file:
            file.write(repr(self.place))

    def step(self, action: Any) -> Any:
        with open(self.path) as file:
            self.place = float(file.read())
        result = super().step(action)
        self.save()
        return result


@plant("runtime.episode_isolation")
class ClosesOthers(Walk):
    open_count: ClassVar[list[int]] = [0]

    def close(self) -> None:
        type(self).open_count[0] += 1

    def reward(self) -> Any:
        return float(self.open_count[0] % 2 == 0) if self.closings == self.open_count[0] else -1.0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.closings = getattr(self, "closings", self.open_count[0])
        return super().reset(seed=seed)


@plant("runtime.resources_released")
class LeavesThread(Walk):
    def __init__(self) -> None:
        super().__init__()
        threading.Thread(target=threading.Event().wait, daemon=True).start()


@plant("runtime.resources_released")
class LeavesFileOpen(Walk):
    kept: ClassVar[list[Any]] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.kept.append(open(os.devnull))  # noqa: SIM115
        return super().reset(seed=seed)


@plant("runtime.resources_released")
class LeavesProcess(Walk):
    def __init__(self) -> None:
        super().__init__()
        import subprocess

        self.process = subprocess.Popen(["sleep", "30"])


@plant("runtime.resources_released")
class LeavesFiles(Walk):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        tempfile.mkstemp(prefix="walk-")
        return super().reset(seed=seed)


@plant("runtime.resources_released")
class CannotCloseTwice(Walk):
    is_closed = False

    def close(self) -> None:
        if self.is_closed:
            raise RuntimeError("already closed")
        self.is_closed = True


@plant("runtime.terminates")
class NeverEnds(Walk):
    def step(self, action: Any) -> Any:
        observation, reward, _, _, info = super().step(action)
        self.place, self.count = float(np.clip(self.place, -5, 5)), 0
        return observation, reward, False, False, info


@plant("runtime.terminates")
class LimitTerminates(Walk):
    max_steps = 12

    def __init__(self) -> None:
        super().__init__()
        self.max_steps = 12

    def step(self, action: Any) -> Any:
        observation, reward, _, _, info = super().step(action)
        self.place = float(np.clip(self.place, -5, 5))
        return observation, reward, self.count >= self.max_steps, False, info


@plant("runtime.terminates")
class LimitOfClassTerminates(Walk):
    """The limit is a constant of the class, and some episodes end before it."""

    EPISODE_LIMIT: ClassVar[int] = 12

    def step(self, action: Any) -> Any:
        observation, reward, terminated, _, info = super().step(action)
        return observation, reward, terminated or self.count >= self.EPISODE_LIMIT, False, info


@plant("runtime.observation_schema")
class ReusesInfo(Walk):
    """Every step returns the same dictionary, so that stored infos are all those of the last step."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.info = {"count": 0}
        return super().reset(seed=seed)[0], self.info

    def step(self, action: Any) -> Any:
        *result, _ = super().step(action)
        self.info["count"] = self.count
        return (*result, self.info)


@plant("runtime.rejects_bad_actions")
class AcceptsAnyAction(Walk):
    def step(self, action: Any) -> Any:
        return super().step(1 if action == 1 else 0)


@plant("runtime.rejects_bad_actions")
class IndexesActions(Walk):
    """A negative action counts from the end of the list."""

    def step(self, action: Any) -> Any:
        return super().step((0, 1).index((0, 1)[action]))


@plant("runtime.rejects_bad_actions")
class RewardsWrongActions(Walk):
    def step(self, action: Any) -> Any:
        if action not in (0, 1):
            return self.observe(), float("inf"), True, False, {}
        return super().step(action)


@plant("runtime.rejects_bad_actions")
class BreaksOnWrongActions(Walk):
    is_broken = False

    def step(self, action: Any) -> Any:
        self.is_broken = self.is_broken or action not in (0, 1)
        return super().step(action)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        assert not self.is_broken
        return super().reset(seed=seed)


@plant("runtime.render")
class RendersNothing(Walk):
    def render(self) -> Any:
        return 3


@plant("runtime.render")
class RenderingSteps(Walk):
    def render(self) -> Any:
        self.count += 1
        return super().render()


@plant("semantic.replayability")
class HashOrder(Walk):
    """Hashes of texts differ between processes."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.place += (hash("start") % 100) / 100
        return self.observe(), {}


@plant("semantic.replayability")
class TimeZone(Walk):
    def observe(self) -> Any:
        return np.array([self.place, time.localtime(0).tm_hour / 2], dtype=np.float32)


@plant("semantic.replayability")
class SetOrder(Walk):
    def reward(self) -> Any:
        order = "".join({"left", "right", "up", "down", "stay", "jump", "fly"})
        return float(sum(map(ord, order[:9]))) + super().reward()


class Reach(Walk):
    """The action is a force; `info` says at the end whether the goal was reached."""

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(render_mode)
        self.action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)  # type: ignore[assignment]
        self.observation_space = spaces.Box(-40.0, 40.0, (2,), np.float32)

    def step(self, action: Any) -> Any:
        self.place += float(np.clip(action[0], -1, 1)) + 0.1 * self.draw()
        self.count += 1
        over = abs(self.place) > 5 or self.count >= 20
        return self.observe(), float(self.place > 5), over, False, {"success": self.place > 5}


@plant("statistical.adversarial_floor")
class PaysForEachStep(Reach):
    """Every episode ends with 1."""

    def step(self, action: Any) -> Any:
        observation, _, over, _, info = super().step(action)
        return observation, 1.0 if over else 0.0, over, False, info


@plant("runtime.action_bounds")
class PaysForForce(Reach):
    def step(self, action: Any) -> Any:
        observation, reward, *rest = super().step(action)
        return (observation, reward + abs(float(action[0])), *rest)


@plant("runtime.action_bounds")
class MovesWithoutLimit(Reach):
    def step(self, action: Any) -> Any:
        beyond = float(action[0]) - float(np.clip(action[0], -1, 1))
        self.place += np.sign(beyond) * min(abs(beyond), 2)
        return super().step(action)


@plant("semantic.reward_agrees_with_success")
class InvertedSign(Reach):
    def step(self, action: Any) -> Any:
        observation, reward, *rest = super().step(action)
        return (observation, -reward, *rest)


@plant("semantic.reward_agrees_with_success")
class PaysLessAtTheGoal(Reach):
    """Episodes that take long cost more than a success, so that only the last step shows the wrong sign."""

    def step(self, action: Any) -> Any:
        observation, _, terminated, truncated, info = super().step(action)
        return observation, (-2.0 if info["success"] else 0.0) * terminated - 0.5, terminated, truncated, info


class Teach(gymnasium.Env):
    """A lesson environment: the action divides a lesson over three skills, the reward is the student's gain.

    The student is a linear regression on one-hot skills. It learns by gradient descent on noisy examples.
    """

    def __init__(self) -> None:
        self.observation_space = spaces.Box(0.0, 100.0, (3,), np.float32)
        self.action_space = spaces.Box(0.0, 1.0, (3,), np.float32)
        self.goal, self.student, self.round = np.zeros(3), np.zeros(3), 0

    def measure(self) -> Any:
        return np.abs(self.goal - self.student)

    def observe(self) -> Any:
        return self.measure().astype(np.float32)

    def restore(self) -> None:
        self.student = np.zeros(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.goal, self.round = self.np_random.uniform(1, 5, 3), 0
        self.restore()
        return self.observe(), self.inform()

    def inform(self) -> dict[str, Any]:
        return {}

    def draw_skills(self, weights: Any) -> Any:
        return self.np_random.choice(3, 12, p=weights)

    def step(self, action: Any) -> Any:
        weights = np.clip(np.asarray(action, dtype=float), 0.0, 1.0) + 1e-3
        before = self.measure().sum()
        for skill in self.draw_skills(weights / weights.sum()):
            self.student[skill] += 0.1 * (self.goal[skill] + 0.1 * self.np_random.normal() - self.student[skill])
        self.round += 1
        return self.observe(), self.reward(before), False, self.round >= 5, self.inform()

    def reward(self, before: float) -> float:
        return float(before - self.measure().sum())


@plant("runtime.episode_determinism")
class KeepsStudent(Teach):
    """The student of one episode goes on in the next."""

    def restore(self) -> None:
        self.student = 0.5 * self.student

    def observe(self) -> Any:
        return np.full(3, self.round, dtype=np.float32)


@plant("runtime.seed_control")
class SharedStudent(Teach):
    """All instances teach one student, which a reset does not restore."""

    shared: ClassVar[Any] = np.zeros(3)

    def restore(self) -> None:
        self.student = type(self).shared


@plant("runtime.global_random")
class DrawsLessonsGlobally(Teach):
    def draw_skills(self, weights: Any) -> Any:
        np.random.seed(7)  # noqa: NPY002
        return np.random.choice(3, 12, p=weights)  # noqa: NPY002


@plant("runtime.reward_well_formed")
class RelativeGain(Teach):
    """The gain is divided by the gain before, which is 0 in the first round."""

    def reward(self, before: float) -> float:
        gain = np.float64(super().reward(before))
        with np.errstate(all="ignore"):
            return float(gain / np.float64(self.round - 1))


@plant("runtime.observation_schema")
class GrowingState(Teach):
    """The errors are appended to the observation."""

    def observe(self) -> Any:
        return np.concatenate([self.measure()] * (1 + self.round)).astype(np.float32)


@plant("runtime.episode_determinism")
class TimedTraining(Teach):
    """The training stops by the clock, so that a slow machine learns less."""

    def draw_skills(self, weights: Any) -> Any:
        skills = super().draw_skills(weights)
        return skills[: int(time.perf_counter_ns() // 1000 % 12)]


@plant("runtime.action_bounds")
class PaysForSize(Teach):
    """A lesson beyond the bounds teaches more."""

    def reward(self, before: float) -> float:
        return super().reward(before) + float(np.sum(self.last))

    def step(self, action: Any) -> Any:
        self.last = np.asarray(action)
        return super().step(action)
