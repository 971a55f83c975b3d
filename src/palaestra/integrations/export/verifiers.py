"""Write a turn environment as a package of verifiers."""

from __future__ import annotations

from collections.abc import Mapping

from palaestra.integrations.export.base import EnvironmentPackage, render_templates


def render_package(package: EnvironmentPackage) -> Mapping[str, str]:
    """Return the files of a package with a `Taskset`, an `Env` and a `Harness` of verifiers.

    The taskset of an environment with tools has a toolset of verifiers with the same tools.
    """
    return render_templates("verifiers", package)
