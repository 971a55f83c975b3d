"""Write the report of a run as one self-contained page, `report.html`."""

from __future__ import annotations

from palaestra.core.plugins import make_callable
from palaestra.report.page import write_comparison, write_figures, write_report

__all__ = ["write_comparison", "write_figures", "write_report"]

make_callable(__name__, "palaestra.report.page:write_report")
