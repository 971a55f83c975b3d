"""Level 3 of classic environments: policies without skill, actions outside the space, and rewards against success."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces

from palaestra.envs.base import GymEnv
from palaestra.recipes.check.play import ActionSource, freeze
from palaestra.recipes.check.records import CheckFinding, env_check, report_fail, report_pass, report_skip, report_warn
from palaestra.recipes.check.subjects import EnvPart

_EPISODES, _STEPS = 8, 300
_MIN_SIDE = 3
"""Successes, and failures, without which their rewards are not compared."""
_MORE_EPISODES, _MORE_SECONDS = 40, 2.0
"""Episodes of each policy, and seconds, until there are enough of both."""
_SUCCESS = ("is_success", "success", "solved", "won")
"""Entries of `info` that say whether an episode succeeded."""

Policy = Callable[[Any], Any]


def list_policies(env: GymEnv) -> dict[str, Policy]:
    """Policies that do not look at the observation."""
    space, source = env.action_space, ActionSource(env, 0)
    policies: dict[str, Policy] = {"random actions": source.draw}
    if isinstance(space, spaces.Discrete):
        for number in range(int(space.start), int(space.start) + min(int(space.n), 6)):
            policies[f"always {number}"] = _repeat(number)
    elif isinstance(space, spaces.Box):
        low = np.where(np.isfinite(space.low), space.low, -1).astype(space.dtype)
        high = np.where(np.isfinite(space.high), space.high, 1).astype(space.dtype)
        middle = ((low + high) / 2).astype(space.dtype)
        for name, action in (("lowest", low), ("highest", high), ("middle", middle)):
            policies[f"always the {name} action"] = _repeat(action)
    return policies


def _repeat(action: Any) -> Policy:
    return lambda info: action


def read_success(info: Any) -> bool | None:
    """Whether `info` says that the episode succeeded; `None` if it says nothing."""
    return next((bool(info[name]) for name in _SUCCESS if name in info), None)


def play_policy(env: GymEnv, seed: int, policy: Policy, steps: int = _STEPS) -> tuple[float, bool | None]:
    """The return of an episode, and whether `info` says that it succeeded."""
    return _play(env, seed, policy, steps)[:2]


def _play(env: GymEnv, seed: int, policy: Policy, steps: int) -> tuple[float, bool | None, float | None]:
    """As `play_policy`, with the reward of the last step; `None` unless the episode ended by itself."""
    _, info = env.reset(seed=seed)
    total, success = 0.0, None
    for _ in range(steps):
        _, reward, terminated, truncated, info = env.step(policy(info))
        total += float(reward)
        news = read_success(info)
        success = success if news is None else news
        if terminated or truncated:
            return total, success, float(reward) if terminated else None
    return total, success, None


@env_check("env", "statistical.adversarial_floor")
def check_blind_policies(part: EnvPart) -> CheckFinding:
    """Policies that ignore the observation stay below the reward of a solution."""
    if part.takes_text:
        return report_skip("its actions are texts")
    with part.open() as env:
        threshold = env.spec.reward_threshold if env.spec is not None else None
        returns = {
            name: [play_policy(env, part.seed + number, policy)[0] for number in range(_EPISODES)]
            for name, policy in list_policies(env).items()
        }
    means = {name: float(np.mean(values)) for name, values in returns.items()}
    best = max(means, key=lambda name: means[name])
    evidence = ", ".join(f"{name}: {mean:.3g}" for name, mean in means.items())
    distinct = {value for values in returns.values() for value in values}
    if len(means) > 1 and len(distinct) == 1 and means[best] > 0:
        return report_fail(f"every policy gets the return {means[best]:g} in every episode", evidence, count=_EPISODES)
    if threshold is not None and means[best] >= threshold:
        text = f"{best} gets {means[best]:.3g}, and {threshold:g} counts as solved"
        return report_fail(text, evidence, count=_EPISODES, threshold=threshold)
    return report_pass(f"the best of {len(means)} blind policies is {best} with {means[best]:.3g}", threshold=threshold)


@env_check("env", "runtime.action_bounds")
def check_action_bounds(part: EnvPart) -> CheckFinding:
    """An action outside the bounds does no more than the bound itself, and is not worth more."""
    with part.open() as env:
        space = env.action_space
        if not isinstance(space, spaces.Box) or not space.is_bounded() or not np.issubdtype(space.dtype, np.floating):
            return report_skip("its actions have no bounds that they could exceed")
        width, gains, moves = space.high - space.low, 0, 0
        for number in range(_EPISODES):
            bounds = [_take_step(env, part.seed + number, action) for action in (space.low, space.high)]
            again = _take_step(env, part.seed + number, space.low)
            beyond = [
                _take_step(env, part.seed + number, action)
                for action in (space.low - 9 * width, space.high + 9 * width)
            ]
            best, most = max(reward for _, reward in bounds), max(reward for _, reward in beyond)
            gains += most > best + 1e-6 * max(1.0, abs(best))
            is_repeatable = again == bounds[0]
            moves += is_repeatable and any(
                reward > -np.inf and state != bound for (state, reward), (bound, _) in zip(beyond, bounds, strict=True)
            )
    if gains == _EPISODES:
        return report_warn("an action of ten times the bound is rewarded more than one inside", count=_EPISODES)
    if moves == _EPISODES:
        return report_warn("an action beyond the bound has another effect than the bound", count=_EPISODES)
    return report_pass("actions outside the bounds do no more than the bounds, and are not worth more")


def _take_step(env: GymEnv, seed: int, action: Any) -> tuple[Any, float]:
    """The observation, frozen, and the reward of an action after a reset; a reward of minus infinity if it is rejected."""
    env.reset(seed=seed)
    try:
        observation, reward, *_ = env.step(action)
    except Exception:  # It rejects the action.
        return None, -np.inf
    return freeze(observation), float(reward)


@env_check("env", "semantic.reward_agrees_with_success")
def check_success(part: EnvPart) -> CheckFinding:
    """Successful episodes are not rewarded less than others."""
    if part.takes_text:
        return report_skip("its actions are texts")
    with part.open() as env:
        policies = list(list_policies(env).values())
        episodes = [
            _play(env, part.seed + number, policy, _STEPS) for policy in policies for number in range(_EPISODES)
        ]
        # Few random episodes may succeed. They are only worth the time where one did.
        wins, start = sum(success is True for _, success, _ in episodes), time.monotonic()
        for number in range(_EPISODES, _MORE_EPISODES):
            if not 0 < wins < _MIN_SIDE or time.monotonic() - start > _MORE_SECONDS:
                break
            episodes += [_play(env, part.seed + number, policy, _STEPS) for policy in policies]
            wins = sum(success is True for _, success, _ in episodes)
    sides = {flag: [total for total, success, _ in episodes if success is flag] for flag in (True, False)}
    ends = {flag: [last for _, success, last in episodes if success is flag and last is not None] for flag in sides}
    if any(len(values) < _MIN_SIDE for values in sides.values()):
        return report_skip(f"info says nothing about success, or too few episodes succeed ({len(sides[True])})")
    if max(sides[True]) < min(sides[False]):
        text = f"every success is rewarded less ({max(sides[True]):.3g} at most) than every failure ({min(sides[False]):.3g})"
        return report_fail(text, successes=len(sides[True]), failures=len(sides[False]))
    if all(len(values) >= _MIN_SIDE for values in ends.values()) and max(ends[True]) < min(ends[False]):
        text = f"the last step of every success is rewarded less ({max(ends[True]):.3g} at most) than that of every failure"
        evidence = f"of failures that end the episode: {min(ends[False]):.3g} at least"
        return report_fail(text, evidence, successes=len(ends[True]), failures=len(ends[False]))
    return report_pass(f"{len(sides[True])} successes and {len(sides[False])} failures are rewarded in order")
