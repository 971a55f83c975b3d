"""Judge a copy of a submission outside the agent's sandbox, with the task's evaluator and hidden data."""

from __future__ import annotations

import importlib.util
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial, singledispatch
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np

from palaestra.core.errors import PalaestraError, SandboxError, TaskError
from palaestra.core.records import Failure, FailureCause
from palaestra.core.registry import describe_error_within
from palaestra.core.seeding import Seeds
from palaestra.research.judge.program import OverdueError, Program, within
from palaestra.research.tasks.data import eval_seed, is_installed, load_data, load_function, missing_package
from palaestra.research.tasks.task import Grade, InvalidSubmission, JudgeResult, ResearchTask, SubmissionError, TaskData
from palaestra.sandbox.base import Limits, Sandbox, SandboxCommand, SandboxResult, make_sandbox

EvaluationSplit = Literal["validation", "test"]
_MAX_MESSAGE = 300
"""Maximum characters of a submission's message that the agent sees after its code ran on validation data."""
_VALUES = (TypeError, ValueError, LookupError, ArithmeticError, AttributeError, RecursionError)
"""Exceptions that an evaluator raises for a value it did not expect."""
_PROGRAMS, SLACK = 3.0, 1800.0
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
        module = file.removesuffix(".py").replace("/", ".")
        mounts, variables = read_only_mounts(self.task, self.data, judging=True), sandbox_environment(self.task)
        self._programs.append(Program(self.sandbox, self.files, module, self.limits(seconds), mounts, variables))
        return self._programs[-1]

    def run(self, *argv: str, seconds: float | None = None, read_back: tuple[str, ...] = ()) -> SandboxResult:
        """Run a command on the submission's files in its own sandbox."""
        self._runs.append(argv[0] if argv else "")
        command = SandboxCommand(
            argv,
            self.files,
            limits=self.limits(seconds),
            env=sandbox_environment(self.task),
            read_back=read_back,
            read_only=read_only_mounts(self.task, self.data, judging=True),
        )
        return self.sandbox.run(command)

    def end_programs(self) -> None:
        """Kill all running programs."""
        for program in self._programs:
            program.kill()

    def limits(self, seconds: float | None = None) -> Limits:
        """Return the limits of a submission while it is judged."""
        limit = self.task.limits
        seconds = limit.evaluation_seconds if seconds is None else seconds
        sizes = {"memory": limit.memory, "file_size": 1 << 30, "output": 1 << 26, "disk": 1 << 30}
        return Limits.for_work(seconds, processes=limit.processes, **sizes)


class SubmissionJudge:
    """Judges submissions with the evaluator of a task.

    Raises:
        TaskError: the evaluator or the data of the task cannot be loaded.
    """

    def __init__(self, task: ResearchTask, sandbox: Sandbox) -> None:
        self.task, self.sandbox, self.exposed, self.seed = task, sandbox, False, eval_seed(task)
        self._evaluate: Callable[[Evaluation], object] = load_function(task.folder / task.evaluator, "evaluate")
        self.data = load_data(task)

    def judge(self, files: Mapping[str, bytes], split: EvaluationSplit) -> JudgeResult:
        """Judge a submission. Never raises, whatever the submission contains.

        Afterwards `exposed` says whether the submission's code has seen hidden data.
        """
        start, self.exposed = time.perf_counter(), False
        if wrong := self._wrong(files):
            return InvalidSubmission(wrong)
        evaluation = Evaluation(self.task, files, split, self.sandbox, self.data, self.seed)
        most = _PROGRAMS * self.task.limits.evaluation_seconds + SLACK
        try:
            given = within(most, lambda: self._evaluate(evaluation), evaluation.end_programs)
            scores = _to_numbers(given, self.task.name)
        except OverdueError:
            return _fail(f"the evaluator of {self.task.name} exceeded its time limit of {most:g} s")
        except SubmissionError as error:
            exposed = evaluation.exposed or error.exposed
            return self._reject(error, split) if exposed else InvalidSubmission(str(error))
        except SandboxError as error:
            return Failure(FailureCause.SANDBOX, str(error))
        except PalaestraError as error:
            return _fail(str(error))
        except (Exception, SystemExit) as error:  # A broken evaluator says nothing about the submission.
            if isinstance(error, _VALUES) and any(program.called for program in evaluation._programs):
                # The evaluator accepted the baseline's values, so the submission's values are at fault.
                why = f"the evaluator cannot use its return value ({type(error).__name__})"
                return self._reject(SubmissionError(why, why), split)
            message = describe_error_within(error, self.task.folder)[: 2 * _MAX_MESSAGE]
            return _fail(f"the evaluator of {self.task.name} failed: {message}")
        finally:
            self.exposed = evaluation.exposed
        return self._grade(scores, time.perf_counter() - start)

    def _grade(self, scores: Mapping[str, float], seconds: float) -> JudgeResult:
        metric = self.task.metric
        if metric.name not in scores:
            return _fail(f"expected '{metric.name}' among the evaluator's scores; got {sorted(scores)}")
        score = scores[metric.name]
        # Not a failure: an agent could otherwise escape a bad score this way.
        if not math.isfinite(metric.gain(score, 0.0)):
            return InvalidSubmission(f"its {metric.name} is {score}, which is not a score", self.exposed)
        low = -math.inf if metric.low is None else metric.low
        high = math.inf if metric.high is None else metric.high
        if not low <= score <= high:
            return _fail(f"{metric.name} must be between {low} and {high}; the evaluator returned {score}")
        return Grade(score, scores, seconds)

    def _reject(self, error: SubmissionError, split: EvaluationSplit) -> InvalidSubmission:
        """Build the message for code that has seen hidden data. On the test split it quotes nothing from the
        submission.
        """
        message = str(error)
        if split == "test":
            message = f"on the {split} split {error.kind}. Use validate or a test of your own for details"
        elif len(message) > _MAX_MESSAGE:
            message = f"{message[:_MAX_MESSAGE]}..."
        return InvalidSubmission(message, exposed=True)

    def _wrong(self, files: Mapping[str, bytes]) -> str:
        wanted = self.task.submission
        if missing := [name for name in wanted.files if name not in (*files, "*")]:
            return f"the submission needs {', '.join(wanted.files)}; missing or not regular files: {', '.join(missing)}"
        if sum(map(len, files.values())) > wanted.largest:
            return f"the submission exceeds the limit of {wanted.largest} bytes"
        return ""


_fail = partial(Failure, FailureCause.SCORER)


@singledispatch
def make_judge(task: ResearchTask, sandbox: Sandbox) -> SubmissionJudge:
    """Make the judge of a task. Task types with their own judge register it here.

    Raises:
        TaskError: the evaluator or the data of the task cannot be loaded.
    """
    return SubmissionJudge(task, sandbox)


def _to_numbers(given: object, task: str) -> dict[str, float]:
    """Convert an evaluator's result to numbers by name. Values such as `True` or `"0.9"` are errors, never scores."""
    must = f"the evaluator of {task} must return"
    if not isinstance(given, Mapping):
        raise TaskError(f"{must} a mapping of names to numbers; got {type(given).__name__}")
    for name, value in given.items():
        if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
            raise TaskError(f"{must} numbers, int or float; got {name!s} of type {type(value).__name__}")
    return {str(name): float(value) for name, value in given.items()}


_LIBRARY = "/opt/palaestra"
"""The path of this package in the sandbox of tasks that may import it."""
_READERS = (
    *(f"{folder}/__init__.py" for folder in ("code", "content", "math", "vision", "vision/image_generators")),
    *(f"content/briefs/vision-{name}.txt" for name in ("answers", "scenes")),
    *(f"code/{name}.py" for name in ("canonical", "comparison", "extraction", "formats", "judge")),
    *(f"vision/{name}.py" for name in ("answers", "image_generators/base", "pictures", "render", "scene")),
    "math/equivalence",
    "math/extraction.py",
    "vision/words.yaml",
)
"""Modules and their tables in the folders of `tasks` that environments and students import. They read and score answers."""


def sandbox_for(task: ResearchTask, name: str = "bubblewrap") -> Sandbox:
    """Make the sandbox of a task's agents and submissions, without files that would reveal answers.

    Raises:
        TaskError: a package that the task needs is not installed.
        SandboxError: the sandbox cannot run here.
    """
    for package in task.dependencies:
        if not is_installed(package):
            raise missing_package(f"task '{task.name}'", package)
    hide = tuple(path for hidden in task.hide if (path := _find_installed(hidden)) is not None)
    if hide and name != "bubblewrap":
        hides = f"task '{task.name}' hides files of installed packages"
        raise TaskError(f"{hides}; this needs the sandbox 'bubblewrap'; got '{name}'")
    return make_sandbox(name, **({"hide": hide} if hide else {}), **task.prepare_sandbox(name))


def read_only_mounts(task: ResearchTask, data: TaskData, judging: bool = False) -> Mapping[str, str]:
    """Return the read-only mounts of a task's sandbox, from the path inside to the path on the host; `judging` selects
    the sandbox that judges a submission.
    """
    mounts = dict(task.mounts(data, judging))
    if task.palaestra:
        here = Path(__file__).parents[2]
        # Research tasks and the generators of problems, the folders in tasks, could reveal hidden problems.
        readers = (here / "tasks" / name for name in _READERS)
        for path in (*here.iterdir(), *(here / "tasks").glob("*.*"), *readers, here / "research" / "__init__.py"):
            if path.name not in ("research", "tasks", "__pycache__") and (
                path.is_dir() or path.suffix in (".py", ".yaml", ".txt", ".typed")
            ):
                mounts[f"{_LIBRARY}/palaestra/{path.relative_to(here)}"] = str(path)
    return dict(sorted(mounts.items()))


def sandbox_environment(task: ResearchTask) -> dict[str, str]:
    """Return the environment variables of a task's sandboxes."""
    own = {"PYTHONPATH": _LIBRARY, "HF_HUB_OFFLINE": "1"} if task.palaestra else {}
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


Move = TypeVar("Move")


def play_field(
    evaluation: Evaluation,
    file: str,
    function: str,
    field: Sequence[Callable[[list[Move], list[Move], np.random.Generator], Move]],
    settle: Callable[[object, Move, np.random.Generator], tuple[Move, Move, float]],
    *,
    games: int,
    rounds: tuple[int, int],
) -> np.ndarray:
    """Return the mean points per round against each opponent.

    Arguments:
        file, function: the submission's function, called every round with its own moves and the opponent's so far.
        field: the opponents; each chooses from its own moves, the submission's and a random generator.
        settle: maps the submission's return value and the opponent's move to the moves that were played and the points;
            raises `SubmissionError` for an invalid move.
        games: games against each opponent.
        rounds: the minimum and maximum rounds of a game; players do not know the number.
    """
    # Each game has its own generator, so that moves in one game do not affect the luck of another. The call order is
    # shuffled every round, so that it does not reveal the opponent.
    order = evaluation.generator("order")
    chances = [evaluation.generator("game", number) for number in range(games * len(field))]
    lengths = [int(rng.integers(rounds[0], rounds[1] + 1)) for rng in chances]
    past: list[tuple[list[Move], list[Move]]] = [([], []) for _ in chances]
    points = np.zeros(len(chances))
    with evaluation.program(file) as program:
        for round_ in range(max(lengths)):
            playing = [int(k) for k in order.permutation(len(lengths)) if round_ < lengths[k]]
            chosen = program.map(function, [past[k] for k in playing])
            for k, choice in zip(playing, chosen, strict=True):
                ours, theirs = past[k]
                reply = field[k // games](theirs, ours, chances[k])
                own, other, won = settle(choice, reply, chances[k])
                points[k] += won
                ours.append(own)
                theirs.append(other)
    means: np.ndarray = (points / np.array(lengths)).reshape(-1, games).mean(1)
    return means


def settle_with_slips(
    function: str, points: Mapping[tuple[str, str], float], slip: float
) -> Callable[[object, str, np.random.Generator], tuple[str, str, float]]:
    """Return `settle` for a game of two moves in which each player sometimes makes the other move by accident.

    Arguments:
        function: the submission's function, for the error on an invalid move.
        points: the submission's points by both actual moves, its own first.
        slip: the probability of an accident.
    """
    first, second = sorted({move for move, _ in points})
    other = {first: second, second: first}

    def slip_move(move: str, rng: np.random.Generator) -> str:
        return other[move] if rng.random() < slip else move

    def settle(choice: object, reply: str, rng: np.random.Generator) -> tuple[str, str, float]:
        if not isinstance(choice, str) or choice not in other:
            raise SubmissionError(f"{function} must return '{first}' or '{second}'; got {str(choice)[:60]!r}")
        ours, theirs = slip_move(choice, rng), slip_move(reply, rng)
        return ours, theirs, points[ours, theirs]

    return settle
