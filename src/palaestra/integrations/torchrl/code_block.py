"""From a message to the command in it."""

from __future__ import annotations

import math

import torch
from tensordict import TensorDictBase
from torchrl.data import Categorical, Composite, Unbounded
from torchrl.modules.llm.policies import Text

from palaestra.core.checks import check_integer, check_number
from palaestra.core.errors import EnvError, SettingsError
from palaestra.core.records import Message
from palaestra.envs.turn.records import TEXT_LIMIT, StopReason
from palaestra.integrations.torchrl.base import HARMLESS
from palaestra.integrations.torchrl.entries import FULL, RESPONSE, put, text_spec, texts
from palaestra.integrations.torchrl.transform import FORMAT_ERROR, MLGymBaseTransform, flags
from palaestra.research.workspace.parsing import FormatError, make_parser

TOO_LONG = f"It is longer than {TEXT_LIMIT} characters. Nothing was run."


class IsolateCodeBlock(MLGymBaseTransform):
    """The last fenced block of `("text", "response")` becomes the `action`.

    A message without one sets `retry`: nothing is run (see `ConditionalSkip`), the observation says what was wrong, and the
    reward is `reward_wrong_format`. `retries` counts such messages in a row. So many of them end the episode, and so does
    its limit of time; what is there is handed in.

    Arguments:
        reward_wrong_format: added to the reward of a message that cannot be read, so a penalty is negative.
        parser: how the command is found; see `palaestra.research.workspace.parsing`.
        format_errors: messages in a row that cannot be read before the episode ends; 0 means never.
    """

    def __init__(
        self, reward_wrong_format: float | None = None, *, parser: str = "last_block", format_errors: int = 3
    ) -> None:
        if parser == "tool_call":
            raise SettingsError("the parser 'tool_call' finds no text that could be a command; take one that does")
        super().__init__(in_keys_inv=["action"], out_keys_inv=[RESPONSE])
        self.reward_wrong_format = check_number(
            "reward_wrong_format", 0.0 if reward_wrong_format is None else reward_wrong_format
        )
        self.format_errors = check_integer("format_errors", format_errors, minimum=0)
        self._parser = make_parser(parser)

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        said = texts(tensordict, RESPONSE, len(self.wrapper.slots))
        if said is None:
            raise EnvError(f"an assistant's message is expected under {RESPONSE} or {FULL}; there is none")
        stepped = tensordict.get("_step", None)
        asked = [True] * len(said) if stepped is None else stepped.reshape(-1).tolist()
        found = [self._found(text) for text in said]
        errors = [
            one.message if isinstance(one, FormatError) and here else "" for one, here in zip(found, asked, strict=True)
        ]
        put(tensordict, "action", ["" if isinstance(one, FormatError) else one for one in found])
        put(tensordict, FORMAT_ERROR, errors)
        return tensordict.set("retry", flags([error != "" for error in errors], tensordict.device))

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        slots = len(self.wrapper.slots)
        errors = texts(tensordict, FORMAT_ERROR, slots) or [""] * slots
        retry = flags([error != "" for error in errors], next_tensordict.device)
        before = tensordict.get("retries", None)
        retries = retry.long() if before is None else torch.where(retry, before + 1, 0)
        next_tensordict.set("retry", retry)
        next_tensordict.set("retries", retries)
        if not retry.any():
            return next_tensordict
        next_tensordict.set("reward", next_tensordict.get("reward") + retry * self.reward_wrong_format)
        over = {
            slot: reason for slot in range(slots) if errors[slot] and (reason := self._end(slot, retries[slot].item()))
        }
        for reason in dict.fromkeys(over.values()):
            self.wrapper.end(next_tensordict, [slot for slot in over if over[slot] is reason], reason)
        heard = texts(next_tensordict, "observation", slots) or []
        for slot, error in enumerate(errors):
            if error:
                heard[slot] = f"{error}\n\n{heard[slot]}".strip() if slot in over else error
        put(next_tensordict, "observation", heard)
        return next_tensordict

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        none = flags([False] * len(self.wrapper.slots), tensordict_reset.device)
        tensordict_reset.set("retry", none)
        return tensordict_reset.set("retries", none.long())

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        shape, device = (*observation_spec.shape, 1), observation_spec.device
        observation_spec["retry"] = Categorical(2, shape=shape, dtype=torch.bool, device=device)
        observation_spec["retries"] = Unbounded(shape=shape, dtype=torch.int64, device=device)
        return observation_spec

    def transform_action_spec(self, action_spec: Composite) -> Composite:
        slots, device = action_spec.shape[0], action_spec.device
        del action_spec["action"]
        response = text_spec(slots, device, f"```\n{HARMLESS}\n```")
        # Static, so that a step takes the whole of it from the next observation: no old response stays behind.
        action_spec["text"] = Composite(
            response=response, shape=action_spec.shape, device=device, data_cls=Text, step_mdp_static=True
        )
        return action_spec

    def _end(self, slot: int, retries: float) -> StopReason | None:
        """Why an episode ends with a message that cannot be read; `None` where it goes on."""
        most = self.format_errors or math.inf
        return StopReason.FORMAT if retries >= most else self.wrapper.slots[slot].limit

    def _found(self, text: str) -> str | FormatError:
        if len(text) > TEXT_LIMIT:
            return FormatError(TOO_LONG)
        found = self._parser(Message("assistant", text))
        return found if isinstance(found, FormatError) else found.text
