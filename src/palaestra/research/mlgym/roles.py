"""What the files of a task are for: the task files do not say, so it follows from what the evaluator does with them.

The submission of a Python task is the file that the evaluator imports and that the agent may edit. Everything else that the evaluator imports
is part of the judgement: an opponent, a solver, a data set.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

from palaestra.core.errors import TaskError

ANSWERS = re.compile(r"answer|truth|label|solution", re.IGNORECASE)
"""What files with the answers are called."""


def find_submission(evaluator: str, files: Mapping[str, bytes], description: str) -> str:
    """Find the file that is handed in.

    It is the only file of the starter code that the evaluator imports; or, where it imports several, directly or by one
    another, the only one of these that the description names. A file that the description names and the agent has to write
    counts as well, if the evaluator imports it.

    Arguments:
        evaluator: its name among the files.
        files: the starter code without secret files, by name.

    Raises:
        TaskError: no file fits, or several do.
    """
    source = files.get(evaluator, b"")
    direct = find_imported_files(evaluator, source, files)
    reached = list(direct)
    for name in reached:  # Grows while it is gone through.
        more = find_imported_files(name, files[name], files)
        reached += [one for one in more if one not in reached and one != evaluator]
    written = [name for name in find_imports(source) if name not in files and _names_file(description, name)]
    named = [name for name in reached if _names_file(description, name)] + written
    for several in (
        named,
        [name for name in named if name in direct],
        [] if named else reached,
        [] if named else direct,
    ):
        if len(several) == 1:
            return several[0]
    found = (
        f"it could be {' or '.join(named or reached)}" if named or reached else f"{evaluator} imports none of its files"
    )
    raise TaskError(f"cannot tell which file is handed in: {found}; say it with --task-option submission=FILE")


def find_answers(evaluator: bytes, data: Sequence[Path], sample: Path | None) -> list[Path]:
    """Find the files that hold the answers of a table.

    They are the data files that the evaluator names and that are called so: answers, labels, ground truth, solution; and a
    sample submission that says the same as any data file that the evaluator names, with that file.
    """
    try:
        constants = [node.value for node in ast.walk(ast.parse(evaluator)) if isinstance(node, ast.Constant)]
    except (SyntaxError, ValueError, RecursionError):
        return []
    names = {PurePosixPath(text).name for text in constants if isinstance(text, str) and text}
    read = [path for path in data if path.name in names]
    lines = sample.read_bytes().split() if sample is not None and sample.is_file() else None
    same = [path for path in read if lines is not None and path.read_bytes().split() == lines]
    found = [path for path in read if ANSWERS.search(path.stem) or path in same]
    return [*found, sample] if same and sample is not None else found


def find_imports(source: bytes) -> list[str]:
    """The files that a program may import or read as a program, as paths relative to the workspace."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return []
    found: list[str] = []
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                found += [name.name for name in names]
            case ast.ImportFrom(module=str() as module, names=names):
                found += [module, *(f"{module}.{name.name}" for name in names)]
            case ast.ImportFrom(module=None, names=names):
                found += [name.name for name in names]
            case ast.Call(
                func=ast.Name(id="__import__") | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str() as name), *_],
            ):
                found.append(name)
            case ast.Constant(value=str() as text) if text.endswith(".py"):
                found.append(
                    text.removesuffix(".py").removeprefix("./").removeprefix("/home/agent/workspace/").replace("/", ".")
                )
    return list(dict.fromkeys(f"{name.lstrip('.').replace('.', '/')}.py" for name in found))


def find_imported_files(importer: str, source: bytes, files: Mapping[str, bytes]) -> list[str]:
    """Those of the files that a program imports. A name is looked for beside the importer, too."""
    beside = PurePosixPath(importer).parent
    names = find_imports(source)
    found = [one for name in names for one in (name, str(beside / name)) if one in files and one != importer]
    return list(dict.fromkeys(found))


def public_names(source: bytes) -> list[str]:
    """The names that a module defines at its top level, without those that it imports."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return []
    found: list[str] = []
    for node in tree.body:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                found.append(name)
            case ast.Assign(targets=targets):
                found += [one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)]
            case ast.AnnAssign(target=ast.Name(id=name)):
                found.append(name)
    return [name for name in dict.fromkeys(found) if not name.startswith("_")]


def _names_file(text: str, name: str) -> bool:
    """Whether a text names a file, by its path or by its last part."""
    return any(re.search(rf"(?<![\w-]){re.escape(one)}(?![\w-])", text) for one in {name, PurePosixPath(name).name})
