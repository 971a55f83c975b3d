"""`palaestra train --agent`: programs that play a turn environment through the gateway."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from palaestra import train
from palaestra.core.errors import EnvError, SettingsError
from palaestra.core.records import Message, ignore
from palaestra.envs.turn import Reply, TurnEnv
from palaestra.recipes.train.build import build_loop
from palaestra.recipes.train.presets import fill_presets, make_settings
from palaestra.rl.agent_loop import AgentLoop
from palaestra.rl.agent_program import AgentProgram
from palaestra.runs.run import Run

ROOT = Path(__file__).parents[2]
AGENT = f"{sys.executable} {ROOT / 'tests' / 'helpers' / 'http_agent.py'}"
SMALL: dict[str, Any] = {
    "env": "palaestra/Guess-v0", "agent": AGENT, "iterations": 1, "episodes": 4, "group_size": 2, "num_envs": 3, "max_tokens": 6,
    "evaluation": 0, "threads": 1, "num_minibatches": 1, "device": "cpu",
}  # fmt: skip


@pytest.fixture(scope="module")
def loop() -> Iterator[AgentLoop]:
    loop = build_loop(fill_presets(make_settings(SMALL)), ignore)
    assert isinstance(loop, AgentLoop)
    yield loop
    loop.close()


def test_model_behind_an_independent_agent_is_trained(tmp_path: Path) -> None:
    script = ROOT / "examples" / "agents" / "guess.py"
    assert "palaestra" not in script.read_text().lower()
    values = {"agent": f"{sys.executable} {script}", "agent_start": "fork", "keep_trajectories": 4}
    result = train(**{**SMALL, **values}, out=tmp_path / "run")
    assert (result.summary["episodes"], result.summary["failures"]) == (4, {})
    with Run.open(tmp_path / "run") as run:
        metrics, trajectories = run.store.metrics()[1], run.store.trajectories(1)
    assert metrics["sequences"] == 1.0
    assert metrics["sampling_logprob_difference_max"] < 1e-3
    assert len(trajectories) == 4
    for trajectory in trajectories:
        assert trajectory.infos[0]["version"] == 0
        assert sum(any(segment.chosen) for segment in trajectory.segments) == trajectory.infos[0]["turns"]
        for segment in (segment for segment in trajectory.segments if segment.chosen[0]):
            assert len(segment.advantages) == len(segment.alternatives) == len(segment.token_ids)
            assert list(segment.entropies) != pytest.approx([-p for p in segment.logprobs]), "not the engine's estimate"


def test_an_episode_has_the_same_tokens_in_any_company(loop: AgentLoop) -> None:
    class Slots:
        envs = loop.env.envs[:1]

    loop.program = AgentProgram(AGENT, 60)
    together = loop.collect(0, 2, 0).inputs
    alone = loop._play(Slots(), 0, 2, loop.seeds, 2, 0).inputs
    assert (together.prompts, together.responses) == (alone.prompts, alone.responses)


def test_sequences_share_reward_and_group_of_their_episode(loop: AgentLoop) -> None:
    loop.program = AgentProgram(f"{AGENT} branch", 60)
    rollout = loop.collect(0, 4, 0)
    assert torch.bincount(rollout.get_episodes().number_B).tolist() == [3, 3, 3, 3]
    returns_GK, valid_GK = rollout.group_returns(2)
    assert returns_GK.flatten().tolist() == rollout.stats.returns
    assert bool(valid_GK.all())
    spread_B = rollout.spread_over_sequences(returns_GK)
    assert spread_B.tolist() == rollout.returns_B[rollout.valid_B].tolist()
    assert [record.seed for record in rollout.get_episodes().records[:6]] == [
        rollout.get_episodes().records[0].seed
    ] * 6  # one group, one seed
    loop.algorithm.update(rollout, 1)


@pytest.mark.parametrize(
    ("behavior", "failure"),
    [
        ("crash", "agent: the agent exited with status 1: RuntimeError: the agent is broken"),
        ("hang", "agent: the agent did not end within 1 seconds"),
        ("silent", "agent: the agent never called the model"),
        (
            "large",
            "context_length: the agent exited with status 1: urllib.error.HTTPError: HTTP Error 400: Bad Request",
        ),
        ("greedy", "agent: the agent exited with status 1: urllib.error.HTTPError: HTTP Error 400: Bad Request"),
    ],
)
def test_failing_agent_is_a_failure_with_its_cause_not_zero(loop: AgentLoop, behavior: str, failure: str) -> None:
    loop.program = AgentProgram(f"{AGENT} {behavior}", 1 if behavior == "hang" else 60)
    rollout = loop.collect(0, 2, 0)
    assert rollout.stats.failures == [failure] * 2
    assert (rollout.stats.returns, rollout.valid_B.tolist()) == ([], [False] * rollout.num_sequences)  # type: ignore[union-attr]
    assert loop.gateway.sessions == {}
    if behavior == "silent":
        with pytest.raises(EnvError, match=r"4 of 4 episodes .*agent never"):
            loop.iterate(1, 1.0, ignore)


def test_agent_that_leaves_early_gave_up_without_children(loop: AgentLoop) -> None:
    loop.program = AgentProgram(f"{AGENT} leave", 60)
    rollout = loop.collect(0, 1, 0)
    assert (rollout.stats.failures, rollout.get_episodes().records[0].stop_reason) == ([], "gave_up")
    loop.program = AgentProgram(f"{AGENT} haunt", 60)
    start = time.monotonic()
    assert loop.collect(0, 1, 0).stats.failures == []
    assert time.monotonic() - start < 30


class Blocking(TurnEnv):
    def opening(self, options: Any) -> list[Message]:
        return [Message("user", "Say something.")]

    def respond(self, message: Message) -> Reply:
        time.sleep(5)
        raise ValueError("too late")


def test_blocked_or_failed_environment_is_not_used_again(loop: AgentLoop) -> None:
    class Slots:
        envs = (Blocking(),)

    loop.config = replace(loop.config, agent_timeout=0.5)
    loop.program = AgentProgram(AGENT, 60)
    rollout = loop._play(Slots(), 0, 2, loop.seeds, 1, 0)
    first, second = rollout.stats.failures
    assert first.startswith("environment: ForeignTimeoutError: step of Blocking did not return")
    assert second.startswith("environment: the environment of this slot did not return in an earlier episode")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"env": "palaestra/CoT-v0"}, "turn environment"),
        ({"rollout": "step"}, "expected engine"),
        ({"agent": "no-such-program x"}, "expected a command"),
        ({"agent": "true", "agent_start": "fork"}, "forked"),
    ],
)
def test_wrong_settings_are_one_line(values: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=message):
        train(**{**SMALL, **values}, out=tmp_path / "run")
