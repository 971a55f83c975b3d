"""What the agent is told."""

from __future__ import annotations

import json
from pathlib import Path

from tensordict import TensorDictBase
from torchrl.data import Composite

from palaestra.core.prompts import Prompts
from palaestra.integrations.torchrl.entries import set_texts, text_spec, texts
from palaestra.integrations.torchrl.slots import Slot
from palaestra.integrations.torchrl.state import read_state
from palaestra.integrations.torchrl.transform import MLGymBaseTransform
from palaestra.research.workspace.env import PROMPTS


class StateToMessage(MLGymBaseTransform):
    """`state` and `observation`, through the template that fits, become the `message`. A `state` that is not there is read.

    At a reset it is the task; then `observation`, `no_output` where a command printed nothing, `format_error` where a
    message could not be read.

    Arguments:
        prompts: a folder of templates that come before ours, as of `ResearchEnv`.
    """

    def __init__(self, prompts: str | Path = "") -> None:
        super().__init__(in_keys=["observation", "state"], out_keys=["message"])
        self._prompts = Prompts(PROMPTS, Path(prompts) if prompts else None)

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        slots = len(self.wrapper.slots)
        retry = next_tensordict.get("retry", None)
        bad = [False] * slots if retry is None else retry.reshape(-1).tolist()
        heard, states = texts(next_tensordict, "observation", slots) or [], texts(next_tensordict, "state", slots)
        if states is None:  # Without `ReadState` in the chain.
            states = [read_state(slot) for slot in self.wrapper.slots]
        told = [self._told(*one) for one in zip(self.wrapper.slots, heard, states, bad, strict=True)]
        set_texts(next_tensordict, "message", told)
        return next_tensordict

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        set_texts(tensordict_reset, "message", texts(tensordict_reset, "observation", len(self.wrapper.slots)) or [])
        return tensordict_reset

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        observation_spec["message"] = text_spec(observation_spec.shape[0], observation_spec.device)
        return observation_spec

    def _told(self, slot: Slot, observation: str, state: str, bad: bool) -> str:
        where = json.loads(state)
        prompts, left = self._prompts.given(**slot.env.template_variables(where)), where["remaining_steps"]
        if bad:
            return prompts.render("format_error", error=observation, remaining=left)
        shared = {"observation": observation, "note": "", "state": where, "remaining": left}
        if not observation.strip():
            # What ends badly has a note of why, so it is not empty.
            return prompts.render("no_output", ok=True, **shared)
        return prompts.render("observation", **shared)
