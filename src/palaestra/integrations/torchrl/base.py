"""The base environment: research tasks as a TorchRL environment of commands, before any transform."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torchrl.data import Categorical, Composite, Unbounded
from torchrl.envs import EnvBase, TransformedEnv

from palaestra.core.errors import EnvError
from palaestra.core.seeding import Seeds
from palaestra.core.settings import check_integer
from palaestra.envs.turn.base import TurnStopReason
from palaestra.integrations.torchrl.entries import ASSISTANT, set_texts, text_spec, texts
from palaestra.integrations.torchrl.slots import Slot, SlotStep, TaskName, load_tasks

_NUMBERS = ("gain", "score", "baseline")
_FLAGS = ("terminated", "truncated")
_TEXTS = ("observation", "stop_reason", "outcome", "failure")
HARMLESS = "ls -la"
"""The command of a random action."""


class MLGymWrapper(EnvBase):  # type: ignore[misc]  # TorchRL has no types.
    """Research tasks in slots, as a TorchRL environment of commands and their output.

    `action` is one command per slot and `observation` its output, in the same step. `score` is the score of the
    submission, `gain` its improvement over `baseline` in units of the metric's scale, with the metric's direction taken
    into account. Both come from the evaluator, never from text. `stop_reason` is why an episode ended, and `outcome` what
    became of its submission. If `failure` is not empty, something outside the agent failed and the step must not be
    learned from. The reward is 0; `MLGymRewardAssignment` adds the gain.

    Arguments:
        tasks: one task (its name, its folder or a `ResearchTask`), several, or a mapping of names to tasks. An episode
            uses the first unless another is chosen.
        mlgym: an MLGym checkout that the names refer to.
        num_envs: the number of parallel workspaces, one thread each; the batch size.
        device: the device of the tensors.
        seed: the seed of the environment's random choices until `set_seed` is called. `None` draws a fresh one, so that
            the members of a pool differ. It is stored as `seeds.root`.
        arguments: arguments of `ResearchEnv`.

    Raises:
        EnvError: there is no slot, or an argument has an invalid value.
        SettingsError: there is no task, or a task is given twice.
        UnknownNameError: a task does not exist.
    """

    def __init__(
        self,
        tasks: TaskName | Iterable[TaskName] | Mapping[str, TaskName],
        *,
        mlgym: str | Path | None = None,
        num_envs: int = 1,
        device: torch.device | str | None = None,
        seed: int | None = None,
        **arguments: Any,
    ) -> None:
        num_envs = check_integer("num_envs", num_envs, minimum=1)
        loaded = load_tasks(tasks, mlgym)
        super().__init__(device=device, batch_size=torch.Size((num_envs,)))
        self._set_seed(seed)
        self._ended = False
        self.slots = [Slot(loaded, arguments) for _ in range(num_envs)]
        _ = self.slots[0].env  # Reports invalid arguments now instead of at the first reset.
        self._threads: ThreadPoolExecutor | None = None
        self._make_specs()

    # For the transforms

    def slots_in_mask(self, mask: torch.Tensor | None) -> list[int]:
        """Return the slots that a mask selects; all without a mask."""
        if mask is None:
            return list(range(len(self.slots)))
        slots: list[int] = mask.reshape(len(self.slots), -1).any(-1).nonzero().flatten().tolist()
        return slots

    def choose(self, slot: int, task: str) -> None:
        """Select the task of a slot's next episode."""
        self.slots[slot].choose(task)

    def end(self, next_tensordict: TensorDictBase, reasons: Mapping[int, TurnStopReason]) -> None:
        """End the episodes of some slots now, each for its reason, and overwrite their rows with the result."""
        results = self._all(reasons, lambda slot: self.slots[slot].stop(reasons[slot]))
        rows = [results.get(slot) or self._row(next_tensordict, slot) for slot in range(len(self.slots))]
        next_tensordict.update(self._tensordict(rows).exclude("reward"))

    # TorchRL's contract

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: object) -> TensorDictBase:
        self._check_open()
        self.is_closed = False  # TorchRL closes an environment on deletion only if this is False.
        mask = None if tensordict is None else tensordict.get("_reset", None)
        chosen = self.slots_in_mask(mask)
        first = self.seeds.root + self._episodes
        seeds = {slot: first + n for n, slot in enumerate(chosen)}
        self._episodes += len(chosen)
        results = self._all(chosen, lambda slot: self.slots[slot].reset(seeds[slot]))
        # TorchRL keeps the rows of the other slots.
        return self._tensordict([results.get(slot, SlotStep()) for slot in range(len(self.slots))]).exclude("reward")

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        self._check_open()
        chosen = self.slots_in_mask(tensordict.get("_step", None))
        commands = texts(tensordict, "action", len(self.slots)) if chosen else []
        if commands is None:
            raise EnvError("expected one command per slot under 'action'; the key is missing")
        results = self._all(chosen, lambda slot: self.slots[slot].step(commands[slot]))
        # A slot that does not step repeats its row, without a gain.
        rows = [results.get(n) or replace(self._row(tensordict, n), gain=0.0) for n in range(len(self.slots))]
        return self._tensordict(rows)

    def _set_seed(self, seed: int | None) -> None:
        root = secrets.randbits(63) if seed is None else check_integer("seed", seed, minimum=0)
        self.seeds, self._episodes = Seeds(root), 0

    def close(self, *, raise_if_closed: bool = True) -> None:
        """Close every workspace. The environment cannot be used afterwards."""
        self._ended = True
        for slot in self.slots:
            slot.close()
        if self._threads is not None:
            self._threads.shutdown()
            self._threads = None
        super().close(raise_if_closed=raise_if_closed)

    # Implementation

    def _check_open(self) -> None:
        if self._ended:
            raise EnvError("this environment of research tasks is closed; make another")

    @property
    def _precision(self) -> torch.dtype:
        """Scores are float64, because they may exceed float32. Apple's devices only have float32."""
        return torch.float32 if self.device is not None and self.device.type == "mps" else torch.float64

    def _make_specs(self) -> None:
        shape, device = self.batch_size, self.device
        column = (*shape, 1)
        words = {name: text_spec(shape[0], device) for name in _TEXTS}
        numbers = {name: Unbounded(shape=column, device=device, dtype=self._precision) for name in _NUMBERS}
        flags = {name: Categorical(2, shape=column, device=device, dtype=torch.bool) for name in ("done", *_FLAGS)}
        self.full_observation_spec = Composite({**words, **numbers}, shape=shape, device=device)
        self.full_action_spec = Composite(action=text_spec(shape[0], device, HARMLESS), shape=shape, device=device)
        self.full_reward_spec = Composite(reward=Unbounded(shape=column, device=device), shape=shape, device=device)
        self.full_done_spec = Composite(flags, shape=shape, device=device)

    def _all(self, slots: Iterable[int], work: Callable[[int], SlotStep]) -> dict[int, SlotStep]:
        """Run the work of some slots in parallel. If one raises, the others finish first."""
        chosen = list(slots)
        if len(chosen) < 2:
            return {slot: work(slot) for slot in chosen}
        self._threads = self._threads or ThreadPoolExecutor(len(self.slots), "workspace")
        started = {slot: self._threads.submit(work, slot) for slot in chosen}
        for future in started.values():
            future.exception()
        return {slot: future.result() for slot, future in started.items()}

    def _row(self, tensordict: TensorDictBase, slot: int) -> SlotStep:
        """Read the row of a slot from a tensordict, for a slot that does not step."""
        row = tensordict[slot]
        names = [name for name in (*_TEXTS, *_NUMBERS, *_FLAGS) if row.get(name, None) is not None]
        return SlotStep(**{name: row[name] if name in _TEXTS else row[name].item() for name in names})

    def _tensordict(self, rows: Sequence[SlotStep]) -> TensorDictBase:
        tensordict = TensorDict(batch_size=self.batch_size, device=self.device)
        for name in _TEXTS:
            set_texts(tensordict, name, [getattr(row, name) for row in rows])
        for name, dtype in {**dict.fromkeys(_NUMBERS, self._precision), **dict.fromkeys(_FLAGS, torch.bool)}.items():
            values = [[getattr(row, name)] for row in rows]
            tensordict.set(name, torch.tensor(values, dtype=dtype, device=self.device))
        tensordict.set("done", tensordict.get("terminated") | tensordict.get("truncated"))
        tensordict.set("reward", torch.zeros((*self.batch_size, 1), device=self.device))
        return tensordict


class MLGymEnv(TransformedEnv):  # type: ignore[misc]  # TorchRL has no types.
    """A `TransformedEnv` over an environment that reads which slots step from `_step`.

    TorchRL's own class skips the transforms if every slot is skipped, so no transform could penalise or answer an
    unreadable message. Here the base environment performs a step in which no slot moves, and the transforms process
    it like any other. Several slots are stacked lazily, as in TorchRL's chat environments, because conversations differ
    in length.
    """

    def _skip_tensordict(self, tensordict: TensorDictBase) -> TensorDictBase:
        tensordict.set("_step", torch.zeros(self.batch_size, dtype=torch.bool, device=self.device))
        next_tensordict = self.transform._step(tensordict, self.base_env._step(tensordict))
        tensordict.pop("_step")
        return next_tensordict

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        return self._stack(super()._step(tensordict))

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: object) -> TensorDictBase:
        return self._stack(super()._reset(tensordict, **kwargs))

    def _reset_proc_data(self, tensordict: TensorDictBase | None, tensordict_reset: TensorDictBase) -> TensorDictBase:
        # TorchRL writes the new conversation into the old one and keeps the old shape, unless the entry is missing.
        if tensordict is not None and self.batch_size.numel() == 1:
            mask = tensordict.get("_reset", None)
            if mask is None or mask.all():
                tensordict.pop("history", None)
                tensordict.pop(ASSISTANT, None)
        return super()._reset_proc_data(tensordict, tensordict_reset)

    def _stack(self, tensordict: TensorDictBase) -> TensorDictBase:
        # Not for a single slot: `SerialEnv` and `ParallelEnv` stack lazy stacks along their inner dimension, where they
        # cannot reset one environment alone.
        return tensordict if self.batch_size.numel() == 1 else tensordict.to_lazystack(0)
