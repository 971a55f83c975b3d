"""What the page of a comparison shows."""

from __future__ import annotations

from dataclasses import dataclass

from markupsafe import Markup

from palaestra.core.statistics import Comparison
from palaestra.recipes.evaluate.compare import CompareResult
from palaestra.report.charts import dumbbell, rate_axis
from palaestra.report.samples import SampleGroup, compare_attempts


@dataclass(frozen=True, slots=True)
class PartRow:
    """A skill, or all of them, with the two rates above each other."""

    part: Comparison
    picture: Markup


@dataclass(frozen=True, slots=True)
class ComparePage:
    """Everything on the page of a comparison."""

    task: str
    names: tuple[str, str]
    models: tuple[str, str]
    whole: PartRow
    rows: tuple[PartRow, ...]
    axis: Markup
    notes: tuple[str, ...]
    samples: tuple[SampleGroup, ...]


def compare_page(result: CompareResult) -> ComparePage:
    """Put the comparison of two runs on a page."""
    first, second = result.first, result.second
    names = first.folder.resolve().name, second.folder.resolve().name
    # Of several answers to a problem the first is shown.
    left, right = ([a for a in side.attempts if a.sample == 0] for side in (first, second))
    return ComparePage(
        task=first.task or second.task,
        names=names,
        models=(first.model, second.model),
        whole=_row(result.comparison),
        rows=tuple(_row(part) for part in result.comparison.parts),
        axis=rate_axis(),
        notes=result.notes,
        samples=compare_attempts(left, right, names),
    )


def _row(part: Comparison) -> PartRow:
    return PartRow(part, dumbbell(part.first, part.second))
