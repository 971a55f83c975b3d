"""Transforms between the messages of a policy and the commands of the base environment."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torchrl.data import Categorical, Composite, Unbounded
from torchrl.envs import Transform
from torchrl.modules.llm.policies import Text

from palaestra.core.checks import check_integer, check_number
from palaestra.core.errors import EnvError, RewardError, SettingsError
from palaestra.core.prompts import Prompts
from palaestra.core.records import Message
from palaestra.core.seeding import Seeds
from palaestra.envs.turn.records import TEXT_LIMIT, TurnStopReason
from palaestra.integrations.torchrl.base import HARMLESS, MLGymWrapper, Slot
from palaestra.integrations.torchrl.entries import (
    FULL,
    HISTORY,
    RESPONSE,
    add_history_spec,
    begin,
    chats,
    extend,
    set_texts,
    text_spec,
    texts,
)
from palaestra.research.workspace.env import PROMPTS
from palaestra.research.workspace.parsing import FormatError, make_parser

FORMAT_ERROR = "format_error"
"""The key of a message's format error, used between transforms; not part of the observation."""


class MLGymBaseTransform(Transform):  # type: ignore[misc]  # TorchRL has no types.
    """Base class of transforms over `MLGymWrapper`."""

    @property
    def wrapper(self) -> MLGymWrapper:
        """The base environment."""
        container = self.container
        base = None if container is None else container.base_env
        if not isinstance(base, MLGymWrapper):
            # Not an AttributeError: torch would report a missing member of the transform.
            raise EnvError(f"{type(self).__name__} needs an environment over MLGymWrapper; got {type(base).__name__}")
        return base

    def acting(self, tensordict: TensorDictBase) -> list[bool]:
        """Return which slots act in this step: all except those that TorchRL skips because they are done."""
        slots = len(self.wrapper.slots)
        stepped = tensordict.get("_step", None)
        if stepped is None:
            return [True] * slots
        errors = texts(tensordict, FORMAT_ERROR, slots) or [""] * slots
        return [moved or error != "" for moved, error in zip(stepped.reshape(slots).tolist(), errors, strict=True)]


def flags(values: list[bool], device: torch.device | None) -> torch.Tensor:
    """Return one boolean per slot in the shape of `done`."""
    return torch.tensor(values, dtype=torch.bool, device=device).unsqueeze(-1)


TOO_LONG = f"It is longer than {TEXT_LIMIT} characters. Nothing was run."


class IsolateCodeBlock(MLGymBaseTransform):
    """Extracts the last fenced block of `("text", "response")` as the `action`.

    A message without one sets `retry`: nothing runs (see `ConditionalSkip`), the observation states the problem, and
    `reward_wrong_format` is added to the reward. `retries` counts consecutive unreadable messages. The episode ends
    after `format_errors` of them or at its time limit, and the current workspace is submitted.

    Arguments:
        reward_wrong_format: added to the reward of an unreadable message; a penalty is negative.
        parser: how the command is extracted; see `palaestra.research.workspace.parsing`.
        format_errors: the number of consecutive unreadable messages that end the episode; 0 for no limit.
    """

    def __init__(
        self, reward_wrong_format: float | None = None, *, parser: str = "last_block", format_errors: int = 3
    ) -> None:
        if parser == "tool_call":
            raise SettingsError("the parser 'tool_call' extracts no command from text; use another parser")
        super().__init__(in_keys_inv=["action"], out_keys_inv=[RESPONSE])
        self.reward_wrong_format = check_number(
            "reward_wrong_format", 0.0 if reward_wrong_format is None else reward_wrong_format
        )
        self.format_errors = check_integer("format_errors", format_errors, minimum=0)
        self._parser = make_parser(parser)

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        responses = texts(tensordict, RESPONSE, len(self.wrapper.slots))
        if responses is None:
            raise EnvError(f"expected an assistant's message under {RESPONSE} or {FULL}; both keys are missing")
        stepped = tensordict.get("_step", None)
        active = [True] * len(responses) if stepped is None else stepped.reshape(-1).tolist()
        commands = [self._parse(text) for text in responses]
        errors = [
            command.message if isinstance(command, FormatError) and here else ""
            for command, here in zip(commands, active, strict=True)
        ]
        set_texts(tensordict, "action", ["" if isinstance(command, FormatError) else command for command in commands])
        set_texts(tensordict, FORMAT_ERROR, errors)
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
        observations = texts(next_tensordict, "observation", slots) or []
        for slot, error in enumerate(errors):
            if error:
                observations[slot] = f"{error}\n\n{observations[slot]}".strip() if slot in over else error
        set_texts(next_tensordict, "observation", observations)
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
        # Static, so that a step replaces the whole entry and no old response remains.
        action_spec["text"] = Composite(
            response=response, shape=action_spec.shape, device=device, data_cls=Text, step_mdp_static=True
        )
        return action_spec

    def _end(self, slot: int, retries: float) -> TurnStopReason | None:
        """Return why an unreadable message ends the episode; `None` if it continues."""
        most = self.format_errors or math.inf
        return TurnStopReason.FORMAT if retries >= most else self.wrapper.slots[slot].limit

    def _parse(self, text: str) -> str | FormatError:
        if len(text) > TEXT_LIMIT:
            return FormatError(TOO_LONG)
        action = self._parser(Message("assistant", text))
        return action if isinstance(action, FormatError) else action.text


class ResetModule(MLGymBaseTransform):
    """Opens the workspace of the selected task. The history begins with the system message.

    In a step it carries the history over and appends the assistant's message, readable or not.
    """

    def __init__(self) -> None:
        super().__init__(out_keys=[HISTORY])

    def _reset_env_preprocess(self, tensordict: TensorDictBase | None) -> TensorDictBase | None:
        wrapper = self.wrapper
        drawn = None if tensordict is None else texts(tensordict, "task", len(wrapper.slots))
        if tensordict is not None and drawn is not None:
            for slot in wrapper.slots_in_mask(tensordict.get("_reset", None)):
                wrapper.choose(slot, drawn[slot])
        return tensordict

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        begin(tensordict_reset, "system", [slot.system for slot in self.wrapper.slots])
        return tensordict_reset

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        acting = self.acting(tensordict)
        # Without `IsolateCodeBlock` in the chain the message is the bare command.
        responses = (
            texts(tensordict, RESPONSE, len(acting)) or texts(tensordict, "action", len(acting)) or [""] * len(acting)
        )
        extend(next_tensordict, tensordict, "assistant", responses, acting)
        return next_tensordict

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        return add_history_spec(observation_spec)


class TaskSampler(MLGymBaseTransform):
    """Draws a task uniformly at every reset with the environment's seed; its name is in `task`.

    Arguments:
        tasks: the names to draw from.
    """

    def __init__(self, tasks: Sequence[str]) -> None:
        super().__init__(out_keys=["task"])
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


class ReadState(MLGymBaseTransform):
    """Writes `state` as JSON: the open file and its window, the working directory, steps done and left, validations
    left.
    """

    def __init__(self) -> None:
        super().__init__(out_keys=["state"])

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        set_texts(next_tensordict, "state", [read_state(slot) for slot in self.wrapper.slots])
        return next_tensordict

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        return self._call(tensordict_reset)

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        observation_spec["state"] = text_spec(observation_spec.shape[0], observation_spec.device, "{}")
        return observation_spec


def read_state(slot: Slot) -> str:
    """Return the state of a slot's workspace as JSON."""
    return json.dumps(slot.state(), default=str)


class StateToMessage(MLGymBaseTransform):
    """Renders `state` and `observation` as the `message`, with the template that fits. A missing `state` is read from
    the slot.

    After a reset the message is the task; then the templates `observation`, `no_output` for a command without output,
    and `format_error` for an unreadable message apply.

    Arguments:
        prompts: a folder of templates that override the built-in ones, as in `ResearchEnv`.
    """

    def __init__(self, prompts: str | Path = "") -> None:
        super().__init__(in_keys=["observation", "state"], out_keys=["message"])
        self._prompts = Prompts(PROMPTS, Path(prompts) if prompts else None)

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        slots = len(self.wrapper.slots)
        retry = next_tensordict.get("retry", None)
        bad = [False] * slots if retry is None else retry.reshape(-1).tolist()
        observations, states = (
            texts(next_tensordict, "observation", slots) or [],
            texts(next_tensordict, "state", slots),
        )
        if states is None:  # Without `ReadState` in the chain.
            states = [read_state(slot) for slot in self.wrapper.slots]
        messages = [self._render(*row) for row in zip(self.wrapper.slots, observations, states, bad, strict=True)]
        set_texts(next_tensordict, "message", messages)
        return next_tensordict

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        set_texts(tensordict_reset, "message", texts(tensordict_reset, "observation", len(self.wrapper.slots)) or [])
        return tensordict_reset

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        observation_spec["message"] = text_spec(observation_spec.shape[0], observation_spec.device)
        return observation_spec

    def _render(self, slot: Slot, observation: str, state: str, bad: bool) -> str:
        where = json.loads(state)
        prompts, left = self._prompts.bind(**slot.env.template_variables(where)), where["remaining_steps"]
        if bad:
            return prompts.render("format_error", error=observation, remaining=left)
        shared = {"observation": observation, "note": "", "state": where, "remaining": left}
        if not observation.strip():
            # A failed command has a note, so its output is not empty.
            return prompts.render("no_output", ok=True, **shared)
        return prompts.render("observation", **shared)


class MessageToHistory(MLGymBaseTransform):
    """Appends `message` to `("history", "prompt")` as a user message.

    Without a history (no `ResetModule` in the chain) the history begins with the message. Without a message (no
    `StateToMessage`) nothing is appended.

    In the other direction it reads `("history", "full")`, which TorchRL's wrappers write in history mode: the
    assistant's message after the prompt becomes the response.
    """

    def __init__(self) -> None:
        super().__init__(in_keys=["message", HISTORY], out_keys=[HISTORY])

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        return self._append(next_tensordict, tensordict, self.acting(tensordict))

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        return self._append(tensordict_reset, tensordict_reset, [True] * len(self.wrapper.slots))

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        known = set(observation_spec.keys())
        if "message" in known and "history" not in known:
            return add_history_spec(observation_spec)
        return observation_spec

    def _append(self, tensordict: TensorDictBase, before: TensorDictBase, acting: list[bool]) -> TensorDictBase:
        messages = texts(tensordict, "message", len(acting))
        if messages is not None:
            grown = tensordict if tensordict.get(HISTORY, None) is not None else before
            extend(tensordict, grown, "user", messages, acting)
        return tensordict

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        full = chats(tensordict, FULL)
        if full is None:
            return tensordict
        responses = []
        for conversation, before in zip(full, chats(tensordict) or [[] for _ in full], strict=True):
            # Only the first one: a model that does not stop writes the user's messages as well.
            behind = [message["content"] for message in conversation[len(before) :] if message["role"] == "assistant"]
            responses.append(behind[0] if behind else "")
        set_texts(tensordict, RESPONSE, responses)
        return tensordict


class MLGymRewardAssignment(MLGymBaseTransform):
    """Adds the improvement over the baseline to the reward, with the metric's direction taken into account.

    It is added once, in the step that submits; for validations only if the environment has `validation_reward`. It is
    read from the evaluator's result, so printed text has no effect.

    Arguments:
        scaled: in units of the metric's scale, so that tasks are comparable; otherwise in units of the metric.

    Raises:
        RewardError: a reward does not fit a float32.
    """

    def __init__(self, scaled: bool = False) -> None:
        super().__init__(in_keys=["reward", "gain"], out_keys=["reward"])
        self.scaled = scaled

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        gain = next_tensordict.get("gain")
        if not self.scaled:
            scales = [slot.env.task.metric.scale for slot in self.wrapper.slots]
            gain = gain * torch.tensor(scales, dtype=gain.dtype, device=gain.device).reshape(-1, 1)
        before = next_tensordict.get("reward")
        reward = (before + gain).to(before.dtype)
        for slot, paid in enumerate(reward.flatten().tolist()):
            if not math.isfinite(paid):
                task = self.wrapper.slots[slot].env.task
                raise RewardError(
                    f"expected a float32 reward; on '{task.name}' the gain over the baseline is {gain[slot].item():g}; "
                    f"bound the metric, or use scaled=True with a scale above {task.metric.scale:g}"
                )
        return next_tensordict.set("reward", reward)
