"""The report of `palaestra check` as a file."""

from __future__ import annotations

from pathlib import Path

from palaestra.recipes.check.records import SubjectReport
from palaestra.runs.files import write_text


def write_check_report(report: SubjectReport, path: Path) -> Path:
    """Write a report as JSON."""
    write_text(path, report.to_json())
    return path
