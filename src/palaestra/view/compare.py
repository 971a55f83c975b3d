"""The page that compares runs: curves in common charts, paired tests, settings that differ."""

from __future__ import annotations

from collections.abc import Sequence

from palaestra.report.overlay import compare_curves, compare_to_first, draw_legend
from palaestra.view.pages import list_differences, render
from palaestra.view.runs import RunCard

MOST_RUNS = 20
"""Maximum runs of one comparison: as many as there are lines that can be told apart."""


def render_comparison(cards: Sequence[RunCard]) -> str:
    """Compare runs. Paired tests are against the first."""
    folders = {card.id: card.folder for card in cards}
    tests, whole = compare_to_first(folders)
    differing = [row for row in list_differences(cards) if row["differs"]]
    return render(
        "comparison_of_runs", cards=cards, legend=draw_legend(list(folders)), curves=compare_curves(folders),
        tests={row["name"]: row for row in tests}, page=whole, differing=differing, query={}, folder="", run=None, tab="",
    )  # fmt: skip
