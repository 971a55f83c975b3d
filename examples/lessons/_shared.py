"""Shared code of the lesson examples: command-line options, output, and helpers for episodes without `teach`."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from palaestra.core.records import Attempt, Lesson, Report
from palaestra.core.statistics import measure_gain, report_on
from palaestra.envs.lesson import LessonEnv
from palaestra.envs.lesson.state import NullJournal, StudentState
from palaestra.recipes.teach.recipe import TeachResult
from palaestra.report import write_report
from palaestra.runs.files import write_json
from palaestra.runs.provenance import LedgerEntry
from palaestra.runs.run import new_folder
from palaestra.tasks.base import Task
from palaestra.teachers.base import TaskWriter, Teacher, Writer


def arguments(
    description: str | None, *, student: str = "nano", texts: Mapping[str, str] = {}, **sizes: int
) -> argparse.Namespace:
    """Parse the options of an example.

    Arguments:
        student: the default student.
        texts: further text options with their defaults.
        sizes: numeric settings of `teach` with their defaults. `options.sizes` contains their values.
    """
    from transformers.utils import logging

    logging.disable_progress_bar()
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--teacher",
        default="task",
        help="the writer of the examples: task (the task's own generators), openai:MODEL, http://HOST/v1#MODEL, a folder, ...",
    )
    parser.add_argument(
        "--student", default=student, help="the model that learns: a registered name, a folder or a hub id"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of problems, lessons and training")
    parser.add_argument("--out", default="", help="the run folder; a new one below runs/ if not given")
    for name, text in texts.items():
        parser.add_argument(f"--{name}", default=text, help=f"default: {text or 'empty'}")
    for name, value in sizes.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=value, help=f"default: {value}")
    options = parser.parse_args()
    options.sizes = {name: getattr(options, name) for name in sizes}
    return options


def finish(result: TeachResult) -> None:
    """Print the results of a run and write its report."""
    summary = result.summary
    for when in ("before", "after"):
        value, low, high = (summary[f"{when}{end}"] for end in ("", "_low", "_high"))
        print(f"{when}: {value} % [{low}, {high}] of {summary['problems']} test problems")
    print(f"gain {summary['gain']} points [{summary['gain_low']}, {summary['gain_high']}]")
    counts = f"{summary['examples']} examples in {summary['rounds']} rounds, {summary['calls']} calls"
    print(f"{counts}, {summary['seconds']:.0f} s")
    print(f"report: {write_report(result.folder)}")


class RecordingJournal(NullJournal):
    """The journal of an episode without `teach`. It keeps all attempts, which the paired gain needs."""

    def __init__(self) -> None:
        self.kept: dict[str, list[Attempt]] = {}

    def add_attempts(self, phase: str, attempts: Sequence[Attempt], cost: LedgerEntry) -> None:
        self.kept.setdefault(phase, []).extend(attempts)


def finish_episode(journal: RecordingJournal, rounds: int, examples: int, seconds: float, out: Path) -> None:
    """Print and store the results of an episode without `teach`: its test before the first round and after the last."""
    before, after = journal.kept["0/test"], journal.kept[f"{rounds}/test"]
    gain, summary = measure_gain(before, after), {"rounds": rounds, "examples": examples, "seconds": round(seconds, 1)}
    for when, report in (("before", report_on(before)), ("after", report_on(after))):
        value, low, high = _points(report)
        summary |= {when: value, f"{when}_low": low, f"{when}_high": high}
        print(f"{when}: {value} % [{low}, {high}] of {gain.count} test problems")
    summary |= {"gain": gain.points, "gain_low": gain.low, "gain_high": gain.high, "problems": gain.count}
    print(f"gain {gain.points:.2f} points [{gain.low:.2f}, {gain.high:.2f}]")
    print(f"{examples} examples in {rounds} rounds, {seconds:.0f} s")
    write_json(out / "summary.json", summary)
    print(f"lessons and reports of every round: {out}")


def make_folder(options: argparse.Namespace) -> Path:
    """Create the folder of an episode without `teach`."""
    folder = Path(options.out) if options.out else new_folder("episode")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def open_writer(model: str, task: Task, teacher: str) -> Iterator[Writer]:
    """Open the writer of a teacher: the task's own generators, or a language model with a cache of its answers."""
    if model == "task":
        yield TaskWriter(task)
        return
    from palaestra.engines.factory import open_cached
    from palaestra.models.registry import cache_folder
    from palaestra.runs.cache import Cache
    from palaestra.teachers.model_writer import ModelWriter
    from palaestra.teachers.prompts import TeacherPrompts

    cache_folder().mkdir(parents=True, exist_ok=True)
    with Cache(cache_folder() / "calls.sqlite") as cache:
        yield ModelWriter(task, open_cached(model, cache), TeacherPrompts(), teacher)


class CheckedTeacher:
    """Applies the quality checks to a teacher's lessons, as `teach` does for lessons of a language model."""

    def __init__(self, teacher: Teacher, env: LessonEnv) -> None:
        self.teacher, self.env = teacher, env

    def write(self, state: StudentState, size: int, generator: np.random.Generator) -> Lesson:
        from palaestra.teachers.quality.base import Context, inspect, make_checks

        lesson, env = self.teacher.write(state, size, generator), self.env
        context = Context(env.task, env.held_out, env.data, env.student, env.engine, env.sampling)
        inspection = inspect(lesson, make_checks(), context)
        print(f"round {state.round + 1}: {inspection}")
        return replace(lesson, examples=inspection.kept)


def _points(report: Report) -> tuple[Any, ...]:
    known = report.accuracy is not None
    return tuple(
        round(100 * value, 2) if known else None for value in (report.accuracy or 0.0, report.low, report.high)
    )
