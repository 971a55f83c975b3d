"""The base environment: research tasks as TorchRL sees them, before any transform."""

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
from torchrl.envs import EnvBase

from palaestra.core.checks import check_integer, short_repr
from palaestra.core.errors import EnvError
from palaestra.core.seeding import Seeds
from palaestra.envs.turn.records import StopReason
from palaestra.integrations.torchrl.commands import check_arguments
from palaestra.integrations.torchrl.entries import put, text_spec, texts
from palaestra.integrations.torchrl.slots import Slot, Told
from palaestra.integrations.torchrl.tasks import TaskName, load_tasks

NUMBERS = ("gain", "score", "baseline")
FLAGS = ("terminated", "truncated")
TEXTS = ("observation", "stop_reason", "failure")
HARMLESS = "ls -la"
"""What a random action is."""


class MLGymWrapper(EnvBase):  # type: ignore[misc]  # TorchRL has no types.
    """Research tasks in slots, as a TorchRL environment of commands and their output.

    `action` is a command a slot; `observation` what came of it, in the same step. `score` is that of what was handed
    in, `gain` how far it is ahead of `baseline`, the metric's direction respected, in units of its scale: both come from
    the evaluator, never from a text. `stop_reason` says why an episode is over. Where `failure` is not empty, something
    around the agent broke, and nobody should learn from the step. The reward is 0: `MLGymRewardAssignment` pays.

    Arguments:
        tasks: one task (its name, its folder or a `ResearchTask`), several, or a mapping of names to them; an episode is of the
            first unless another is chosen.
        mlgym: a checkout of MLGym, whose tasks the names are.
        num_envs: workspaces side by side, each in a thread; the batch size.
        device: of the tensors.
        seed: of the environment's random choices, until `set_seed`; `None` draws a fresh one, so that the members of a pool
            that are made alike do not choose alike. It is `seeds.root`.
        arguments: of `ResearchEnv`.

    Raises:
        EnvError: no slot, no task, or an argument with a value that makes no sense.
        UnknownNameError: a task that does not exist, or an argument that `ResearchEnv` does not have.
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
        check_arguments("MLGymWrapper", MLGymWrapper.__init__, arguments)
        loaded = load_tasks(tasks, mlgym)
        super().__init__(device=_known(device), batch_size=torch.Size((num_envs,)))
        self._set_seed(seed)
        self._ended = False
        self.slots = [Slot(loaded, arguments) for _ in range(num_envs)]
        _ = self.slots[0].env  # Says now, and not at the first reset, what is wrong with the arguments.
        self._threads: ThreadPoolExecutor | None = None
        self._make_specs()

    # What transforms ask

    def marked(self, mask: torch.Tensor | None) -> list[int]:
        """The slots of a mask; all without one."""
        if mask is None:
            return list(range(len(self.slots)))
        found: list[int] = mask.reshape(len(self.slots), -1).any(-1).nonzero().flatten().tolist()
        return found

    def choose(self, slot: int, task: str) -> None:
        """Take a task for the next episode of a slot."""
        self.slots[slot].choose(task)

    def end(self, next_tensordict: TensorDictBase, slots: Iterable[int], reason: StopReason) -> None:
        """End the episodes of some slots now, and write what comes of it over what was said of them."""
        told = self._all(slots, lambda slot: self.slots[slot].stop(reason))
        rows = [told.get(slot) or self._row(next_tensordict, slot) for slot in range(len(self.slots))]
        next_tensordict.update(self._tensordict(rows).exclude("reward"))

    # TorchRL's contract

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        self._check_open()
        self.is_closed = False  # From the first workspace on; TorchRL closes what is not when it is thrown away.
        mask = None if tensordict is None else tensordict.get("_reset", None)
        chosen = self.marked(mask)
        seeds = {slot: self.seeds.derive("episode", self._episodes + n).integer() for n, slot in enumerate(chosen)}
        self._episodes += len(chosen)
        told = self._all(chosen, lambda slot: self.slots[slot].reset(seeds[slot]))
        # TorchRL keeps the rows of the other slots as they were.
        return self._tensordict([told.get(slot, Told()) for slot in range(len(self.slots))]).exclude("reward")

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        self._check_open()
        chosen = self.marked(tensordict.get("_step", None))
        commands = texts(tensordict, "action", len(self.slots)) if chosen else []
        if commands is None:
            raise EnvError("a command a slot is expected under 'action'; there is none")
        told = self._all(chosen, lambda slot: self.slots[slot].step(commands[slot]))
        # A slot that does not step says what it said before, and is paid nothing.
        rows = [told.get(n) or replace(self._row(tensordict, n), gain=0.0) for n in range(len(self.slots))]
        return self._tensordict(rows)

    def _set_seed(self, seed: int | None) -> None:
        root = secrets.randbits(63) if seed is None else check_integer("seed", seed, minimum=0)
        self.seeds, self._episodes = Seeds(root), 0

    def close(self, *, raise_if_closed: bool = True) -> None:
        """Close every workspace. The environment cannot be used after that."""
        self._ended = True
        for slot in self.slots:
            slot.close()
        if self._threads is not None:
            self._threads.shutdown()
            self._threads = None
        super().close(raise_if_closed=raise_if_closed)

    # Inside

    def _check_open(self) -> None:
        if self._ended:
            raise EnvError("this environment of research tasks is closed; make another")

    @property
    def _precision(self) -> torch.dtype:
        """Of scores, which may be larger, or finer, than a float32 can say. Apple's devices know no other."""
        return torch.float32 if self.device is not None and self.device.type == "mps" else torch.float64

    def _make_specs(self) -> None:
        shape, device = self.batch_size, self.device
        one = (*shape, 1)
        words = {name: text_spec(shape[0], device) for name in TEXTS}
        numbers = {name: Unbounded(shape=one, device=device, dtype=self._precision) for name in NUMBERS}
        flags = {name: Categorical(2, shape=one, device=device, dtype=torch.bool) for name in ("done", *FLAGS)}
        self.full_observation_spec = Composite({**words, **numbers}, shape=shape, device=device)
        self.full_action_spec = Composite(action=text_spec(shape[0], device, HARMLESS), shape=shape, device=device)
        self.full_reward_spec = Composite(reward=Unbounded(shape=one, device=device), shape=shape, device=device)
        self.full_done_spec = Composite(flags, shape=shape, device=device)

    def _all(self, slots: Iterable[int], work: Callable[[int], Told]) -> dict[int, Told]:
        """The work of some slots, side by side. Where one raises, the others are done before it is raised."""
        chosen = list(slots)
        if len(chosen) < 2:
            return {slot: work(slot) for slot in chosen}
        self._threads = self._threads or ThreadPoolExecutor(len(self.slots), "workspace")
        started = {slot: self._threads.submit(work, slot) for slot in chosen}
        for future in started.values():
            future.exception()
        return {slot: future.result() for slot, future in started.items()}

    def _row(self, tensordict: TensorDictBase, slot: int) -> Told:
        """What a tensordict says of a slot; for one that does not step."""
        row, said = tensordict[slot], dict[str, Any]()
        for name in (*TEXTS, *NUMBERS, *FLAGS):
            found = row.get(name, None)
            if found is not None:
                said[name] = row[name] if name in TEXTS else found.reshape(-1)[0].item()
        return Told(**said)

    def _tensordict(self, rows: Sequence[Told]) -> TensorDictBase:
        made = TensorDict(batch_size=self.batch_size, device=self.device)
        for name in TEXTS:
            put(made, name, [getattr(row, name) for row in rows])
        for names, dtype in ((NUMBERS, self._precision), (FLAGS, torch.bool)):
            for name in names:
                made.set(name, torch.tensor([[getattr(row, name)] for row in rows], dtype=dtype, device=self.device))
        made.set("done", made.get("terminated") | made.get("truncated"))
        made.set("reward", torch.zeros((*self.batch_size, 1), device=self.device))
        return made


def _known(device: torch.device | str | None) -> torch.device | str | None:
    """A device that there is."""
    try:
        torch.empty(0, device=device)
    except (
        RuntimeError,
        TypeError,
        AssertionError,
        NotImplementedError,
    ) as error:  # Torch has a different one for each.
        raise EnvError(f"device is one that torch has here, such as 'cpu'; got {short_repr(device)}") from error
    return device
