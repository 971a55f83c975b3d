"""Write a turn environment as a package of OpenEnv: a server, a client and a manifest."""

from __future__ import annotations

from collections.abc import Mapping

from palaestra.integrations.export.base import EnvironmentPackage, render_templates


def render_package(package: EnvironmentPackage) -> Mapping[str, str]:
    """Return the files of a package with an `Environment` and an `EnvClient` of OpenEnv, in the layout of `openenv init`."""
    return render_templates("openenv", package)
