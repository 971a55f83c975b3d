"""The live viewer: every run of a folder in the browser. `palaestra.view(result)` shows a report in a notebook."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from palaestra.core.plugins import make_callable

if TYPE_CHECKING:
    from palaestra.view.server import make_app

__all__ = ["make_app"]

make_callable(__name__, "palaestra.report.notebook:view")


def __getattr__(name: str) -> Any:
    """The server is imported on first use: a notebook does not need Starlette."""
    if name != "make_app":
        raise AttributeError(f"module 'palaestra.view' has no attribute {name!r}")
    from palaestra.view.server import make_app

    return make_app
