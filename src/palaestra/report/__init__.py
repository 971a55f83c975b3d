"""Write the report of a run as one self-contained page, `report.html`."""

from palaestra.report.page import write_comparison, write_figures, write_leaderboard, write_report

__all__ = ["write_comparison", "write_figures", "write_leaderboard", "write_report"]
