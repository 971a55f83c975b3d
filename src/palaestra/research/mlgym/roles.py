"""Infers the roles of a task's files from the evaluator, because task files do not state them.

The submission of a Python task is the file that the evaluator imports and the agent may edit. Other imports of the
evaluator are part of the judging: an opponent, a solver, a data set.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

from palaestra.core.errors import TaskError

ANSWERS = re.compile(r"answer|truth|label|solution", re.IGNORECASE)
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
    direct = find_imported_files(evaluator, source, files)
    reached = list(direct)
    for name in reached:  # The list grows during the loop.
        more = find_imported_files(name, files[name], files)
        reached += [file for file in more if file not in reached and file != evaluator]
    written = [name for name in find_imports(source) if name not in files and _names_file(description, name)]
    named = [name for name in reached if _names_file(description, name)] + written
    for candidates in (
        named,
        [name for name in named if name in direct],
        [] if named else reached,
        [] if named else direct,
    ):
        if len(candidates) == 1:
            return candidates[0]
    reason = (
        f"it could be {' or '.join(named or reached)}" if named or reached else f"{evaluator} imports none of its files"
    )
    raise TaskError(f"cannot tell which file is submitted: {reason}; set it with --task-option submission=FILE")


def find_answers(evaluator: bytes, data: Sequence[Path], sample: Path | None) -> list[Path]:
    """Find the files with the answers of a table.

    They are the data files that the evaluator names and that are called answers, labels, ground truth or solution. A
    sample submission with the content of such a data file counts as well, together with that file.
    """
    try:
        constants = [node.value for node in ast.walk(ast.parse(evaluator)) if isinstance(node, ast.Constant)]
    except (SyntaxError, ValueError, RecursionError):
        return []
    names = {PurePosixPath(text).name for text in constants if isinstance(text, str) and text}
    read = [path for path in data if path.name in names]
    lines = sample.read_bytes().split() if sample is not None and sample.is_file() else None
    same = [path for path in read if lines is not None and path.read_bytes().split() == lines]
    answers = [path for path in read if ANSWERS.search(path.stem) or path in same]
    return [*answers, sample] if same and sample is not None else answers


def find_imports(source: bytes) -> list[str]:
    """Return the files that a program may import or run, as paths relative to the workspace."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return []
    modules: list[str] = []
    for node in ast.walk(tree):
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
                modules.append(
                    text.removesuffix(".py").removeprefix("./").removeprefix("/home/agent/workspace/").replace("/", ".")
                )
    return list(dict.fromkeys(f"{name.lstrip('.').replace('.', '/')}.py" for name in modules))


def find_imported_files(importer: str, source: bytes, files: Mapping[str, bytes]) -> list[str]:
    """Return the files that a program imports. Names are also looked up beside the importer."""
    beside = PurePosixPath(importer).parent
    names = find_imports(source)
    paths = [path for name in names for path in (name, str(beside / name)) if path in files and path != importer]
    return list(dict.fromkeys(paths))


def public_names(source: bytes) -> list[str]:
    """Return the names that a module defines at its top level, without imports."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return []
    names: list[str] = []
    for node in tree.body:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names.append(name)
            case ast.Assign(targets=targets):
                names += [node_.id for target in targets for node_ in ast.walk(target) if isinstance(node_, ast.Name)]
            case ast.AnnAssign(target=ast.Name(id=name)):
                names.append(name)
    return [name for name in dict.fromkeys(names) if not name.startswith("_")]


def _names_file(text: str, name: str) -> bool:
    """Whether a text names a file, by its path or its last part."""
    return any(
        re.search(rf"(?<![\w-]){re.escape(variant)}(?![\w-])", text) for variant in {name, PurePosixPath(name).name}
    )
