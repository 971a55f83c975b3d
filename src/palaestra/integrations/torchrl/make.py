"""`make_mlgym`: research tasks as a TorchRL environment, called as in TorchRL."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from tensordict import NonTensorData, NonTensorStack, TensorDictBase
from torchrl.envs import ConditionalSkip, EnvBase, ThreadingAsyncEnvPool, TransformedEnv

from palaestra.core.errors import EnvError, SettingsError
from palaestra.envs.base import Info
from palaestra.integrations.torchrl.base import MLGymEnv, MLGymWrapper
from palaestra.integrations.torchrl.chat_template import TemplateTransform
from palaestra.integrations.torchrl.slots import TaskName, load_tasks
from palaestra.integrations.torchrl.transforms import (
    IsolateCodeBlock,
    MessageToHistory,
    MLGymRewardAssignment,
    ReadState,
    ResetModule,
    StateToMessage,
    TaskSampler,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def make_mlgym(
    *,
    task: TaskName | None = None,
    tasks: Iterable[TaskName] | Mapping[str, TaskName] | None = None,
    tokenizer: str | PreTrainedTokenizerBase | None = None,
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
        task: a research task: its name, its folder or the task itself. Pass either this or `tasks`.
        tasks: several tasks; every reset draws one of them. A mapping sets names of your own.
        tokenizer: a transformers tokenizer, or the name of a model; without one only the history is written.
        device: the device of the tensors.
        reward_wrong_format: added to the reward of an unreadable message; a penalty is negative.
        mlgym: an MLGym checkout that the task names refer to.
        num_envs: the number of parallel workspaces.
        seed: the seed of random choices until `env.set_seed` is called. `None` draws a fresh one, so that the members
            of a pool draw different tasks.
        parser: how a command is extracted from a message; see `palaestra.research.workspace.parsing`.
        format_errors: the number of consecutive unreadable messages that end the episode; 0 for no limit.
        scaled: compute rewards in units of the metric's scale, as `ResearchEnv` does, so that tasks are comparable.
        prompts: a folder of templates that override the built-in ones.
        arguments: arguments of `ResearchEnv`, for example `split`, `max_turns`, `validation_reward`, `strategy`,
            `sandbox`.

    Raises:
        SettingsError: not exactly one of `task` and `tasks` is given, or an argument does not apply here.
        UnknownNameError: a task does not exist.
        EnvError: an argument has an invalid value, or the chat template drops messages.
        MissingExtraError: TorchRL is not installed.

    Example:
        >>> env = make_mlgym(task="prisoners_dilemma", reward_wrong_format=-0.1)  # doctest: +SKIP
        >>> data = env.rollout(10, policy)  # doctest: +SKIP
        >>> data["next", "reward"].sum()  # doctest: +SKIP
    """
    chosen = tasks if task is None else [task]
    if chosen is None or (task is not None and tasks is not None) or isinstance(tasks, TaskName):
        raise SettingsError(f"expected either task= or a list, tasks=[...]; got task={task!r} and tasks={tasks!r}")
    for name, instead in (("tools", "messages are texts"), ("format_penalty", "use reward_wrong_format=")):
        if arguments.get(name):
            raise SettingsError(f"{name} has no effect in a TorchRL environment; {instead}")
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
        env.append_transform(TemplateTransform(tokenizer=_load_tokenizer(tokenizer)))
    env.append_transform(MLGymRewardAssignment(scaled))
    return env


def _to_retry(tensordict: TensorDictBase) -> torch.Tensor:
    retry: torch.Tensor | None = tensordict.get("retry", None)
    stepped = tensordict.get("_step", None)
    if retry is None:  # No transform reads messages: every command is run.
        return torch.zeros(tensordict.batch_size, dtype=torch.bool, device=tensordict.device)
    # Use the shape of the existing mask, which may lack the last dimension.
    return retry if stepped is None else retry.reshape(stepped.shape)


def _load_tokenizer(tokenizer: str | PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    if not isinstance(tokenizer, str):
        return tokenizer
    from transformers import AutoTokenizer

    from palaestra.models.registry import locate

    return AutoTokenizer.from_pretrained(locate(tokenizer), padding_side="left")


class MLGymPool(ThreadingAsyncEnvPool):  # type: ignore[misc]  # TorchRL has no types.
    """TorchRL's threaded `AsyncEnvPool` for environments of `make_mlgym`.

    It differs from TorchRL's pool in four ways. `rollout`, `step` and `step_and_maybe_reset` work with batched
    members: the batch size is `(members, num_envs)`, that of a rollout `(members, num_envs, steps)`. Results are
    stacked lazily, because conversations differ in length. `set_seed` works and gives every member its own seed.
    Closing the pool, also through `LLMCollector.shutdown`, closes the members and their workspaces.

    Arguments:
        env_makers: functions that make the members, or the members themselves.
        create_env_kwargs: keyword arguments of all makers, or a list with one dictionary per maker.

    Example:
        >>> pool = MLGymPool([partial(make_mlgym, tasks=["prisoners_dilemma", "grid_maze"])] * 8)  # doctest: +SKIP
        >>> collector = LLMCollector(pool, policy=policy, yield_completed_trajectories=True)  # doctest: +SKIP
    """

    def __init__(
        self,
        env_makers: Sequence[Callable[..., EnvBase] | EnvBase],
        *,
        create_env_kwargs: Info | list[Info] | None = None,
    ) -> None:
        super().__init__(env_makers, stack="lazy", create_env_kwargs=create_env_kwargs)
        self.is_closed = False  # TorchRL marks a new pool as closed, and a collector does not close it then.

    def set_seed(self, seed: int | None = None, static_seed: bool = False) -> int | None:
        """Seed the members in order, as `SerialEnv` does.

        Arguments:
            static_seed: give all members the same seed.

        Returns:
            the next unused seed.
        """
        for env in self.envs:
            seed = env.set_seed(seed, static_seed=static_seed)
        return seed

    def reset(self, tensordict: TensorDictBase | None = None, **kwargs: object) -> TensorDictBase:
        self._check_open()
        return super().reset(tensordict, **kwargs)

    def step(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Step all members. The batch may have more dimensions than the pool."""
        self._check_open()
        self.async_step_send(self._set_indices(tensordict))
        return self.async_step_recv(min_get=self.num_envs)

    def step_and_maybe_reset(self, tensordict: TensorDictBase) -> tuple[TensorDictBase, TensorDictBase]:
        """Step all members and reset those whose episode has ended."""
        self._check_open()
        self.async_step_and_maybe_reset_send(self._set_indices(tensordict))
        stepped: tuple[TensorDictBase, TensorDictBase] = self.async_step_and_maybe_reset_recv(min_get=self.num_envs)
        return stepped

    def _set_indices(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Set the member index of each row, in the shape of the batch."""
        rows = [[NonTensorData(k)] * self.env_batch_sizes[k].numel() for k in range(self.num_envs)]
        tensordict.set(self._env_idx_key, NonTensorStack(*(NonTensorStack(*row) for row in rows)))
        return tensordict

    def _maybe_make_tensordict(
        self, tensordict: TensorDictBase, env_index: object, make_if_none: bool
    ) -> tuple[TensorDictBase, list[int]]:
        # TorchRL flattens the batch and would treat every slot of a member as a member.
        if env_index is None and tensordict.ndim > 1:
            return tensordict, [self._number(member) for member in tensordict.unbind(0)]
        result: tuple[TensorDictBase, list[int]] = super()._maybe_make_tensordict(tensordict, env_index, make_if_none)
        return result

    def _sort_results(self, results: list[TensorDictBase], *others: list[object]) -> tuple[object, ...]:
        numbers = [self._number(member) for member in results]
        order = sorted(range(len(results)), key=numbers.__getitem__)
        return (*([several[k] for k in order] for several in (results, *others)), numbers)

    def _number(self, member: TensorDictBase) -> int:
        """Read the index of a member from its data."""
        number = member.get(self._env_idx_key).tolist()
        while isinstance(number, list):
            number = number[0]
        return int(number)

    def _check_open(self) -> None:
        if self.is_closed:
            raise EnvError("this pool of environments is closed; make another")

    def shutdown(self) -> None:
        """Wait for running steps, stop the threads and close the members."""
        super().shutdown()
        with ExitStack() as stack:  # If closing one raises, the others are still closed.
            for env in self.envs:
                stack.callback(env.close, raise_if_closed=False)
        self.is_closed = True
