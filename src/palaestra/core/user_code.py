"""Describe errors in user code by the user's own file and line."""

from __future__ import annotations

import inspect
import sys
import sysconfig
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from palaestra.core.errors import PalaestraError

_OURS = Path(__file__).resolve().parents[1]
_INSTALLED = tuple(
    Path(folder).resolve()
    for folder in {*map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib")), sys.prefix}
    if folder
)


def describe_location(function: Callable[..., Any]) -> str:
    """Return ` (task.py, line 41)` for a function in a user's file; an empty string for any other function."""
    try:
        code = inspect.unwrap(function).__code__
    except (AttributeError, ValueError):
        return ""
    return _describe(code.co_filename, code.co_firstlineno)


def describe_origin(error: BaseException) -> str:
    """Return ` (task.py, line 41)` for the user's line that raised `error`; an empty string if there is none.

    The line is the deepest one outside Palaestra, Python and the installed packages. Causes are searched first.
    """
    for link in reversed(_list_causes(error)):
        for frame in reversed(traceback.extract_tb(link.__traceback__)):
            if is_user_file(frame.filename):
                return _describe(frame.filename, frame.lineno or 0)
    return ""


def describe_error(error: BaseException) -> str:
    """Describe an error in one line with the user's line that raised it. Errors of Palaestra are shown without a type."""
    message = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    origin = describe_origin(error)
    if origin in message:
        origin = ""
    if isinstance(error, PalaestraError) and message:
        return f"{message}{origin}"
    return f"{type(error).__name__}: {message}{origin}" if message else f"{type(error).__name__}{origin}"


def describe_error_within(error: BaseException, folder: Path) -> str:
    """Describe an error in one line with the innermost line of it inside a file or folder."""
    message = f"{type(error).__name__}: {' '.join(str(error).split())}".removesuffix(": ")
    frames = traceback.extract_tb(error.__traceback__)
    place = next((frame for frame in reversed(frames) if Path(frame.filename).is_relative_to(folder)), None)
    return message if place is None else f"{message} ({Path(place.filename).name}, line {place.lineno})"


def is_user_file(filename: str) -> bool:
    """Whether a source file belongs neither to Palaestra nor to Python nor to an installed package."""
    if filename.startswith("<"):
        return False
    path = Path(filename).resolve()
    return not path.is_relative_to(_OURS) and not any(path.is_relative_to(folder) for folder in _INSTALLED)


def _list_causes(error: BaseException) -> list[BaseException]:
    """Return the error and its chain of causes, the original cause last."""
    chain: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in chain:
        chain.append(link)
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    return chain


def _describe(filename: str, line: int) -> str:
    return f" ({Path(filename).name}, line {line})" if is_user_file(filename) else ""
