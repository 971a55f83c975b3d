"""Level 1: whether an environment keeps Gymnasium's contract, so that its episodes can be repeated and trained on."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from numbers import Real
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from palaestra.core.errors import PalaestraError
from palaestra.core.records import Values
from palaestra.core.registry import describe_error
from palaestra.core.settings import short_repr
from palaestra.core.spaces import UnicodeText
from palaestra.envs.base import GymEnv, GymSpace
from palaestra.envs.turn.base import TurnEnv
from palaestra.envs.wrappers.slots import find_mismatch
from palaestra.recipes.check.play import ActionSource, Episode, freeze, play, take_step, watch_global_random
from palaestra.recipes.check.records import CheckFinding, env_check, report_fail, report_pass, report_skip, report_warn
from palaestra.recipes.check.subjects import EnvPart

_SEEDS = 6
_CYCLES = 4
"""Instances that are made and closed to find what stays open."""
_END_STEPS, _END_SECONDS = 5000, 4.0
"""How long episodes are played to see one end."""
_LIMIT = re.compile(r"max_?(?:episode_?)?(?:steps|length)|max_?episode|horizon|limit", re.IGNORECASE)
"""Names of a limit of steps."""


@env_check("env", "runtime.starts")
def check_start(part: EnvPart) -> CheckFinding:
    """The environment can be made and reset."""
    start = time.perf_counter()
    with part.open() as env:
        seconds = time.perf_counter() - start
        try:
            env.reset(seed=part.seed)
        except TypeError as error:
            if "seed" in str(error):
                return report_fail(f"reset takes no seed: {describe_error(error)}")
            raise
    return report_pass(f"made in {seconds:.2f} s", seconds=round(seconds, 3))


@env_check("env", "runtime.api")
def check_api(part: EnvPart) -> CheckFinding:
    """`reset` and `step` return what Gymnasium's API says."""
    with part.open() as env:
        inside = env.unwrapped
        for name in ("action_space", "observation_space"):
            if not isinstance(getattr(env, name, None), gymnasium.Space):
                return report_fail(f"{name} is {short_repr(getattr(env, name, None))}; expected a gymnasium.Space")
        result = inside.reset(seed=part.seed, options={})
        if not isinstance(result, tuple) or len(result) != 2 or not isinstance(result[1], dict):
            return report_fail(f"reset returned {short_repr(result)}; expected (observation, info)", seed=part.seed)
        source, info = ActionSource(env, part.seed), result[1]
        for _ in range(part.steps):
            stepped = inside.step(source.draw(info))
            if not isinstance(stepped, tuple) or len(stepped) != 5:
                return report_fail(f"step returned {short_repr(stepped)}; expected five values", seed=part.seed)
            _, reward, terminated, truncated, info = stepped
            if not isinstance(reward, Real | np.number) or isinstance(reward, complex):
                return report_fail(f"the reward is {short_repr(reward)}; expected a number", seed=part.seed)
            for name, flag in (("terminated", terminated), ("truncated", truncated)):
                if not isinstance(flag, bool | np.bool_):
                    return report_fail(f"{name} is {short_repr(flag)}; expected a bool", seed=part.seed)
            if not isinstance(info, dict):
                return report_fail(f"info is {short_repr(info)}; expected a dict", seed=part.seed)
            for name, flag in (("terminated", terminated), ("done", terminated or truncated)):
                if isinstance(own := info.get(name), bool | np.bool_) and own != flag:
                    return report_fail(f"info['{name}'] is {own}, although step returned {flag}", seed=part.seed)
            if terminated or truncated:
                break
        if not isinstance(inside.unwrapped.metadata, dict):
            return report_fail(f"metadata is {short_repr(inside.metadata)}; expected a dict")
    return report_pass("reset and step return what Gymnasium expects")


@env_check("env", "runtime.observation_schema")
def check_observations(part: EnvPart) -> CheckFinding:
    """Every observation is in the declared space, and stays as it was returned."""
    with part.open() as env:
        space = env.observation_space
        if not space.contains(sample := space.sample()):
            return report_fail(f"the observation space does not contain its own sample {short_repr(sample)}")
        before = repr(space), repr(env.action_space)
        aliased = set[str]()
        for offset in range(3):
            observation, info = env.reset(seed=part.seed + offset)
            source = ActionSource(env, offset)
            for number in range(part.steps + 1):
                if problem := _describe_stray(space, observation):
                    where = f"step {number}" if number else "the reset"
                    return report_fail(
                        f"the observation of {where} is outside the space: {problem}", seed=part.seed + offset
                    )
                values = {"an observation": observation, "info": info}
                frozen = freeze(values)
                observation, _, terminated, truncated, info = env.step(source.draw(info))
                aliased.update(name for name, value in values.items() if (name, freeze(value)) not in frozen)
                if terminated or truncated:
                    if problem := _describe_stray(space, observation):
                        text = f"the last observation is outside the space: {problem}"
                        return report_fail(text, seed=part.seed + offset)
                    break
        if (after := (repr(env.observation_space), repr(env.action_space))) != before:
            return report_fail("the spaces change during an episode", f"{before} became {after}")
    if aliased:
        return report_warn(f"{' and '.join(sorted(aliased))} changes after it was returned: return a copy")
    return report_pass(f"all observations are in {short_repr(space)}")


def _describe_stray(space: GymSpace, value: Any) -> str:
    """Why a space does not contain a value; empty if it does."""
    if isinstance(value, np.ndarray) and value.dtype.kind == "f" and np.isnan(value).any():
        return "it contains NaN"
    if space.contains(value):
        return ""
    if isinstance(space, spaces.Box) and not isinstance(value, np.ndarray):
        return f"{type(value).__name__} {short_repr(value)}; expected an array in {space}"
    what, expected = find_mismatch(space, value) or (short_repr(value), short_repr(space))
    return f"{what}; expected {expected}"


@env_check("env", "runtime.reward_well_formed")
def check_rewards(part: EnvPart) -> CheckFinding:
    """Rewards are finite and in the declared range."""
    low, high = -np.inf, np.inf
    rewards: list[float] = []
    with part.open() as env:
        declared = getattr(env.unwrapped, "reward_range", None) or (env.unwrapped.metadata or {}).get("reward_range")
        if isinstance(declared, tuple | list) and len(declared) == 2:
            low, high = map(float, declared)
        for offset in range(_SEEDS):
            episode = play(env, part.seed + offset, part.steps)
            for step in episode.transitions:
                value = float(step.reward[1])
                if not np.isfinite(value) or not low <= value <= high:
                    expected = "a finite number" if np.isinf([low, high]).all() else f"{low} to {high}"
                    return report_fail(f"a reward is {value}; expected {expected}", seed=part.seed + offset)
                rewards.append(value)
    return report_pass(f"{len(rewards)} rewards from {min(rewards):g} to {max(rewards):g}", count=len(rewards))


@env_check("env", "runtime.seed_control")
def check_seeds(part: EnvPart) -> CheckFinding:
    """A seed fixes the episode, seeds differ, and a reset without one continues."""
    seeds = [part.seed + offset for offset in range(_SEEDS)]
    with part.open() as env, part.open() as twin:
        firsts = {seed: play(env, seed, part.steps, action_seed=0) for seed in seeds}
        for seed in seeds:
            for other, where in ((twin, "a new instance"), (env, "a second reset")):
                again = play(other, seed, 0)
                if again.first != firsts[seed].first:
                    again.transitions = firsts[seed].transitions
                    difference = firsts[seed].find_difference(again)
                    return report_fail(f"seed {seed} starts another episode in {where}", difference, seed=seed)
        variety = len({episode.digest() for episode in firsts.values()})
        unseeded = [play(env, None, part.steps, action_seed=0) for _ in range(_SEEDS)]
        loose = len({episode.digest() for episode in unseeded})
        play(twin, seeds[0], 0)
        play(env, seeds[0], 0)
        if play(env, None, 0).first != play(twin, None, 0).first:
            text = "a reset without a seed, after a reset with one, does not continue its random numbers"
            return report_fail(text, seed=seeds[0])
    numbers: Values = {"different_with_seeds": variety, "different_without": loose, "seeds": _SEEDS}
    if variety == 1 and loose > 1:
        return report_fail(
            f"all {_SEEDS} seeds give the same episode, although episodes differ without seeds", **numbers
        )
    if variety > 1 and loose == 1:
        return report_fail("every reset without a seed starts the same episode, although seeds give others", **numbers)
    if variety == 1 and (name := _find_constant_generator(part)):
        return report_fail(
            f"all {_SEEDS} seeds give the same episode: they do not seed `{name}`, which is drawn from", **numbers
        )
    return report_pass(
        f"{variety} of {_SEEDS} seeds give different episodes" if variety > 1 else "nothing is random", **numbers
    )


def _find_constant_generator(part: EnvPart) -> str:
    """A generator that is drawn from and has the same state after resets with different seeds; empty if there is none."""
    with part.open() as env:
        states = []
        for seed in (part.seed, part.seed + 1):
            env.reset(seed=seed)
            states.append(_read_own_generators(env.unwrapped))
        play(env, None, min(part.steps, 20))
        later = _read_own_generators(env.unwrapped)
    for name, state in states[0].items():
        if state == states[1].get(name) and state != later.get(name):
            return name
    return ""


def _read_own_generators(env: GymEnv) -> dict[str, str]:
    states = {"np_random": repr(env.np_random.bit_generator.state)}
    for name, value in [*vars(type(env)).items(), *vars(env).items()]:
        if isinstance(value, random.Random):
            states[name] = repr(value.getstate())
        elif isinstance(value, np.random.Generator):
            states[name] = repr(value.bit_generator.state)
        elif isinstance(value, np.random.RandomState):
            states[name] = repr(freeze(value.get_state()))
    return states


@env_check("env", "runtime.episode_determinism")
def check_determinism(part: EnvPart) -> CheckFinding:
    """The same seed and actions give the same steps, in this instance, a new one, and after other episodes."""
    note = ""
    with part.open() as env, part.open() as other:
        for offset in range(3):
            seed = part.seed + offset
            episode = play(env, seed, part.steps)
            following = play(env, None, part.steps, action_seed=7)
            play(env, seed + 100, part.steps)
            repeats = {"after another episode": play(env, seed, part.steps, actions=episode.actions)}
            repeats["in a new instance"] = play(other, seed, part.steps, actions=episode.actions)
            for where, repeat in repeats.items():
                if difference := episode.find_difference(repeat):
                    return report_fail(
                        f"seed {seed} with the same actions gives another episode {where}", difference, seed=seed
                    )
                note = note or episode.find_info_difference(repeat)
            if difference := following.find_difference(play(other, None, part.steps, actions=following.actions)):
                text = f"the episode after that of seed {seed} differs in a new instance"
                return report_fail(text, difference, seed=seed)
    if note:
        return report_warn("equal episodes differ in info", note)
    return report_pass("equal seeds and actions give equal episodes")


@env_check("env", "runtime.global_random")
def check_global_random(part: EnvPart) -> CheckFinding:
    """The global random generators are neither used nor seeded."""
    with watch_global_random(987_654_321) as list_used:  # No seed of an episode.
        with part.open() as env:
            for offset in range(2):
                play(env, part.seed + offset, part.steps)
        changed = list_used()
    if changed:
        return report_fail(f"the environment draws from or seeds the global generator of {' and '.join(changed)}")
    return report_pass("the global generators are untouched")


@env_check("env", "runtime.episode_isolation")
def check_isolation(part: EnvPart) -> CheckFinding:
    """Two instances do not influence each other."""
    seeds = part.seed, part.seed + 1
    alone = []
    for seed in seeds:
        with part.open() as env:
            alone.append(play(env, seed, part.steps))
    first, second = part.make(), part.make()
    try:
        together = [
            Episode(seed, freeze(env.reset(seed=seed)[0])) for env, seed in zip((first, second), seeds, strict=True)
        ]
        for number in range(part.steps):
            for env, episode, expected in zip((first, second), together, alone, strict=True):
                if number < len(expected.transitions) and not episode.ended:
                    take_step(env, episode, expected.actions[number])
        for episode, expected in zip(together, alone, strict=True):
            if difference := expected.find_difference(episode):
                return report_fail(
                    "an episode changes when another instance plays beside it", difference, seed=episode.seed
                )
        first.close()
        repeat = play(second, seeds[1], part.steps, actions=alone[1].actions)
        if difference := alone[1].find_difference(repeat):
            return report_fail("an instance changes when another one is closed", difference, seed=seeds[1])
    finally:
        for env in (first, second):
            with contextlib.suppress(Exception):
                env.close()
    return report_pass("instances are independent")


@env_check("env", "runtime.vector_agreement")
def check_vector(part: EnvPart) -> CheckFinding:
    """Vector and single environments agree."""
    with part.open() as env:
        if isinstance(env.unwrapped, TurnEnv) or isinstance(env.action_space, spaces.Text | UnicodeText):
            return report_skip("its actions are texts")
        has_vector = env.spec is not None and env.spec.vector_entry_point is not None
    seeds: list[int | None] = [part.seed, part.seed + 1]
    vector = SyncVectorEnv([part.make, part.make], autoreset_mode=AutoresetMode.DISABLED)
    try:
        observations, _ = vector.reset(seed=list(seeds))
        with part.open() as env:
            for slot, seed in enumerate(seeds):
                single = play(env, seed, 0)
                slot_first = freeze(_pick(vector.single_observation_space, observations, slot))
                if single.first != slot_first and not isinstance(vector.single_observation_space, spaces.Graph):
                    return report_fail(
                        f"slot {slot} of a vector starts another episode than the single environment", seed=seed
                    )
    finally:
        vector.close()
    if not has_vector or not part.env_id:
        return report_pass("slots of a vector start the episodes of the single environment")
    return _compare_native(part)


def _pick(space: gymnasium.Space[Any], observations: Any, slot: int) -> Any:
    """The observation of a slot, with the type of the single environment's."""
    from gymnasium.vector.utils import batch_space, iterate

    value = next(part for number, part in enumerate(iterate(batch_space(space, 2), observations)) if number == slot)
    return _restore(space, value)


def _restore(space: gymnasium.Space[Any], value: Any) -> Any:
    """A value of a batch with the type that its space has: batches of numbers lose it."""
    if isinstance(space, spaces.Dict):
        return {name: _restore(part, value[name]) for name, part in space.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_restore(part, value[place]) for place, part in enumerate(space))
    if isinstance(space, spaces.Discrete):
        return int(value)
    return np.asarray(value, dtype=space.dtype) if isinstance(space, spaces.Box) else value


def _compare_native(part: EnvPart) -> CheckFinding:
    """Compare the native vector environment with the single one: spaces, and the lengths and returns of random play."""
    try:
        vector = gymnasium.make_vec(part.env_id, num_envs=4, vectorization_mode="vector_entry_point", **part.options)
    except (gymnasium.error.Error, TypeError, PalaestraError):
        return report_pass("slots start the same episodes; the native vector environment takes other arguments")
    try:
        with part.open() as env:
            wanted, given = (env.observation_space, env.action_space), (
                vector.single_observation_space, vector.single_action_space,
            )  # fmt: skip
            if not isinstance(wanted[1], spaces.Discrete | spaces.Box):
                return report_pass("slots start the same episodes")
            if wanted != given:
                return report_warn("the native vector environment has other spaces", f"{wanted} and {given}")
            if difference := _compare_steps(part, env):
                text = "the native vector environment plays by other rules than the single one"
                return report_fail(text, difference, seed=part.seed)
            single = [(len(e.transitions), e.total) for e in (play(env, part.seed + n, 200) for n in range(24))]
        vector.reset(seed=part.seed)
        vector.action_space.seed(part.seed)
        lengths, totals, ended = np.zeros(4), np.zeros(4), list[tuple[int, float]]()
        skip = np.zeros(4, dtype=bool)
        for _ in range(1500):
            _, rewards, terminated, truncated, _ = vector.step(vector.action_space.sample())
            lengths += ~skip
            totals += np.where(skip, 0.0, rewards)
            over = (terminated | truncated | (lengths >= 200)) & ~skip
            ended += [(int(lengths[slot]), float(totals[slot])) for slot in np.flatnonzero(over)]
            is_next = vector.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP) == AutoresetMode.NEXT_STEP
            skip = (terminated | truncated) if is_next else np.zeros(4, dtype=bool)
            lengths[over], totals[over] = 0, 0.0
            if len(ended) >= 24:
                break
    finally:
        vector.close()
    for place, name in enumerate(("length", "return")):
        chance = _compare_samples([row[place] for row in single], [row[place] for row in ended])
        if chance < 1e-4:
            means = [float(np.mean([row[place] for row in rows])) for rows in (single, ended)]
            text = f"random episodes of the vector environment have another {name}: {means[1]:.3g} instead of {means[0]:.3g}"
            return report_fail(text, p=chance, count=len(ended))
    return report_pass("slots and the native vector environment agree with the single one", episodes=len(ended))


def _compare_steps(part: EnvPart, env: GymEnv) -> str:
    """Where a native vector environment of one slot first differs from the single one; empty if it does not.

    Only episodes with the same first observation are compared, until a step draws random numbers.
    """
    vector = gymnasium.make_vec(part.env_id, num_envs=1, vectorization_mode="vector_entry_point", **part.options)
    with contextlib.closing(vector):
        for seed in range(part.seed, part.seed + _SEEDS):
            (first, info), (firsts, _) = env.reset(seed=seed), vector.reset(seed=seed)
            source = ActionSource(env, seed)
            if not _are_close(first, firsts):
                continue
            for number in range(1, 501):
                action, generators = source.draw(info), _read_own_generators(env.unwrapped)
                single = env.step(action)
                batch = vector.step(np.asarray(action)[None])
                if _read_own_generators(env.unwrapped) != generators:
                    break
                info = single[4]
                for name, value, other in zip(
                    ("observation", "reward", "terminated", "truncated"), single, batch, strict=False
                ):
                    is_last = name == "observation" and (single[2] or single[3])  # It may be that of the next episode.
                    if not is_last and not _are_close(value, other):
                        return f"{name} of step {number}, seed {seed}: {short_repr(value)}, in the vector {short_repr(other[0])}"
                if single[2] or single[3]:
                    break
    return ""


def _are_close(value: Any, batch: Any) -> bool:
    """Whether a value equals that of the only slot of a vector, except for rounding."""
    if not isinstance(batch, np.ndarray) or not isinstance(value, np.ndarray | Real | np.number | np.bool_):
        return True  # Values of other kinds are not compared.
    first, second = np.asarray(value, dtype=float), np.asarray(batch, dtype=float)[0]
    return first.shape == second.shape and np.allclose(first, second, rtol=1e-3, atol=1e-4, equal_nan=True)


def _compare_samples(first: list[float], second: list[float]) -> float:
    """The p-value of a permutation test for equal means."""
    values, split = np.array([*first, *second], dtype=float), len(first)
    if len(second) < 8 or values.std() == 0:
        return 1.0
    generator, observed = np.random.default_rng(0), abs(values[:split].mean() - values[split:].mean())
    hits = 0
    for _ in range(20_000):
        generator.shuffle(values)
        hits += abs(values[:split].mean() - values[split:].mean()) >= observed - 1e-12
    return (hits + 1) / 20_001


@env_check("env", "runtime.resources_released")
def check_close(part: EnvPart) -> CheckFinding:
    """`close` releases processes, threads and files."""
    errors: list[str] = []

    def make_and_close() -> None:
        env = part.make()
        play(env, part.seed, min(part.steps, 10))
        env.close()
        try:
            env.close()
        except Exception as error:  # The environment is the user's code.
            errors.append(describe_error(error))

    growing, leftovers = measure_leftovers(make_and_close, _CYCLES)
    if errors:
        return report_warn(f"a second close raises {errors[0]}")
    if growing:
        return report_fail(f"each instance leaves {growing[0].partition(':')[0]} behind after close", growing[0])
    if leftovers:
        return report_warn("close leaves files in the temporary folder", ", ".join(leftovers[:5]))
    return report_pass("nothing stays open after close")


def measure_leftovers(cycle: Callable[[], None], cycles: int) -> tuple[list[str], list[str]]:
    """Call a function several times. Returns the resources that grow each time, with their counts, and files that stay."""
    counts: list[dict[str, int]] = []
    former = tempfile.gettempdir()
    with tempfile.TemporaryDirectory(prefix="palaestra-check-") as folder:
        tempfile.tempdir = os.environ["TMPDIR"] = folder  # Other processes do not write there.
        try:
            for _ in range(cycles):
                cycle()
                time.sleep(0.05)
                counts.append(_count_resources())
            leftovers = sorted(os.listdir(folder))
        finally:
            tempfile.tempdir = os.environ["TMPDIR"] = former
    rows = {name: [count[name] for count in counts] for name in counts[0]}
    growing = [
        f"{name}: {values}"
        for name, values in rows.items()
        if all(later > earlier for earlier, later in itertools.pairwise(values))
    ]
    return growing, leftovers


def _count_resources() -> dict[str, int]:
    counts = {"threads": threading.active_count()}
    with contextlib.suppress(OSError):
        counts["open files"] = len(os.listdir("/proc/self/fd"))
        tasks = Path(f"/proc/self/task/{os.getpid()}/children")
        counts["processes"] = len(tasks.read_text().split())
    return counts


@env_check("env", "runtime.terminates")
def check_end(part: EnvPart) -> CheckFinding:
    """Episodes end, and a limit of steps is a truncation."""
    lengths: list[tuple[int, bool, bool]] = []
    longest, start = 0, time.monotonic()
    with part.open() as env:
        limits = _read_limits(env.unwrapped)
        for offset in range(8):
            env_steps = 0
            _, info = env.reset(seed=part.seed + offset)
            source = ActionSource(env, offset)
            while env_steps < _END_STEPS and time.monotonic() - start < _END_SECONDS:
                _, _, terminated, truncated, info = env.step(source.draw(info))
                env_steps += 1
                longest = max(longest, env_steps)
                if terminated or truncated:
                    lengths.append((env_steps, bool(terminated), bool(truncated)))
                    break
        limited = env.spec is not None and env.spec.max_episode_steps
        own = getattr(env.unwrapped, "max_steps", None) or getattr(env.unwrapped, "max_episode_steps", None)
    if isinstance(own, int) and longest > own > 1:
        return report_warn(f"an episode goes on after {longest} steps, although its limit is {own}", longest=longest)
    if not lengths:
        text = f"no episode ended within {longest} random steps"
        if limited:
            return report_pass(f"{text}; a limit is registered")
        if longest < _END_STEPS // 4:
            return report_skip(f"{text}; more took too long")
        return report_warn(f"{text}, and no limit of steps is registered")
    last = max(lengths)[0]
    at_limit = [terminated for length, terminated, _ in lengths if length == last]
    if last > 1 and last in limits and len(at_limit) >= 3 and all(at_limit):
        text = f"{len(at_limit)} of {len(lengths)} episodes end at the limit of {last} steps as `terminated`; a limit is `truncated`"
        return report_warn(text, count=len(lengths))
    return report_pass(
        f"{len(lengths)} episodes ended after {min(lengths)[0]} to {max(lengths)[0]} steps", count=len(lengths)
    )


def _read_limits(env: GymEnv) -> set[int]:
    """The numbers that an environment, its classes or their modules store under the name of a limit of steps."""
    modules = (sys.modules.get(kind.__module__) for kind in type(env).__mro__[:-1])
    holders = [vars(holder) for holder in (env, *type(env).__mro__[:-1], *filter(None, modules))]
    return {
        value
        for holder in holders
        for name, value in holder.items()
        if isinstance(value, int) and not isinstance(value, bool) and _LIMIT.search(name)
    }


@env_check("env", "runtime.rejects_bad_actions")
def check_bad_action(part: EnvPart) -> CheckFinding:
    """An action outside the space raises, and the environment can be reset afterwards."""
    with part.open() as env:
        space = env.action_space
        actions: list[Any] = []
        if isinstance(space, spaces.Discrete):
            actions = [int(space.start + space.n), int(space.start) - 1]
        elif isinstance(space, spaces.Text | UnicodeText) or isinstance(env.unwrapped, TurnEnv):
            actions = [7]
        if not actions:
            return report_skip("its actions have no values that are clearly wrong")
        accepted = []
        for action in actions:
            env.reset(seed=part.seed)
            try:
                reward = env.step(action)[1]
            except Exception as error:  # Any error is an answer.
                rejected = describe_error(error)
            else:
                accepted.append(action)
                if not np.isfinite(float(reward)):
                    return report_fail(
                        f"the action {action!r}, which is not in {short_repr(space)}, is rewarded with {reward}"
                    )
            try:
                play(env, part.seed, 3)
            except Exception as error:
                return report_fail(
                    f"after the wrong action {action!r} the environment cannot be reset: {describe_error(error)}"
                )
    if accepted:
        return report_warn(f"step accepts {accepted[0]!r}, which is not in {short_repr(space)}")
    return report_pass(f"a wrong action raises {rejected.split(':')[0]}")


@env_check("env", "runtime.render")
def check_render(part: EnvPart) -> CheckFinding:
    """Rendering returns what its mode says, and does not change the episode."""
    with part.open() as env:
        modes = [
            mode for mode in (env.unwrapped.metadata or {}).get("render_modes", ()) if mode in ("ansi", "rgb_array")
        ]
        plain = play(env, part.seed, min(part.steps, 10))
        is_own = "metadata" in vars(type(env.unwrapped))
    if not modes or not part.env_id:
        return report_skip("it declares no mode `ansi` or `rgb_array`")
    for mode in modes:
        try:
            env = part.remake(render_mode=mode)
        except (TypeError, ImportError, gymnasium.error.Error, PalaestraError) as error:
            if isinstance(error, TypeError) and is_own:
                return report_warn(
                    f"it declares the render mode {mode} and cannot be made with it: {describe_error(error)}"
                )
            return report_skip(f"it cannot be made with the render mode {mode}: {describe_error(error)}")
        try:
            env.reset(seed=part.seed)
            drawn, shown = Episode(part.seed, plain.first), None
            for action in plain.actions:
                shown = env.render()
                take_step(env, drawn, action)
        except (gymnasium.error.DependencyNotInstalled, ImportError) as error:
            return report_skip(f"the render mode {mode} needs a package that is missing: {describe_error(error)}")
        finally:
            env.close()
        right = isinstance(shown, str | None) if mode == "ansi" else (
            isinstance(shown, np.ndarray) and shown.dtype == np.uint8 and shown.ndim == 3
        )  # fmt: skip
        if not right:
            return report_fail(f"render returned {short_repr(shown)} in mode {mode}")
        if difference := plain.find_difference(drawn):
            return report_fail(f"rendering in mode {mode} changes the episode", difference, seed=part.seed)
    return report_pass(f"render works in mode {' and '.join(modes)}")


@env_check("env", "semantic.replayability")
def check_replay(part: EnvPart) -> CheckFinding:
    """A stored episode gives the same rewards in another process."""
    if not part.env_id:
        return report_skip("an instance cannot be made again in another process; check its id or file.py:Class")
    with part.open() as env:
        seeds = [part.seed, part.seed + 1]
        expected = [play(env, seed, min(part.steps, 50)).digest() for seed in seeds]
    request = {"env": part.env_id, "options": part.options, "seeds": seeds, "steps": min(part.steps, 50)}
    try:
        text = json.dumps(request)
    except TypeError:
        return report_skip("its options cannot be written as JSON")
    command = [sys.executable, "-m", "palaestra.recipes.check.replay", text]
    processes = []
    for hash_seed in ("1", "4242"):
        variables = {**os.environ, "PYTHONHASHSEED": hash_seed, "TZ": "Pacific/Kiritimati", "PYTHONWARNINGS": "ignore"}
        processes.append(
            subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        )
    for process in processes:
        output, errors = process.communicate()
        if process.returncode:
            last = (errors.strip().splitlines() or ["no output"])[-1]
            return report_fail(f"it cannot be played in another process: {last}")
        for seed, first, second in zip(seeds, expected, json.loads(output.splitlines()[-1]), strict=True):
            if first != second:
                return report_fail(
                    f"seed {seed} with the same actions gives another episode in another process", seed=seed
                )
    return report_pass("episodes are the same in another process")
