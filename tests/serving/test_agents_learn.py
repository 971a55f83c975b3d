"""Agents of other packages learn through `palaestra train --agent`, unmodified: with tools, and with a context that they rewrite."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from warm_agent import write_warm_model

from palaestra import train
from palaestra.runs.run import Run

ROOT = Path(__file__).parents[2]
PYTHON = os.environ.get("PALAESTRA_AGENTS_PYTHON", "")
pytestmark = [pytest.mark.backends, pytest.mark.skipif(not PYTHON, reason="PALAESTRA_AGENTS_PYTHON is not set")]
OPTIONS: dict[str, Any] = {"env": "palaestra/Guess-v0", "device": "cpu", "threads": 1, "seed": 0, "max_tokens": 32}


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_warm_model(tmp_path_factory.mktemp("warm"))


def test_a_react_agent_of_langchain_learns(warm: str, tmp_path: Path) -> None:
    agent = ROOT / "examples" / "agents" / "react.py"
    assert "palaestra" not in agent.read_text().lower()
    differences = []
    result = train(
        **OPTIONS,
        env_kwargs={"low": 7, "high": 8, "attempts": 2},
        model=warm,
        agent=f"{PYTHON} {agent}",
        agent_start="fork",
        iterations=5,
        episodes=32,
        num_envs=8,
        learning_rate=3e-4,
        evaluation=32,
        out=tmp_path / "run",
        callbacks=[lambda iteration: differences.append(iteration.metrics["sampling_logprob_difference_max"])],
    )
    assert result.summary["failures"] == {}
    assert result.summary["gain_low"] > 0
    assert len(differences) == 5
    assert max(differences) < 1e-4


def test_branches_of_a_summarizing_agent_are_trained(warm: str, tmp_path: Path) -> None:
    agent = f"{PYTHON} {ROOT / 'tests' / 'helpers' / 'tool_agents.py'} langchain summary"
    train(
        **OPTIONS,
        env_kwargs={"attempts": 6},
        model=warm,
        agent=agent,
        iterations=1,
        episodes=4,
        group_size=2,
        num_envs=2,
        evaluation=0,
        num_minibatches=1,
        keep_trajectories=64,
        out=tmp_path / "run",
    )
    with Run.open(tmp_path / "run") as run:
        metrics, trajectories = run.store.metrics()[1], run.store.trajectories(1)
    branches = [trajectory.infos[0].get("branch", 0) for trajectory in trajectories]
    assert len(trajectories) == 4 * metrics["sequences"] > 8
    assert max(branches) > 1
    own = [segment for trajectory in trajectories for segment in trajectory.segments if any(segment.chosen)]
    assert sum(len(segment.token_ids) for segment in own) == metrics["actions"]
    assert metrics["sampling_logprob_difference_max"] < 1e-4
    assert any("summary" in trajectory.infos[0]["prompt"].lower() for trajectory in trajectories)
