"""A Markdown table of the baseline and reference scores of research tasks on this machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from palaestra.core.errors import SettingsError
from palaestra.research.judge.evaluation import make_judge, sandbox_for
from palaestra.research.tasks.task import ResearchTask, load_task
from palaestra.research.workspace.workspace import MeasuredSolution, measure
from palaestra.runs.files import storage_errors

BEGIN, END = "<!-- research tasks: begin -->", "<!-- research tasks: end -->"


@dataclass(frozen=True, slots=True)
class MeasuredTask:
    """A task with its two measured solutions."""

    task: ResearchTask
    baseline: MeasuredSolution
    reference: MeasuredSolution


def measure_tasks(names: Sequence[str], tell: Callable[[MeasuredTask], None] = lambda _: None) -> list[MeasuredTask]:
    """Measure the baseline and the reference of each task, one after the other.

    Raises:
        TaskError: a solution cannot be made or scored.
    """
    measured = []
    for name in names:
        task = load_task(name)
        sandbox = sandbox_for(task)
        judge = make_judge(task, sandbox)
        baseline = measure(task, sandbox, judge, task.baseline, {})
        reference = measure(task, sandbox, judge, task.reference, task.reference_files())
        measured.append(MeasuredTask(task, baseline, reference))
        tell(measured[-1])
    return measured


def format_table(measured: Sequence[MeasuredTask]) -> str:
    """Return the table: the scores on both splits, the seconds to make and score each solution, and the lowest reward on
    the test split.
    """
    lines = [
        "| task | metric | baseline: validation, test | make, judge | reference: validation, test | make, judge | lowest reward |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in measured:
        metric = row.task.metric
        cells = [f"`{row.task.name}`", f"{metric.name}, {metric.direction.value}"]
        for solution in (row.baseline, row.reference):
            cells.append(f"{solution.validation.score:.4g}, {solution.test.score:.4g}")
            cells.append(f"{solution.seconds:.1f} s, {solution.test.seconds:.1f} s")
        cells.append(f"{metric.reward(None, row.baseline.test.score):.3g}")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def replace_table(path: Path, table: str) -> None:
    """Replace the text between the two marks of a page.

    Raises:
        SettingsError: the page lacks the marks.
    """
    with storage_errors(path, "writing the table of tasks"):
        text = path.read_text(encoding="utf-8")
        before, begin, rest = text.partition(BEGIN)
        _, end, after = rest.partition(END)
        if not begin or not end:
            raise SettingsError(f"{path} must contain the lines '{BEGIN}' and '{END}'")
        path.write_text(f"{before}{BEGIN}\n{table}\n{END}{after}", encoding="utf-8")
