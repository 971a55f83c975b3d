"""Research tasks: a folder with a `task.yaml`, read and checked before anything runs.

task.yaml       what is asked, what is handed in, how it is judged, what it may use (`ResearchTask`)
starter/        what the agent finds in its workspace, the baseline among it
evaluator.py    `evaluate(evaluation) -> scores`: trusted, runs outside the agent's reach
data.py         `make(public, hidden, rng)`: the data, made once for each machine; what is in `hidden` no agent sees
reference/      a good solution, to show that the task can be done; in no workspace
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from palaestra.core.checks import short_repr
from palaestra.core.errors import EnvError, TaskError, UnknownNameError, suggest
from palaestra.core.registry import Registry

if TYPE_CHECKING:
    from palaestra.research.judge.evaluation import Judge
    from palaestra.research.tasks.data import TaskData
    from palaestra.research.tasks.records import Unusable
    from palaestra.sandbox.base import Sandbox, Shell

DATA = "/data"
"""Where the agent finds the public part of the data, read-only."""
TASKS_GROUP = "palaestra.research"
RESEARCH_TASKS = Registry("research task", TASKS_GROUP)
"""Tasks of other packages: a name, and the path of a folder or an object with one. Our own lie in `research/tasks`."""
OWN = Path(__file__).parent
FILE, REFERENCE = "task.yaml", "reference"
Model = TypeVar("Model", bound=BaseModel)
CACHES = frozenset({"__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".ipynb_checkpoints"})
"""Folders that tools leave behind; they are no part of a task."""
LARGEST = 32 << 20


class Direction(StrEnum):
    """Which scores are better."""

    HIGHER = "higher"
    LOWER = "lower"


class Strict(BaseModel):
    """What a task file is made of: nothing that is not known, and nothing that changes."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def _inside(names: tuple[str, ...]) -> tuple[str, ...]:
    """Paths that stay below the folder they are relative to."""
    for name in names:
        parts = Path(name).parts
        if not parts or name.startswith("/") or ".." in parts:
            raise ValueError(f"a relative path without '..' is expected; got '{name}'")
    return names


class Metric(Strict):
    """What is measured.

    Arguments:
        low, high: what a score cannot be beyond; one that is was judged wrongly, and is a failure.
        scale: the difference from the baseline that is worth a reward of 1.
    """

    model_config = ConfigDict(allow_inf_nan=False)
    name: str = Field(min_length=1)
    direction: Direction
    low: float | None = None
    high: float | None = None
    scale: float = Field(default=1.0, gt=0)

    def better(self, one: float, other: float) -> bool:
        """Whether `one` is a better score than `other`."""
        return one > other if self.direction is Direction.HIGHER else one < other

    def best(self, scores: list[float]) -> float | None:
        """The best of them; `None` of none."""
        return None if not scores else (max if self.direction is Direction.HIGHER else min)(scores)

    def gain(self, score: float, baseline: float) -> float:
        """How far `score` is ahead of the baseline, in units of `scale`; the reward."""
        ahead = score - baseline if self.direction is Direction.HIGHER else baseline - score
        return ahead / self.scale


class TaskLimits(Strict):
    """What an agent may use, and a submission when it is judged."""

    model_config = ConfigDict(allow_inf_nan=False)
    steps: int = Field(default=50, ge=1)
    seconds: float = Field(default=3600.0, gt=0)
    command_seconds: float = Field(default=120.0, gt=0)
    """Of one command; a training is a command too."""
    validations: int = Field(default=10, ge=0)
    """How often a score on the validation split is told."""
    evaluation_seconds: float = Field(default=120.0, gt=0)
    memory: int = Field(default=4 << 30, gt=0)
    processes: int = Field(default=256, gt=0)


class Submission(Strict):
    """What is handed in: files of the workspace, copied when they are judged.

    Arguments:
        files: those that must be there.
        optional: those that may be, for example weights or helpers.
        largest: bytes of all of them together.
    """

    files: tuple[str, ...] = Field(min_length=1)
    optional: tuple[str, ...] = ()
    largest: int = Field(default=LARGEST, gt=0)

    @field_validator("files", "optional")
    @classmethod
    def _relative(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        return _inside(names)


class ResearchTask(Strict):
    """A research task as its `task.yaml` says it.

    Arguments:
        name: as it is called; the folder's name.
        title: in a few words.
        description: what the agent is told; Markdown.
        metric: what is measured, and which way is better.
        submission: what is handed in.
        baseline: the command that makes the baseline's submission in a fresh workspace; empty where the starter files
            are one already.
        reference: the same for the good solution in `reference/`, whose files are put over the starter's.
        starter: the folder of starter files, in which neither the evaluator nor the data maker nor the good solution lies.
        evaluator: the file with `evaluate`.
        data: the file with `make`; empty where there is no data. All three lie below the task's folder.
        limits: what may be used.
        secrets: files and folders of the starter folder that no agent sees.
        dependencies: packages that the agent's Python must have, as it imports them.
        hide: files of installed packages that would give answers away, for example `sklearn/datasets/data`.
        palaestra: whether the agent's Python has this package, without its research tasks.
        tags: words to sort tasks by.
    """

    name: str = Field(pattern=r"^[a-z][a-z0-9_]*$")
    title: str
    description: str = Field(min_length=1)
    metric: Metric
    submission: Submission
    baseline: str = ""
    reference: str = ""
    starter: str = "starter"
    evaluator: str = "evaluator.py"
    data: str = ""
    limits: TaskLimits = TaskLimits()
    secrets: tuple[str, ...] = ()
    dependencies: tuple[str, ...] = ()
    hide: tuple[str, ...] = ()
    palaestra: bool = False
    tags: tuple[str, ...] = ()
    _folder: Path = PrivateAttr(default=Path())

    @field_validator("secrets", "hide")
    @classmethod
    def _relative(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        return _inside(names)

    @field_validator("starter", "evaluator", "data")
    @classmethod
    def _below(cls, name: str, info: ValidationInfo) -> str:
        if name or info.field_name != "data":
            _inside((name,))
        return name

    @model_validator(mode="after")
    def _bounds(self) -> ResearchTask:
        low, high = self.metric.low, self.metric.high
        if low is not None and high is not None and low >= high:
            raise ValueError(f"the metric's low must be below its high; got {low} and {high}")
        return self

    @property
    def folder(self) -> Path:
        """Where the task lies."""
        return self._folder

    def starter_files(self) -> dict[str, bytes]:
        """What the agent finds: relative paths and contents, without the secrets."""
        return _files(self.folder / self.starter, self.secrets)

    def reference_files(self) -> dict[str, bytes]:
        """The good solution's files."""
        return _files(self.folder / REFERENCE, ())

    # What tasks of other formats do in ways of their own

    @property
    def place(self) -> str:
        """Where the workspace lies in the sandbox; empty for the sandbox's own."""
        return ""

    def shown(self, data: TaskData, judging: bool) -> Mapping[str, str]:
        """What a sandbox of the task shows read-only: from the path inside to that of the host.

        Arguments:
            judging: whether a submission is judged there, rather than made.
        """
        return {} if data.public is None else {DATA: str(data.public)}

    def variables(self) -> Mapping[str, str]:
        """Environment variables of the task's sandboxes."""
        return {}

    def judge(self, sandbox: Sandbox) -> Judge:
        """Who judges submissions."""
        from palaestra.research.judge.evaluation import Judge

        return Judge(self, sandbox)

    def collect(self, shell: Shell) -> dict[str, bytes] | Unusable:
        """A copy of what would be handed in now, of what is there, or why there is none. Links are not followed."""
        # A byte over the limit is enough to know that it is broken.
        return shell.read_files((*self.submission.files, *self.submission.optional), self.submission.largest + 1)

    def recorded(self) -> float | None:
        """The baseline's score where the task says it and it need not be measured."""
        return None

    def digest(self) -> str:
        """Changes with every file of the task: what was measured with other files does not hold."""
        found = hashlib.blake2b(digest_size=12)
        for name, content in sorted(_files(self.folder, ()).items()):
            if not name.startswith(f"{REFERENCE}/"):
                found.update(f"{len(name)}:{name}:{len(content)}:".encode() + content)
        return found.hexdigest()


def load_task(name: str | Path) -> ResearchTask:
    """The task of that name, or in that folder.

    Raises:
        EnvError: it is neither a name nor a folder.
        UnknownNameError: there is none of that name.
        TaskError: its file is missing or wrong; says where and how.
    """
    if not isinstance(name, (str, Path)):
        raise EnvError(f"a research task is the name of one, its folder or a ResearchTask; got {short_repr(name)}")
    folder = Path(name)
    if isinstance(name, str) and "/" not in name and not (folder / FILE).is_file():
        folder = _found(name)
    path = folder / FILE
    if not path.is_file():
        raise TaskError(f"a research task is a folder with a {FILE}; there is none in {folder}")
    return read_task(path)


def read_yaml(kind: type[Model], path: Path) -> Model:
    """A file of fields. Those that are left empty are as if they were not there.

    Raises:
        TaskError: it is missing, no YAML, or a field is wrong; says which.
    """
    import yaml

    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise TaskError(f"{path} cannot be read as YAML: {' '.join(str(error).split())}") from error
    if not isinstance(data, Mapping):
        raise TaskError(f"{path} must hold a mapping of fields; got {type(data).__name__}")
    try:
        return kind.model_validate({name: value for name, value in data.items() if value is not None})
    except ValidationError as error:
        raise TaskError(f"{path}: {_wrong(kind, error)}") from error


def _wrong(kind: type[BaseModel], error: ValidationError) -> str:
    """What is wrong with a file of fields. A name that is none comes before what is missing, which it may stand for."""
    first = min(error.errors(), key=lambda one: one["type"] != "extra_forbidden")
    where, said = ".".join(map(str, first["loc"])), first["msg"].removeprefix("Value error, ")
    if first["type"] == "missing":
        return f"the field {where} is missing"
    if first["type"] == "extra_forbidden":
        *outer, name = map(str, first["loc"])
        return f"there is no field {where}; {suggest(name, _fields(kind, outer))}"
    if first["type"] == "value_error":  # Our own, which say what came.
        return f"{where}: {said}" if where else said
    return f"{where}: {said}; got {str(first['input'])[:80]!r}"


def _fields(kind: type[BaseModel], outer: list[str]) -> list[str]:
    """The names of the fields of a file, or of one of its parts."""
    for name in outer:
        inner = kind.model_fields[name].annotation if name in kind.model_fields else None
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            return []
        kind = inner
    return list(kind.model_fields)


def read_task(path: Path) -> ResearchTask:
    """The task of a `task.yaml`."""
    task = read_yaml(ResearchTask, path)
    task._folder = path.parent.resolve()
    for what in (task.evaluator, task.data):
        if what and not (task.folder / what).is_file():
            raise TaskError(f"{path} names {what}, which is not in its folder")
    if not (task.folder / task.starter).is_dir():
        raise TaskError(f"{path} names the starter folder {task.starter}, which is not there")
    starter = (task.folder / task.starter).resolve()
    linked = [link.resolve() for link in starter.rglob("*") if link.is_symlink()]
    for what, name in (("evaluator", task.evaluator), ("data", task.data), ("reference", REFERENCE)):
        place = (task.folder / name).resolve()
        if name and (place.is_relative_to(starter) or any(one.is_relative_to(place) for one in linked)):
            raise TaskError(f"{path}: starter: every agent would see {name} ({what}), which lies in {task.starter}")
    for secret in task.secrets:
        if not (task.folder / task.starter / secret).exists():
            raise TaskError(
                f"{path} names the secret {secret}, which is not in {task.starter}: nothing would be hidden"
            )
    return task


def task_names() -> list[str]:
    """Our own tasks, and those of other packages."""
    return sorted({path.parent.name for path in OWN.glob(f"*/{FILE}")} | set(RESEARCH_TASKS.names()))


def _found(name: str) -> Path:
    if (OWN / name / FILE).is_file():
        return OWN / name
    if name in RESEARCH_TASKS.names():
        return Path(RESEARCH_TASKS.get(name))
    raise UnknownNameError("research task", name, task_names())


def _files(folder: Path, without: tuple[str, ...]) -> dict[str, bytes]:
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        hidden = any(name.is_relative_to(one) for one in without)
        if path.is_file() and not hidden and not CACHES.intersection(name.parts):
            found[name.as_posix()] = path.read_bytes()
    return found
