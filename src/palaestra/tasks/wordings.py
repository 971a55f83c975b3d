"""The wordings of questions that a task understands, as regular expressions in a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from palaestra.core.tables import load_table

T = TypeVar("T")


def read_wordings(
    module: str, group: str, functions: Mapping[str, Any], pieces: Mapping[str, str] | None = None
) -> list[tuple[str, Callable[..., T]]]:
    """Read a group of `wordings.yaml` in the folder of a module: patterns with the functions that solve them, in order.

    A row names one of the functions without its underscore, and may have an argument for it, which comes last. A name in braces
    in a pattern stands for a piece: one of the group `pieces`, or of the argument.
    """
    table: Mapping[str, Any] = load_table(module, "wordings")
    known = dict(pieces or {})

    def fill(text: str) -> str:
        for name, piece in known.items():
            text = text.replace(f"{{{name}}}", piece)
        return text

    for name, text in table.get("pieces", {}).items():
        known[name] = fill(text)
    wordings = []
    for solver, pattern in table[group]:
        name, _, argument = solver.partition(" ")
        solve = functions[f"_{name}"]
        wordings.append((fill(pattern), partial(_append, solve, argument) if argument else solve))
    return wordings


def _append(solve: Callable[..., T], argument: str, *given: Any) -> T:
    return solve(*given, argument)
