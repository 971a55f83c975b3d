"""The sandbox of a TorchRL environment can be chosen, as in `ResearchEnv`."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytest.importorskip("torchrl")

from torchrl.envs import TransformedEnv
from torchrl_tasks import SUBMIT, block, play, read_entry, rewards

from palaestra.core.errors import SandboxWarning, UnknownNameError


def test_the_sandbox_is_the_users_choice(make: Callable[..., TransformedEnv]) -> None:
    replies = (block("echo 7 > answer.txt; pwd"), SUBMIT)
    isolated = play(make(), *replies)
    with pytest.warns(SandboxWarning):
        beside_us = play(make(sandbox="none"), *replies)
    assert rewards(isolated) == rewards(beside_us) == [0.0, 3.0]
    assert read_entry(isolated[0], "observation") == "/workspace" != read_entry(beside_us[0], "observation")
    with pytest.raises(UnknownNameError, match="'podman'"):
        make(sandbox="podmann").reset()
