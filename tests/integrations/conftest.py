"""Research tasks for the integration tests, and environments that are closed after a test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from torchrl.envs import TransformedEnv


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of the tasks `low` and `high`, and of short prompts."""
    from torchrl_tasks import write_tasks

    root = write_tasks(tmp_path_factory.mktemp("tasks"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PALAESTRA_CACHE", str(root / "cache"))
        yield root


@pytest.fixture
def make(place: Path) -> Iterator[Callable[..., TransformedEnv]]:
    """Makes environments of the tasks above, with short prompts, and closes them."""
    from palaestra.integrations.torchrl import make_mlgym

    instances: list[TransformedEnv] = []

    def build(task: str | None = "low", **arguments: Any) -> TransformedEnv:
        if task is not None:
            arguments["task"] = place / task
        instances.append(make_mlgym(**{"prompts": place / "prompts", **arguments}))
        return instances[-1]

    yield build
    for env in instances:
        env.close()
