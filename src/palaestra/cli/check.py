"""`palaestra check`: find the faults of an environment, a task or a research task."""

from __future__ import annotations

import shlex
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group
from rich.text import Text

from palaestra.cli.options import document, make_completion
from palaestra.cli.terminal import console, make_table, quiet, say
from palaestra.core.errors import SettingsError
from palaestra.core.records import Event
from palaestra.recipes.progress import RunProgress, plain_console

if TYPE_CHECKING:
    from palaestra.recipes.check.records import CheckRecord, SubjectReport

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}
_COLORS = {"pass": "green", "fail": "red", "warn": "yellow", "skip": "dim"}


@document
def check(
    env: Annotated[str, typer.Argument(metavar="ENV|TASK|FOLDER", autocompletion=make_completion("environments"))],
    task: Annotated[bool, typer.Option("--task")] = False,
    level: int = 3,
    budget: str = "",
    option: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE")] = None,
    oracle: Annotated[str, typer.Option(metavar="FILE.py:FUNCTION")] = "",
    only: Annotated[list[str] | None, typer.Option(metavar="CHECK")] = None,
    seed: int = 0,
    json_: Annotated[bool, typer.Option("--json")] = False,
    out: Path | None = None,
) -> None:
    """Find the faults of an environment or a task: its contract, scorer, leaks and floors. Exit code 1 if a check fails.

    Arguments:
        env: An id, PREFIX:ID, file.py:Class, a task, a research task or its folder.
        task: The argument is a task, for example a file of data.
        level: 1: contract; 2: also the scorer; 3: also leaks and floors; 4: also learnability.
        budget: Maximum time, for example 90s or 5m.
        option: An option of the environment or the task, several times.
        oracle: Returns the right answer of a problem, or of an environment after its reset: a text or a list of
            turns.
        only: Only this check, several times.
        seed: The first seed of the episodes.
        json_: Print the report as JSON.
        out: Write the report to this file: .json, .html, or .svg for a badge.
    """
    from palaestra.core.registry import load_reference
    from palaestra.recipes.check.recipe import check_subject, describe_plan, plan_checks
    from palaestra.recipes.check.subjects import make_subject
    from palaestra.recipes.settings import parse_options

    quiet()
    if out is not None and out.suffix not in (".json", ".html", ".svg"):
        raise SettingsError(f"--out: expected a file that ends in .json, .html or .svg; got {out}")
    subject = make_subject(
        env,
        is_task=task,
        options=parse_options(option or (), "option"),
        oracle=load_reference(oracle) if oracle else None,
        seed=seed,
    )
    if oracle:
        subject.command += f" --oracle {shlex.quote(oracle)}"
    if not json_:
        for line in describe_plan(plan_checks(subject, level, only or ()), subject):
            say(line)
    with RunProgress(plain_console(stderr=True) if json_ else console) as progress:
        report = check_subject(
            subject,
            level=level,
            budget=parse_duration(budget),
            only=only or (),
            listener=lambda event: progress(Event(event.phase, event.done, event.total)),
        )
    if json_:
        typer.echo(report.to_json())
    else:
        print_report(report)
    if out is not None:
        from palaestra.report.page import write_check_report

        say(f"report: {write_check_report(report, out)}")
    if report.verdict == "fail":
        raise typer.Exit(1)


def parse_duration(text: str) -> float:
    """Seconds of a text such as `90s`, `5m` or `1h`; 0 if it is empty.

    >>> parse_duration("5m"), parse_duration("90")
    (300.0, 90.0)
    """
    if not text:
        return 0.0
    number, unit = (text[:-1], text[-1]) if text[-1] in _UNITS else (text, "s")
    try:
        seconds = float(number) * _UNITS[unit]
    except ValueError:
        seconds = 0.0
    if seconds <= 0:
        raise SettingsError(f"--budget: expected a time such as 90s, 5m or 1h; got '{text}'")
    return seconds


def print_report(report: SubjectReport) -> None:
    """Print a report: a line per check, then each fault with its evidence."""
    table = make_table(None, "check")
    for title in ("status", "result"):
        table.add_column(title, overflow="fold")
    blocked = Counter(result.summary for result in report.results if result.status == "skip")
    for result in report.results:
        if result.status == "skip" and blocked[result.summary] > 3:
            continue
        table.add_row(result.check_id, Text(result.status, _COLORS[result.status]), result.summary)
    console.print(table)
    for summary, count in blocked.items():
        if count > 3:
            say(f"{count} checks skipped: {summary}")
    for result in report.results:
        if result.remediation:
            print_fault(result)
    counts = ", ".join(
        f"{sum(result.status == status for result in report.results)} {status}"
        for status in ("pass", "fail", "warn", "skip")
    )
    if report.stopped:
        say(f"stopped: {report.stopped}")
    say(f"{report.target}: {report.verdict}; {len(report.results)} checks up to level {report.level}: {counts}; "
        f"{report.seconds:.1f} s")  # fmt: skip


def print_fault(result: CheckRecord) -> None:
    """Print a fault with its evidence, the command that shows it again, and the remedy."""
    head, *lines = result.describe()
    console.print(Group(Text(head, _COLORS[result.status]), *map(Text, lines)))
