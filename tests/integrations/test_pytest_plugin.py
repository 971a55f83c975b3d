"""The pytest plugin: `palaestra_check` in the tests of a package of yours."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]
ENV = """
import gymnasium
import numpy as np


class Echo(gymnasium.Env):
    observation_space = gymnasium.spaces.Discrete(3)
    action_space = gymnasium.spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.state, self.count = int(self.np_random.integers(3)), 0
        return self.state, {{}}

    def step(self, action):
        assert self.action_space.contains(action)
        reward, self.count = float(action == self.state), self.count + 1
        self.state = {state}
        return self.state, reward, self.count == 5, False, {{}}
"""
SOUND, BROKEN = "int(self.np_random.integers(3))", "int(np.random.randint(3))"
TESTS = """
import pytest
from echo import Echo


@pytest.mark.palaestra_level(1)
def test_a_class(palaestra_check):
    report = palaestra_check(Echo)
    assert report.level == 1


def test_an_option_wins(palaestra_check):
    assert palaestra_check("echo.py:Echo", level=1, only="runtime.seed_control").level == 1


@pytest.mark.palaestra_level(1)
def test_a_task(palaestra_check):
    palaestra_check("math-skills", is_task=True, only="runtime.task_api")
"""
START = """
import sys


def pytest_sessionfinish():
    print("imported:", sorted({name.split(".")[0] for name in sys.modules} & {"palaestra", "torch", "gymnasium", "numpy"}))
"""


def run_tests(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    return pytester.runpytest_subprocess("-p", "pytest_palaestra", "--strict-markers", *arguments)


def test_a_sound_environment_passes(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(echo=ENV.format(state=SOUND), test_echo=TESTS)
    run_tests(pytester).assert_outcomes(passed=3)


def test_a_failure_lists_evidence_and_remedy(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(echo=ENV.format(state=BROKEN), test_echo=TESTS)
    result = run_tests(pytester, "-k", "class")
    result.assert_outcomes(failed=1, deselected=2)
    result.stdout.fnmatch_lines(
        ["*AssertionError: *Echo: * checks failed", "*fail runtime.episode_determinism: *", "*evidence: *"]
    )
    result.stdout.fnmatch_lines(
        ["*fail runtime.global_random: *", "*again: *--only runtime.global_random*", "*mend: *np_random*"]
    )
    result.stdout.no_fnmatch_line("*def run_checks*")


def test_an_unused_plugin_imports_nothing(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(START)
    pytester.makepyfile("def test_nothing(): pass")
    result = run_tests(pytester)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*imported: []"])


def test_pytest_finds_the_plugin() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    assert project["project"]["entry-points"]["pytest11"] == {"pytest_palaestra": "pytest_palaestra"}
    assert "pytest_palaestra" in project["tool"]["setuptools"]["py-modules"]
