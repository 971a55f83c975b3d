"""The live viewer: every run of a folder in the browser."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from palaestra.view.server import make_app
__all__ = ["make_app"]


def __getattr__(name: str) -> Any:
    """The server is imported on first use: a notebook does not need Starlette."""
    if name != "make_app":
        raise AttributeError(f"module 'palaestra.view' has no attribute {name!r}")
    from palaestra.view.server import make_app

    return make_app
