"""Judge a copy of a submission outside the agent's sandbox, with the task's evaluator and hidden data."""

from __future__ import annotations

import importlib.util
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import singledispatch
from pathlib import Path
from typing import Any, Literal

import numpy as np

from palaestra.core.errors import PalaestraError, SandboxError, TaskError
from palaestra.core.plugins import describe_error_within
from palaestra.core.records import Failure, FailureCause
from palaestra.core.seeding import Seeds
from palaestra.research.judge.program import OverdueError, Program, within
from palaestra.research.tasks.data import eval_seed, is_installed, load_data, load_function, missing_package
from palaestra.research.tasks.records import Grade, InvalidSubmission, JudgeResult, SubmissionError, TaskData
from palaestra.research.tasks.task import ResearchTask
from palaestra.sandbox.base import Limits, Sandbox, SandboxResult, make_sandbox

EvaluationSplit = Literal["validation", "test"]
TOLD = 300
"""Maximum characters of a submission's message that the agent sees after its code ran on validation data."""
VALUES = (TypeError, ValueError, LookupError, ArithmeticError, AttributeError, RecursionError)
"""Exceptions that an evaluator raises for a value it did not expect."""
PROGRAMS, SLACK = 3.0, 1800.0
"""The wall time of judging: this many times `evaluation_seconds` plus `SLACK` seconds, which is enough on a busy machine.
Exceeding it is a failure; otherwise an episode, bench or baseline would wait forever.
"""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The input of an evaluator.

    The evaluator runs in our process and is trusted; the submission is not. Read its files as data (no pickle, no
    import), and run its code only through `program` or `run`, which use a fresh sandbox each time.

    Arguments:
        files: a copy of the submission.
        split: `validation` while the agent works, `test` after it has submitted. The splits share no data.
        public, hidden: the folders of the task's data, if it has any.
        seed: the same for every submission; secret if the agent could otherwise generate the hidden data.
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
        """Whether the submission's code may have seen hidden data."""
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
        """Return a random generator for this split and these names."""
        return Seeds(self.seed).derive(self.task.name, self.split, *names).generator()

    def text(self, name: str) -> str:
        """Return a file of the submission as text.

        Raises:
            SubmissionError: the file is missing or not UTF-8.
        """
        if name not in self.files:
            raise SubmissionError(f"{name} is missing")
        try:
            return self.files[name].decode("utf-8")
        except UnicodeDecodeError as error:
            raise SubmissionError(f"{name} is not UTF-8 text: {error.reason} at byte {error.start}") from None

    def program(self, file: str, seconds: float | None = None) -> Program:
        """Start a Python file of the submission in its own sandbox; see `Program`. The public data are in /data there."""
        if file not in self.files:
            raise SubmissionError(f"there is no {file}")
        program = Program(
            self.sandbox, self.files, file.removesuffix(".py").replace("/", "."), self.limits(seconds),
            read_only_mounts(self.task, self.data, judging=True), sandbox_environment(self.task),
        )  # fmt: skip
        self._programs.append(program)
        return program

    def run(self, *argv: str, seconds: float | None = None, read_back: tuple[str, ...] = ()) -> SandboxResult:
        """Run a command on the submission's files in its own sandbox."""
        self._runs.append(argv[0] if argv else "")
        return self.sandbox.run(
            argv, self.files, limits=self.limits(seconds), read_back=read_back,
            read_only=read_only_mounts(self.task, self.data, judging=True), env=sandbox_environment(self.task),
        )  # fmt: skip

    def end_programs(self) -> None:
        """Kill all running programs."""
        for program in self._programs:
            program.kill()

    def limits(self, seconds: float | None = None) -> Limits:
        """Return the limits of a submission while it is judged."""
        limit = self.task.limits
        return Limits.for_work(
            limit.evaluation_seconds if seconds is None else seconds, memory=limit.memory, processes=limit.processes,
            file_size=1 << 30, output=1 << 26, disk=1 << 30,
        )  # fmt: skip


class SubmissionJudge:
    """Judges submissions with the evaluator of a task.

    Arguments:
        seed: the seed of the evaluator's random choices; see `palaestra.research.tasks.data`.

    Raises:
        TaskError: the evaluator or the data of the task cannot be loaded.
    """

    def __init__(self, task: ResearchTask, sandbox: Sandbox, seed: int | None = None) -> None:
        self.task, self.sandbox, self.exposed = task, sandbox, False
        self.seed = eval_seed(task) if seed is None else seed
        self._evaluate: Callable[[Evaluation], Any] = load_function(task.folder / task.evaluator, "evaluate")
        self.data = load_data(task)

    def judge(self, files: Mapping[str, bytes], split: EvaluationSplit) -> JudgeResult:
        """Judge a submission. Never raises, whatever the submission contains.

        Afterwards `exposed` says whether the submission's code has seen hidden data.
        """
        start, self.exposed = time.perf_counter(), False
        wrong = self._wrong(files)
        if wrong:
            return InvalidSubmission(wrong)
        evaluation = Evaluation(self.task, files, split, self.sandbox, self.data, self.seed)
        most = PROGRAMS * self.task.limits.evaluation_seconds + SLACK
        try:
            given = within(most, lambda: self._evaluate(evaluation), evaluation.end_programs)
            scores = _to_numbers(given, self.task.name)
        except OverdueError:
            message = f"the evaluator of {self.task.name} exceeded its time limit of {most:g} s"
            return Failure(FailureCause.SCORER, message)
        except SubmissionError as error:
            exposed = evaluation.exposed or error.exposed
            return self._reject(error, split) if exposed else InvalidSubmission(str(error))
        except SandboxError as error:
            return Failure(FailureCause.SANDBOX, str(error))
        except PalaestraError as error:
            return Failure(FailureCause.SCORER, str(error))
        except (Exception, SystemExit) as error:  # A broken evaluator says nothing about the submission.
            if isinstance(error, VALUES) and any(program.called for program in evaluation._programs):
                # The evaluator accepted the baseline's values, so the submission's values are at fault.
                why = f"the evaluator cannot use its return value ({type(error).__name__})"
                return self._reject(SubmissionError(why, why), split)
            message = describe_error_within(error, self.task.folder)
            return Failure(FailureCause.SCORER, f"the evaluator of {self.task.name} failed: {message[: 2 * TOLD]}")
        finally:
            self.exposed = evaluation.exposed
        return self._grade(scores, time.perf_counter() - start)

    def _grade(self, scores: Mapping[str, float], seconds: float) -> JudgeResult:
        metric = self.task.metric
        if metric.name not in scores:
            return Failure(
                FailureCause.SCORER, f"expected '{metric.name}' among the evaluator's scores; got {sorted(scores)}"
            )
        score = scores[metric.name]
        # Not a failure: an agent could otherwise escape a bad score this way.
        if not math.isfinite(metric.gain(score, 0.0)):
            return InvalidSubmission(f"its {metric.name} is {score}, which is not a score", self.exposed)
        low = -math.inf if metric.low is None else metric.low
        high = math.inf if metric.high is None else metric.high
        if not low <= score <= high:
            return Failure(
                FailureCause.SCORER, f"{metric.name} must be between {low} and {high}; the evaluator returned {score}"
            )
        return Grade(score, scores, seconds)

    def _reject(self, error: SubmissionError, split: EvaluationSplit) -> InvalidSubmission:
        """Build the message for code that has seen hidden data. On the test split it quotes nothing from the
        submission.
        """
        if split == "validation":
            message = str(error)
            return InvalidSubmission(message if len(message) <= TOLD else f"{message[:TOLD]}...", exposed=True)
        return InvalidSubmission(
            f"on the {split} split {error.kind}. Use validate or a test of your own for details", exposed=True
        )

    def _wrong(self, files: Mapping[str, bytes]) -> str:
        wanted = self.task.submission
        missing = [name for name in wanted.files if name not in files]
        if missing:
            return f"the submission needs {', '.join(wanted.files)}; missing or not regular files: {', '.join(missing)}"
        total = sum(len(content) for content in files.values())
        if total > wanted.largest:
            return f"the submission exceeds the limit of {wanted.largest} bytes"
        return ""


@singledispatch
def make_judge(task: ResearchTask, sandbox: Sandbox) -> SubmissionJudge:
    """Make the judge of a task. Task types with their own judge register it here.

    Raises:
        TaskError: the evaluator or the data of the task cannot be loaded.
    """
    return SubmissionJudge(task, sandbox)


def _to_numbers(given: Any, task: str) -> dict[str, float]:
    """Convert an evaluator's result to numbers by name. Values such as `True` or `"0.9"` are errors, never scores."""
    if not isinstance(given, Mapping):
        raise TaskError(
            f"the evaluator of {task} must return a mapping of names to numbers; got {type(given).__name__}"
        )
    for name, value in given.items():
        if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
            raise TaskError(
                f"the evaluator of {task} must return numbers, int or float; got {name!s} of type {type(value).__name__}"
            )
    return {str(name): float(value) for name, value in given.items()}


LIBRARY = "/opt/palaestra"
"""The path of this package in the sandbox of tasks that may import it."""


def sandbox_for(task: ResearchTask, name: str = "bubblewrap", **options: Any) -> Sandbox:
    """Make the sandbox of a task's agents and submissions, without files that would reveal answers.

    Raises:
        TaskError: a package that the task needs is not installed.
        SandboxError: the sandbox cannot run here.
    """
    for package in task.dependencies:
        if not is_installed(package):
            raise missing_package(f"task '{task.name}'", package)
    hide = [path for name_ in task.hide if (path := _find_installed(name_)) is not None]
    if hide and name != "bubblewrap":
        raise TaskError(
            f"task '{task.name}' hides files of installed packages; this needs the sandbox 'bubblewrap'; got '{name}'"
        )
    if hide:
        options = {**options, "hide": (*options.get("hide", ()), *hide)}
    return make_sandbox(name, **options, **task.prepare_sandbox(name))


def read_only_mounts(task: ResearchTask, data: TaskData, judging: bool = False) -> Mapping[str, str]:
    """Return the read-only mounts of a task's sandbox, from the path inside to the path on the host; `judging` selects
    the sandbox that judges a submission.
    """
    mounts = dict(task.mounts(data, judging))
    if task.palaestra:
        here = Path(__file__).parents[2]
        # Research tasks and the generators of problems, the folders in tasks, could reveal hidden problems.
        for path in (*here.iterdir(), *(here / "tasks").glob("*.py")):
            if path.name not in ("research", "tasks", "__pycache__") and (
                path.is_dir() or path.suffix in (".py", ".typed")
            ):
                mounts[f"{LIBRARY}/palaestra/{path.relative_to(here)}"] = str(path)
    return dict(sorted(mounts.items()))


def sandbox_environment(task: ResearchTask) -> dict[str, str]:
    """Return the environment variables of a task's sandboxes."""
    own = {"PYTHONPATH": LIBRARY, "HF_HUB_OFFLINE": "1"} if task.palaestra else {}
    # Workspaces share the cores; a thread per core in each would slow all of them down.
    return {"OMP_NUM_THREADS": "1", **own, **task.variables()}


def _find_installed(name: str) -> Path | None:
    """Return a path below an installed package if it exists."""
    package, _, rest = name.partition("/")
    spec = importlib.util.find_spec(package) if is_installed(package) else None
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent / rest
    return path if path.exists() else None
