"""The live viewer: every run of a folder in the browser."""

from palaestra.view.server import make_app

__all__ = ["make_app"]
