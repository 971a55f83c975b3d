"""A run folder as one page to read: `report.html`, with nothing outside of it."""

from __future__ import annotations

from palaestra.report.page import write_comparison, write_report

__all__ = ["write_comparison", "write_report"]
