"""Transforms between the messages of a policy and the commands of the base environment."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torchrl.data import Categorical, Composite, Unbounded
from torchrl.envs import Transform

from palaestra.core.errors import EnvError, RewardError, SettingsError
from palaestra.core.prompts import Prompts
from palaestra.core.records import Json, Message
from palaestra.core.seeding import Seeds
from palaestra.core.settings import check_integer, check_number
from palaestra.envs.turn.base import MAX_MESSAGE, TurnStopReason
from palaestra.integrations.torchrl.base import HARMLESS, MLGymWrapper
from palaestra.integrations.torchrl.entries import (
    FULL,
    HISTORY,
    RESPONSE,
    Key,
    add_history_spec,
    begin,
    chats,
    extend,
    set_texts,
    text_entry_spec,
    text_spec,
    texts,
)
from palaestra.integrations.torchrl.slots import Slot
from palaestra.research.workspace.env import PROMPTS
from palaestra.research.workspace.parsing import Action, FormatError, make_parser

_FORMAT_ERROR = "format_error"
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

    def texts(self, tensordict: TensorDictBase, *keys: Key) -> list[str]:
        """Return the texts under the first of the keys that exists, one per slot; empty texts without any."""
        slots = len(self.wrapper.slots)
        return next((entry for key in keys if (entry := texts(tensordict, key, slots)) is not None), [""] * slots)

    def step_mask(self, tensordict: TensorDictBase) -> list[bool]:
        """Return which slots TorchRL steps: all except those that it skips because they are done."""
        stepped = tensordict.get("_step", None)
        return [True] * len(self.wrapper.slots) if stepped is None else stepped.reshape(-1).tolist()

    def acting(self, tensordict: TensorDictBase) -> list[bool]:
        """Return which slots act in this step: those that are stepped, and those with an unreadable message."""
        errors = self.texts(tensordict, _FORMAT_ERROR)
        return [moved or error != "" for moved, error in zip(self.step_mask(tensordict), errors, strict=True)]


class _TextTransform(MLGymBaseTransform):
    """Writes one text per slot under `key`, after a reset and after a step."""

    key: ClassVar[str]
    example: str = "a text"

    def __init__(self) -> None:
        super().__init__(out_keys=[self.key])

    def read(self) -> list[str]:
        """Return the texts."""
        raise NotImplementedError

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        set_texts(next_tensordict, self.key, self.read())
        return next_tensordict

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        return self._call(tensordict_reset)

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        observation_spec[self.key] = text_spec(observation_spec.shape[0], observation_spec.device, self.example)
        return observation_spec


def _flags(values: list[bool], device: torch.device | None) -> torch.Tensor:
    """Return one boolean per slot in the shape of `done`."""
    return torch.tensor(values, dtype=torch.bool, device=device).unsqueeze(-1)


_TOO_LONG = f"It is longer than {MAX_MESSAGE} characters. Nothing was run."


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
        penalty = 0.0 if reward_wrong_format is None else reward_wrong_format
        self.reward_wrong_format = check_number("reward_wrong_format", penalty)
        self.format_errors = check_integer("format_errors", format_errors, minimum=0)
        self._parser = make_parser(parser)

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        responses = texts(tensordict, RESPONSE, len(self.wrapper.slots))
        if responses is None:
            raise EnvError(f"expected an assistant's message under {RESPONSE} or {FULL}; both keys are missing")
        commands, errors = [""] * len(responses), [""] * len(responses)
        for slot, stepped in enumerate(self.step_mask(tensordict)):
            action = self._parse(responses[slot])
            if isinstance(action, Action):
                commands[slot] = action.text
            elif stepped:
                errors[slot] = action.message
        set_texts(tensordict, "action", commands)
        set_texts(tensordict, _FORMAT_ERROR, errors)
        return tensordict.set("retry", _flags([error != "" for error in errors], tensordict.device))

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        errors = self.texts(tensordict, _FORMAT_ERROR)
        retry = _flags([error != "" for error in errors], next_tensordict.device)
        before = tensordict.get("retries", None)
        retries = retry.long() if before is None else torch.where(retry, before + 1, 0)
        next_tensordict.set("retry", retry)
        next_tensordict.set("retries", retries)
        if not retry.any():
            return next_tensordict
        next_tensordict.set("reward", next_tensordict.get("reward") + retry * self.reward_wrong_format)
        bad = [slot for slot, error in enumerate(errors) if error]
        over = {slot: reason for slot in bad if (reason := self._end(slot, retries[slot].item()))}
        if over:
            self.wrapper.end(next_tensordict, over)
        observations = self.texts(next_tensordict, "observation")
        for slot in bad:
            observations[slot] = f"{errors[slot]}\n\n{observations[slot]}".strip() if slot in over else errors[slot]
        set_texts(next_tensordict, "observation", observations)
        return next_tensordict

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        none = _flags([False] * len(self.wrapper.slots), tensordict_reset.device)
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
        action_spec["text"] = text_entry_spec(action_spec, response=response)
        return action_spec

    def _end(self, slot: int, retries: float) -> TurnStopReason | None:
        """Return why an unreadable message ends the episode; `None` if it continues."""
        most = self.format_errors or math.inf
        return TurnStopReason.FORMAT if retries >= most else self.wrapper.slots[slot].env.limit

    def _parse(self, text: str) -> Action | FormatError:
        return FormatError(_TOO_LONG) if len(text) > MAX_MESSAGE else self._parser(Message("assistant", text))


class ResetModule(MLGymBaseTransform):
    """Opens the workspace of the selected task. The history begins with the system message.

    In a step it carries the history over and appends the assistant's message, readable or not.
    """

    def __init__(self) -> None:
        super().__init__(out_keys=[HISTORY])

    def _reset_env_preprocess(self, tensordict: TensorDictBase | None) -> TensorDictBase | None:
        wrapper = self.wrapper
        if tensordict is not None and tensordict.get("task", None) is not None:
            tasks = self.texts(tensordict, "task")
            for slot in wrapper.slots_in_mask(tensordict.get("_reset", None)):
                wrapper.choose(slot, tasks[slot])
        return tensordict

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        begin(tensordict_reset, "system", [slot.system for slot in self.wrapper.slots])
        return tensordict_reset

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        # Without `IsolateCodeBlock` in the chain the message is the bare command.
        responses = self.texts(tensordict, RESPONSE, "action")
        extend(next_tensordict, tensordict, "assistant", responses, self.acting(tensordict))
        return next_tensordict

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        return add_history_spec(observation_spec)


class TaskSampler(_TextTransform):
    """Draws a task uniformly at every reset with the environment's seed; its name is in `task`.

    Arguments:
        tasks: the names to draw from.
    """

    key = "task"

    def __init__(self, tasks: Sequence[str]) -> None:
        super().__init__()
        self.tasks = list(tasks)
        self.example = self.tasks[0]
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

    def read(self) -> list[str]:
        return [slot.name for slot in self.wrapper.slots]


class ReadState(_TextTransform):
    """Writes `state` as JSON: the open file and its window, the working directory, steps done and left, validations
    left.
    """

    key, example = "state", "{}"

    def read(self) -> list[str]:
        return [json.dumps(slot.env.state(), default=str) for slot in self.wrapper.slots]


class StateToMessage(_TextTransform):
    """Renders `state` and `observation` as the `message`, with the template that fits. A missing `state` is read from
    the slot.

    After a reset the message is the task; then the templates `observation`, `no_output` for a command without output,
    and `format_error` for an unreadable message apply.

    Arguments:
        prompts: a folder of templates that override the built-in ones, as in `ResearchEnv`.
    """

    key = "message"

    def __init__(self, prompts: str | Path = "") -> None:
        super().__init__()
        self._prompts = Prompts(PROMPTS, Path(prompts) if prompts else None)

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        slots = self.wrapper.slots
        retry = next_tensordict.get("retry", None)
        bad = [False] * len(slots) if retry is None else retry.reshape(-1).tolist()
        written = texts(next_tensordict, "state", len(slots))  # Missing without `ReadState` in the chain.
        states = [slot.env.state() for slot in slots] if written is None else [json.loads(text) for text in written]
        rows = zip(slots, self.texts(next_tensordict, "observation"), states, bad, strict=True)
        set_texts(next_tensordict, "message", [self._render(*row) for row in rows])
        return next_tensordict

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        set_texts(tensordict_reset, "message", self.texts(tensordict_reset, "observation"))
        return tensordict_reset

    def _render(self, slot: Slot, observation: str, where: Json, bad: bool) -> str:
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
        begins = "message" in known and "history" not in known
        return add_history_spec(observation_spec) if begins else observation_spec

    def _append(self, tensordict: TensorDictBase, before: TensorDictBase, acting: list[bool]) -> TensorDictBase:
        if tensordict.get("message", None) is not None:
            grown = tensordict if tensordict.get(HISTORY, None) is not None else before
            extend(tensordict, grown, "user", self.texts(tensordict, "message"), acting)
        return tensordict

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        full = chats(tensordict, FULL)
        if full is None:
            return tensordict
        responses = []
        for conversation, before in zip(full, chats(tensordict) or [[] for _ in full], strict=True):
            # Only the first one: a model that does not stop writes the user's messages as well.
            behind = [message.text for message in conversation[len(before) :] if message.role == "assistant"]
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
        if not reward.isfinite().all():
            slot = reward.flatten().isfinite().tolist().index(False)
            task = self.wrapper.slots[slot].env.task
            raise RewardError(
                f"expected a float32 reward; on '{task.name}' the gain over the baseline is {gain[slot].item():g}; "
                f"bound the metric, or use scaled=True with a scale above {task.metric.scale:g}"
            )
        return next_tensordict.set("reward", reward)
