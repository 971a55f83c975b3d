"""The pytest plugin of Palaestra: the fixture `palaestra_check` and the mark `palaestra_level`.

It is not in the package `palaestra`, because pytest imports it at every start. It imports Palaestra on first use only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from palaestra.recipes.check.records import SubjectReport


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "palaestra_level(level): the level up to which palaestra_check runs its checks, from 1 to 4"
    )


@pytest.fixture
def palaestra_check(request: pytest.FixtureRequest) -> Callable[..., SubjectReport]:
    """Check an environment, a task or a research task, and fail with the faults.

    It takes the arguments of `palaestra.check`: an id, `file.py:Class`, a class or an instance, and options such as
    `is_task`. The level is that of the mark `palaestra_level`, by default 3. It returns the report.

    Example:
        @pytest.mark.palaestra_level(2)
        def test_my_environment(palaestra_check):
            palaestra_check(MyEnv)
    """
    mark = request.node.get_closest_marker("palaestra_level")

    def run_checks(source: object, **options: Any) -> SubjectReport:
        __tracebackhide__ = True
        from palaestra.recipes.check.recipe import check

        report = check(source, **({"level": mark.args[0]} if mark is not None else {}) | options)
        failures = report.with_status("fail")
        if failures:
            lines = [line for result in failures for line in result.describe()]
            raise AssertionError("\n".join([f"{report.target}: {len(failures)} checks failed", *lines]))
        return report

    return run_checks
