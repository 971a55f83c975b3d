"""What the page of an evaluate run shows, read from its store."""

from __future__ import annotations

from dataclasses import dataclass

from markupsafe import Markup

from palaestra.core.records import Report
from palaestra.core.statistics import report_on
from palaestra.recipes.evaluate import EvaluateSettings
from palaestra.report.appendix import Appendix, appendix_of
from palaestra.report.bars import axis, interval_bar
from palaestra.report.samples import Group, right_and_wrong
from palaestra.runs.run import Run


@dataclass(frozen=True, slots=True)
class SliceRow:
    """A skill, or (`inner`) a subskill, with its picture."""

    report: Report
    inner: bool
    picture: Markup


@dataclass(frozen=True, slots=True)
class EvaluatePage:
    """Everything on the page of an evaluate run."""

    ended: bool
    task: str
    model: str
    split: str
    seed: int
    report: Report
    picture: Markup
    axis: Markup
    rows: tuple[SliceRow, ...]
    samples: tuple[Group, ...]
    appendix: Appendix


def evaluate_page(run: Run) -> EvaluatePage:
    """Read what an evaluate run has asked so far."""
    # The summary is written last: asked for first, it cannot promise what the store does not hold yet.
    ended = run.summary is not None
    attempts = [attempt for phase in run.store.phases() for attempt in run.store.attempts(phase)]
    report = report_on(attempts, "all problems")
    rows = []
    for skill in report.slices:
        rows.append(SliceRow(skill, False, interval_bar(skill)))
        rows += [SliceRow(part, True, interval_bar(part)) for part in skill.slices]
    settings = run.settings
    return EvaluatePage(
        ended=ended,
        task=str(settings.get("task", "")),
        model=str(settings.get("model", "")),
        split=str(settings.get("split", "")),
        seed=int(settings.get("seed", 0)),
        report=report,
        picture=interval_bar(report),
        axis=axis(),
        rows=tuple(rows),
        samples=right_and_wrong(attempts),
        appendix=appendix_of(run, EvaluateSettings),
    )
