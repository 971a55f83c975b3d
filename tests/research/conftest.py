"""Shared fixtures of the research tests: a fast task, and separate caches."""

from __future__ import annotations

from pathlib import Path

import pytest
from number_task import number_task


@pytest.fixture(scope="session")
def number(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return number_task(tmp_path_factory.mktemp("task"))
