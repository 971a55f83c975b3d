"""What the page of an evaluate run shows, read from its store."""

from __future__ import annotations

from dataclasses import dataclass

from markupsafe import Markup

from palaestra.core.records import Report, StopReason
from palaestra.core.statistics import Mean, report_on, slice_by_metadata
from palaestra.recipes.evaluate.settings import EvaluateSettings
from palaestra.report.appendix import Appendix, make_appendix
from palaestra.report.charts import interval_bar, rate_axis
from palaestra.report.samples import SampleGroup, right_and_wrong
from palaestra.runs.run import Run
from palaestra.tasks.evaluate import measures, outcomes


@dataclass(frozen=True, slots=True)
class SliceRow:
    """A skill, or (`inner`) a subskill, with its picture."""

    report: Report
    inner: bool
    picture: Markup


@dataclass(frozen=True, slots=True)
class Cut:
    """The slices by something that runs across the skills."""

    name: str
    rows: tuple[SliceRow, ...]


@dataclass(frozen=True, slots=True)
class EvaluatePage:
    """Everything on the page of an evaluate run."""

    ended: bool
    task: str
    model: str
    split: str
    seed: int
    samples_each: int
    shots: int
    report: Report
    picture: Markup
    axis: Markup
    rows: tuple[SliceRow, ...]
    cuts: tuple[Cut, ...]
    measures: dict[str, Mean]
    outcomes: tuple[tuple[str, int], ...]
    truncated: int
    samples: tuple[SampleGroup, ...]
    appendix: Appendix


def evaluate_page(run: Run) -> EvaluatePage:
    """Read what an evaluate run has asked so far."""
    # The summary is written last: asked for first, it cannot promise what the store does not hold yet.
    summary = run.summary
    attempts = [attempt for phase in run.store.phases() for attempt in run.store.attempts(phase)]
    report = report_on(attempts, "all problems")
    rows = []
    for skill in report.slices:
        rows.append(SliceRow(skill, False, interval_bar(skill)))
        rows += [SliceRow(part, True, interval_bar(part)) for part in skill.slices]
    settings = run.settings
    samples = int(settings.get("samples", 1))
    # A task's own figures are in the summary; before that, those that follow from the answers.
    stored = {name: Mean(**mean) for name, mean in (summary or {}).get("measures", {}).items()}
    cuts = slice_by_metadata(attempts).items()
    return EvaluatePage(
        ended=summary is not None,
        task=str(settings.get("task", "")),
        model=str(settings.get("model", "")),
        split=str(settings.get("split", "")),
        seed=int(settings.get("seed", 0)),
        samples_each=samples,
        shots=int(settings.get("shots", 0)),
        report=report,
        picture=interval_bar(report),
        axis=rate_axis(),
        rows=tuple(rows),
        cuts=tuple(
            Cut(name, tuple(SliceRow(part, False, interval_bar(part)) for part in parts)) for name, parts in cuts
        ),
        measures=stored or measures(None, attempts, samples),
        outcomes=tuple(outcomes(attempts).items()),
        truncated=sum(a.completion.stop_reason is StopReason.LENGTH for a in attempts if a.completion),
        samples=right_and_wrong(attempts),
        appendix=make_appendix(run, EvaluateSettings),
    )
