"""Train a language model in several environments at once: each iteration has groups of episodes from all of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from palaestra.core.records import Json, Listener, Trajectory, Usage
from palaestra.core.statistics import Mean
from palaestra.rl.collection import join_rollouts
from palaestra.rl.curriculum import CURRICULA, UNIFORM, Curriculum
from palaestra.rl.loop import LoopConfig, summarize_returns
from palaestra.rl.policies.language_model import LanguageModelPolicy, ReferencePolicy
from palaestra.rl.rollouts import Rollout
from palaestra.rl.token_loop import TokenLoop, describe_gain
from palaestra.runs.provenance import LedgerEntry

if TYPE_CHECKING:
    from palaestra.runs.store import Store

_BY_ENVIRONMENT = ("truncated", "turns", "completions/mean_length", "completions/clipped_ratio")
"""Metrics of responses that are also stored for each environment."""


class MixtureLoop(TokenLoop):
    """Trains a language model in several token and turn environments.

    Each environment has a loop of its own, which collects and evaluates its episodes with the common policy. Their rollouts
    are joined for one update. Groups stay within an environment, so that advantages compare episodes of the same start.

    Arguments:
        loops: by the name of the environment, loops without an algorithm.
        weights: of the environments; they share the groups of an iteration in proportion. A curriculum replaces them.
    """

    failure_cause = ""
    stores_attempts = False

    def __init__(
        self,
        config: LoopConfig,
        loops: dict[str, TokenLoop],
        weights: Sequence[float],
        policy: LanguageModelPolicy,
        algorithm: Any,
        reference: ReferencePolicy | None,
    ) -> None:
        self.loops, self.shares = loops, np.asarray(weights) / sum(weights)
        self.played = [0] * len(loops)
        """The number of groups that each environment has played."""
        first = next(iter(loops.values()))
        common = replace(config, curriculum=UNIFORM)
        super().__init__(
            common, None, policy, algorithm, reference, None, engine_name=first.engine_name, tokenizer=first.tokenizer
        )
        if config.curriculum != UNIFORM:
            kind: type[Curriculum] = CURRICULA.get(config.curriculum)
            self.curriculum = kind(list(loops), self.seeds.derive("curriculum"))
        for name, loop in loops.items():
            loop.label = name

    def prepare(self) -> None:
        """Do nothing: the loops of the environments have prepared them."""

    def close(self) -> None:
        for loop in self.loops.values():
            loop.close()

    def choose_prompts(self, iteration: int) -> None:
        """Choose the environment of each group of an iteration: by the curriculum, or by the weights."""
        groups = self.config.episodes // self.group_size
        if self.curriculum is not None:
            self._chosen[iteration] = sorted(self.curriculum.choose(iteration, groups))
        else:
            counts = divide_groups(self.played, self.shares, groups)
            self._chosen[iteration] = [place for place, count in enumerate(counts) for _ in range(count)]

    def play_iteration(self, iteration: int) -> Rollout:
        counts = np.bincount(self._chosen[iteration], minlength=len(self.loops)).tolist()
        self._parts: list[tuple[str, TokenLoop, Rollout]] = []
        for place, (name, loop) in enumerate(self.loops.items()):
            if counts[place]:
                first, episodes = (n * self.group_size for n in (self.played[place], counts[place]))
                self._parts.append((name, loop, loop.play(iteration, first, episodes)))
                self.played[place] += counts[place]
        rollout = _join(self._parts)
        # Groups are numbered over all environments.
        begin = (iteration - 1) * self.config.episodes // self.group_size
        episodes = rollout.get_episodes()
        numbers = torch.arange(rollout.num_sequences) if episodes.number_B is None else episodes.number_B
        episodes.group_B = begin + numbers // self.group_size
        return rollout

    def measure(self, rollout: Rollout) -> dict[str, float]:
        metrics = super().measure(rollout)
        for name, loop, part in self._parts:
            returns, measured = part.stats.returns, loop.measure(part)
            metrics[f"episodes/{name}"] = float(len(returns))
            metrics[f"failures/{name}"] = float(len(part.stats.failures))
            if returns:
                metrics[f"reward/{name}"] = float(np.mean(returns))
            metrics |= {f"{key}/{name}": measured[key] for key in _BY_ENVIRONMENT if key in measured}
        return metrics

    def find_cut_episodes(self, rollout: Rollout) -> list[bool]:
        return [cut for _, loop, part in self._parts for cut in loop.find_cut_episodes(part)]

    def trajectory(self, rollout: Rollout, sequence: int) -> Trajectory:
        ends = np.cumsum([part.num_sequences for _, _, part in self._parts])
        _, loop, _ = self._parts[int(np.searchsorted(ends, sequence, side="right"))]
        return loop.trajectory(rollout, sequence)

    def evaluate(
        self, iteration: int, store: Store | None, listener: Listener
    ) -> tuple[dict[str, float], LedgerEntry | None]:
        """Evaluate in every environment. The accuracy at the problems of a task counts as a return from 0 to 1."""
        metrics: dict[str, float] = {}
        means, calls, usage = [], 0, Usage()
        for name, loop in self.loops.items():
            if not loop.config.evaluation:
                continue
            values, cost = loop.evaluate(iteration, store, listener)
            if cost is not None:
                calls, usage = calls + cost.calls, usage + cost.usage
            key, scale = ("test_accuracy", 100.0) if loop.stores_attempts else ("test_reward", 1.0)
            count = int(values.get("test_count", 0))
            if key in values:
                value, low, high = (values[f"{key}{end}"] / scale for end in ("", "_low", "_high"))
                mean = Mean(value, low, high, count)
                means.append(mean)
                ends = {"": mean.value, "_low": mean.low, "_high": mean.high}
                metrics |= {f"test_reward/{name}{end}": value for end, value in ends.items()}
            metrics[f"test_count/{name}"] = float(count)
            metrics[f"test_failures/{name}"] = values.get("test_failures", 0.0)
        for key in ("test_count", "test_failures"):
            metrics[key] = sum(value for name, value in metrics.items() if name.startswith(f"{key}/"))
        if means:
            mean = average(means)
            metrics |= {"test_reward": mean.value, "test_reward_low": mean.low, "test_reward_high": mean.high}
        return metrics, LedgerEntry("", self.engine_name, calls, usage) if calls else None

    def summarize(self, store: Store, iterations: int) -> Json:
        """The mean return and gain over the environments, each with the same weight, and those of each."""
        table = store.metrics()
        summary = summarize_returns(table, iterations)
        gains = {name: loop.compute_gain(iterations) for name, loop in self.loops.items() if loop.config.evaluation}
        parts = {}
        for name, gain in gains.items():
            rows = {number: _select(row, name) for number, row in table.items()}
            parts[name] = summarize_returns(rows, iterations) | describe_gain(gain)
        return summary | describe_gain(average(list(gains.values()))) | {"environments": parts} if gains else {}

    def counters(self) -> Json:
        parts = [loop.counters()["returns"] for loop in self.loops.values()]
        return super().counters() | {"played": self.played, "parts": parts}

    def load_counters(self, counters: Json) -> None:
        super().load_counters(counters)
        self.played = list(counters["played"])
        for loop, returns in zip(self.loops.values(), counters["parts"], strict=True):
            loop.load_returns(returns)


def divide_groups(played: Sequence[int], shares: np.ndarray, groups: int) -> list[int]:
    """Divide the groups of an iteration so that each environment's share of all groups so far is nearest to its weight.

    >>> divide_groups([0, 0], np.array([0.75, 0.25]), 2), divide_groups([2, 0], np.array([0.75, 0.25]), 2)
    ([2, 0], [1, 1])
    """
    counts, targets = np.array(played), shares * (sum(played) + groups)
    for _ in range(groups):
        counts[int(np.argmax(targets - counts))] += 1
    return [int(count) for count in counts - played]


def average(means: Sequence[Mean]) -> Mean:
    """The mean of independent means, each with the same weight, and its interval."""
    half = math.sqrt(sum(((mean.high - mean.low) / 2) ** 2 for mean in means)) / len(means)
    value = sum(mean.value for mean in means) / len(means)
    return Mean(value, value - half, value + half, sum(mean.count for mean in means))


def _select(row: Mapping[str, float], name: str) -> dict[str, float]:
    """The metrics of one environment under their common names."""
    return {key.replace(f"/{name}", "", 1): value for key, value in row.items() if f"/{name}" in key}


def _join(parts: Sequence[tuple[str, TokenLoop, Rollout]]) -> Rollout:
    """Join the rollouts of environments. Each failure begins with its cause."""
    for _, loop, part in parts:
        if loop.failure_cause:
            part.stats.failures = [f"{loop.failure_cause}: {failure}" for failure in part.stats.failures]
    return join_rollouts([part for _, _, part in parts])
