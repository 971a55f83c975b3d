"""Vectorised turn environments: one `step` advances every conversation by one message."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode

from palaestra.core.errors import EnvError, RewardError, SandboxError
from palaestra.core.records import FailureCause, Message
from palaestra.core.settings import check_integer, short_repr
from palaestra.envs.base import GymEnv, GymStep, GymVectorEnv, Info, Options, ResetOptions, ToolSchemas, read_reset_mask
from palaestra.envs.turn.base import Action, Conversation, TurnEnv, TurnStopReason, to_failure

VectorStep = tuple[tuple[Conversation, ...], np.ndarray, np.ndarray, np.ndarray, Info]
_Start = tuple[Conversation, Info]
T = TypeVar("T")


class TurnVectorEnv(GymVectorEnv):
    """Turn environments in slots, each in its own thread, so that their workspaces run in parallel.

    Observations are tuples of `Conversation`, actions sequences of texts or messages. A slot whose episode has ended
    starts its next one in the same step (`AutoresetMode.SAME_STEP`): its last observation is in `infos["final_obs"]`,
    the `info` of its last step in `infos["final_info"]`. Infos are arrays by slot with `None` for slots without a
    value; as in Gymnasium, a mask `infos["_name"]` accompanies every `name`. `infos["active"]` marks the slots with an
    episode in progress.

    Arguments:
        make: builds the environment of a slot from `arguments`.
        num_envs: the number of slots, a multiple of `group_size`.
        group_size: the number of consecutive slots that are reset with the same seed.
        autoreset: `False` leaves finished slots idle until the next reset; their actions are ignored.
        failures: what to do if an environment raises. `"raise"` re-raises after the other slots are done. `"mark"` ends
            its episode as `TurnStopReason.FAILED` with the cause in `info["failure"]`. An `EnvError` (a usage error, or
            an invalid environment) is always raised, except for a non-finite reward. A slot whose next episode could
            not start is retried in the next step, and its action is ignored.

    All actions are validated first: a step with an invalid action is rejected without effect. `reset(seed=s)` resets
    the slots of group `k` with the seed `s + k`; `reset(seed=[...])` sets one seed per slot.
    `reset(options={"reset_mask": mask})` resets only the slots of the mask, as in Gymnasium; the other `options` go to
    the environments.
    """

    metadata: Info = {"render_modes": ["ansi"], "autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012

    def __init__(
        self,
        make: Callable[..., GymEnv],
        num_envs: int,
        *,
        group_size: int = 1,
        autoreset: bool = True,
        failures: str = "raise",
        **arguments: Any,
    ) -> None:
        check_integer("num_envs", num_envs, minimum=1)
        if num_envs % check_integer("group_size", group_size, minimum=1):
            raise EnvError(f"num_envs must be a multiple of the group size {group_size}; got {num_envs}")
        if failures not in ("raise", "mark"):
            raise EnvError(f"failures must be 'raise' or 'mark'; got {failures!r}")
        self.num_envs, self.group_size, self.autoreset, self.failures = num_envs, group_size, autoreset, failures
        if not autoreset:
            self.metadata = {**self.metadata, "autoreset_mode": AutoresetMode.DISABLED}
        self._threads = ThreadPoolExecutor(num_envs, "workspace")
        self.envs = self._make_envs(partial(make, **arguments))
        self.single_observation_space = self.envs[0].observation_space
        self.single_action_space = self.envs[0].action_space
        self.observation_space = gymnasium.spaces.Tuple([self.single_observation_space] * num_envs)
        self.action_space = gymnasium.spaces.Tuple([self.single_action_space] * num_envs)
        self._active, self._begun = np.zeros(num_envs, dtype=bool), np.zeros(num_envs, dtype=bool)
        self._observations = [Conversation(())] * num_envs

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: ResetOptions = None
    ) -> tuple[tuple[Conversation, ...], Info]:
        self._check_open()
        seeds = self._seeds(seed)
        options = dict(options or {})
        mask = read_reset_mask(options, self.num_envs)
        options.pop("reset_mask", None)
        slots = np.flatnonzero(mask).tolist()
        self._active[mask], self._begun[mask] = False, True
        results, errors = self._all(lambda slot: self._start(slot, seeds[slot], options or None), slots)
        for slot, (observation, info) in results.items():
            self._observations[slot], self._active[slot] = observation, not _is_failed(info)
        if errors:
            raise errors[0]
        return tuple(self._observations), self._infos({slot: results[slot][1] for slot in slots})

    def step(self, actions: Sequence[Action]) -> VectorStep:
        self._check_open()
        given = [] if isinstance(actions, (str, Message, Mapping)) else list(actions)
        if len(given) != self.num_envs:
            raise EnvError(f"expected one action per slot, {self.num_envs} in total; got {short_repr(actions)}")
        if not self._begun.any():
            raise gymnasium.error.ResetNeeded("no episode has begun; call reset() before step()")
        again = (
            self._begun & ~self._active if self.autoreset and self.failures == "mark" else np.zeros_like(self._active)
        )
        for slot in np.flatnonzero(self._active).tolist():
            # Before any slot steps, so that a rejected step has no effect. Actions of a wrapper with its own action
            # space can only be checked by the wrapper.
            inside = self._inside(slot)
            if self.envs[slot].action_space is inside.action_space:
                inside.read(given[slot])
        return self._move(
            lambda slot: self._retry_start(slot) if again[slot] else self.envs[slot].step(given[slot]),
            np.flatnonzero(self._active | again).tolist(),
        )

    def stop(self, reasons: Mapping[int, TurnStopReason | str]) -> VectorStep:
        """End the episodes of some slots from outside, like `TurnEnv.stop`; the other slots do not step."""
        self._check_open()
        idle = [slot for slot in reasons if not self._active[slot]]
        if idle:
            raise EnvError(f"slot {idle[0]} has no episode to stop; active slots: {np.flatnonzero(self._active)}")
        return self._move(lambda slot: self._inside(slot).stop(TurnStopReason(reasons[slot])), sorted(reasons))

    def close_extras(self, **kwargs: Any) -> None:
        _, errors = self._all(lambda slot: self.envs[slot].close(), range(self.num_envs))
        self._threads.shutdown()
        if errors:
            raise errors[0]

    def render(self) -> tuple[Any, ...]:
        return tuple(env.render() for env in self.envs)

    @property
    def tools(self) -> ToolSchemas:
        """The tools of the environments (see `TurnEnv.tools`)."""
        return self._inside(0).tools

    @property
    def bootstrap_truncated(self) -> bool:
        """The declaration of the environments (see `TurnEnv.bootstrap_truncated`)."""
        return bool(self.envs[0].get_wrapper_attr("bootstrap_truncated"))

    # Implementation

    def _check_open(self) -> None:
        if self.closed:
            raise EnvError(f"this {type(self).__name__} is closed; make another")

    def _make_envs(self, make: Callable[[], GymEnv]) -> list[GymEnv]:
        """Make one environment per slot. If one cannot be made, the others are closed again."""
        started = [self._threads.submit(make) for _ in range(self.num_envs)]
        errors = [error for future in started if (error := future.exception()) is not None]
        envs = [future.result() for future in started if future.exception() is None]
        others = [env.unwrapped for env in envs if not isinstance(env.unwrapped, TurnEnv)]
        if not errors and not others:
            return envs
        for env in envs:
            with suppress(Exception):
                env.close()
        self._threads.shutdown()
        raise errors[0] if errors else EnvError(f"expected a turn environment; got {type(others[0]).__name__}")

    def _seeds(self, seed: int | Sequence[int | None] | None) -> list[int | None]:
        if isinstance(seed, (int, np.integer)):
            return [int(seed) + slot // self.group_size for slot in range(self.num_envs)]
        seeds: list[int | None] = [None] * self.num_envs if seed is None else list(seed)
        if len(seeds) != self.num_envs:
            raise EnvError(f"expected one seed per slot, {self.num_envs} in total; got {len(seeds)}")
        return seeds

    def _start(self, slot: int, seed: int | None = None, options: ResetOptions = None) -> _Start:
        try:
            started: _Start = self.envs[slot].reset(seed=seed, options=options)
            return started
        except BaseException as error:  # A user-defined environment may raise anything, also SystemExit.
            if not self._marks(error):
                raise
            return self._inside(slot).conversation(), _failure_info(0, error)

    def _retry_start(self, slot: int) -> GymStep:
        """Start an episode and return the five values of a step."""
        observation, info = self._start(slot)
        return observation, 0.0, False, False, info

    def _move(self, move: Callable[[int], GymStep], slots: Sequence[int]) -> VectorStep:
        """Move some slots. If one raises, the others are completed and recorded first."""
        results, errors = self._all(lambda slot: self._advance(slot, move), slots)
        for slot in set(slots) - set(results):
            self._active[slot] = not self._inside(slot).over  # A rejected action leaves the episode in progress.
        step = self._gather(results)
        if errors:
            raise errors[0]
        return step

    def _advance(self, slot: int, move: Callable[[int], GymStep]) -> tuple[GymStep, _Start | None]:
        """Return the five values of a move, and the start of the next episode if the slot resets."""
        try:
            step = move(slot)
        except BaseException as error:
            if not self._marks(error):
                raise
            inside = self._inside(slot)
            step = (inside.conversation(), 0.0, False, True, _failure_info(inside.turn, error))
        over = step[2] or step[3]
        return step, self._start(slot) if over and self.autoreset else None

    def _marks(self, error: BaseException) -> bool:
        """Whether an exception counts as a failure of its episode: a usage error does not, a non-finite reward does."""
        if self.failures != "mark" or isinstance(error, KeyboardInterrupt):
            return False
        return isinstance(error, RewardError) or not isinstance(error, EnvError)

    def _gather(self, results: Mapping[int, tuple[GymStep, _Start | None]]) -> VectorStep:
        rewards, flags = np.zeros(self.num_envs), np.zeros((2, self.num_envs), dtype=bool)
        infos, final_obs, final_info = {}, {}, {}
        for slot, ((observation, reward, terminated, truncated, info), fresh) in results.items():
            rewards[slot], flags[0, slot], flags[1, slot] = reward, terminated, truncated
            over = terminated or truncated
            if over:
                final_obs[slot], final_info[slot] = observation, info
            self._observations[slot], infos[slot] = fresh if fresh is not None else (observation, info)
            self._active[slot] = (fresh is not None or not over) and not _is_failed(infos[slot])
        merged = self._infos(infos)
        if final_obs:
            merged |= self._by_slot("final_obs", final_obs) | self._by_slot("final_info", final_info)
        return tuple(self._observations), rewards, flags[0], flags[1], merged

    def _all(self, work: Callable[[int], T], slots: Iterable[int]) -> tuple[dict[int, T], list[BaseException]]:
        """Run the work of every slot in parallel. Returns the results, and the exceptions of the missing slots."""
        started = {slot: self._threads.submit(work, slot) for slot in slots}
        errors = [error for future in started.values() if (error := future.exception()) is not None]
        return {slot: future.result() for slot, future in started.items() if future.exception() is None}, errors

    def _inside(self, slot: int) -> TurnEnv:
        """Return the turn environment of a slot without its wrappers."""
        env = self.envs[slot].unwrapped
        assert isinstance(env, TurnEnv)
        return env

    def _infos(self, infos: dict[int, Info]) -> Info:
        names = dict.fromkeys(name for info in infos.values() for name in info)
        merged: Info = {}
        for name in names:
            merged |= self._by_slot(name, {slot: info[name] for slot, info in infos.items() if name in info})
        merged["active"] = self._active.copy()
        return merged

    def _by_slot(self, name: str, values: Mapping[int, object]) -> dict[str, np.ndarray]:
        """Return an info entry of some slots with its mask, in Gymnasium's format."""
        row, known = np.full(self.num_envs, None, dtype=object), np.zeros(self.num_envs, dtype=bool)
        for slot, value in values.items():
            row[slot], known[slot] = value, True
        return {name: row, f"_{name}": known}


def _failure_info(turn: int, error: BaseException) -> Info:
    """Build the `info` of an episode whose environment raised."""
    cause = FailureCause.SANDBOX if isinstance(error, SandboxError) else FailureCause.ENVIRONMENT
    return {"turn": turn, "stop_reason": TurnStopReason.FAILED, "failure": to_failure(error, cause)}


def _is_failed(info: Options) -> bool:
    return info.get("stop_reason") is TurnStopReason.FAILED
