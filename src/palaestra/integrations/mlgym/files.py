"""The files of an MLGym checkout: the fields that we read, and what we infer.

The direction of a metric is inferred from its name. The submitted file and the files with answers are inferred from the
evaluator. Required packages are installed into their own environment.
"""

from __future__ import annotations

import ast
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path, PurePosixPath
from typing import Annotated

from pydantic import Field, FiniteFloat

from palaestra.core.errors import TaskError
from palaestra.core.tables import load_table
from palaestra.integrations.research_tasks import ForeignFile
from palaestra.models.registry import cache_folder
from palaestra.research.tasks.task import Direction
from palaestra.runs.files import storage_errors


class EntryPoint(StrEnum):
    """How a task is judged, by the name of MLGym's class."""

    CSV = "CSVSubmissionTasks"
    """`evaluate.py --submission_file WORKSPACE/submission.csv`; runs no code of the agent."""
    MODEL = "ModelSubmissionTasks"
    """`evaluate.py --config_fname FIRST.yaml`, with the agent's checkpoints and code."""
    LANGUAGE_MODEL = "LMSubmissionTasks"
    """`torchrun evaluate.py`, with the agent's checkpoints and code."""
    PYTHON = "PythonSubmissionTasks"
    """`evaluate.py`, which imports the file that the agent edits; see `find_submission`."""

    @property
    def has_model(self) -> bool:
        """Whether checkpoints are submitted."""
        return self in (EntryPoint.MODEL, EntryPoint.LANGUAGE_MODEL)


class TaskFile(ForeignFile):
    """`configs/tasks/NAME.yaml`."""

    id: str
    name: str
    description: str
    task_entrypoint: EntryPoint = EntryPoint.CSV
    dataset_configs: tuple[str, ...] = ()
    training_timeout: Annotated[FiniteFloat, Field(gt=0)] | None = None
    requirements_path: str | None = None
    starter_code: tuple[str, ...] = ()
    baseline_paths: tuple[str, ...] = ()
    baseline_scores: tuple[dict[str, FiniteFloat], ...] = ()
    sample_submission: str | None = None
    evaluation_paths: tuple[str, ...] = ("evaluate.py",)
    secret_files: tuple[str, ...] = ()


class DatasetFile(ForeignFile):
    """`configs/datasets/NAME.yaml`."""

    name: str
    description: str = ""
    data_path: str
    is_local: bool = False


# Metrics

_TIMES, _LOWER, _HIGHER = (frozenset[str](load_table(__file__, "names")[name]) for name in ("times", "lower", "higher"))
_WORD = re.compile(r"[A-Z]+(?![a-z])\d*|[A-Z]?[a-z]+\d*|\d+")


def guess_direction(metric: str) -> Direction:
    """Guess the direction of a metric from the words of its name.

    >>> [str(guess_direction(name)) for name in ("Test_MSE_mean", "valLoss", "sentiment_accuracy", "apples", "neg_loss")]
    ['lower', 'lower', 'higher', 'higher', 'higher']
    """
    words = _words(metric)
    return Direction.LOWER if words & (_LOWER | _TIMES) and not words & _HIGHER else Direction.HIGHER


def is_time(metric: str) -> bool:
    """Whether a metric measures time.

    >>> is_time("solvingTime"), is_time("sentiment")
    (True, False)
    """
    return bool(_words(metric) & _TIMES)


def _words(metric: str) -> set[str]:
    return {word.lower() for word in _WORD.findall(metric)}


# Roles of files

_ANSWERS = re.compile(r"answer|truth|label|solution", re.IGNORECASE)
"""Words in the names of files with answers."""


def find_submission(evaluator: str, files: Mapping[str, bytes], description: str) -> str:
    """Find the file that is submitted.

    It is the only starter file that the evaluator imports, directly or indirectly; of several, the only one that the
    description names. A file that the agent has to write counts if the description names it and the evaluator imports
    it.

    Arguments:
        evaluator: the evaluator's name among the files.
        files: the starter code without secret files, by name.

    Raises:
        TaskError: no file fits, or several do.
    """
    source = files.get(evaluator, b"")
    direct = _find_imported_files(evaluator, source, files)
    reached = list(direct)
    for name in reached:  # The list grows during the loop.
        more = _find_imported_files(name, files[name], files)
        reached += [file for file in more if file not in reached and file != evaluator]
    written = [name for name in _find_imports(source) if name not in files]
    named = [name for name in reached + written if names_file(description, name)]
    candidates = named or reached
    for narrowed in (candidates, [name for name in candidates if name in direct]):
        if len(narrowed) == 1:
            return narrowed[0]
    reason = f"it could be {' or '.join(candidates)}" if candidates else f"{evaluator} imports none of its files"
    raise TaskError(f"cannot determine which file is submitted: {reason}; set it with --task-option submission=FILE")


def find_answers(evaluator: bytes, data: Sequence[Path], sample: Path | None) -> list[Path]:
    """Find the files with the answers of a table.

    They are the data files that the evaluator names and that are called answers, labels, ground truth or solution. A
    sample submission with the content of such a data file counts as well, together with that file.
    """
    constants = [node.value for node in ast.walk(_parse(evaluator)) if isinstance(node, ast.Constant)]
    names = {PurePosixPath(text).name for text in constants if isinstance(text, str) and text}
    read = [path for path in data if path.name in names]
    same = [] if sample is None else [path for path in read if path.read_bytes().split() == sample.read_bytes().split()]
    answers = [path for path in read if _ANSWERS.search(path.stem) or path in same]
    return [*answers, sample] if sample is not None and same else answers


def _find_imports(source: bytes) -> list[str]:
    """Return the files that a program may import or run, as paths relative to the workspace."""
    modules: list[str] = []
    for node in ast.walk(_parse(source)):
        match node:
            case ast.Import(names=names):
                modules += [name.name for name in names]
            case ast.ImportFrom(module=str() as module, names=names):
                modules += [module, *(f"{module}.{name.name}" for name in names)]
            case ast.ImportFrom(module=None, names=names):
                modules += [name.name for name in names]
            case ast.Call(
                func=ast.Name(id="__import__") | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str() as name), *_],
            ):
                modules.append(name)
            case ast.Constant(value=str() as text) if text.endswith(".py"):
                path = text.removeprefix("./").removeprefix("/home/agent/workspace/")
                modules.append(path.removesuffix(".py").replace("/", "."))
    return list(dict.fromkeys(f"{name.lstrip('.').replace('.', '/')}.py" for name in modules))


def _find_imported_files(importer: str, source: bytes, files: Mapping[str, bytes]) -> list[str]:
    """Return the files that a program imports. Names are also looked up beside the importer."""
    beside = PurePosixPath(importer).parent
    names = _find_imports(source)
    paths = [path for name in names for path in (name, str(beside / name)) if path in files and path != importer]
    return list(dict.fromkeys(paths))


def public_names(source: bytes) -> list[str]:
    """Return the names that a module defines at its top level, without imports."""
    names: list[str] = []
    for node in _parse(source).body:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names.append(name)
            case ast.Assign(targets=targets):
                names += [node_.id for target in targets for node_ in ast.walk(target) if isinstance(node_, ast.Name)]
            case ast.AnnAssign(target=ast.Name(id=name)):
                names.append(name)
    return [name for name in dict.fromkeys(names) if not name.startswith("_")]


def _parse(source: bytes) -> ast.Module:
    """Parse a program; an unreadable one is treated as empty."""
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return ast.Module([], [])


def names_file(text: str, name: str) -> bool:
    """Whether a text names a file, by its path or its last part."""
    variants = "|".join(map(re.escape, (name, PurePosixPath(name).name)))
    return re.search(rf"(?<![\w-])(?:{variants})(?![\w-])", text) is not None


# Packages

_MAX_MESSAGE = 600
"""Characters of pip's error that are reported."""


def install_requirements(path: Path) -> Path:
    """Return a virtual environment with the packages of a requirements file, and create it if this machine has none
    yet.

    It is in the user's cache, keyed by the file's content and the Python version.

    Raises:
        TaskError: the packages cannot be installed.
    """
    mark = f"{sys.version_info[:2]}:{sys.base_prefix}:".encode()
    digest = hashlib.blake2b(mark + path.read_bytes(), digest_size=8).hexdigest()
    home = cache_folder() / "research" / f"packages-{digest}"
    if (home / "installed").exists():
        return home
    with storage_errors(home, "storing the packages of a research task"):
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True)
    install = [str(home / "bin/python"), "-m", "pip", "install", "--quiet", "-r", str(path)]
    for command in ([sys.executable, "-m", "venv", str(home)], install):
        done = subprocess.run(command, cwd=home, capture_output=True, text=True, errors="replace", check=False)
        if done.returncode:
            message = " ".join(done.stderr.split())[-_MAX_MESSAGE:]
            raise TaskError(f"the requirements {path} cannot be installed: {message}")
    (home / "installed").touch()
    return home


def variables(home: Path) -> dict[str, str]:
    """Return the environment variables that select a virtual environment in a sandbox."""
    from palaestra.sandbox.bubblewrap import environment

    return {"VIRTUAL_ENV": str(home), "PATH": f"{home / 'bin'}{os.pathsep}{environment()['PATH']}"}
