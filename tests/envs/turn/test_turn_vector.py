"""Vectors of turn environments: order, seeds, and isolation of an environment that fails."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from palaestra.core.errors import EnvError, SandboxError
from palaestra.core.records import FailureCause, Message
from palaestra.envs.turn import Reply, TurnEnv, TurnStopReason, TurnVectorEnv


class Count(TurnEnv):
    """An episode is as long as its first number says; "raise" breaks it."""

    closed = 0

    def __init__(self, barrier: threading.Barrier | None = None) -> None:
        super().__init__()
        self.barrier, self.broken = barrier, 0

    def opening(self, options: Mapping[str, Any]) -> Sequence[Message]:
        if options.get("break") or self.broken:
            self.broken = max(0, self.broken - 1)
            raise OSError("no workspace")
        self.left = int(options.get("length", 2))
        return [Message("user", f"{self.np_random.integers(10**6)}")]

    def respond(self, message: Message) -> Reply:
        if self.barrier is not None:
            self.barrier.wait(timeout=5)
        if message.text in ("raise", "sandbox"):
            raise (SandboxError if message.text == "sandbox" else OSError)("the sandbox is gone")
        if message.text in ("nan", "wait"):
            return Reply(reward=float("nan") if message.text == "nan" else 0.0)
        if message.text == "break":
            self.broken = 2
            return Reply(stop=TurnStopReason.GAVE_UP)
        self.left -= 1
        stop = TurnStopReason.SOLVED if not self.left else None
        return Reply((Message("tool", message.text),), float(message.text), stop)

    def close(self) -> None:
        Count.closed += 1


def make_openings(observations: Sequence[Any]) -> list[str]:
    return [observation.messages[0].text for observation in observations]


def test_slots_keep_their_order_and_groups_their_seed() -> None:
    env = TurnVectorEnv(Count, 6, group_size=2)
    observations, infos = env.reset(seed=5)
    assert infos["active"].all() and infos["turn"].tolist() == [0] * 6  # noqa: PT018
    first = make_openings(observations)
    assert first[0] == first[1] and first[2] == first[3] and first[4] == first[5]  # noqa: PT018
    assert len(set(first)) == 3
    single = Count()
    assert make_openings([single.reset(seed=6)[0]]) == [first[2]]
    assert make_openings(env.reset(seed=[9, 8, 7, 6, 5, None])[0])[3:5] == [first[2], first[0]]
    _, rewards, terminated, truncated, infos = env.step([str(k) for k in range(6)])
    assert rewards.tolist() == [0, 1, 2, 3, 4, 5]
    assert not terminated.any() and not truncated.any() and "final_obs" not in infos  # noqa: PT018
    env.close()
    assert env.observation_space.contains(observations)


def test_a_finished_slot_starts_anew_in_the_same_step() -> None:
    env = TurnVectorEnv(Count, 2)
    assert env.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    started, _ = env.reset(seed=[1, 2])
    env.step(["1", "1"])
    observations, rewards, terminated, _, infos = env.step(["4", "5"])
    assert terminated.all() and rewards.tolist() == [4, 5] and infos["active"].all()  # noqa: PT018
    for slot in (0, 1):
        assert len(observations[slot].messages) == 1
        final = infos["final_obs"][slot]
        assert final.messages[0] == started[slot].messages[0]
        assert [m.role for m in final.messages[1:]] == ["assistant", "tool"] * 2
        assert infos["final_info"][slot]["stop_reason"] is TurnStopReason.SOLVED
    assert infos["turn"].tolist() == [0, 0]


def test_a_mask_resets_idle_slots_without_autoreset() -> None:
    env = TurnVectorEnv(Count, 3, autoreset=False)
    assert env.metadata["autoreset_mode"] is AutoresetMode.DISABLED
    env.reset(seed=[1, 2, 3])
    env.step(["0", "0", "0"])
    env.reset(seed=[4, None, None], options={"reset_mask": np.array([True, False, False]), "length": 5})
    observations, _, terminated, _, infos = env.step(["1", "1", "1"])
    assert terminated.tolist() == [False, True, True]
    assert infos["active"].tolist() == [True, False, False]
    rested, rewards, terminated, truncated, infos = env.step(["1", "ignored", "raise"])
    assert rewards.tolist() == [1, 0, 0] and not terminated.any() and not truncated.any()  # noqa: PT018
    assert rested[1:] == observations[1:] and infos["turn"].tolist() == [2, None, None]  # noqa: PT018
    with pytest.raises(EnvError, match="slot 1 has no episode"):
        env.stop({1: TurnStopReason.COST})
    for mask in (np.array([True]), np.array([1, 0, 0])):
        with pytest.raises(EnvError, match="reset_mask"):
            env.reset(options={"reset_mask": mask})


def test_stopped_slots_end_and_other_slots_stay() -> None:
    env = TurnVectorEnv(Count, 3, autoreset=False)
    before, _ = env.reset(seed=0)
    observations, rewards, terminated, truncated, infos = env.stop({2: "context"})
    assert truncated.tolist() == [False, False, True] and not terminated.any()  # noqa: PT018
    assert infos["final_info"][2]["stop_reason"] is TurnStopReason.CONTEXT
    assert observations == before and rewards.tolist() == [0, 0, 0]  # noqa: PT018
    assert infos["active"].tolist() == [True, True, False]
    again = TurnVectorEnv(Count, 1)
    again.reset(seed=0)
    assert again.stop({0: TurnStopReason.TIME})[4]["active"].all(), "with autoreset the next episode has begun"


def test_one_slot_that_raises_costs_the_others_nothing() -> None:
    env = TurnVectorEnv(Count, 3)
    env.reset(seed=0)
    with pytest.raises(OSError, match="the sandbox is gone"):
        env.step(["1", "raise", "1"])
    _, rewards, *_ = env.step(["2", "2", "2"])
    assert rewards.tolist() == [2, 0, 2], "the others had their first turn, and the broken one waits for a reset"
    env.reset(seed=0)
    assert env.step(["1", "1", "1"])[1].tolist() == [1, 1, 1]


@pytest.mark.parametrize("failures", ["raise", "mark"])
def test_a_wrong_action_moves_no_slot(failures: str) -> None:
    env = TurnVectorEnv(Count, 3, failures=failures)
    before, _ = env.reset(seed=0, options={"length": 1})
    for wrong in (3, None, Message("user", "1"), {"role": "user", "content": "1"}):
        with pytest.raises(EnvError, match="as the action"):
            env.step(["1", "1", wrong])  # type: ignore[list-item]
        assert [slot.unwrapped.turn for slot in env.envs] == [0, 0, 0]  # type: ignore[attr-defined]
    _, rewards, terminated, _, infos = env.step(["1", "2", {"role": "assistant", "content": "3"}])
    assert rewards.tolist() == [1, 2, 3] and terminated.all(), "nothing was lost"  # noqa: PT018
    assert [final.messages[0] for final in infos["final_obs"]] == [item.messages[0] for item in before]


def test_a_wrapper_with_its_own_space_gets_its_actions() -> None:
    space = gymnasium.spaces.Discrete(9)
    env = TurnVectorEnv(lambda: gymnasium.wrappers.TransformAction(Count(), str, space), 2)
    env.reset(seed=0)
    assert env.step([4, 5])[1].tolist() == [4, 5]  # type: ignore[list-item]


def test_a_marked_failure_ends_its_own_episode() -> None:
    env = TurnVectorEnv(Count, 4, failures="mark", autoreset=False)
    env.reset(seed=0)
    _, rewards, terminated, truncated, infos = env.step(["1", "raise", "nan", "sandbox"])
    assert truncated.tolist() == [False, True, True, True] and not terminated.any()  # noqa: PT018
    assert rewards.tolist() == [1, 0, 0, 0]
    assert [info["stop_reason"] for info in infos["final_info"][1:]] == [TurnStopReason.FAILED] * 3
    raised, unpaid, gone = (info["failure"] for info in infos["final_info"][1:])
    assert (raised.cause, raised.message) == (FailureCause.ENVIRONMENT, "OSError: the sandbox is gone")
    assert (
        unpaid.cause is FailureCause.ENVIRONMENT
    )  # It may be so in one episode only, unlike a reward that is no number.
    assert unpaid.message.startswith("NoRewardError: Count.respond returned Reply(")
    assert gone.cause is FailureCause.SANDBOX
    _, infos = env.reset(seed=0, options={"break": True})
    assert not infos["active"].any()
    assert infos["failure"][0].message == "OSError: no workspace"
    env.reset(seed=0)
    with pytest.raises(EnvError, match="as the action"):
        env.step([3, 3, 3, 3])  # type: ignore[list-item]


def test_a_failed_reset_is_retried_in_the_next_step() -> None:
    env = TurnVectorEnv(Count, 2, failures="mark")
    env.reset(seed=0)
    _, _, terminated, _, infos = env.step(["break", "1"])
    assert terminated.tolist() == [True, False]
    assert infos["active"].tolist() == [False, True]
    assert infos["failure"][0].message == "OSError: no workspace"
    assert infos["_failure"].tolist() == [True, False]
    for again in ([False, True], [True, True]):  # It fails twice.
        observations, rewards, terminated, truncated, infos = env.step(["7", "0"])
        assert infos["active"].tolist() == again
        assert rewards[0] == 0 and not terminated[0] and not truncated[0], "a try is no step of an episode"  # noqa: PT018
    assert "failure" not in infos and len(observations[0].messages) == 1  # noqa: PT018
    assert env.step(["7", "0"])[1].tolist() == [7, 0]
    env.reset(seed=0, options={"break": True})
    assert env.step(["7", "7"])[4]["active"].all(), "the same goes for a first episode"
    assert env.step(["7", "7"])[1].tolist() == [7, 7]


def test_a_step_needs_a_reset_before_it() -> None:
    for autoreset in (True, False):
        env = TurnVectorEnv(Count, 2, autoreset=autoreset, failures="mark")
        with pytest.raises(gymnasium.error.ResetNeeded):
            env.step(["1", "1"])
        env.reset(seed=np.int64(5), options={"reset_mask": np.array([True, False])})
        assert env.step(["1", "1"])[1].tolist() == [1, 0], "a slot that was never reset has nothing to do"


def test_infos_have_gymnasium_masks_and_suit_its_wrappers() -> None:
    wrappers = gymnasium.wrappers.vector
    env = wrappers.DictInfoToList(wrappers.RecordEpisodeStatistics(TurnVectorEnv(Count, 3)))
    _, infos = env.reset(seed=0)
    assert infos == [{"turn": 0, "active": True}] * 3
    env.step(["1", "wait", "1"])
    _, _, terminated, _, infos = env.step(["2", "3", "4"])
    assert terminated.tolist() == [True, False, True]
    assert infos[1] == {"turn": 2, "active": True}, "what a slot has nothing to say of is not in its info"
    assert infos[0]["final_info"] == {"turn": 2, "stop_reason": TurnStopReason.SOLVED}
    assert len(infos[0]["final_obs"].messages) == 5
    assert (infos[0]["episode"]["r"], infos[2]["episode"]["r"]) == (3, 5)
    bare = TurnVectorEnv(Count, 2)
    bare.reset(seed=0)
    bare.step(["1", "1"])
    infos = bare.stop({1: TurnStopReason.COST})[4]
    masks = {name: mask.tolist() for name, mask in infos.items() if name.startswith("_")}
    assert masks == {name: [False, True] for name in ("_turn", "_final_obs", "_final_info")}


def test_slots_really_run_side_by_side() -> None:
    """Each waits for all the others: one after the other this would never come to an end."""
    barrier = threading.Barrier(8)
    env = TurnVectorEnv(lambda: Count(barrier), 8)
    env.reset(seed=0)
    assert env.step(["1"] * 8)[1].sum() == 8


def test_wrappers_around_an_environment_are_kept() -> None:
    env = TurnVectorEnv(lambda: gymnasium.wrappers.TimeLimit(Count(), 1), 2, autoreset=False)
    env.reset(seed=0)
    _, _, terminated, truncated, infos = env.step(["1", "1"])
    assert truncated.all() and not terminated.any() and not infos["active"].any()  # noqa: PT018


def test_making_and_closing() -> None:
    Count.closed = 0
    env = TurnVectorEnv(Count, 3)
    env.close()
    assert Count.closed == 3
    instances = iter([Count, Count, lambda: 1 / 0])
    lock = threading.Lock()

    def make() -> Any:
        with lock:
            chosen = next(instances)
        return chosen()

    with pytest.raises(ZeroDivisionError):
        TurnVectorEnv(make, 3)
    assert Count.closed == 5, "those that could be made are closed again"
    with pytest.raises(EnvError, match="got CartPoleEnv"):
        TurnVectorEnv(lambda: gymnasium.make("CartPole-v1"), 2)
    for wrong, lines in (
        ({"num_envs": 0}, "num_envs .*at least 1; got 0"),
        ({"num_envs": 1.5}, "num_envs .*at least 1; got 1.5"),
        ({"num_envs": 2, "group_size": 0}, "group_size .*at least 1; got 0"),
        ({"num_envs": 4, "group_size": 3}, "num_envs .*group size 3; got 4"),
        ({"num_envs": 2, "failures": "hide"}, "failures .*'raise' or 'mark'; got 'hide'"),
    ):
        with pytest.raises(EnvError, match=f"^{lines}$"):
            TurnVectorEnv(Count, **wrong)  # type: ignore[arg-type]


def test_a_closed_environment_says_so() -> None:
    env = TurnVectorEnv(Count, 2)
    env.reset(seed=0)
    env.close()
    env.close()
    for use in (lambda: env.step(["1", "1"]), lambda: env.reset(seed=0), lambda: env.stop({0: "cost"})):
        with pytest.raises(EnvError, match="TurnVectorEnv is closed"):
            use()


@pytest.mark.parametrize("actions", ["text", ["a"], Message("assistant", "a"), {"a": 1, "b": 2}])
def test_one_action_a_slot(actions: Any) -> None:
    env = TurnVectorEnv(Count, 2)
    env.reset(seed=0)
    with pytest.raises(EnvError, match=r"action .*2 in total"):
        env.step(actions)
    with pytest.raises(EnvError, match=r"seed .*2 in total; got 3"):
        env.reset(seed=[1, 2, 3])
