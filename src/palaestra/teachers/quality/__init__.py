"""Quality: checks that decide what of a lesson is taught."""

from palaestra.teachers.quality.base import CHECKS, Check, Context, inspect, make_checks
from palaestra.teachers.quality.records import (
    Broken,
    CheckReport,
    Dropped,
    Inspection,
    Ruling,
    Verdict,
)

__all__ = [
    "CHECKS",
    "Broken",
    "Check",
    "CheckReport",
    "Context",
    "Dropped",
    "Inspection",
    "Ruling",
    "Verdict",
    "inspect",
    "make_checks",
]
