"""Parallel research environments in TorchRL's containers and ours, with episodes of different lengths."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tensordict import LazyStackedTensorDict, TensorDictBase
from torchrl.envs import ParallelEnv, SerialEnv
from torchrl.envs.utils import _update_during_reset
from torchrl_tasks import SUBMIT, WRAPPERS, answer

from palaestra.core.errors import EnvError
from palaestra.integrations.torchrl import MLGymPool, make_mlgym

COMMANDS = {"low": 1, "high": 2}
"""After so many the script hands in."""
LENGTHS = {"low": [2, 4], "high": [2, 4, 6]}
"""Of the conversations that it reads in an episode."""
Maker = Callable[..., Any]


@pytest.fixture
def maker(place: Path) -> Maker:
    """Gives what makes an environment of one of the tasks, or of both."""

    def make_factory(task: str = "") -> Maker:
        of = {"task": place / task} if task else {"tasks": [place / "low", place / "high"]}
        return partial(make_mlgym, prompts=place / "prompts", **of)

    return make_factory


def policy(tensordict: TensorDictBase) -> TensorDictBase:
    """As many commands as the task is worth, then the work is handed in."""
    replies = []
    for member in tensordict["history", "prompt"].unbind(0):
        conversation = member if member.ndim == 1 else member[0]
        done = list(conversation.role).count("assistant")
        text = SUBMIT if done == COMMANDS[get_task_name(conversation)] else answer(7 + done)
        replies.append(text if member.ndim == 1 else [text])
    tensordict["text", "response"] = replies
    return tensordict


def get_task_name(conversation: Any) -> str:
    return "low" if "low" in conversation.content[1] else "high"


def lengths(steps: Sequence[TensorDictBase]) -> list[int]:
    """Of the conversations at the beginning of some steps of one environment, each of which goes on where it was."""
    results = []
    for step in steps:
        before, after = step["history", "prompt"], step["next", "history", "prompt"]
        size = len(before.role)
        assert list(after.content)[:size] == list(before.content)
        assert list(after.role)[size:] == ["assistant", "user"]
        assert after.content[size] == step["text", "response"]
        results.append(size)
    return results


_earlier: set[int] = set()


@pytest.fixture(autouse=True)
def _note_earlier_sandboxes() -> None:
    """Judges of other tests in this process keep sandboxes for a while."""
    _earlier.clear()
    _earlier.update(sandboxes())


def workspaces() -> set[int]:
    """The sandboxes below this process that a test has started."""
    return sandboxes() - _earlier


def sandboxes() -> set[int]:
    """The sandboxes that run below this process."""
    parents = dict[int, tuple[int, str]]()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            pid, _, rest = stat.read_text().partition(" ")
        except OSError:  # It has ended since.
            continue
        name, _, fields = rest[1:].rpartition(") ")
        parents[int(pid)] = int(fields.split()[1]), name

    def above(pid: int) -> Iterator[int]:
        while pid in parents:
            pid = parents[pid][0]
            yield pid

    return {pid for pid, (_, name) in parents.items() if name == "bwrap" and os.getpid() in above(pid)}


def test_a_rollout_ends_with_the_last_slot(maker: Maker) -> None:
    env = maker()(num_envs=2, seed=1)
    data = env.rollout(9, policy, break_when_any_done=False, break_when_all_done=True, return_contiguous=False)
    env.close()
    assert [data[slot, 0]["task"] for slot in range(2)] == ["high", "low"]
    done, rewards = data["next", "done"].squeeze(-1).tolist(), data["next", "reward"].squeeze(-1).tolist()
    steps = [row.index(True) + 1 for row in done]
    assert [row[:count] for row, count in zip(rewards, steps, strict=True)] == [[0, 0, -2], [0, 3]]


@pytest.mark.filterwarnings(*WRAPPERS)
@pytest.mark.parametrize("whole", [True, False])
def test_a_collector_over_slots_whose_episodes_differ_in_length(maker: Maker, whole: bool) -> None:
    from torchrl.collectors.llm import LLMCollector

    env = maker()(num_envs=2, seed=1)
    collector = LLMCollector(
        env, policy=policy, dialog_turns_per_batch=8, total_dialog_turns=16, yield_completed_trajectories=whole
    )
    results: list[list[TensorDictBase]] = [[], []]
    for data in collector:
        for slot, row in enumerate([data] if whole else data.unbind(0)):
            results[slot] += row.unbind(0)
    collector.shutdown()
    assert not workspaces()
    seen = set()
    for steps in results:
        while steps:
            name = get_task_name(steps[0]["history", "prompt"])
            episode, steps = steps[: len(LENGTHS[name])], steps[len(LENGTHS[name]) :]
            assert lengths(episode) == LENGTHS[name][: len(episode)]
            seen.add(name)
    assert seen == {"low", "high"}


def test_a_serial_rollout_of_different_lengths(maker: Maker) -> None:
    env = SerialEnv(2, [maker("low"), maker("high")])
    data = env.rollout(5, policy, break_when_any_done=False, return_contiguous=False)
    assert data.batch_size == (2, 1, 5)
    steps = [[step[member][0] for step in data.unbind(-1)] for member in range(2)]
    assert [lengths(each) for each in steps] == [[2, 4, 2, 4, 2], [2, 4, 6, 2, 4]]
    assert data["next", "reward"].squeeze().tolist() == [[0, 3, 0, 3, 0], [0, 0, -2, 0, 0]]
    assert data["next", "done"].squeeze().tolist() == [
        [False, True, False, True, False],
        [False, False, True, False, False],
    ]
    env.close()
    assert not workspaces()


@pytest.mark.filterwarnings(*WRAPPERS)
def test_a_serial_collector_of_different_lengths(maker: Maker) -> None:
    from torchrl.collectors.llm import LLMCollector

    env = SerialEnv(2, [maker("low"), maker("high")])
    collector = LLMCollector(env, policy=policy, dialog_turns_per_batch=6, total_dialog_turns=12)
    results: list[list[int]] = [[], []]
    for data in collector:
        for member in range(2):
            results[member] += lengths([step[member][0] for step in data.unbind(-1)])
    assert results == [[2, 4, 2, 4, 2, 4], [2, 4, 6, 2, 4, 6]]
    collector.shutdown()
    assert not workspaces()


@pytest.mark.filterwarnings(*WRAPPERS)
def test_a_pool_collector_gives_whole_episodes(maker: Maker) -> None:
    from torchrl.collectors.llm import LLMCollector

    pool = MLGymPool([maker("low"), maker("high")])
    collector = LLMCollector(pool, policy=policy, dialog_turns_per_batch=2, yield_completed_trajectories=True)
    rewards = dict[str, float]()
    for data in collector:
        name = get_task_name(data[0]["history", "prompt"])
        assert lengths(list(data.unbind(0))) == LENGTHS[name]
        rewards[name] = data["next", "reward"].sum().item()
        if len(rewards) == 2:
            break
    assert rewards == {"low": 3.0, "high": -2.0}
    collector.shutdown()
    assert pool.is_closed
    assert not workspaces()


def test_pool_members_may_differ_in_length(maker: Maker) -> None:
    pool = MLGymPool([maker("low"), maker("high")])
    tensordict, results = pool.reset(), list[TensorDictBase]()
    for _ in range(5):
        pool.async_step_and_maybe_reset_send(policy(tensordict))
        step, tensordict = pool.async_step_and_maybe_reset_recv(min_get=2)
        results.append(step)
    assert len(workspaces()) >= 2
    assert [lengths([step[member][0] for step in results]) for member in range(2)] == [[2, 4, 2, 4, 2], [2, 4, 6, 2, 4]]
    pool.close()
    assert not workspaces()
    pool.close()


def test_closing_a_pool_closes_every_member(maker: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = MLGymPool([maker("low"), maker("high")])
    pool.reset()
    first = pool.envs[0].base_env
    with monkeypatch.context() as patch:
        patch.setattr(first, "close", lambda **_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            pool.close()
    assert pool.envs[1].is_closed
    first.close()
    assert not workspaces()


def test_members_that_are_made_alike_choose_for_themselves(maker: Maker) -> None:
    make = maker()
    assert make().base_env.seeds != make().base_env.seeds
    assert make(seed=0).base_env.seeds == make(seed=0).base_env.seeds
    env = make(seed=3)
    env.set_seed(None)
    assert env.base_env.seeds.root != 3


@pytest.mark.parametrize("container", [partial(SerialEnv, 2), lambda build: MLGymPool([build] * 2)])
def test_a_seed_makes_the_choices_of_all_members_exact(maker: Maker, container: Callable[[Maker], Any]) -> None:
    def draw_tasks() -> list[tuple[str, str]]:
        env = container(maker())
        following = env.set_seed(7)
        assert isinstance(following, int)
        assert following != 7
        names = [tuple(str(name[0]) for name in env.reset()["task"]) for _ in range(6)]
        env.close()
        return names

    first = draw_tasks()
    assert draw_tasks() == first
    assert any(left != other for left, other in first)
    assert {name for pair in first for name in pair} == {"low", "high"}


def test_a_static_seed_is_that_of_every_member(maker: Maker) -> None:
    pool = MLGymPool([maker()] * 2)
    assert pool.set_seed(7, static_seed=True) == 7
    assert [env.base_env.seeds.root for env in pool.envs] == [7, 7]
    pool.close()


def test_a_pool_rollout_is_batched_by_members_and_slots(maker: Maker) -> None:
    pool = MLGymPool([maker("low"), maker("high")])
    data = pool.rollout(5, policy, break_when_any_done=False)
    assert (pool.batch_size, data.batch_size) == ((2, 1), (2, 1, 5))
    assert data["next", "reward"].squeeze().tolist() == [[0, 3, 0, 3, 0], [0, 0, -2, 0, 0]]
    steps = [[step[member][0] for step in data.unbind(-1)] for member in range(2)]
    assert [lengths(each) for each in steps] == [[2, 4, 2, 4, 2], [2, 4, 6, 2, 4]]
    short = pool.rollout(5, policy)
    assert (short.batch_size, short["next", "done"].squeeze().tolist()) == ((2, 1, 2), [[False, True], [False, False]])
    pool.close()
    with pytest.raises(EnvError, match=r"pool .*closed"):
        pool.reset()
    with pytest.raises(EnvError, match=r"pool .*closed"):
        pool.step(short[..., 0])
    assert not workspaces()


def test_the_members_of_a_pool_may_have_several_slots(maker: Maker) -> None:
    pool = MLGymPool([partial(maker("low"), num_envs=2)] * 2)
    tensordict = pool.reset()
    assert tensordict.batch_size == (2, 2)
    tensordict["text", "response"] = [[answer(1), answer(2)], [answer(3), answer(4)]]
    tensordict = pool.step_mdp(pool.step(tensordict))
    tensordict["text", "response"] = [[SUBMIT] * 2] * 2
    assert pool.step(tensordict)["next", "reward"].squeeze().tolist() == [[9, 8], [7, 6]]
    pool.close()


def test_worker_data_can_be_consolidated_and_reset(maker: Maker) -> None:
    """As `ParallelEnv` does by default, with workers whose conversations differ in length; without its processes."""
    members = [maker("low")(), maker("high")()]
    after = []
    for member, replies in zip(members, (SUBMIT, answer(1)), strict=True):
        tensordict = member.reset().consolidate(share_memory=False, inplace=True, num_threads=1)
        tensordict = tensordict.unlock_()
        tensordict["text", "response"] = [replies]
        after.append(member.step(tensordict)["next"].consolidate(share_memory=False, inplace=True, num_threads=1))
    both = LazyStackedTensorDict.maybe_dense_stack([after[0].unlock_(), after[1].unlock_()])
    again = LazyStackedTensorDict.maybe_dense_stack([members[0].reset(), after[1]])
    both.consolidate(share_memory=False, inplace=False, num_threads=1)
    both["_reset"] = both["done"].clone()
    kept = _update_during_reset(again, LazyStackedTensorDict(*both.unbind(0)), ["_reset"])
    assert [member["history", "prompt"].shape for member in kept.unbind(0)] == [(1, 2), (1, 4)]
    for member in members:
        member.close()


@pytest.mark.backends
def test_a_parallel_environment_works_with_its_defaults(maker: Maker) -> None:
    env = ParallelEnv(2, [maker("low"), maker("high")])
    data = env.rollout(5, policy, break_when_any_done=False)
    assert data.batch_size == (2, 1, 5)
    assert data["next", "reward"].squeeze().tolist() == [[0, 3, 0, 3, 0], [0, 0, -2, 0, 0]]
    env.close()
    env = ParallelEnv(2, maker("low"))
    assert env.rollout(5, policy)["next", "reward"].squeeze().tolist() == [[0, 3], [0, 3]]
    env.close()
