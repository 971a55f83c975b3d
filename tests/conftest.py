"""Shared fixtures: a quiet torch, and the embedded student, loaded once."""

from __future__ import annotations

import atexit
import gc
import os
import shutil
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("PALAESTRA_PROGRESS", "0")
os.environ.setdefault("PALAESTRA_RESEARCH_SEED", "0")  # The same hidden problems on every machine.
# The runs of the tests are not the user's own.
os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="palaestra-state-")

from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from palaestra.models.registry import LoadedModel

atexit.register(shutil.rmtree, os.environ["XDG_STATE_HOME"], ignore_errors=True)
gc.disable()  # Until all tests are collected: more than a million objects that live to the end.
# Two register classes when they are imported; the third is run with packages of another environment.
collect_ignore = ["helpers/own_code.py", "helpers/user_plugin.py", "helpers/otel_client.py"]
# The same examples in every run; HYPOTHESIS_PROFILE=search looks for new ones. Times depend on what else the machine does.
UNTIMED: Any = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("repeat", derandomize=True, **UNTIMED)
settings.register_profile("search", print_blob=True, **UNTIMED)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeat"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fast", action="store_true", help="leave out the tests of tests/slow.txt")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With `--fast`, leave out what `tests.helpers.slow_tests` measured to be slow."""
    if config.getoption("fast"):
        slow = set((Path(__file__).parent / "slow.txt").read_text(encoding="utf-8").split())
        left = [item for item in items if to_name(item) in slow]
        items[:] = [item for item in items if to_name(item) not in slow]
        config.hook.pytest_deselected(items=left)


def to_name(item: pytest.Item) -> str:
    """The name of a test function as reports have it, without its parameters."""
    module, *classes, name = item.nodeid.partition("[")[0].split("::")
    return f"{'.'.join([module.removesuffix('.py').replace('/', '.'), *classes])}::{name}"


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def own_randomness() -> None:
    """Models that a test builds with random weights are the same whichever tests ran before it."""
    if (torch := sys.modules.get("torch")) is not None:
        torch.manual_seed(0)


@pytest.fixture(scope="session")
def nano() -> LoadedModel:
    from transformers.utils import logging

    from palaestra.models import registry as models

    logging.disable_progress_bar()
    return models.load("nano", device="cpu")


@pytest.fixture
def fresh_nano() -> LoadedModel:
    """A student of its own for tests that train it."""
    from palaestra.models import registry as models

    return models.load("nano", device="cpu")
