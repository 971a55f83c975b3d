"""Settings that every run has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict

from palaestra.core.settings import setting


@dataclass(frozen=True)
class RunSettings:
    """Base class of the settings of recipes."""

    tags: tuple[str, ...] = setting(
        (), "Words of your own for the list of runs, which can be searched and grouped by them."
    )


class RunOptions(TypedDict, total=False):
    """The fields of `RunSettings` as keyword arguments."""

    tags: Sequence[str]
