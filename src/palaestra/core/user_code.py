"""Point at a user's own file and line in the error messages that are about it."""

from __future__ import annotations

import inspect
import sys
import sysconfig
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

_OURS = Path(__file__).resolve().parents[1]
_INSTALLED = tuple(
    Path(folder).resolve()
    for folder in {*map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib")), sys.prefix}
    if folder
)


def describe_location(function: Callable[..., Any]) -> str:
    """Return ` (task.py, line 41)` for a function that a user wrote; an empty string where there is no file."""
    try:
        code = inspect.unwrap(function).__code__
    except (AttributeError, ValueError):
        return ""
    return _describe(code.co_filename, code.co_firstlineno)


def describe_origin(error: BaseException) -> str:
    """Return ` (task.py, line 41)` for the user's line that `error` came from; an empty string if there is none.

    The line is the deepest one outside Palaestra, Python and the installed packages. Causes are looked through first.
    """
    for one in reversed(_chain(error)):
        for frame in reversed(traceback.extract_tb(one.__traceback__)):
            if is_user_file(frame.filename):
                return _describe(frame.filename, frame.lineno or 0)
    return ""


def is_user_file(filename: str) -> bool:
    """Whether a source file belongs neither to Palaestra nor to Python nor to an installed package."""
    if filename.startswith("<"):
        return False
    path = Path(filename).resolve()
    return not path.is_relative_to(_OURS) and not any(path.is_relative_to(folder) for folder in _INSTALLED)


def _chain(error: BaseException) -> list[BaseException]:
    """The error and its causes, the first cause last."""
    found: list[BaseException] = []
    one: BaseException | None = error
    while one is not None and one not in found:
        found.append(one)
        one = one.__cause__ or (None if one.__suppress_context__ else one.__context__)
    return found


def _describe(filename: str, line: int) -> str:
    return f" ({Path(filename).name}, line {line})" if is_user_file(filename) else ""
