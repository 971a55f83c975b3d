"""Shared fixtures of the sandbox tests: the sandbox, and the host's processes."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from palaestra.core.errors import SandboxError
from palaestra.sandbox.bubblewrap import Bubblewrap


@pytest.fixture(scope="session")
def bubblewrap() -> Bubblewrap:
    if shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed: sudo apt-get install bubblewrap")
    try:
        return Bubblewrap()
    except SandboxError as error:
        pytest.skip(str(error))


def processes_with(word: str) -> list[int]:
    """The host's processes, ours aside, with `word` in their command line."""
    pids = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if word.encode() in (entry / "cmdline").read_bytes():
                    pids.append(int(entry.name))
            except OSError:
                continue
    return pids


@pytest.fixture
def alive() -> Callable[[str], list[int]]:
    return processes_with


@pytest.fixture
def gone() -> Callable[..., bool]:
    """Waits a moment for all processes with a word in their command line to be gone."""

    def wait(word: str, seconds: float = 3.0) -> bool:
        end = time.monotonic() + seconds
        while (pids := processes_with(word)) and time.monotonic() < end:
            time.sleep(0.02)
        return not pids

    return wait
