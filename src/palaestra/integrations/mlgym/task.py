"""A task of an MLGym checkout as a research task, with its workspace, data, commands and limits, and our protections."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

from pydantic import Field, PrivateAttr

from palaestra.core.errors import SettingsError, TaskError, UnknownNameError
from palaestra.core.records import Json
from palaestra.integrations.mlgym.checkout import Secrets, below, files_below
from palaestra.integrations.mlgym.files import (
    DatasetFile,
    EntryPoint,
    TaskFile,
    find_answers,
    find_submission,
    guess_direction,
    install_requirements,
    names_file,
    variables,
)
from palaestra.integrations.research_tasks import is_package_installed
from palaestra.research.judge.evaluation import make_judge, sandbox_for
from palaestra.research.tasks.task import (
    CACHES,
    Direction,
    InvalidSubmission,
    Metric,
    ResearchTask,
    Submission,
    TaskData,
    TaskLimits,
    collect_workspace,
    read_yaml,
)
from palaestra.research.workspace.workspace import load_baseline
from palaestra.sandbox.base import Shell

TORCHRUN = ("--nproc_per_node=1", "--standalone")
WORKSPACE = "/home/agent/workspace"
"""MLGym's workspace; some of its evaluators contain the path."""
_TASKS = Path("configs/tasks")
UNNAMED = "the first score"
"""The name of a metric that is not known yet."""
_DATA = "data"
"""The folder of the data in the workspace."""
MAX_BYTES = 2 << 30
_FLOOR_SCALES = 3.0
"""How far the floor of the rewards is below the recorded baseline, in multiples of its score."""


class MLGymTask(ResearchTask):
    """A task of an MLGym checkout; made by `load_mlgym`.

    The agent finds the starter code and, read-only, the data in /home/agent/workspace, without the secret files. It
    submits a copy of its workspace. The copy is judged in a fresh sandbox, with the checkout's evaluator, data and
    secret files copied over it. `validate` and `submit` use the same evaluator and data, because there is only one set;
    the number of validations is limited.
    """

    name: str = Field(pattern=r"^\w+$")
    _checkout: Path = PrivateAttr(default=Path())
    _file: TaskFile = PrivateAttr()
    _datasets: tuple[DatasetFile, ...] = PrivateAttr(default=())
    _packages: Path | None = PrivateAttr(default=None)

    @property
    def checkout(self) -> Path:
        return self._checkout

    @property
    def file(self) -> TaskFile:
        """The task file."""
        return self._file

    @property
    def place(self) -> str:
        return WORKSPACE

    def starter_files(self) -> dict[str, bytes]:
        secrets = self._secrets()
        return {name: path.read_bytes() for name, path in self._starter().items() if not secrets.has(path, name)}

    def evaluator_files(self) -> dict[str, bytes]:
        """Return the files for judging: evaluators, secret files and the rest of the starter code, from the checkout.

        A secret file with the name of the submission does not replace it.
        """
        secret = {name: path for name, path in self._secrets().files.items() if name not in self.submission.files}
        return {name: path.read_bytes() for name, path in (self._starter() | secret).items()}

    def mounts(self, data: TaskData, judging: bool) -> Mapping[str, str]:
        secrets = Secrets(self.checkout, ()) if judging else self._secrets()
        visible: dict[str, str] = {}
        for folder in (folders := self._data_folders()):
            visible |= secrets.visible(folder, _DATA, shared=len(folders) > 1)
        mounts = {f"{WORKSPACE}/{place}": path for place, path in visible.items()}
        return mounts if self._packages is None else {**mounts, str(self._packages): str(self._packages)}

    def variables(self) -> Mapping[str, str]:
        return {} if self._packages is None else variables(self._packages)

    def collect(self, shell: Shell) -> dict[str, bytes] | InvalidSubmission:
        """Copy the workspace without the data. For a table task, copy only the table."""
        if self.file.task_entrypoint is EntryPoint.CSV:
            return shell.read_files(self.submission.files, self.submission.largest + 1)
        data = (f"{_DATA}/",) if self._data_folders() else ()
        spare = sum(1 for _ in self._data_files())
        return collect_workspace(shell, self.submission.largest, spare, lambda name: name.startswith(data))

    def baseline_score(self) -> float | None:
        scores = self.file.baseline_scores
        return scores[0].get(self.metric.name) if scores else None

    def digest(self) -> str:
        """Hash the judging files, including secret ones, and the data by size and modification time."""
        digest = hashlib.blake2b(self.file.model_dump_json().encode(), digest_size=12)
        for name, content in sorted(self.evaluator_files().items()):
            digest.update(f"{len(name)}:{name}:{len(content)}:".encode() + content)
        for path in self._data_files():
            about = path.stat()
            digest.update(os.fsencode(path.relative_to(self.checkout)))
            digest.update(f"\0{about.st_size}:{about.st_mtime_ns}\0".encode())
        return digest.hexdigest()

    def missing_packages(self) -> list[str]:
        """Return the packages of the task's requirements that this Python lacks."""
        path = self.checkout / (self.file.requirements_path or "")
        if not path.is_file() or self._packages is not None:
            return []
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        names = [name[1] for line in lines if (name := re.match(r"\s*([A-Za-z0-9][\w.-]*)", line))]
        return [name for name in names if not is_package_installed(name)]

    @property
    def evaluator_place(self) -> str:
        """The path of the evaluator in the workspace.

        Raises:
            TaskError: the task names no evaluator among its starter code.
        """
        starter = self._starter()
        for name in self.file.evaluation_paths:
            if (place := self._place(name, starter)) is not None:
                return place
        raise TaskError(
            f"task '{self.file.id}' needs an evaluator among its starter code; "
            f"evaluation_paths has {', '.join(self.file.evaluation_paths) or 'nothing'}"
        )

    def baseline_command(self) -> str:
        """Return the command that creates the baseline's submission: its first script."""
        if not self.file.baseline_paths:
            return ""
        first = self.file.baseline_paths[0]
        script = self._place(first, self._starter()) or Path(first).name
        runner = ["torchrun", *TORCHRUN] if self.file.task_entrypoint is EntryPoint.LANGUAGE_MODEL else ["python"]
        return " ".join([*runner, shlex.quote(script)])

    def _place(self, name: str, starter: Mapping[str, Path]) -> str | None:
        """Return the path of a starter file in the workspace. The name may be its path there or in the checkout."""
        if name in starter:
            return name
        path = below(self.checkout, name)
        return next((place for place, source in starter.items() if source == path), None)

    def _secrets(self) -> Secrets:
        return Secrets(self.checkout, (*self.file.secret_files, *self._answers))

    @property
    def _answers(self) -> list[str]:
        """Files with the answers of a table, relative to the checkout."""
        if self.file.task_entrypoint is not EntryPoint.CSV:
            return []
        evaluator = self._starter()[self.evaluator_place].read_bytes()
        answers = find_answers(evaluator, list(self._data_files()), self._sample())
        return [path.relative_to(self.checkout).as_posix() for path in answers]

    def _starter(self) -> dict[str, Path]:
        """Return the starter code including secret files, from the path in the workspace to the path on the host."""
        files: dict[str, Path] = {}
        for name in self.file.starter_code:
            path = below(self.checkout, name)
            if path is None or not path.exists():
                raise TaskError(f"task '{self.file.id}' names the starter code {name}, which is not in {self.checkout}")
            if path.is_file():
                files[path.name] = path
            for file in sorted(path.rglob("*")) if path.is_dir() else ():
                if file.is_file() and not CACHES & set(file.parts):
                    files[f"{path.name}/{file.relative_to(path).as_posix()}"] = file
        if sample := self._sample():
            files.setdefault(sample.name, sample)
        return files

    def _sample(self) -> Path | None:
        """Return the sample submission, if there is one."""
        path = below(self.checkout, self.file.sample_submission or "")
        return path if path is not None and path.is_file() else None

    def _data_files(self) -> Iterator[Path]:
        for folder in self._data_folders():
            yield from files_below(folder)

    def _data_folders(self) -> list[Path]:
        """Return the data folders. Data of a hub may be missing."""
        folders = []
        for dataset in self._datasets:
            path = below(self.checkout, dataset.data_path)
            if path is not None and path.is_dir():
                folders.append(path)
            elif dataset.is_local:
                leads = "that leads out of the checkout: put them inside"
                advice = leads if path is None else "download them as described in its README"
                place = self.checkout / dataset.data_path
                raise TaskError(f"the data '{dataset.name}' of task '{self.file.id}' are not in {place}; {advice}")
        return folders


def load_mlgym(
    checkout: str | Path,
    name: str,
    *,
    metric: str = "",
    direction: str = "",
    submission: str = "",
    install: bool = False,
    steps: int = 50,
    validations: int = 10,
) -> MLGymTask:
    """Load a task of an MLGym checkout, unmodified.

    Arguments:
        checkout: the folder with `configs/tasks`, `configs/datasets` and `data`.
        name: the name of the task file, or its `id`.
        metric: the score that counts; by default the first one of the recorded baseline. If none is recorded, the
            baseline is measured and must give a single score.
        direction: `higher` or `lower`; by default guessed from the metric's name, because the files do not state it.
        submission: the file that a Python task submits; by default see `find_submission`.
        install: install the task's requirements into their own environment, once; see `install_requirements`.
        steps, validations: limits, which the files do not contain.

    Raises:
        UnknownNameError: there is no such task.
        TaskError: the task's files are invalid, or something that they name is missing.
    """
    root = Path(checkout).resolve()
    if not (root / _TASKS).is_dir():
        raise TaskError(f"{root} is not an MLGym checkout: it has no {_TASKS}")
    path = _path(root, name)
    file = read_yaml(TaskFile, path)
    datasets = tuple(read_yaml(DatasetFile, root / "configs" / dataset) for dataset in file.dataset_configs)
    recorded = file.baseline_scores[0] if file.baseline_scores else {}
    counted = metric or next(iter(recorded), UNNAMED)
    way = direction or guess_direction(counted)
    if way not in set(Direction):
        raise SettingsError(f"direction must be 'higher' or 'lower'; got '{way}'")
    score = recorded.get(counted)
    scale = abs(score or 1.0)
    floor = None if score is None else score - _FLOOR_SCALES * scale * (1 if way == Direction.HIGHER else -1)
    seconds = file.training_timeout or 1800.0
    submitted = "submission.csv" if file.task_entrypoint is EntryPoint.CSV else "*"
    task = MLGymTask(
        name=re.sub(r"\W+", "_", name.removesuffix(".yaml").removeprefix("tasks/")),
        title=file.name,
        description=file.description,
        metric=Metric(name=counted, direction=Direction(way), scale=scale, floor=floor),
        submission=Submission(files=(submitted,), largest=MAX_BYTES),
        limits=TaskLimits(
            steps=steps,
            seconds=86_400.0,
            command_seconds=seconds,
            validations=validations,
            evaluation_seconds=seconds,
            memory=16 << 30,
        ),
    )
    task._checkout, task._file, task._datasets = root, file, datasets
    task._folder = path.parent
    if install and file.requirements_path:
        task._packages = install_requirements(root / file.requirements_path)
    changes: Json = {"description": _describe(task), "baseline": task.baseline_command()}
    starter, evaluator = task.starter_files(), task.evaluator_place
    if file.task_entrypoint is EntryPoint.PYTHON:
        wanted = submission or find_submission(evaluator, starter, file.description)
        changes["submission"] = Submission(files=(wanted,), largest=MAX_BYTES)
    elif submission:
        raise SettingsError(f"only Python tasks have a submission to choose; '{file.id}' is {file.task_entrypoint}")
    task = task.model_copy(update=changes)
    if metric or recorded:
        return task
    load = partial(load_mlgym, checkout, name, direction=direction, submission=submission, install=install)
    return load(metric=_only_score(task), steps=steps, validations=validations)


def mlgym_names(checkout: str | Path) -> list[str]:
    """Return the task names of a checkout."""
    return sorted(path.stem for path in (Path(checkout) / _TASKS).glob("*.yaml"))


def _path(root: Path, name: str) -> Path:
    """Return a task's file by its name, its file name (MLGym's `--task tasks/NAME.yaml`) or its `id`."""
    paths = sorted((root / _TASKS).glob("*.yaml"))
    named = [path for path in paths if name in (path.stem, path.name, f"tasks/{path.name}")]
    pattern = re.compile(rf"^id:\s*['\"]?{re.escape(name)}['\"]?\s*$", re.M)
    for path in named or paths:
        if named or pattern.search(path.read_text(encoding="utf-8", errors="replace")):
            return path
    raise UnknownNameError("task of the checkout", name, mlgym_names(root))


def _describe(task: MLGymTask) -> str:
    """Build the agent's description: with the data, and with what the task names but is unavailable here."""
    docs = "\n".join(f"- {item.name}: {item.description}" for item in task._datasets)
    text = task.description.replace("{dataset_docs}", docs)
    if docs and "{dataset_docs}" not in task.description:
        text += f"\n\nData (in ./data, read-only):\n{docs}"
    if len(task._data_folders()) < len(task._datasets):
        absent = [item.data_path for item in task._datasets if not (task.checkout / item.data_path).is_dir()]
        text += f"\n\nData of a hub that are not here, and there is no network: {', '.join(absent)}."
    answers = {Path(item).name for item in task._answers}
    if answers:
        text += (
            f"\n\nNot shown, as they hold the answers: {', '.join(sorted(answers))}. {task.evaluator_place} reads them, so it "
            "does not run in your workspace; the command `validate` runs it for you."
        )
    if secret := [name for name in task._secrets().files if name not in answers and names_file(text, name)]:
        text += f"\n\nNamed above, but not in your workspace: {', '.join(secret)}."
    if missing := task.missing_packages():
        text += f"\n\nNot installed, and not to be had: {', '.join(missing)}."
    return text


def _only_score(task: MLGymTask) -> str:
    """Return the name of the baseline's only score. The baseline is measured if necessary."""

    sandbox = sandbox_for(task)
    scores = load_baseline(task, sandbox, make_judge(task, sandbox)).test.scores
    names = [name for name in scores if name != UNNAMED]
    if len(names) > 1:
        raise SettingsError(
            f"task '{task.name}' records no baseline scores, and its evaluator returns {', '.join(names)}; "
            "select one with --task-option metric=NAME"
        )
    return names[0]
