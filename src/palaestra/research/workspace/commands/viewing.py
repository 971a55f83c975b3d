"""Commands that show a file through a window: open, goto, scroll_up, scroll_down."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from palaestra.research.workspace.commands.base import Command, CommandParameter
from palaestra.research.workspace.commands.session import Session

OVERLAP = 2
"""The lines that two windows share when scrolling."""


def _open(session: Session, arguments: Mapping[str, Any]) -> str:
    path, line = arguments.get("path"), arguments.get("line")
    if path is None:
        if session.view is None:
            raise OPEN.error("PATH is missing, and no file is open")
        path = session.view.path
    location = session.files.existing(path)
    if line is not None and line < 1:
        raise OPEN.error(f"LINE counts from 1; got {line}")
    if line is None:
        same = session.view is not None and session.view.path == location.path
        return session.show(location, session.view.first if session.view and same else 1)
    return session.show(location, _above(session, line), line)


def _goto(session: Session, arguments: Mapping[str, Any]) -> str:
    line = arguments["line"]
    if line < 1:
        raise GOTO.error(f"LINE counts from 1; got {line}")
    return session.show(session.open_place("goto"), _above(session, line), line)


def _scroll_up(session: Session, arguments: Mapping[str, Any]) -> str:
    location = session.open_place("scroll_up")
    assert session.view is not None
    return session.show(location, session.view.first - max(1, session.window - OVERLAP))


def _scroll_down(session: Session, arguments: Mapping[str, Any]) -> str:
    location = session.open_place("scroll_down")
    assert session.view is not None
    return session.show(location, session.view.first + max(1, session.window - OVERLAP))


def _above(session: Session, line: int) -> int:
    """Return the first line of a window that shows a line with some lines above it."""
    return max(1, line - session.window // 4)


OPEN = Command(
    "open",
    _open,
    "Open a file and show a window of its lines with their numbers. Files of the workspace can then be changed with edit "
    "and insert; files outside of it can be read. Without a path, the open file is shown again.",
    (
        CommandParameter("path", "the file, from the current folder or absolute", required=False),
        CommandParameter("line", "a line that the window is to show", "integer", required=False),
    ),
    "open train.py 40",
)
GOTO = Command(
    "goto",
    _goto,
    "Move the window of the open file to a line.",
    (CommandParameter("line", "the line to show", "integer"),),
    "goto 120",
)
SCROLL_UP = Command("scroll_up", _scroll_up, "Move the window of the open file up by its height.")
SCROLL_DOWN = Command("scroll_down", _scroll_down, "Move the window of the open file down by its height.")
