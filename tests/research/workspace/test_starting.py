"""The start of an episode: nothing starts before `reset`, nothing is installed, and no container is needed."""

from __future__ import annotations

import os
import subprocess
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import gymnasium
import pytest

import palaestra  # noqa: F401  (registers the environments)
from palaestra.core.errors import SandboxWarning
from palaestra.research.workspace.env import ResearchEnv


@pytest.fixture
def started_programs(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The programs that are started, as they are called."""
    result: list[list[str]] = []

    class Watched(subprocess.Popen[Any]):
        def __init__(self, arguments: Any, *others: Any, **named: Any) -> None:
            result.append([os.fsdecode(part) for part in arguments])
            super().__init__(arguments, *others, **named)

    monkeypatch.setattr(subprocess, "Popen", Watched)
    return result


def test_nothing_is_started_before_a_reset(number: Path, started_programs: list[list[str]]) -> None:
    env = gymnasium.make("palaestra/Research-v0", task=str(number))
    assert started_programs == []
    env.reset(seed=0)
    assert started_programs
    env.close()


def test_a_reset_installs_nothing_and_is_there_at_once(number: Path, started_programs: list[list[str]]) -> None:
    env = ResearchEnv(number)
    env.reset(seed=0)  # The baseline is measured once.
    started_programs.clear()
    start = time.perf_counter()
    env.reset(seed=1)
    assert time.perf_counter() - start < 5  # Some 0.05 s, on a machine that does nothing else.
    env.close()
    words = {Path(word).name for command in started_programs for word in command}
    assert words
    assert not words & {"apt", "apt-get", "pip", "pip3", "conda", "docker", "podman"}


def test_episode_needs_no_container(number: Path, started_programs: list[list[str]]) -> None:
    for sandbox, place in (("bubblewrap", "/workspace"), ("none", "")):
        env = ResearchEnv(number, sandbox=sandbox)
        with pytest.warns(SandboxWarning) if sandbox == "none" else nullcontext():
            env.reset(seed=0)
        observation = env.step("```\necho 25 > answer.txt; pwd\n```")[0]
        assert observation.messages[-1].text.startswith("/workspace\n") is bool(place)
        assert env.step("```\nsubmit\n```")[1] == 2.0
        env.close()
    assert not {Path(word).name for command in started_programs for word in command} & {"docker", "podman"}
