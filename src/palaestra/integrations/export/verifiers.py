"""Write a turn environment as a package of verifiers."""

from __future__ import annotations

from collections.abc import Mapping

from palaestra.core.errors import EnvError
from palaestra.integrations.export.base import EnvironmentPackage, render_templates


def render_package(package: EnvironmentPackage) -> Mapping[str, str]:
    """Return the files of a package with a `Taskset`, an `Env` and a `Harness` of verifiers.

    Raises:
        EnvError: the environment has tools. In verifiers the agent's harness executes tools, not the environment.
    """
    if package.tools:
        raise EnvError(f"{package.env_id} has tools, which verifiers executes outside the environment")
    return render_templates("verifiers", package)
