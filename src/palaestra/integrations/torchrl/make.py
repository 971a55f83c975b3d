"""`make_mlgym`: research tasks as a TorchRL environment, by the call that TorchRL's users know."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sized
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from palaestra.core.errors import SettingsError
from palaestra.integrations.torchrl.base import MLGymWrapper
from palaestra.integrations.torchrl.code_block import IsolateCodeBlock
from palaestra.integrations.torchrl.commands import check_arguments
from palaestra.integrations.torchrl.environment import ConditionalSkip, MLGymEnv
from palaestra.integrations.torchrl.history import MessageToHistory
from palaestra.integrations.torchrl.message import StateToMessage
from palaestra.integrations.torchrl.reset import ResetModule
from palaestra.integrations.torchrl.reward import MLGymRewardAssignment
from palaestra.integrations.torchrl.sampler import TaskSampler
from palaestra.integrations.torchrl.state import ReadState
from palaestra.integrations.torchrl.tasks import TaskName, load_tasks
from palaestra.integrations.torchrl.template import TemplateTransform
from palaestra.research.tasks.task import ResearchTask

if TYPE_CHECKING:
    from tensordict import TensorDictBase
    from torchrl.envs import TransformedEnv


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
    """A TorchRL environment of research tasks, for TorchRL's own policies, collectors and losses.

    The policy reads `("history", "prompt")`, or `("text", "prompt")` where there is a tokenizer, and writes
    `("text", "response")` or `("history", "full")`: what TorchRL's wrappers of language models do. The batch size is
    `(num_envs,)`. The environment must be closed, which closes its workspaces.

    Arguments:
        task: the name of a research task, its folder, or the task itself. Either this or `tasks`.
        tasks: several, of which every reset draws one; a mapping gives them names of one's own.
        tokenizer: of transformers, or the name of a model whose tokenizer it is; without one there is the history only.
        device: of the tensors.
        reward_wrong_format: added to the reward of a message that cannot be read, so a penalty is negative.
        mlgym: a checkout of MLGym, whose tasks the names are.
        num_envs: workspaces side by side.
        seed: of the random choices, until `env.set_seed`; a fresh one if `None`, so that each member of a pool draws tasks of
            its own.
        parser: how a command is found in a message; see `palaestra.research.workspace.parsing`.
        format_errors: so many messages in a row that cannot be read end the episode; 0 means never.
        scaled: pay in units of the metric's scale, as `ResearchEnv` does, so that several tasks are worth alike.
        prompts: a folder of templates that come before ours.
        arguments: of `ResearchEnv`, for example `split`, `max_turns`, `validation_reward`, `strategy`, `sandbox`.

    Raises:
        SettingsError: not exactly one of `task` and `tasks`, or an argument that has no place here.
        UnknownNameError: an argument, or a task, that does not exist.
        EnvError: an argument with a value that makes no sense, or a tokenizer whose chat template leaves out what somebody
            says.
        MissingExtraError: TorchRL is not installed.

    Example:
        >>> env = make_mlgym(task="prisoners_dilemma", reward_wrong_format=-0.1)  # doctest: +SKIP
        >>> data = env.rollout(10, policy)  # doctest: +SKIP
        >>> data["next", "reward"].sum()  # doctest: +SKIP
    """
    if isinstance(tasks, (str, Path, ResearchTask)):
        raise SettingsError(f"tasks is a list of them; got {tasks!r}; for one take task=, or put it into a list")
    if (task is None) == (tasks is None) or (isinstance(tasks, Sized) and not len(tasks)):
        raise SettingsError(f"either task or tasks is expected, and not none; got task={task!r} and tasks={tasks!r}")
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
    # Forward in this order, the other way from the last to the first.
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
    if retry is None:  # Nobody in this chain reads messages: every command is run.
        return torch.zeros(tensordict.batch_size, dtype=torch.bool, device=tensordict.device)
    # In the shape of the mask that is there already, which may be without the last dimension.
    return retry if stepped is None else retry.reshape(stepped.shape)


def _tokenizer(tokenizer: Any) -> Any:
    if not isinstance(tokenizer, str):
        return tokenizer
    from transformers import AutoTokenizer

    from palaestra.engines.models import locate

    return AutoTokenizer.from_pretrained(locate(tokenizer), padding_side="left")
