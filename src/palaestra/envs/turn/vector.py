"""Many turn environments side by side: one `step` advances every conversation by one message."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from palaestra.core.checks import check_integer, short_repr
from palaestra.core.errors import EnvError, RewardError, SandboxError
from palaestra.core.records import FailureCause, Message
from palaestra.envs.turn.base import Action, TurnEnv, failed
from palaestra.envs.turn.records import Conversation, StopReason

Step = tuple[tuple[Conversation, ...], np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]


class TurnVectorEnv(VectorEnv[Any, Any, Any]):
    """Turn environments in slots, each in a thread: their workspaces are processes of their own and run side by side.

    Observations are tuples of `Conversation`, actions sequences of texts or messages. A slot whose episode has ended
    starts its next one in the same step (`AutoresetMode.SAME_STEP`): its last observation is in
    `infos["final_obs"]`, the `info` of its last step, as it is, in `infos["final_info"]`. Infos are arrays by slot, with
    `None` for the slots that have nothing to say; as in Gymnasium, a mask `infos["_name"]` beside every `name` says which
    have. `infos["active"]` says in which slots an episode is going on.

    Arguments:
        make: builds the environment of a slot.
        num_envs: how many slots: whole groups.
        group_size: how many consecutive slots are reset with the same seed, so that they start alike.
        autoreset: `False` leaves finished slots as they are until the next reset; what is done in them is ignored.
        failures: what an environment that raises does: `"raise"` what it raised, once the other slots are done, or
            `"mark"` its episode as `StopReason.FAILED` with the cause in its `info["failure"]`; an `EnvError` (a wrong
            use of the environment, or one that is wrong itself) is raised either way, but for that of a reward that is not finite. A slot whose next episode could not start
            is tried again in the next step, whose action it ignores.

    All actions are read before anything moves: a step with a wrong one is refused, and every slot stays where it was.
    `reset(seed=s)` gives every group of slots a seed of its own, `reset(seed=[...])` every slot the one that is named
    for it. `reset(options={"reset_mask": mask})` starts only the slots of the mask anew, as in Gymnasium; the rest of
    `options` goes to the environments.
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi"], "autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012

    def __init__(
        self,
        make: Callable[[], gymnasium.Env[Any, Any]],
        num_envs: int,
        *,
        group_size: int = 1,
        autoreset: bool = True,
        failures: str = "raise",
    ) -> None:
        num_envs, group_size = (
            check_integer("num_envs", num_envs, minimum=1),
            check_integer("group_size", group_size, minimum=1),
        )
        if num_envs % group_size:
            raise EnvError(f"num_envs is a number of whole groups of {group_size}; got {num_envs}")
        if failures not in ("raise", "mark"):
            raise EnvError(f"failures is 'raise' or 'mark'; got {failures!r}")
        self.num_envs, self.group_size, self.autoreset, self.failures = num_envs, group_size, autoreset, failures
        if not autoreset:
            self.metadata = {**self.metadata, "autoreset_mode": AutoresetMode.DISABLED}
        self._threads = ThreadPoolExecutor(num_envs, "workspace")
        self.envs = self._made(make)
        self.single_observation_space = self.envs[0].observation_space
        self.single_action_space = self.envs[0].action_space
        self.observation_space = gymnasium.spaces.Tuple([self.single_observation_space] * num_envs)
        self.action_space = gymnasium.spaces.Tuple([self.single_action_space] * num_envs)
        self._active, self._begun = np.zeros(num_envs, dtype=bool), np.zeros(num_envs, dtype=bool)
        self._observations: list[Any] = [Conversation(())] * num_envs

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[tuple[Conversation, ...], dict[str, Any]]:
        self._check_open()
        seeds = self._seeds(seed)
        options = dict(options or {})
        mask = np.asarray(options.pop("reset_mask", np.ones(self.num_envs, dtype=bool)))
        if mask.shape != (self.num_envs,) or mask.dtype != bool:
            raise EnvError(f"reset_mask is one truth value a slot, {self.num_envs}; got {mask.dtype} of {mask.shape}")
        slots = np.flatnonzero(mask).tolist()
        self._active[mask], self._begun[mask] = False, True
        made, errors = self._all(lambda slot: self._start(slot, seeds[slot], options or None), slots)
        for slot, (observation, info) in made.items():
            self._observations[slot], self._active[slot] = observation, not _is_broken(info)
        if errors:
            raise errors[0]
        return tuple(self._observations), self._infos({slot: made[slot][1] for slot in slots})

    def step(self, actions: Sequence[Action]) -> Step:
        self._check_open()
        given = self._listed(actions)
        if not self._begun.any():
            raise gymnasium.error.ResetNeeded("no episode has begun; call reset() before step()")
        again = (
            self._begun & ~self._active if self.autoreset and self.failures == "mark" else np.zeros_like(self._active)
        )
        for slot in np.flatnonzero(self._active).tolist():
            # Before anything moves: a step that is refused leaves every slot where it was. What a wrapper with a space of its
            # own makes of an action, it alone knows.
            inside = self._inside(slot)
            if self.envs[slot].action_space is inside.action_space:
                inside.read(given[slot])
        return self._moved(
            lambda slot: self._started(slot) if again[slot] else self.envs[slot].step(given[slot]),
            np.flatnonzero(self._active | again).tolist(),
        )

    def stop(self, reasons: Mapping[int, StopReason | str]) -> Step:
        """End the episodes of some slots from outside, as `TurnEnv.stop` does; the other slots stay where they are."""
        self._check_open()
        idle = [slot for slot in reasons if not self._active[slot]]
        if idle:
            raise EnvError(f"there is no episode to stop in slot {idle[0]}; active: {np.flatnonzero(self._active)}")
        return self._moved(lambda slot: self._inside(slot).stop(StopReason(reasons[slot])), sorted(reasons))

    def close_extras(self, **kwargs: Any) -> None:
        _, errors = self._all(lambda slot: self.envs[slot].close(), range(self.num_envs))
        self._threads.shutdown()
        if errors:
            raise errors[0]

    def render(self) -> tuple[Any, ...]:
        return tuple(env.render() for env in self.envs)

    # Inside

    def _check_open(self) -> None:
        if self.closed:
            raise EnvError(f"this {type(self).__name__} is closed; make another")

    def _listed(self, actions: Any) -> list[Any]:
        if isinstance(actions, (str, bytes, Message, Mapping)) or not isinstance(actions, Iterable):
            raise EnvError(f"one action a slot is expected, {self.num_envs}; got one {type(actions).__name__} for all")
        given = list(actions)
        if len(given) != self.num_envs:
            raise EnvError(f"one action a slot is expected, {self.num_envs}; got {len(given)}")
        return given

    def _made(self, make: Callable[[], gymnasium.Env[Any, Any]]) -> list[gymnasium.Env[Any, Any]]:
        """One environment a slot; where one cannot be made, those that could are closed again."""
        started = [self._threads.submit(make) for _ in range(self.num_envs)]
        errors = [error for future in started if (error := future.exception()) is not None]
        made = [future.result() for future in started if future.exception() is None]
        strange = [env.unwrapped for env in made if not isinstance(env.unwrapped, TurnEnv)]
        if not errors and not strange:
            return made
        for env in made:
            with suppress(Exception):
                env.close()
        self._threads.shutdown()
        raise errors[0] if errors else EnvError(f"a turn environment is expected; got {type(strange[0]).__name__}")

    def _seeds(self, seed: int | Sequence[int | None] | None) -> list[int | None]:
        if isinstance(seed, (int, np.integer)):
            return [int(seed) + slot // self.group_size for slot in range(self.num_envs)]
        if isinstance(seed, str) or not isinstance(seed, Iterable | None):
            raise EnvError(f"a seed is a whole number, or one a slot; got {short_repr(seed)}")
        seeds: list[int | None] = [None] * self.num_envs if seed is None else list(seed)
        if len(seeds) != self.num_envs:
            raise EnvError(f"one seed a slot is expected, {self.num_envs}; got {len(seeds)}")
        return seeds

    def _start(self, slot: int, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        try:
            return self.envs[slot].reset(seed=seed, options=options)
        except Exception as error:  # An environment is a program of somebody else's: it may raise anything.
            if not self._marks(error):
                raise
            return self._inside(slot).conversation(), _broken(0, error)

    def _started(self, slot: int) -> tuple[Any, ...]:
        """The five values of a step that only tries to start an episode."""
        observation, info = self._start(slot)
        return observation, 0.0, False, False, info

    def _moved(self, move: Callable[[int], tuple[Any, ...]], slots: Sequence[int]) -> Step:
        """What a move in some slots brings. Where one raises, all of it is done and noted before it is raised."""
        made, errors = self._all(lambda slot: self._advance(slot, move), slots)
        for slot in set(slots) - set(made):
            self._active[slot] = not self._inside(slot).over  # A refused action leaves the episode as it was.
        step = self._gathered(made)
        if errors:
            raise errors[0]
        return step

    def _advance(self, slot: int, move: Callable[[int], tuple[Any, ...]]) -> tuple[Any, ...]:
        """The five values of a move, and what the slot's next episode starts with, where it is over and starts anew."""
        try:
            step = move(slot)
        except Exception as error:
            if not self._marks(error):
                raise
            inside = self._inside(slot)
            step = (inside.conversation(), 0.0, False, True, _broken(inside.turn, error))
        over = step[2] or step[3]
        return (*step, self._start(slot) if over and self.autoreset else None)

    def _marks(self, error: Exception) -> bool:
        """Whether what was raised is a failure of its episode. A wrong use is not; a reward that is no number is."""
        return self.failures == "mark" and (isinstance(error, RewardError) or not isinstance(error, EnvError))

    def _gathered(self, made: Mapping[int, tuple[Any, ...]]) -> Step:
        rewards, flags = np.zeros(self.num_envs), np.zeros((2, self.num_envs), dtype=bool)
        infos, final_obs, final_info = {}, {}, {}
        for slot, (observation, reward, terminated, truncated, info, fresh) in made.items():
            rewards[slot], flags[0, slot], flags[1, slot] = reward, terminated, truncated
            over = terminated or truncated
            if over:
                final_obs[slot], final_info[slot] = observation, info
            self._observations[slot], infos[slot] = fresh if fresh is not None else (observation, info)
            self._active[slot] = (fresh is not None or not over) and not _is_broken(infos[slot])
        found = self._infos(infos)
        if final_obs:
            found |= self._by_slot("final_obs", final_obs) | self._by_slot("final_info", final_info)
        return tuple(self._observations), rewards, flags[0], flags[1], found

    def _all(self, work: Callable[[int], Any], slots: Iterable[int]) -> tuple[dict[int, Any], list[BaseException]]:
        """The work of every slot, side by side, and what was raised in those that are missing."""
        started = {slot: self._threads.submit(work, slot) for slot in slots}
        errors = [error for future in started.values() if (error := future.exception()) is not None]
        return {slot: future.result() for slot, future in started.items() if future.exception() is None}, errors

    def _inside(self, slot: int) -> TurnEnv:
        """The turn environment of a slot without what is wrapped around it."""
        found = self.envs[slot].unwrapped
        assert isinstance(found, TurnEnv)
        return found

    def _infos(self, infos: dict[int, dict[str, Any]]) -> dict[str, Any]:
        names = dict.fromkeys(name for info in infos.values() for name in info)
        found: dict[str, Any] = {}
        for name in names:
            found |= self._by_slot(name, {slot: info[name] for slot, info in infos.items() if name in info})
        found["active"] = self._active.copy()
        return found

    def _by_slot(self, name: str, values: dict[int, Any]) -> dict[str, np.ndarray]:
        """An info of some slots with its mask, as Gymnasium has them."""
        row, known = np.full(self.num_envs, None, dtype=object), np.zeros(self.num_envs, dtype=bool)
        for slot, value in values.items():
            row[slot], known[slot] = value, True
        return {name: row, f"_{name}": known}


def _broken(turn: int, error: Exception) -> dict[str, Any]:
    """The `info` of an episode that an environment broke."""
    cause = FailureCause.SANDBOX if isinstance(error, SandboxError) else FailureCause.ENVIRONMENT
    return {"turn": turn, "stop_reason": StopReason.FAILED, "failure": failed(error, cause)}


def _is_broken(info: Mapping[str, Any]) -> bool:
    return info.get("stop_reason") is StopReason.FAILED
