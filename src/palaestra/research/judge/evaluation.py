"""Judging a submission: outside the agent's reach, on a copy, with the task's own evaluator and hidden data."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from palaestra.core.errors import PalaestraError, SandboxError
from palaestra.core.plugins import locate_error
from palaestra.core.records import Failure, FailureCause
from palaestra.core.seeding import Seeds
from palaestra.research.judge.deadline import OverdueError, within
from palaestra.research.judge.program import Program
from palaestra.research.judge.sandboxing import environment_of, read_only_of
from palaestra.research.tasks.data import TaskData, data_of, function_of
from palaestra.research.tasks.eval_seed import seed_of
from palaestra.research.tasks.records import Grade, Outcome, SubmissionError, Unusable
from palaestra.research.tasks.task import ResearchTask
from palaestra.sandbox.base import Limits, Sandbox, SandboxResult

EvaluationSplit = Literal["validation", "test"]
TOLD = 300
"""Characters of what a submission said on validation data that its maker is locate_error."""
VALUES = (TypeError, ValueError, LookupError, ArithmeticError, AttributeError, RecursionError)
"""What an evaluator raises over a value that is not what it expects."""
PROGRAMS, SLACK = 3.0, 30.0
"""How long judging as a whole may take: that many times a task's `evaluation_seconds`, and so many seconds more. An
evaluator that is not done then is a failure, as an episode, a bench or a baseline would wait for it for ever."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What an evaluator is given.

    It runs in our process and is trusted; the submission is not. Read its files as data (no pickle, no import), and run its code
    by `program` or `run` only, each time in a sandbox of its own.

    Arguments:
        files: a copy of the submission; nothing can change it any more.
        split: `validation` while the agent works, `test` when it has handed in. They share no data.
        public, hidden: the folders of the task's data, where it has any.
        seed: the same for every submission, so that all are judged alike; where the agent has what it takes to draw
            the same, it is this machine's secret.
    """

    task: ResearchTask
    files: Mapping[str, bytes]
    split: EvaluationSplit
    sandbox: Sandbox
    data: TaskData
    seed: int
    _programs: list[Program] = field(default_factory=list, init=False, repr=False)
    _runs: list[str] = field(default_factory=list, init=False, repr=False)

    @property
    def exposed(self) -> bool:
        """Whether code of the submission may have been given anything of the hidden data."""
        return bool(self._runs) or any(program.called for program in self._programs)

    @property
    def public(self) -> Path:
        assert self.data.public is not None, f"task {self.task.name} has no data"
        return self.data.public

    @property
    def hidden(self) -> Path:
        assert self.data.hidden is not None, f"task {self.task.name} has no data"
        return self.data.hidden

    def generator(self, *names: str | int) -> np.random.Generator:
        """A stream of random choices that belongs to this split."""
        return Seeds(self.seed).derive(self.task.name, self.split, *names).generator()

    def text(self, name: str) -> str:
        """A file of the submission as text.

        Raises:
            SubmissionError: it is not there, or no UTF-8.
        """
        if name not in self.files:
            raise SubmissionError(f"there is no {name}")
        try:
            return self.files[name].decode("utf-8")
        except UnicodeDecodeError as error:
            raise SubmissionError(f"{name} is no text in UTF-8: {error.reason} at byte {error.start}") from None

    def program(self, file: str, seconds: float | None = None) -> Program:
        """A Python file of the submission in a sandbox of its own; see `Program`. The public data lie in /data there."""
        if file not in self.files:
            raise SubmissionError(f"there is no {file}")
        made = Program(
            self.sandbox, self.files, file.removesuffix(".py").replace("/", "."), self.limits(seconds),
            read_only_of(self.task, self.data, judging=True), environment_of(self.task),
        )  # fmt: skip
        self._programs.append(made)
        return made

    def run(self, *argv: str, seconds: float | None = None, read_back: tuple[str, ...] = ()) -> SandboxResult:
        """Run a command on the submission's files, in a sandbox of its own."""
        self._runs.append(argv[0] if argv else "")
        return self.sandbox.run(
            argv, self.files, limits=self.limits(seconds), read_back=read_back,
            read_only=read_only_of(self.task, self.data, judging=True), env=environment_of(self.task),
        )  # fmt: skip

    def end_programs(self) -> None:
        """End all programs that are still at work, whatever they are doing."""
        for program in self._programs:
            program.kill()

    def limits(self, seconds: float | None = None) -> Limits:
        """What a submission may use while it is judged."""
        limit = self.task.limits
        wall = limit.evaluation_seconds if seconds is None else seconds
        return Limits(
            wall_seconds=wall, cpu_seconds=4 * wall, memory=limit.memory, processes=limit.processes,
            file_size=1 << 30, output=1 << 26, disk=1 << 30,
        )  # fmt: skip


class Judge:
    """The evaluator of a task, ready to judge.

    Arguments:
        seed: of the evaluator's random choices; see `palaestra.research.tasks.eval_seed.seed_of`.

    Raises:
        TaskError: the evaluator or the data of the task are broken.
    """

    def __init__(self, task: ResearchTask, sandbox: Sandbox, seed: int | None = None) -> None:
        self.task, self.sandbox, self.exposed = task, sandbox, False
        self.seed = seed_of(task) if seed is None else seed
        self._evaluate: Callable[[Evaluation], Any] = function_of(task.folder / task.evaluator, "evaluate")
        self.data = data_of(task)

    def judge(self, files: Mapping[str, bytes], split: EvaluationSplit) -> Outcome:
        """What a submission is worth. Whatever it holds, this raises nothing.

        Afterwards `exposed` says whether its code was given anything of the hidden data.
        """
        start, self.exposed = time.perf_counter(), False
        wrong = self._wrong(files)
        if wrong:
            return Unusable(wrong)
        evaluation = Evaluation(self.task, files, split, self.sandbox, self.data, self.seed)
        most = PROGRAMS * self.task.limits.evaluation_seconds + SLACK
        try:
            given = within(most, lambda: self._evaluate(evaluation), evaluation.end_programs)
            found = _numbers(given)
        except OverdueError:
            said = f"the evaluator of {self.task.name} took longer than {most:g} s, which is the most"
            return Failure(FailureCause.SCORER, said)
        except SubmissionError as error:
            exposed = evaluation.exposed or error.exposed
            return self._refused(error, split) if exposed else Unusable(str(error))
        except SandboxError as error:
            return Failure(FailureCause.SANDBOX, str(error))
        except _NoScoresError as error:
            return Failure(FailureCause.SCORER, f"the evaluator of {self.task.name} {error}")
        except PalaestraError as error:
            return Failure(FailureCause.SCORER, str(error))
        except (Exception, SystemExit) as error:  # An evaluator that breaks says nothing about the submission.
            if isinstance(error, VALUES) and any(program.called for program in evaluation._programs):
                # It got along with the baseline's values; these are the submission's.
                why = f"the evaluator cannot use what it returned ({type(error).__name__})"
                return self._refused(SubmissionError(why, why), split)
            said = locate_error(error, self.task.folder)
            return Failure(FailureCause.SCORER, f"the evaluator of {self.task.name} broke: {said[: 2 * TOLD]}")
        finally:
            self.exposed = evaluation.exposed
        return self._graded(found, time.perf_counter() - start)

    def _graded(self, found: Mapping[str, float], seconds: float) -> Outcome:
        metric = self.task.metric
        if metric.name not in found:
            return Failure(FailureCause.SCORER, f"the evaluator gave no '{metric.name}'; got {sorted(found)}")
        score = found[metric.name]
        # No failure: who hands in what leads to it would be rid of a bad score.
        if not math.isfinite(metric.gain(score, 0.0)):
            return Unusable(f"its {metric.name} is {score}, which is no score", self.exposed)
        low = -math.inf if metric.low is None else metric.low
        high = math.inf if metric.high is None else metric.high
        if not low <= score <= high:
            return Failure(
                FailureCause.SCORER, f"{metric.name} lies between {low} and {high}; the evaluator gave {score}"
            )
        return Grade(score, found, seconds)

    def _refused(self, error: SubmissionError, split: EvaluationSplit) -> Unusable:
        """What is locate_error of code that had hidden data before it: of the test data nothing that it could have said itself."""
        if split == "validation":
            said = str(error)
            return Unusable(said if len(said) <= TOLD else f"{said[:TOLD]}...", exposed=True)
        return Unusable(
            f"on the {split} split {error.kind}. More is locate_error by validate, and by a trial of your own",
            exposed=True,
        )

    def _wrong(self, files: Mapping[str, bytes]) -> str:
        wanted = self.task.submission
        missing = [name for name in wanted.files if name not in files]
        if missing:
            return f"the submission needs {', '.join(wanted.files)}; missing, or no plain files: {', '.join(missing)}"
        total = sum(len(content) for content in files.values())
        if total > wanted.largest:
            return f"the submission has more than {wanted.largest} bytes, which are the most"
        return ""


class _NoScoresError(Exception):
    """What an evaluator gave are no scores."""


def _numbers(given: Any) -> dict[str, float]:
    """What an evaluator gave, as numbers by name; what is none, as `True` or `"0.9"`, is a mistake and never a score."""
    if not isinstance(given, Mapping):
        raise _NoScoresError(f"gives a mapping of names to numbers; got {type(given).__name__}")
    for name, value in given.items():
        if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
            raise _NoScoresError(f"gives numbers, int or float; got {name!s} of the type {type(value).__name__}")
    return {str(name): float(value) for name, value in given.items()}
