"""The sandbox of a TorchRL environment can be chosen, as in `ResearchEnv`."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytest.importorskip("torchrl")

from torchrl.envs import TransformedEnv
from torchrl_tasks import SUBMIT, block, play, rewards, told

from palaestra.core.errors import SandboxWarning, UnknownNameError


def test_the_sandbox_is_the_users_choice(make: Callable[..., TransformedEnv]) -> None:
    said = (block("echo 7 > answer.txt; pwd"), SUBMIT)
    isolated = play(make(), *said)
    with pytest.warns(SandboxWarning):
        beside_us = play(make(sandbox="none"), *said)
    assert rewards(isolated) == rewards(beside_us) == [0.0, 3.0]
    assert told(isolated[0], "observation") == "/workspace" != told(beside_us[0], "observation")
    with pytest.raises(UnknownNameError, match="did you mean 'podman'"):
        make(sandbox="podmann").reset()
