"""Which task an episode is of."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tensordict import TensorDict, TensorDictBase
from torchrl.data import Composite

from palaestra.core.errors import EnvError
from palaestra.core.seeding import Seeds
from palaestra.integrations.torchrl.entries import set_texts, text_spec
from palaestra.integrations.torchrl.transform import MLGymBaseTransform


class TaskSampler(MLGymBaseTransform):
    """Draws a task at every reset, evenly, by the environment's seed; its name is in `task`.

    Arguments:
        tasks: the names to draw from, of tasks that the environment has.
    """

    def __init__(self, tasks: Sequence[str]) -> None:
        super().__init__(out_keys=["task"])
        if not tasks:
            raise EnvError("TaskSampler needs at least one task to draw from; got none")
        self.tasks = list(tasks)
        self._seeds: Seeds | None = None
        self._random = np.random.default_rng(0)

    def _reset_env_preprocess(self, tensordict: TensorDictBase | None) -> TensorDictBase:
        wrapper = self.wrapper
        if self._seeds is not wrapper.seeds:
            self._seeds, self._random = wrapper.seeds, wrapper.seeds.derive("tasks").generator()
        if tensordict is None:
            tensordict = TensorDict(batch_size=wrapper.batch_size, device=wrapper.device)
        drawn = [slot.name for slot in wrapper.slots]
        for slot in wrapper.slots_in_mask(tensordict.get("_reset", None)):
            drawn[slot] = self.tasks[int(self._random.integers(len(self.tasks)))]
            wrapper.choose(slot, drawn[slot])
        set_texts(tensordict, "task", drawn)
        return tensordict

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        return self._call(tensordict_reset)

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        set_texts(next_tensordict, "task", [slot.name for slot in self.wrapper.slots])
        return next_tensordict

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        observation_spec["task"] = text_spec(observation_spec.shape[0], observation_spec.device, self.tasks[0])
        return observation_spec
