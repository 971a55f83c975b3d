"""A task of an MLGym checkout as one of ours: the same workspace, data, commands and limits; protections of our own."""

from __future__ import annotations

import fnmatch
import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import PrivateAttr

from palaestra.core.errors import SettingsError, TaskError, UnknownNameError
from palaestra.research.data import TaskData
from palaestra.research.mlgym.files import DatasetFile, EntryPoint, TaskFile
from palaestra.research.task import CACHES, Direction, Metric, ResearchTask, Submission, TaskLimits, read_yaml
from palaestra.sandbox.base import Sandbox, Shell

if TYPE_CHECKING:
    from palaestra.research.mlgym.judge import MLGymJudge

WORKSPACE = "/home/agent/workspace"
"""Where that project's workspace is; some of its evaluators have the path written into them."""
TASKS = Path("configs/tasks")
LOWER = re.compile(r"loss|error|rmse|mse\b|mae\b|perplexity|ppl|time|second|latency|regret|wer\b|bpb|nll", re.I)
"""Names of metrics of which less is better; the files themselves do not say."""
LARGEST = 2 << 30


class MLGymTask(ResearchTask):
    """A task of an MLGym checkout; made by `load_mlgym`.

    The agent finds the starter code and, read-only, the data in /home/agent/workspace, without the secret files. What it hands
    in is a copy of its workspace; it is judged in a fresh sandbox, with the checkout's own evaluator and data put over it.
    `validate` and `submit` use the same evaluator and the same data, as there is only one; how often it may be asked is limited.
    """

    _checkout: Path = PrivateAttr(default=Path())
    _file: TaskFile = PrivateAttr()
    _datasets: tuple[DatasetFile, ...] = PrivateAttr(default=())

    @property
    def checkout(self) -> Path:
        return self._checkout

    @property
    def file(self) -> TaskFile:
        """The task file as it is."""
        return self._file

    @property
    def place(self) -> str:
        return WORKSPACE

    def starter_files(self) -> dict[str, bytes]:
        hidden = {*self.file.secret_files, *(Path(name).name for name in self.file.secret_files)}
        return {name: content for name, content in self._starter().items() if name not in hidden}

    def evaluator_files(self) -> dict[str, bytes]:
        """What judges, as it is in the checkout: evaluators, secret files, and whatever else the starter code brought."""
        found = self._starter()
        for name in self.file.secret_files:
            path = self._below(name)
            if path is not None and path.is_file():
                found[Path(name).name if name not in found else name] = path.read_bytes()
        return found

    def shown(self, data: TaskData, judging: bool) -> Mapping[str, str]:
        found = {}
        for dataset in self._datasets:
            folder = self._data_folder(dataset)
            for entry in sorted(folder.iterdir()):
                if judging or not self._secret(entry):
                    found[f"{WORKSPACE}/data/{entry.name}"] = str(entry)
        return found

    def judge(self, sandbox: Sandbox) -> MLGymJudge:
        from palaestra.research.mlgym.judge import MLGymJudge

        return MLGymJudge(self, sandbox)

    def collect(self, shell: Shell) -> dict[str, bytes]:
        """The workspace without the data. For a task whose evaluator reads one file, that file."""
        if self.file.task_entrypoint is EntryPoint.CSV:
            return shell.read_files(self.submission.files, self.submission.largest + 1)
        names = [name for name in shell.list_files() if not name.startswith("data/")]
        return shell.read_files(names)

    def recorded(self) -> float | None:
        scores = self.file.baseline_scores
        return scores[0][self.metric.name] if scores else None

    def digest(self) -> str:
        found = hashlib.blake2b(self.file.model_dump_json().encode(), digest_size=12)
        for name, content in sorted(self._starter().items()):
            found.update(f"{len(name)}:{name}:{len(content)}:".encode() + content)
        return found.hexdigest()

    def missing_packages(self) -> list[str]:
        """What the task's requirements name and this Python does not have."""
        from importlib.metadata import PackageNotFoundError, version

        if not self.file.requirements_path or not (path := self.checkout / self.file.requirements_path).is_file():
            return []
        missing = []
        for line in path.read_text(encoding="utf-8").splitlines():
            name = re.match(r"\s*([A-Za-z0-9][\w.-]*)", line)
            if name is not None:
                try:
                    version(name[1])
                except PackageNotFoundError:
                    missing.append(name[1])
        return missing

    def _starter(self) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        for name in self.file.starter_code:
            path = self._below(name)
            if path is None or not path.exists():
                raise TaskError(f"task '{self.file.id}' names the starter code {name}, which is not in {self.checkout}")
            if path.is_file():
                found[path.name] = path.read_bytes()
            for file in sorted(path.rglob("*")) if path.is_dir() else ():
                if file.is_file() and not CACHES & set(file.parts):
                    found[f"{path.name}/{file.relative_to(path).as_posix()}"] = file.read_bytes()
        return found

    def _data_folder(self, dataset: DatasetFile) -> Path:
        path = self._below(dataset.data_path)
        if path is None or not path.is_dir():
            raise TaskError(
                f"the data '{dataset.name}' of task '{self.file.id}' are not in {self.checkout / dataset.data_path}; "
                + ("they are not part of the checkout: fetch them as its README says" if dataset.is_local else
                   "they come from a hub: fetch them, put them there as files, and set is_local")
            )  # fmt: skip
        return path

    def _secret(self, path: Path) -> bool:
        inside = path.relative_to(self.checkout).as_posix()
        return any(
            fnmatch.fnmatch(inside, f"*{name.lstrip('/')}") or path.name == Path(name).name
            for name in self.file.secret_files
        )

    def _below(self, name: str) -> Path | None:
        """A path of the checkout, unless it leads out of it."""
        path = (self.checkout / name).resolve()
        return path if path.is_relative_to(self.checkout) else None


def load_mlgym(
    checkout: str | Path,
    name: str,
    *,
    metric: str = "",
    direction: str = "",
    steps: int = 50,
    validations: int = 10,
) -> MLGymTask:
    """A task of a checkout of MLGym, unmodified.

    Arguments:
        checkout: the folder, with `configs/tasks`, `configs/datasets` and `data`.
        name: of the task file, or its `id`.
        metric: which of the scores counts; the first of the recorded baseline's unless told otherwise.
        direction: `higher` or `lower`; by the metric's name unless told otherwise, as the files do not say.
        steps, validations: limits, which the files do not have either.

    Raises:
        UnknownNameError: there is no such task.
        TaskError: its files are wrong, or something that they name is missing.
    """
    root = Path(checkout).resolve()
    if not (root / TASKS).is_dir():
        raise TaskError(f"{root} is no checkout of MLGym: it has no {TASKS}")
    path = _path(root, name)
    file = read_yaml(TaskFile, path)
    datasets = tuple(read_yaml(DatasetFile, root / "configs" / one) for one in file.dataset_configs)
    known = list(file.baseline_scores[0]) if file.baseline_scores else []
    counted = metric or (known[0] if known else "")
    if not counted:
        raise SettingsError(f"task '{file.id}' records no baseline scores; say which metric counts (metric=...)")
    if known and counted not in known:
        raise UnknownNameError("metric", counted, known)
    way = direction or ("lower" if LOWER.search(counted) else "higher")
    if way not in set(Direction):
        raise SettingsError(f"direction is 'higher' or 'lower'; got '{way}'")
    base = abs(file.baseline_scores[0][counted]) if known else 1.0
    fields: dict[str, Any] = {
        "name": re.sub(r"\W+", "_", file.id).strip("_").lower() or "task",
        "title": file.name,
        "description": _described(file, datasets),
        "metric": Metric(name=counted, direction=Direction(way), scale=base or 1.0),
        "submission": Submission(files=_wanted(file), largest=LARGEST),
        "baseline": " && ".join(f"python {Path(one).name}" for one in file.baseline_paths),
        "limits": TaskLimits(
            steps=steps, seconds=86_400.0, command_seconds=file.training_timeout or 1800.0, validations=validations,
            evaluation_seconds=file.training_timeout or 1800.0, memory=16 << 30,
        ),
    }  # fmt: skip
    task = MLGymTask.model_validate(fields)
    task._checkout, task._file, task._datasets = root, file, datasets
    task._folder = path.parent
    task.starter_files()
    for dataset in datasets:
        task._data_folder(dataset)
    return task


def mlgym_names(checkout: str | Path) -> list[str]:
    """The tasks of a checkout."""
    return sorted(path.stem for path in (Path(checkout) / TASKS).glob("*.yaml"))


def _path(root: Path, name: str) -> Path:
    for path in sorted((root / TASKS).glob("*.yaml")):
        if path.stem == name:
            return path
    for path in sorted((root / TASKS).glob("*.yaml")):
        if re.search(rf"^id:\s*['\"]?{re.escape(name)}['\"]?\s*$", path.read_text(encoding="utf-8"), re.M):
            return path
    raise UnknownNameError("task of the checkout", name, mlgym_names(root))


def _described(file: TaskFile, datasets: tuple[DatasetFile, ...]) -> str:
    docs = "\n".join(f"- {one.name}: {one.description}" for one in datasets)
    text = file.description.replace("{dataset_docs}", docs)
    return (
        text if "{dataset_docs}" in file.description or not docs else f"{text}\n\nData (in ./data, read-only):\n{docs}"
    )


def _wanted(file: TaskFile) -> tuple[str, ...]:
    return {EntryPoint.CSV: ("submission.csv",), EntryPoint.PYTHON: ("target.py",)}.get(file.task_entrypoint, ("*",))
