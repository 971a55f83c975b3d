"""The pages of an evaluate run and of the comparison of two runs."""

from __future__ import annotations

from palaestra.core.records import Json, Report, StopReason
from palaestra.core.statistics import Comparison, Mean, report_on, slice_by_metadata
from palaestra.recipes.evaluate.compare import CompareResult
from palaestra.recipes.evaluate.settings import EvaluateSettings
from palaestra.report.parts import compare_attempts, make_appendix, right_and_wrong
from palaestra.report.svg import rate_axis, rate_bar
from palaestra.runs.run import Run
from palaestra.tasks.evaluate import measures, outcomes


def evaluate_page(run: Run) -> Json:
    """Read the results of an evaluate run so far."""
    # The summary is written last. Read it first, so that the store contains everything that it mentions.
    summary = run.summary
    attempts = [attempt for phase in run.store.phases() for attempt in run.store.attempts(phase, with_tokens=False)]
    report = report_on(attempts, "all problems")
    rows = []
    for skill in report.slices:
        rows += [_make_slice(skill, False), *(_make_slice(part, True) for part in skill.slices)]
    # A task's own measures are in the summary; before that, only those that follow from the answers are known.
    stored = {name: Mean(**mean) for name, mean in (summary or {}).get("measures", {}).items()}
    return {
        "ended": summary is not None,
        "settings": run.settings,
        "report": report,
        "picture": rate_bar(report),
        "axis": rate_axis(),
        "rows": rows,
        "cuts": {
            name: [_make_slice(part, False) for part in parts] for name, parts in slice_by_metadata(attempts).items()
        },
        "measures": stored or measures(None, attempts, int(run.settings.get("samples", 1))),
        "outcomes": outcomes(attempts),
        "truncated": sum(a.completion.stop_reason is StopReason.LENGTH for a in attempts if a.completion),
        "samples": right_and_wrong(attempts),
        "appendix": make_appendix(run, EvaluateSettings),
    }


def _make_slice(report: Report, inner: bool) -> Json:
    """Make the row of a skill, or (`inner`) of a subskill."""
    return {"report": report, "inner": inner, "picture": rate_bar(report)}


def compare_page(result: CompareResult) -> Json:
    """Show the comparison of two runs."""
    first, second = result.first, result.second
    names = first.folder.resolve().name, second.folder.resolve().name
    # If a problem has several answers, the first is shown.
    left, right = ([a for a in side.attempts if a.sample == 0] for side in (first, second))

    def make_row(part: Comparison) -> Json:
        return {"part": part, "picture": rate_bar(part.first, part.second)}

    return {
        "task": first.task or second.task,
        "names": names,
        "models": (first.model, second.model),
        "whole": make_row(result.comparison),
        "rows": [make_row(part) for part in result.comparison.parts],
        "axis": rate_axis(),
        "notes": result.notes,
        "samples": compare_attempts(left, right, names),
    }
