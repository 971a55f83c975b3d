"""Quality checks, which filter the examples of a lesson."""

from palaestra.teachers.quality.base import CHECKS, Check, Context, inspect, make_checks
from palaestra.teachers.quality.records import (
    Broken,
    CheckReport,
    CheckResult,
    Dropped,
    Inspection,
    Ruling,
)

__all__ = [
    "CHECKS",
    "Broken",
    "Check",
    "CheckReport",
    "CheckResult",
    "Context",
    "Dropped",
    "Inspection",
    "Ruling",
    "inspect",
    "make_checks",
]
