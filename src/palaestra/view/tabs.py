"""The tabs of a run, by its recipe."""

from __future__ import annotations

from collections.abc import Iterator

from palaestra.view.runs import RunCard


def list_tabs(card: RunCard) -> Iterator[tuple[str, str]]:
    """Yield the pages of a run beside its report: the part of the address, and the title."""
    learns_language = card.kind == "train" and card.settings.get("policy") == "lm"
    if card.kind == "research":
        yield "conversation", "Conversation"
    if card.kind == "teach":
        yield "examples", "Examples"
    if card.kind in ("teach", "evaluate") or learns_language:
        yield "problems", "Problems"
    if card.kind == "teach":
        yield "calls", "Teacher calls"
