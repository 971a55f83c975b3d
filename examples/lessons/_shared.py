"""What the examples of the lesson scale share: how they are called, and how they say what came out."""

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
from palaestra.envs.lesson.journal import NullJournal
from palaestra.envs.lesson.state import StudentState
from palaestra.recipes.teach.recipe import TeachResult
from palaestra.report import write_report
from palaestra.runs.files import write_json
from palaestra.runs.ledger import LedgerEntry
from palaestra.runs.run import new_folder
from palaestra.tasks.base import Task
from palaestra.teachers.base import TaskWriter, Teacher, Writer


def arguments(
    description: str | None, *, student: str = "nano", texts: Mapping[str, str] = {}, **sizes: int
) -> argparse.Namespace:
    """The options of an example.

    Arguments:
        student: who learns unless told otherwise.
        texts: further options that are texts, with what they are unless told otherwise.
        sizes: settings of `teach` that are numbers, with what they are unless told otherwise. They come back as
            `options.sizes`, too.
    """
    from transformers.utils import logging

    logging.disable_progress_bar()
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--teacher",
        default="task",
        help="who writes the examples: task (its own generators), openai:MODEL, http://HOST/v1#MODEL, a folder, ...",
    )
    parser.add_argument("--student", default=student, help="who learns: a registered name, a folder or a hub id")
    parser.add_argument("--seed", type=int, default=0, help="of problems, lessons and training")
    parser.add_argument("--out", default="", help="the run folder; a new one below runs/ if not given")
    for name, text in texts.items():
        parser.add_argument(f"--{name}", default=text, help=f"{text or 'empty'} if not given")
    for name, value in sizes.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=value, help=f"{value} if not given")
    options = parser.parse_args()
    options.sizes = {name: getattr(options, name) for name in sizes}
    return options


def finish(result: TeachResult) -> None:
    """Write the report of a run, and say what came out of it."""
    found = result.summary
    for when in ("before", "after"):
        value, low, high = (found[f"{when}{end}"] for end in ("", "_low", "_high"))
        print(f"{when}: {value} % [{low}, {high}] of {found['problems']} test problems")
    print(f"gain {found['gain']} points [{found['gain_low']}, {found['gain_high']}]")
    print(f"{found['examples']} examples in {found['rounds']} rounds, {found['calls']} calls, {found['seconds']:.0f} s")
    print(f"report: {write_report(result.folder)}")


class Remembering(NullJournal):
    """The journal of an episode that is played without `teach`: it keeps every attempt, so that gains can be paired."""

    def __init__(self) -> None:
        self.kept: dict[str, list[Attempt]] = {}

    def add_attempts(self, phase: str, attempts: Sequence[Attempt], cost: LedgerEntry) -> None:
        self.kept.setdefault(phase, []).extend(attempts)


def finish_episode(journal: Remembering, rounds: int, examples: int, seconds: float, out: Path) -> None:
    """The same for an episode without a run: its test problems before the first round and after the last."""
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


def folder_of(options: argparse.Namespace) -> Path:
    """Where an episode without a run keeps what it has."""
    folder = Path(options.out) if options.out else new_folder("episode")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def writer_of(model: str, task: Task, teacher: str) -> Iterator[Writer]:
    """Who writes what `teacher` orders: the task's own generators, or a language model, whose answers are kept."""
    if model == "task":
        yield TaskWriter(task)
        return
    from palaestra.engines.factory import open_cached
    from palaestra.engines.models import cache_folder
    from palaestra.runs.cache import Cache
    from palaestra.teachers.model_writer import ModelWriter
    from palaestra.teachers.prompts import TeacherPrompts

    cache_folder().mkdir(parents=True, exist_ok=True)
    with Cache(cache_folder() / "calls.sqlite") as cache:
        yield ModelWriter(task, open_cached(model, cache), TeacherPrompts(), teacher)


class Checked:
    """A teacher of whose lessons only what passes the checks is taught, as `teach` does where a language model writes."""

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
