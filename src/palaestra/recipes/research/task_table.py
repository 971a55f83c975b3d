"""What the baseline and the reference of every research task score on this machine, as a table of Markdown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from palaestra.core.errors import SettingsError
from palaestra.research.judge.baseline import Measured, measure
from palaestra.research.judge.sandboxing import sandbox_for
from palaestra.research.tasks.task import ResearchTask, load_task
from palaestra.runs.guard import storage_errors

BEGIN, END = "<!-- research tasks: begin -->", "<!-- research tasks: end -->"


@dataclass(frozen=True, slots=True)
class MeasuredTask:
    """A task with its two solutions."""

    task: ResearchTask
    baseline: Measured
    reference: Measured


def measure_tasks(names: Sequence[str], tell: Callable[[MeasuredTask], None] = lambda _: None) -> list[MeasuredTask]:
    """Make and judge the baseline and the reference of each task, afresh and one after the other.

    Raises:
        TaskError: a solution of a task cannot be made or judged.
    """
    found = []
    for name in names:
        task = load_task(name)
        sandbox = sandbox_for(task)
        judge = task.judge(sandbox)
        baseline = measure(task, sandbox, judge, task.baseline, {})
        reference = measure(task, sandbox, judge, task.reference, task.reference_files())
        found.append(MeasuredTask(task, baseline, reference))
        tell(found[-1])
    return found


def table_of(found: Sequence[MeasuredTask]) -> str:
    """The table: scores on the validation and the test split, and the seconds to make and to judge each solution."""
    lines = [
        "| task | metric | baseline: validation, test | make, judge | reference: validation, test | make, judge |",
        "|---|---|---|---|---|---|",
    ]
    for one in found:
        metric = one.task.metric
        cells = [f"`{one.task.name}`", f"{metric.name}, {metric.direction.value}"]
        for solution in (one.baseline, one.reference):
            cells.append(f"{solution.validation.score:.4g}, {solution.test.score:.4g}")
            cells.append(f"{solution.seconds:.1f} s, {solution.test.seconds:.1f} s")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def put_into(path: Path, table: str) -> None:
    """Replace what stands between the two marks of a page.

    Raises:
        SettingsError: the page has no such marks.
    """
    with storage_errors(path, "writing the table of tasks"):
        text = path.read_text(encoding="utf-8")
        before, begin, rest = text.partition(BEGIN)
        _, end, after = rest.partition(END)
        if not begin or not end:
            raise SettingsError(f"{path} must hold the lines '{BEGIN}' and '{END}', between which the table goes")
        path.write_text(f"{before}{BEGIN}\n{table}\n{END}{after}", encoding="utf-8")
