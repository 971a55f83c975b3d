"""Short runs of our own learner on a subject: what a reference policy gets, and the reward before and after training.

The run is that of `palaestra train` with the presets of the environment, without a run folder. Both measurements use the
same held-out seeds or problems, which training does not use, and the same sampling.
"""

from __future__ import annotations

import re
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np

from palaestra.core.errors import PalaestraError
from palaestra.core.records import Attempt, Json, Problem, Score, Split, ignore
from palaestra.core.statistics import Mean, mean_interval
from palaestra.envs.factory import describe_env
from palaestra.envs.token.base import TokenEnv
from palaestra.envs.turn.base import TurnEnv, TurnStopReason
from palaestra.recipes.check.answers import Answers, Case, EnvAnswers, TaskAnswers
from palaestra.recipes.check.control import list_policies, play_policy, read_success
from palaestra.recipes.check.play import ActionSource
from palaestra.recipes.check.records import InapplicableError, count_seconds_left
from palaestra.recipes.check.scorer import is_program, limit, list_solved
from palaestra.recipes.check.subjects import EnvPart
from palaestra.recipes.settings import resolve_settings
from palaestra.rl.turns import TurnEpisode
from palaestra.runs.run import Run
from palaestra.runs.store import Store
from palaestra.tasks.base import GenerativeTask, get_hooks

if TYPE_CHECKING:
    from palaestra.recipes.train.settings import TrainSettings

_MAX_STEPS = 1000
"""Steps of a held-out episode at most."""
_SAMPLE_SECONDS = 8.0
_MIN_SECONDS = 15.0
_MIN_ITERATIONS = 8
_MIN_STEPS = 4096
"""Seconds, iterations of a language model and steps of a control policy without which a run says nothing."""
_WINDOW = {"control": 8, "text": 4}
"""Iterations at the start and at the end of a run whose rewards are compared to end it early."""
_APART = 1 << 20
"""The number of the first group of the reference policy. Training never gets there."""


@dataclass(frozen=True, slots=True)
class TrialSettings:
    """The size of a trial.

    Arguments:
        seconds: maximum seconds of training.
        iterations: maximum iterations; 0: those of the preset.
        groups, group_size: seeds of the reference policy, and episodes of each. A language model plays half as many
            groups, of the size of its preset.
        evaluation: held-out episodes; of a task, a third of the problems.
        examples: of a lesson at most.
        values: further settings of `palaestra train`.
    """

    seconds: float = 45.0
    iterations: int = 0
    groups: int = 32
    group_size: int = 8
    evaluation: int = 64
    examples: int = 240
    values: Mapping[str, Any] = field(default_factory=dict)


TRIAL = TrialSettings()


@dataclass(frozen=True, slots=True)
class TrialEpisode:
    """One episode of a policy.

    Arguments:
        key: the seed of the episode, or the id of the problem.
        success: whether it succeeded by a measure other than its reward; `None` if there is none.
        text: what a language model wrote.
    """

    key: str
    reward: float
    success: bool | None = None
    text: str = ""

    def __str__(self) -> str:
        outcome = {None: "", True: ", a success", False: ", no success"}[self.success]
        return f"{self.key}: reward {self.reward:.4g}{outcome}{f', for {self.text!r}' if self.text else ''}"


@dataclass(frozen=True, slots=True)
class TrialResult:
    """The same held-out episodes before and after training.

    Arguments:
        learner: how much of what was trained, for example `8 iterations of grpo with nano`.
        actions: the actions or tokens, or the examples, that it learned from.
        blind: a policy that ignores the observation, and its returns on the same seeds; empty for language models.
    """

    before: Sequence[TrialEpisode]
    after: Sequence[TrialEpisode]
    learner: str
    actions: int
    seconds: float
    blind: tuple[str, Sequence[float]] = ("", ())

    @property
    def gain(self) -> Mean:
        """The mean paired difference of the rewards, with its interval."""
        return mean_interval([a.reward - b.reward for b, a in zip(self.before, self.after, strict=True)])

    @property
    def rewards(self) -> tuple[float, float]:
        """The mean reward before and after training."""
        before, after = (float(np.mean([e.reward for e in part])) for part in (self.before, self.after))
        return before, after

    @property
    def numbers(self) -> Json:
        """What a check reports."""
        gain, (before, after) = self.gain, self.rewards
        return {
            "learner": self.learner, "before": before, "after": after, "gain": gain.value, "gain_low": gain.low,
            "gain_high": gain.high, "episodes": gain.count, "actions": self.actions, "seconds": round(self.seconds, 1),
        }  # fmt: skip


class Trial(ABC):
    """A run of our own learner on one subject. Its results are computed once."""

    kind = "text"
    ceiling: float | None = None
    """The mean reward of the oracle; `None` without one."""

    @cached_property
    @abstractmethod
    def groups(self) -> Sequence[Sequence[TrialEpisode]]:
        """Episodes of a reference policy: each group starts from the same seed or prompt."""

    @abstractmethod
    def describe_env(self) -> Json:
        """The settings of `palaestra train` that name the environment."""

    @abstractmethod
    def play_held_out(self, iteration: int) -> list[TrialEpisode]:
        """Play the held-out episodes with the weights after an iteration."""

    @property
    def lesson(self) -> TrialResult | None:
        """The result of supervised learning; `None` if the subject writes no examples."""
        return None

    def check_time(self) -> None:
        """Raise `InapplicableError` if there is no time for a run that says something."""
        if (left := count_seconds_left()) < min(_MIN_SECONDS, TRIAL.seconds):
            raise InapplicableError(f"{left:.0f} s are too short for a run")

    def play_blind(self, held_out: Sequence[TrialEpisode]) -> tuple[str, Sequence[float]]:
        """The best policy that ignores the observation, and its returns on the seeds of these episodes."""
        return "", ()

    @cached_property
    def settings(self) -> TrainSettings:
        from palaestra.recipes.train.presets import make_settings
        from palaestra.recipes.train.settings import TrainSettings

        values = {"threads": 1, "device": "cpu", "evaluation": TRIAL.evaluation, **self.describe_env(), **TRIAL.values}
        return resolve_settings(TrainSettings, None, values, make_settings)

    @cached_property
    def loop(self) -> Any:
        """The training loop, with the untrained policy or the reference model."""
        from palaestra.recipes.train.build import build_loop
        from palaestra.recipes.train.recipe import check

        try:
            import torch

            torch.set_num_threads(1)  # Other threads of this process' parent are gone.
            check(self.settings)
            return build_loop(self.settings, ignore)
        except PalaestraError as error:
            raise InapplicableError(f"our learner cannot play it: {error}") from error

    @cached_property
    def result(self) -> TrialResult:
        """Train for a short time, and play the held-out episodes before and after."""
        self.check_time()
        loop, start = self.loop, time.monotonic()
        with closing(loop):
            before = self.play_held_out(0)
            reserve = 2 * (time.monotonic() - start) + 2.0
            watch, start, end = _Stopwatch(), time.monotonic(), time.monotonic() + count_seconds_left() - reserve
            iterations, longest, rewards = TRIAL.iterations or loop.config.iterations, 0.0, list[float]()
            for iteration in range(1, iterations + 1):
                tick = time.monotonic()
                metrics, _ = loop.iterate(iteration, 1 - (iteration - 1) / iterations, ignore)
                longest = max(longest, time.monotonic() - tick)
                rewards += [metrics["reward"]] if "reward" in metrics else []
                is_late = watch.seconds * (1 + 1 / iteration) > TRIAL.seconds or time.monotonic() + longest > end
                if is_late or _has_risen(rewards, _WINDOW[self.kind]):
                    break
            seconds = time.monotonic() - start
            before, after = _pair(before, self.play_held_out(iteration))
        learner = f"{iteration} iterations of {self.settings.algorithm} with {self.settings.learner}"
        return TrialResult(before, after, learner, loop.actions, seconds, self.play_blind(before))


class _Stopwatch:
    """Counts the CPU seconds of this process, and at least half of the seconds that pass: other processes end no run early."""

    def __init__(self) -> None:
        self._start = time.process_time(), time.monotonic()

    @property
    def seconds(self) -> float:
        return max(time.process_time() - self._start[0], (time.monotonic() - self._start[1]) / 2)


def _pair(*measurements: Sequence[TrialEpisode]) -> list[list[TrialEpisode]]:
    """The episodes that have a reward in both measurements."""
    known = [pair for pair in zip(*measurements, strict=True) if not np.isnan([e.reward for e in pair]).any()]
    if not known:
        raise InapplicableError("no held-out episode has a reward")
    return [list(part) for part in zip(*known, strict=True)]


def _has_risen(rewards: Sequence[float], window: int) -> bool:
    """Whether the rewards of the last iterations are above those of the first, and the run is not shorter than three windows."""
    if len(rewards) < 3 * window:
        return False
    return mean_interval(rewards[-window:]).low > mean_interval(rewards[:window]).high


class _Tally(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Adds up the rewards of episodes, and reads their success from `info`."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.steps, self.episodes = 0, list[TrialEpisode]()

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.episodes.append(TrialEpisode(f"seed {seed}", 0.0))
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        result = self.env.step(action)
        last, success = self.episodes[-1], read_success(result[4])
        self.episodes[-1] = replace(
            last, reward=last.reward + float(result[1]), success=last.success if success is None else success
        )
        self.steps += 1
        return result


class ControlTrial(Trial):
    """PPO in a classic environment. The reference policy acts at random."""

    kind = "control"

    def __init__(self, part: EnvPart) -> None:
        self.part, self.step_seconds = part, 0.0

    def describe_env(self) -> Json:
        part = self.part
        named = {"env": part.env_id, "env_kwargs": dict(part.options)} if part.env_id else {"env": part.make}
        return {**named, "seed": part.seed}

    @cached_property
    def groups(self) -> Sequence[Sequence[TrialEpisode]]:
        with closing(_Tally(self.part.make())) as env:
            start = time.monotonic()
            for seed in limit(range(TRIAL.groups), _SAMPLE_SECONDS):
                for number in range(TRIAL.group_size):
                    play_policy(env, self.part.seed + seed, ActionSource(env, number).draw)
            self.step_seconds = (time.monotonic() - start) / max(1, env.steps)
            size = TRIAL.group_size
            return [env.episodes[at : at + size] for at in range(0, len(env.episodes), size)]

    def check_time(self) -> None:
        super().check_time()
        assert self.groups  # They measure the time of a step.
        if self.loop.config.policy == "lm":
            raise InapplicableError("its actions are tokens without a tokenizer")
        seconds = min(TRIAL.seconds, count_seconds_left())
        if self.step_seconds * _MIN_STEPS > seconds:
            raise InapplicableError(
                f"a step takes {1000 * self.step_seconds:.0f} ms, so that a run of {_MIN_STEPS} steps does not fit into "
                f"{seconds:.0f} s"
            )

    def play_held_out(self, iteration: int) -> list[TrialEpisode]:
        import torch

        from palaestra.envs.wrappers.slots import SlotVectorEnv
        from palaestra.rl.collection import ControlCollector

        loop, tallies = self.loop, list[_Tally]()

        def make() -> _Tally:
            tallies.append(_Tally(self.part.make()))
            return tallies[-1]

        count = int(np.clip(_SAMPLE_SECONDS / (self.step_seconds * self.horizon + 1e-9), 8, TRIAL.evaluation))
        memory, env = loop.policy.memory, SlotVectorEnv(make, count, self.settings.env)
        with closing(env):
            loop.policy.eval()
            seed = loop.seeds.derive("evaluation").integer()
            generator = torch.Generator().manual_seed(seed)
            ControlCollector(env, loop.policy).collect_episodes(1, seed, generator, self.horizon)
        loop.policy.memory = memory
        return [tally.episodes[0] for tally in tallies[:count]]

    @cached_property
    def horizon(self) -> int:
        from palaestra.envs.factory import get_spec

        return min(get_spec(self.settings.env).max_episode_steps or _MAX_STEPS, _MAX_STEPS)

    def play_blind(self, held_out: Sequence[TrialEpisode]) -> tuple[str, Sequence[float]]:
        seeds = [int(episode.key.split()[-1]) for episode in held_out]
        with self.part.open() as env:
            policies = list_policies(env)
            few = {
                name: np.mean([play_policy(env, seed, policy, self.horizon)[0] for seed in seeds[:6]])
                for name, policy in limit(policies.items(), _SAMPLE_SECONDS)
            }
            best = max(few, key=lambda name: few[name])
            return best, [play_policy(env, seed, policies[best], self.horizon)[0] for seed in seeds]


class TextTrial(Trial):
    """GRPO with the embedded model that fits. The reference policy is that model before training."""

    def __init__(self, answers: Answers) -> None:
        self.answers, self.episode_seconds = answers, 0.0

    @cached_property
    def ceiling(self) -> float | None:  # type: ignore[override]
        return self.answers.ceiling

    def describe_env(self) -> Json:
        answers, seed = self.answers, self.answers.subject.seed
        if isinstance(answers, TaskAnswers):
            return {"env": "palaestra/CoT-v0", "task": answers.task, "evaluation": self._per_skill, "seed": seed}
        assert isinstance(answers, EnvAnswers)
        env, options = answers.part.env_id, dict(answers.part.options)
        if not env:
            env, options = describe_env(answers.part.make)[0], {}
        if not isinstance(answers.env.unwrapped, TurnEnv | TokenEnv):
            env, options = f"text:{env}", {"env_kwargs": options}
        return {"env": env, "env_kwargs": options, "seed": seed}

    @property
    def _per_skill(self) -> int:
        """Held-out problems per skill of a task."""
        assert isinstance(self.answers, TaskAnswers)
        return max(1, 3 * TRIAL.evaluation // len(self.answers.task.skills()))

    @cached_property
    def lesson(self) -> TrialResult | None:
        """One round of `palaestra teach` with the task's own examples, which gains more in this time than its reward does."""
        if not isinstance(self.answers, TaskAnswers) or not isinstance(self.answers.task, GenerativeTask):
            return None
        from palaestra.recipes.teach.recipe import teach

        super().check_time()
        task, start = self.answers.task, time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            result = teach(
                task=task, teacher="no_state", rounds=1, test=self._per_skill, validation=1, seed=self.answers.subject.seed,
                lesson_size=min(get_hooks(task).lesson_size, TRIAL.examples), out=f"{folder}/run", progress=False, threads=1,
                device="cpu",
            )  # fmt: skip
            with Run.open(result.folder, read_only=True) as run:
                phases = [run.store.attempts(f"{round_}/{Split.TEST}") for round_ in (0, 1)]
        before, after = _pair(*([self._read_attempt(attempt) for attempt in phase] for phase in phases))
        count, student = result.summary["examples"], result.summary["student"]
        learner = f"a lesson of {count} of its examples for {student}"
        return TrialResult(before, after, learner, count, time.monotonic() - start)

    @cached_property
    def groups(self) -> Sequence[Sequence[TrialEpisode]]:
        size, groups, played = self.loop.group_size, dict[int, list[TrialEpisode]](), 0

        watch = _Stopwatch()
        while played < TRIAL.groups // 2 and watch.seconds < _SAMPLE_SECONDS:
            rollout = self.loop.collect((_APART + played) * size, 2 * size, 0)
            for record in rollout.get_episodes().records:
                if not record.failure:
                    groups.setdefault(record.group, []).append(self._read(record))
            played += 2
        self.episode_seconds = watch.seconds / max(1, played * size)
        return list(groups.values())

    def check_time(self) -> None:
        super().check_time()
        assert self.groups  # They measure the time of an episode. Its update takes about as long.
        config, size = self.loop.config, self.loop.group_size
        count = int(TRIAL.seconds / _MIN_ITERATIONS / (2 * self.episode_seconds)) // size * size
        if count < 2 * size:
            raise InapplicableError(
                f"an episode takes {self.episode_seconds:.2g} s, so that {_MIN_ITERATIONS} iterations do not fit into "
                f"{TRIAL.seconds:g} s"
            )
        self.loop.config = replace(config, episodes=min(config.episodes, count))

    def play_held_out(self, iteration: int) -> list[TrialEpisode]:
        if not self.loop.stores_attempts:
            return [self._read(record) for record in self.loop.collect_held_out(iteration).get_episodes().records]
        with (
            tempfile.TemporaryDirectory() as folder,
            closing(Store(Path(folder) / "store.sqlite", create=True)) as store,
        ):
            self.loop.evaluate(iteration, store, ignore)
            return [self._read_attempt(attempt) for attempt in store.attempts(f"{iteration}/{Split.TEST}")]

    def _read_attempt(self, attempt: Attempt) -> TrialEpisode:
        value = attempt.outcome.value if isinstance(attempt.outcome, Score) else np.nan
        text = attempt.completion.text if attempt.completion is not None else ""
        return TrialEpisode(attempt.problem.id, value, self._says(attempt.problem, text), text)

    def _read(self, record: Any) -> TrialEpisode:
        """An episode of a language model: a `Response` or a `TurnEpisode`."""
        reward = np.nan if record.failure else float(record.reward)
        if not isinstance(record, TurnEpisode):
            source = record.prompt.source
            problem = source if isinstance(source, Problem) else None
            success = self._says(problem, record.text) if problem is not None else None
            return TrialEpisode(problem.id if problem is not None else record.prompt.text, reward, success, record.text)
        texts = [message.text for message in record.messages[record.opening :] if message.role == "assistant"]
        success = _STOPPED.get(record.stop_reason)
        replayed = self._replay(record.seed, texts, reward)
        return TrialEpisode(f"seed {record.seed}", reward, success if replayed is None else replayed, " | ".join(texts))

    def _replay(self, seed: int, texts: Sequence[str], reward: float) -> bool | None:
        """What `info` says about success, of an episode that is played again. Episodes of the collector have no `info`."""
        if not self._has_info or not texts:
            return None
        played = self.answers.score(Case(str(seed), (), source=seed), texts)
        if played.value is None or abs(played.value - reward) > 1e-6:  # For example another split.
            return None
        flags = [read_success(info) for info in played.infos if isinstance(info, dict)]
        self._has_info = any(flag is not None for flag in flags)
        return next((flag for flag in reversed(flags) if flag is not None), None)

    _has_info = True

    @cached_property
    def _has_answers(self) -> bool:
        """Whether the references are answers, so that a text which ends with the reference is right."""
        return bool(self.answers.form and list_solved(self.answers))

    def _says(self, problem: Problem, text: str) -> bool | None:
        """Whether the last line of a text contains the reference; `None` if references are no short answers."""
        reference = " ".join(problem.reference.split()).casefold()
        if not reference or len(reference) > _MAX_ANSWER or is_program(problem.reference) or not self._has_answers:
            return None
        last = " ".join(text.strip().rpartition("\n")[2].split()).casefold()
        return re.search(rf"(?<![\w.]){re.escape(reference)}(?!\w|\.\d)", last) is not None


_STOPPED: Mapping[str, bool] = {TurnStopReason.SOLVED: True, TurnStopReason.LOST: False, TurnStopReason.ATTEMPTS: False}
"""What the end of a turn episode says about its success."""
_MAX_ANSWER = 60
