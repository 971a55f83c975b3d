"""What the sandboxes of programs and of tools are given, and how we talk with them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.resources import files as package_files
from importlib.resources.abc import Traversable

from palaestra.sandbox.base import KIB
from palaestra.sandbox.lines import Channel

LONGEST = 64 * KIB
"""Bytes of the largest message."""


def line() -> Channel:
    # A character beyond the first 65536 stays one: the program's side reads JSON as Python, which has no pairs.
    return Channel(LONGEST, ascii=False)


@cache
def program_files() -> dict[str, str]:
    """What the sandbox of a program is given: how to call, and nothing of the tools or the problem."""
    inside = package_files("palaestra.tasks.tools") / "inside"
    return {"program.py": (inside / "program.py").read_text(encoding="utf-8")}


@cache
def tool_files() -> dict[str, str]:
    """What the sandbox of the tools is given: the library, under the name that it has here."""
    here = package_files("palaestra.tasks.tools")
    found = {"worker.py": (here / "inside" / "worker.py").read_text(encoding="utf-8")}
    for package in ("palaestra", "palaestra/tasks", "palaestra/tasks/tools"):
        found[f"{package}/__init__.py"] = ""
    for file in _modules(here / "library"):
        found[f"palaestra/tasks/tools/library/{file.name}"] = file.read_text(encoding="utf-8")
    return found


def _modules(folder: Traversable) -> Sequence[Traversable]:
    return [file for file in folder.iterdir() if file.name.endswith(".py")]
