"""A workspace ends when it is closed or garbage-collected."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from palaestra.research.workspace.env import ResearchEnv, ResearchVectorEnv


def sandboxes() -> set[str]:
    """The children of this process that are sandboxes."""
    result = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, fields = stat.read_text().partition("(")[2].rpartition(") ")
        except OSError:  # It has ended since.
            continue
        if name == "bwrap" and fields.split()[1] == str(os.getpid()) and fields.split()[0] != "Z":
            result.add(stat.parent.name)
    return result


def wait_until_ended(names: set[str]) -> bool:
    """Whether they have ended, after a moment."""
    for _ in range(100):
        if not names & sandboxes():
            return True
        time.sleep(0.05)
    return False


def test_an_environment_that_is_dropped_ends_its_sandbox(number: Path) -> None:
    makers: tuple[Callable[[], ResearchEnv | ResearchVectorEnv], ...] = (
        lambda: ResearchEnv(number),
        lambda: ResearchVectorEnv(2, task=number),
    )
    for make in makers:
        before = sandboxes()
        env = make()
        env.reset(seed=0)
        opened = sandboxes() - before
        assert opened
        del env
        gc.collect()
        assert wait_until_ended(opened)


def test_a_copy_in_a_child_process_leaves_the_sandbox_alone(number: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    env = ResearchEnv(number)
    env.reset(seed=0)
    assert env._workspace is not None
    shell = env._workspace.shell
    with monkeypatch.context() as patch:
        patch.setattr("palaestra.research.workspace.workspace.os.getpid", lambda: -1)
        env.close()
    assert shell.execute("echo here").text == "here\n"
    shell.close()
