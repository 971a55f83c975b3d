"""`make_mlgym`: research tasks as a TorchRL environment, with the call that TorchRL users know."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sized
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torchrl.envs import ConditionalSkip, TransformedEnv

from palaestra.core.errors import SettingsError
from palaestra.integrations.torchrl.base import (
    MLGymEnv,
    MLGymWrapper,
    TaskName,
    check_arguments,
    load_tasks,
)
from palaestra.integrations.torchrl.chat_template import TemplateTransform
from palaestra.integrations.torchrl.transforms import (
    IsolateCodeBlock,
    MessageToHistory,
    MLGymRewardAssignment,
    ReadState,
    ResetModule,
    StateToMessage,
    TaskSampler,
)
from palaestra.research.tasks.task import ResearchTask

if TYPE_CHECKING:
    from tensordict import TensorDictBase


def make_mlgym(
    *,
    task: TaskName | None = None,
    tasks: Iterable[TaskName] | Mapping[str, TaskName] | None = None,
    tokenizer: Any = None,
    device: torch.device | str | None = "cpu",
    reward_wrong_format: float | None = None,
    mlgym: str | Path | None = None,
    num_envs: int = 1,
    seed: int | None = None,
    parser: str = "last_block",
    format_errors: int = 3,
    scaled: bool = False,
    prompts: str | Path = "",
    **arguments: Any,
) -> TransformedEnv:
    """Make a TorchRL environment of research tasks for TorchRL's policies, collectors and losses.

    The policy reads `("history", "prompt")`, or `("text", "prompt")` with a tokenizer, and writes `("text",
    "response")` or `("history", "full")`, as TorchRL's language model wrappers do. The batch size is `(num_envs,)`.
    Close the environment to close its workspaces.

    Arguments:
        task: a research task: its name, its folder or the task itself. Give either this or `tasks`.
        tasks: several tasks, of which every reset draws one; a mapping gives them names of your own.
        tokenizer: a transformers tokenizer, or the name of a model; without one only the history is written.
        device: the device of the tensors.
        reward_wrong_format: added to the reward of an unreadable message; a penalty is negative.
        mlgym: an MLGym checkout that the task names refer to.
        num_envs: the number of parallel workspaces.
        seed: the seed of random choices until `env.set_seed` is called. `None` draws a fresh one, so that the members
            of a pool draw different tasks.
        parser: how a command is extracted from a message; see `palaestra.research.workspace.parsing`.
        format_errors: the number of consecutive unreadable messages that end the episode; 0 for no limit.
        scaled: pay rewards in units of the metric's scale, as `ResearchEnv` does, so that tasks are comparable.
        prompts: a folder of templates that override the built-in ones.
        arguments: arguments of `ResearchEnv`, for example `split`, `max_turns`, `validation_reward`, `strategy`,
            `sandbox`.

    Raises:
        SettingsError: not exactly one of `task` and `tasks` is given, or an argument does not apply here.
        UnknownNameError: an argument or a task does not exist.
        EnvError: an argument has an invalid value, or the chat template drops messages.
        MissingExtraError: TorchRL is not installed.

    Example:
        >>> env = make_mlgym(task="prisoners_dilemma", reward_wrong_format=-0.1)  # doctest: +SKIP
        >>> data = env.rollout(10, policy)  # doctest: +SKIP
        >>> data["next", "reward"].sum()  # doctest: +SKIP
    """
    if isinstance(tasks, (str, Path, ResearchTask)):
        raise SettingsError(f"tasks is a list of them; got {tasks!r}; for one take task=, or put it into a list")
    if (task is None) == (tasks is None) or (isinstance(tasks, Sized) and not len(tasks)):
        raise SettingsError(
            f"exactly one of task and tasks is expected, and it must not be empty; got task={task!r} and tasks={tasks!r}"
        )
    if arguments.get("tools"):
        raise SettingsError("calls of tools have no place in a TorchRL conversation of texts; leave out tools=True")
    if arguments.get("format_penalty"):
        penalty = arguments["format_penalty"]
        raise SettingsError(f"format_penalty has no effect here; take reward_wrong_format=-{penalty}, which is added")
    check_arguments("make_mlgym", make_mlgym, arguments)
    chosen: Any = tasks if task is None else [task]
    loaded = load_tasks(chosen, mlgym)
    base = MLGymWrapper(
        loaded, num_envs=num_envs, device=device, seed=seed, parser=parser, prompts=prompts, **arguments
    )
    # Observations pass the transforms in this order, actions in reverse.
    env = MLGymEnv(base)
    env.append_transform(ConditionalSkip(_to_retry))
    env.append_transform(IsolateCodeBlock(reward_wrong_format, parser=parser, format_errors=format_errors))
    env.append_transform(ResetModule())
    if tasks is not None:
        env.append_transform(TaskSampler(list(loaded)))
    env.append_transform(ReadState())
    env.append_transform(StateToMessage(prompts))
    env.append_transform(MessageToHistory())
    if tokenizer is not None:
        env.append_transform(TemplateTransform(tokenizer=_tokenizer(tokenizer)))
    env.append_transform(MLGymRewardAssignment(scaled))
    return env


def _to_retry(tensordict: TensorDictBase) -> torch.Tensor:
    retry: torch.Tensor | None = tensordict.get("retry", None)
    stepped = tensordict.get("_step", None)
    if retry is None:  # No transform reads messages: every command is run.
        return torch.zeros(tensordict.batch_size, dtype=torch.bool, device=tensordict.device)
    # Use the shape of the existing mask, which may lack the last dimension.
    return retry if stepped is None else retry.reshape(stepped.shape)


def _tokenizer(tokenizer: Any) -> Any:
    if not isinstance(tokenizer, str):
        return tokenizer
    from transformers import AutoTokenizer

    from palaestra.engines.models import locate

    return AutoTokenizer.from_pretrained(locate(tokenizer), padding_side="left")
