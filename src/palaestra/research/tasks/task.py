"""Research tasks: a folder with a `task.yaml`, validated before anything runs.

task.yaml       the description, the submission, the metric and the limits (`ResearchTask`)
starter/        the files in the agent's workspace, including the baseline
evaluator.py    `evaluate(evaluation) -> scores`: trusted, runs outside the agent's reach
data.py         `make(public, hidden, rng)`: generates the data once per machine; agents never see `hidden`
reference/      a good solution, to show that the task can be solved; never in a workspace
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PrivateAttr, ValidationError, model_validator

from palaestra.core.errors import EnvError, SettingsError, TaskError, UnknownNameError, suggest
from palaestra.core.records import Failure, Json
from palaestra.core.registry import Registry
from palaestra.core.settings import short_repr
from palaestra.sandbox.base import Shell

_DATA = "/data"
"""Where the agent finds the public data, read-only."""
_TASKS_GROUP = "palaestra.research"
RESEARCH_TASKS = Registry("research task", _TASKS_GROUP)
"""Tasks of other packages: names and paths of task folders. The built-in tasks are in `research/tasks`."""
_FILE, _REFERENCE = "task.yaml", "reference"
_FORMATS = Registry("task format", "palaestra.task_formats")
"""Task files of other formats, by file name, and the functions that load their folders."""
CHECKOUTS = Registry("collection of research tasks", "palaestra.task_checkouts")
"""Functions that load a task by its name from the checkout of another project."""
Model = TypeVar("Model", bound=BaseModel)
CACHES = frozenset({"__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".ipynb_checkpoints"})
"""Folders that tools leave behind; not part of a task."""
_MAX_BYTES = 32 << 20
MAX_FILES = 10_000
_MAX_NAME, _MAX_PATH = 200, 1000
"""Bytes of a name and of a path that fit below any run folder."""
_FLOOR_SCALES = 10.0
"""How far the default floor of a reward is below the baseline at most, in units of the metric's scale."""


@dataclass(frozen=True, slots=True)
class TaskData:
    """The data folders of a task on the host: one that the agent sees, and one for the evaluator only."""

    public: Path | None = None
    hidden: Path | None = None


class Isolation(StrEnum):
    """Where a submission's code ran during evaluation."""

    NOT_RUN = "not run"
    """No code ran; the evaluator read a table."""
    SEPARATE = "separate sandboxes"
    """In its own sandbox. The evaluator saw only what its functions returned."""
    SHARED = "one process"
    """In the evaluator's process, with the score on a sealed channel. Code that modifies that process can change its
    score.
    """
    ONE_SANDBOX = "one sandbox"
    """In the sandbox of the evaluator, which ran it. Such code could change the evaluator's result."""


@dataclass(frozen=True, slots=True)
class Grade:
    """The score of a submission.

    Arguments:
        score: the value of the task's metric.
        scores: everything that was measured, including the metric.
        seconds: the duration of the evaluation.
        isolation: where the submission's code ran, for MLGym and Harbor tasks.
    """

    score: float
    scores: Mapping[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    isolation: Isolation | None = field(default=None, compare=False)


class SubmissionOutcome(StrEnum):
    """What became of the submission of an episode."""

    SCORED = "scored"
    INVALID = "invalid"
    """It cannot be judged: a file is missing or malformed, or its code raised, exceeded a limit or returned something
    else than the task requires. The reward is the floor; see `Metric.reward`.
    """
    MISSING = "missing"
    """The agent stopped without a submission. The reward is the floor."""
    FAILED = "failed"
    """Something outside the agent failed. The episode has no reward and must not be learned from."""


@dataclass(frozen=True, slots=True)
class InvalidSubmission:
    """A submission that cannot be judged: a file is missing, too large or malformed. The agent sees the reason and
    can fix it.

    Arguments:
        reason: the message for the agent. It is shortened once the submission's code has seen hidden data, since it
            could contain them.
        exposed: the submission's code has seen hidden data; the attempt counts as a validation.
    """

    reason: str
    exposed: bool = False


JudgeResult = Grade | InvalidSubmission | Failure
"""A score, a submission that the agent has to fix, or a failure outside the submission, without a score."""


class SubmissionError(Exception):
    """Raised by evaluators if a submission cannot be judged for a reason that its author can fix.

    Arguments:
        message: the full reason.
        kind: a reason without the submission's own words, used if `message` might contain hidden data.
        exposed: the message itself reveals something about hidden data, so the attempt counts as a validation.
    """

    def __init__(
        self, message: str, kind: str = "it did not return what the task requires", exposed: bool = False
    ) -> None:
        super().__init__(message)
        self.kind, self.exposed = kind, exposed


_OWN = Path(__file__).parent


class Direction(StrEnum):
    """Which scores are better."""

    HIGHER = "higher"
    LOWER = "lower"


class Strict(BaseModel):
    """Base of the parts of a task file: frozen, without unknown fields."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def _check_relative(name: str) -> str:
    parts = Path(name).parts
    if not parts or name.startswith("/") or ".." in parts:
        raise ValueError(f"expected a relative path without '..'; got '{name}'")
    return name


RelativePath = Annotated[str, AfterValidator(_check_relative)]
"""A path that stays below the folder it is relative to."""


class Metric(Strict):
    """What is measured.

    Arguments:
        low, high: bounds of valid scores. A score outside them means that the evaluator failed.
        scale: the difference from the baseline that is worth a reward of 1.
        floor: the score that a submission without a score is rewarded as, and every worse one with it. By default it is
            the worst valid score, or the one `_FLOOR_SCALES` below the baseline if that is better.
        spread: how far two scores of the same submission may differ; 0 if judging is deterministic.
    """

    model_config = ConfigDict(allow_inf_nan=False)
    name: str = Field(min_length=1)
    direction: Direction
    low: float | None = None
    high: float | None = None
    scale: float = Field(default=1.0, gt=0)
    floor: float | None = None
    spread: float = Field(default=0.0, ge=0)

    def better(self, score: float, other: float) -> bool:
        """Whether `score` is better than `other`."""
        return score > other if self.direction is Direction.HIGHER else score < other

    def best(self, scores: list[float]) -> float | None:
        """Return the best score; `None` for an empty list."""
        return None if not scores else (max if self.direction is Direction.HIGHER else min)(scores)

    def gain(self, score: float, baseline: float) -> float:
        """Return the improvement over the baseline in units of `scale`."""
        ahead = score - baseline if self.direction is Direction.HIGHER else baseline - score
        return ahead / self.scale

    def reward(self, score: float | None, baseline: float) -> float:
        """Return the reward of a submission: its gain, or the floor if that is better or if there is no score. So no
        submission is rewarded less than one that cannot be judged.

        >>> metric = Metric(name="accuracy", direction=Direction.HIGHER, low=0.0, scale=0.5)
        >>> metric.reward(0.75, baseline=0.5), metric.reward(None, baseline=0.5), metric.reward(None, baseline=9.0)
        (0.5, -1.0, -10.0)
        """
        worst = self.low if self.direction is Direction.HIGHER else self.high
        floor = -_FLOOR_SCALES
        if self.floor is not None:
            floor = min(0.0, self.gain(self.floor, baseline))
        elif worst is not None:
            floor = max(floor, self.gain(worst, baseline))
        return floor if score is None else max(floor, self.gain(score, baseline))


class TaskLimits(Strict):
    """Limits of an agent, and of a submission while it is judged."""

    model_config = ConfigDict(allow_inf_nan=False)
    steps: int = Field(default=50, ge=1)
    seconds: float = Field(default=3600.0, gt=0)
    command_seconds: float = Field(default=120.0, gt=0)
    """Seconds of one command; a training run is a command too."""
    validations: int = Field(default=10, ge=0)
    """How many scores on the validation split the agent may request."""
    evaluation_seconds: float = Field(default=120.0, gt=0)
    memory: int = Field(default=4 << 30, gt=0)
    processes: int = Field(default=256, gt=0)


class Submission(Strict):
    """What is submitted: files of the workspace, copied before they are judged.

    Arguments:
        files: required files.
        optional: optional files, for example weights or helpers.
        largest: the maximum total size in bytes.
    """

    files: tuple[RelativePath, ...] = Field(min_length=1)
    optional: tuple[RelativePath, ...] = ()
    largest: int = Field(default=_MAX_BYTES, gt=0)


class ResearchTask(Strict):
    """A research task as defined by its `task.yaml`.

    Arguments:
        name: the name, equal to the folder's name.
        title: a short title.
        description: the Markdown text that the agent gets.
        metric: what is measured, and which direction is better.
        submission: what is submitted.
        baseline: the command that creates the baseline's submission in a fresh workspace; empty if the starter files
            already are one.
        reference: the same for the solution in `reference/`, whose files are copied over the starter files.
        starter: the folder of starter files. It must not contain the evaluator, the data maker or the reference.
        evaluator: the file with `evaluate`.
        data: the file with `make`; empty without data.
        limits: limits of agents and submissions.
        secrets: files and folders of the starter folder that no agent sees.
        dependencies: packages that the agent's Python must have, by import name.
        hide: files of installed packages that would reveal answers, for example `sklearn/datasets/data`.
        palaestra: whether the agent's Python can import this package, without its research tasks and problem generators.
        tags: keywords to group tasks by.
    """

    name: str = Field(pattern=r"^[a-z][a-z0-9_]*$")
    title: str
    description: str = Field(min_length=1)
    metric: Metric
    submission: Submission
    baseline: str = ""
    reference: str = ""
    starter: RelativePath = "starter"
    evaluator: RelativePath = "evaluator.py"
    data: RelativePath = ""
    limits: TaskLimits = TaskLimits()
    secrets: tuple[RelativePath, ...] = ()
    dependencies: tuple[str, ...] = ()
    hide: tuple[RelativePath, ...] = ()
    palaestra: bool = False
    tags: tuple[str, ...] = ()
    _folder: Path = PrivateAttr(default=Path())

    @model_validator(mode="after")
    def _bounds(self) -> ResearchTask:
        low, high = self.metric.low, self.metric.high
        if low is not None and high is not None and low >= high:
            raise ValueError(f"the metric's low must be below its high; got {low} and {high}")
        if self.metric.floor is not None and not (
            (low is None or low <= self.metric.floor) and (high is None or self.metric.floor <= high)
        ):
            raise ValueError(f"the metric's floor must be between its low and high; got {self.metric.floor}")
        return self

    @property
    def folder(self) -> Path:
        """The folder of the task."""
        return self._folder

    @property
    def has_secret_seed(self) -> bool:
        """Whether the seed of hidden data is secret. Otherwise it is the same on every machine."""
        return self.palaestra

    def starter_files(self) -> dict[str, bytes]:
        """Return the starter files by relative path, without the secrets."""
        return read_files(self.folder / self.starter, self.secrets)

    def reference_files(self) -> dict[str, bytes]:
        """Return the files of the reference solution."""
        return read_files(self.folder / _REFERENCE)

    # Overridden by tasks of other formats

    @property
    def place(self) -> str:
        """The path of the workspace in the sandbox; empty for the sandbox's default."""
        return ""

    def prepare_sandbox(self, name: str) -> Json:
        """Return the options of the task's sandboxes of a kind. A task with an image prepares it here.

        Raises:
            TaskError: the task cannot run in such a sandbox.
        """
        if not self.place:
            return {}
        if name != "bubblewrap":
            raise TaskError(
                f"task '{self.name}' sets its workspace path; this needs the sandbox 'bubblewrap'; got '{name}'"
            )
        return {"place": self.place}

    def mounts(self, data: TaskData, judging: bool) -> Mapping[str, str]:
        """Return what the task's sandboxes show read-only, from the path inside to the path on the host.

        Arguments:
            judging: whether the sandbox judges a submission rather than hosting an agent.
        """
        return {} if data.public is None else {_DATA: str(data.public)}

    def variables(self) -> Mapping[str, str]:
        """Return the environment variables of the task's sandboxes."""
        return {}

    def collect(self, shell: Shell) -> dict[str, bytes] | InvalidSubmission:
        """Copy the submission files out of the workspace. Missing files are left out. Symbolic links are not followed."""
        # One byte over the limit is enough to detect the excess.
        return shell.read_files((*self.submission.files, *self.submission.optional), self.submission.largest + 1)

    def baseline_score(self) -> float | None:
        """Return the baseline's score if the task states it; otherwise it is measured."""
        return None

    def digest(self) -> str:
        """Hash the task's files. Cached measurements are valid for one digest."""
        files = read_files(self.folder)
        return hash_contents({name: files[name] for name in sorted(files) if not name.startswith(f"{_REFERENCE}/")})


def load_task(name: str | Path, **options: Any) -> ResearchTask:
    """Load a task by name or from a folder.

    Arguments:
        options: arguments of the function that loads another format (see `_FORMATS`).

    Raises:
        EnvError: the argument is neither a name nor a folder.
        UnknownNameError: no task has that name.
        TaskError: the task file is missing or invalid.
        SettingsError: the task has no such options.
    """
    if not isinstance(name, (str, Path)):
        raise EnvError(f"expected the name of a research task, its folder or a ResearchTask; got {short_repr(name)}")
    folder = Path(name)
    if isinstance(name, str) and "/" not in name and not is_task_folder(folder):
        folder = _locate(name)
    path = folder / _FILE
    if path.is_file():
        if options:
            raise SettingsError("setting 'task_kwargs': only tasks of a checkout (--mlgym) and of Harbor have options")
        return _read_task(path)
    for file in _FORMATS.names():
        if (folder / file).is_file():
            try:
                task: ResearchTask = _FORMATS.get(file)(folder, **options)
            except TypeError as error:
                raise SettingsError(f"setting 'task_kwargs': {error}") from error
            return task
    raise TaskError(f"expected a task folder with a {' or '.join((_FILE, *_FORMATS.names()))}; {folder} has none")


def is_task_folder(folder: Path) -> bool:
    """Whether a folder contains a task file."""
    return any((folder / file).is_file() for file in (_FILE, *_FORMATS.names()))


def read_yaml(kind: type[Model], path: Path) -> Model:
    """Read a YAML file as a model. Empty fields count as missing.

    Raises:
        TaskError: the file is missing, is not YAML, or has an invalid field.
    """
    import yaml

    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise TaskError(f"{path} cannot be read as YAML: {' '.join(str(error).split())}") from error
    if not isinstance(data, Mapping):
        raise TaskError(f"{path} must contain a mapping of fields; got {type(data).__name__}")
    try:
        return kind.model_validate({name: value for name, value in data.items() if value is not None})
    except ValidationError as error:
        raise TaskError(f"{path}: {_wrong(kind, error)}") from error


def _wrong(kind: type[BaseModel], error: ValidationError) -> str:
    """Describe the first problem of a file. Unknown fields come before missing ones, since they may be typos of them."""
    first = min(error.errors(), key=lambda problem: problem["type"] != "extra_forbidden")
    where, message = ".".join(map(str, first["loc"])), first["msg"].removeprefix("Value error, ")
    if first["type"] == "missing":
        return f"the field {where} is missing"
    if first["type"] == "extra_forbidden":
        *outer, name = map(str, first["loc"])
        return f"unknown field {where}; {suggest(name, _fields(kind, outer))}"
    if first["type"] == "value_error":  # Our own errors include the value.
        return f"{where}: {message}" if where else message
    return f"{where}: {message}; got {str(first['input'])[:80]!r}"


def _fields(kind: type[BaseModel], outer: list[str]) -> list[str]:
    """Return the field names of a file, or of one of its parts."""
    for name in outer:
        inner = kind.model_fields[name].annotation if name in kind.model_fields else None
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            return []
        kind = inner
    return list(kind.model_fields)


def _read_task(path: Path) -> ResearchTask:
    """Read a `task.yaml`."""
    task = read_yaml(ResearchTask, path)
    task._folder = path.parent.resolve()
    for what in (task.evaluator, task.data):
        if what and not (task.folder / what).is_file():
            raise TaskError(f"{path} names {what}, which is missing from its folder")
    if not (task.folder / task.starter).is_dir():
        raise TaskError(f"{path} names the starter folder {task.starter}, which does not exist")
    starter = (task.folder / task.starter).resolve()
    linked = [link.resolve() for link in starter.rglob("*") if link.is_symlink()]
    for what, name in (("evaluator", task.evaluator), ("data", task.data), ("reference", _REFERENCE)):
        place = (task.folder / name).resolve()
        if name and (place.is_relative_to(starter) or any(link.is_relative_to(place) for link in linked)):
            raise TaskError(f"{path}: starter: every agent would see {name} ({what}); move it out of {task.starter}")
    for secret in task.secrets:
        if not (task.folder / task.starter / secret).exists():
            raise TaskError(
                f"{path} names the secret {secret}, which is not in {task.starter}: nothing would be hidden"
            )
    return task


def task_names() -> list[str]:
    """Return the names of the built-in tasks and those of other packages."""
    return sorted({path.parent.name for path in _OWN.glob(f"*/{_FILE}")} | set(RESEARCH_TASKS.names()))


def _locate(name: str) -> Path:
    if (_OWN / name / _FILE).is_file():
        return _OWN / name
    if name in RESEARCH_TASKS.names():
        return Path(RESEARCH_TASKS.get(name))
    raise UnknownNameError("research task", name, task_names())


def read_files(folder: Path, without: tuple[str, ...] = ()) -> dict[str, bytes]:
    """Return the contents of the files below a folder by relative path, without caches."""
    contents = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        hidden = any(name.is_relative_to(excluded) for excluded in without)
        if path.is_file() and not hidden and not CACHES.intersection(name.parts):
            contents[name.as_posix()] = path.read_bytes()
    return contents


def hash_contents(files: Mapping[str, bytes], size: int = 12) -> str:
    """Hash names and contents in their order."""
    digest = hashlib.blake2b(digest_size=size)
    for name, content in files.items():
        digest.update(f"{len(name)}:{name}:{len(content)}:".encode() + content)
    return digest.hexdigest()


def collect_workspace(
    shell: Shell, largest: int, spare: int = 0, is_data: Callable[[str], bool] = lambda name: False
) -> dict[str, bytes] | InvalidSubmission:
    """Copy the files of a workspace. Symbolic links are not followed.

    A workspace that is too large is rejected rather than truncated, because only the agent knows which files it needs.

    Arguments:
        largest: the maximum total size in bytes.
        spare: files beside `MAX_FILES` that may be there, for example data.
        is_data: whether a file is not copied.
    """
    listed = shell.list_files(MAX_FILES + spare + 1)
    if len(listed) > MAX_FILES + spare:
        return InvalidSubmission(f"the workspace has more than {MAX_FILES} files, which are the most; remove some")
    names = [name for name in listed if not is_data(name)]
    for name in names:
        size, part = len(name.encode()), max(len(part.encode()) for part in name.split("/"))
        if size > _MAX_PATH or part > _MAX_NAME:
            return InvalidSubmission(
                f"the path {name[:80]}... has {size} bytes, and {part} in one name; at most {_MAX_PATH} and "
                f"{_MAX_NAME} can be handed in; give the file another name, or remove it"
            )
    files = shell.read_files(names, total=largest)
    # Missing files did not fit, or were deleted since they were listed.
    if len(files) < len(names) and shell.read_files([name for name in names if name not in files], longest=1):
        return InvalidSubmission(f"the workspace has more than {largest} bytes, which are the most; remove some files")
    return files
