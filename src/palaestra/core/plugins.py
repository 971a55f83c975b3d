"""Load a user's own code, and describe its errors with the user's file and line.

Plugins are files or modules. Classes are named by `module:Name` or `file.py:Name`.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import re
import sys
import sysconfig
import traceback
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from palaestra.core.errors import PalaestraError, SettingsError

REFERENCE = re.compile(r"(?P<module>[A-Za-z_][\w.]*|.+\.py):(?P<name>[A-Za-z_]\w*)")
"""`module:Name` or `file.py:Name`."""
_objects: dict[str, Any] = {}
"""Objects of this process by reference: those that `make_reference` has named."""


def load_file(path: Path, label: str) -> ModuleType:
    """Run a Python file as a module named `label`. Errors of the file propagate.

    Python's cache of compiled modules is not used: it misses a change within a second, and it would put a folder beside the
    file.
    """
    spec = importlib.util.spec_from_file_location(label, path)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[label] = module  # Dataclasses look their module up.
    try:
        exec(compile(path.read_bytes(), path, "exec", dont_inherit=True), module.__dict__)
    except BaseException:
        sys.modules.pop(label, None)
        raise
    return module


def load_plugins(names: Iterable[str]) -> None:
    """Import plugins, which register tasks, teachers, environments, agents and so on. Each is imported once.

    Arguments:
        names: paths of files, for example `my_task.py`, or names of modules.

    Raises:
        SettingsError: a plugin cannot be imported. The message says why and where.
    """
    for name in names:
        try:
            import_code(name)
        except (Exception, SystemExit) as error:  # The user's code may raise anything.
            path = Path(name).expanduser().resolve()
            hint = "" if path.suffix == ".py" else "; for a file, give its path, for example my_task.py"
            raise SettingsError(
                f"setting 'plugins': {name} cannot be imported: {describe_error_within(error, path)}{hint}"
            ) from error


def import_code(name: str) -> ModuleType:
    """Import a module by its name, or a file by its path. A file is run once, even under several names.

    The current folder, and the folder of a file, are searched after everything else on the path.
    """
    path = Path(name).expanduser().resolve()
    if path.suffix != ".py":
        return _import_module(name)
    if not path.is_file():
        raise FileNotFoundError("the file does not exist")
    for module in list(sys.modules.values()):
        if getattr(module, "__file__", None) == str(path):
            return module
    _append_path(str(path.parent))
    return load_file(path, _make_label(path))


def is_reference(text: str) -> bool:
    """Whether a text has the form `module:Name` or `file.py:Name`.

    >>> is_reference("my_package.tasks:MyTask"), is_reference("tasks/mine.py:MyTask"), is_reference("math-skills")
    (True, True, False)
    """
    return REFERENCE.fullmatch(text) is not None


def load_reference(reference: str) -> Any:
    """Load the object that `module:Name` or `file.py:Name` names.

    Raises:
        SettingsError: the module cannot be imported, or has no such name.
    """
    module, _, name = reference.rpartition(":")
    try:
        target = find_reference(reference)
    except (Exception, SystemExit) as error:  # The user's code may raise anything.
        where = Path(module).expanduser().resolve()
        raise SettingsError(f"cannot load '{reference}': {describe_error_within(error, where)}") from error
    if target is None:
        hint = "; a class of a notebook is not saved: define it in a file" if module == "__main__" else ""
        raise SettingsError(f"cannot load '{reference}': {module} has no '{name}'{hint}")
    return target


def find_reference(reference: str) -> Any:
    """Return the object that a reference names, or `None` if its module has no such name. Errors of the module propagate."""
    if reference in _objects:
        return _objects[reference]
    module, _, name = reference.rpartition(":")
    return getattr(import_code(module), name, None)


def make_reference(kind: type[Any]) -> str:
    """Return the reference to a class, for settings and resumed runs.

    A class of a script is named by the script's file. A class of a notebook, or one that a function defines, has a
    reference that is valid only in this process.
    """
    module = sys.modules.get(kind.__module__)
    file = getattr(module, "__file__", None)
    by_file = (
        file is not None and "." not in kind.__module__ and is_user_file(file) and kind.__qualname__.isidentifier()
    )
    reference = f"{Path(file).resolve() if by_file and file else kind.__module__}:{kind.__name__}"
    _objects[reference] = kind
    return reference


def make_absolute(text: str) -> str:
    """Make the path of `file.py` or `file.py:Name` absolute, so that a run can be resumed from another folder.

    A prefix stays: the path of `text:games.py:Env` is `games.py`.
    """
    path, colon, name = text.rpartition(":") if is_reference(text) else (text, "", "")
    if not path.endswith(".py"):
        return text
    prefix, mark, path = path.rpartition(":")
    return f"{prefix}{mark}{Path(path).expanduser().resolve()}{colon}{name}"


def make_callable(package: str, target: str) -> None:
    """Make a package callable like a function: `palaestra.report(RUN)` beside the modules of `palaestra.report`.

    Arguments:
        target: the function that is called, as `module:name`; it is imported at the first call.
    """

    class CallableModule(ModuleType):
        def __call__(self, *arguments: Any, **options: Any) -> Any:
            return load_reference(target)(*arguments, **options)

    sys.modules[package].__class__ = CallableModule


def _make_label(path: Path) -> str:
    return f"palaestra_plugin_{path.stem}_{zlib.crc32(str(path).encode()):08x}"


def _import_module(name: str) -> ModuleType:
    try:
        spec = importlib.util.find_spec(name)
        label = _make_label(Path(spec.origin)) if spec is not None and spec.origin else ""
        return sys.modules[label] if label in sys.modules else importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if os.getcwd() in sys.path or not (name == missing or name.startswith(f"{missing}.")):
            raise  # The folder was already searched, or the module exists and an import in it failed.
        # An installed command has its own folder on the path, not the one that it is called in.
        _append_path(os.getcwd())
        return importlib.import_module(name)


def _append_path(folder: str) -> None:
    """Search a folder last, so that no file in it hides an installed module."""
    if folder not in sys.path:
        sys.path.append(folder)


_OURS = Path(__file__).resolve().parents[1]
_INSTALLED = tuple(
    Path(folder).resolve()
    for folder in {*map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib")), sys.prefix}
    if folder
)


# Errors in user code


def describe_location(function: Callable[..., Any]) -> str:
    """Return ` (task.py, line 41)` for a function in a user's file; an empty string for any other function."""
    try:
        code = inspect.unwrap(function).__code__
    except (AttributeError, ValueError):
        return ""
    return _describe(code.co_filename, code.co_firstlineno)


def describe_origin(error: BaseException) -> str:
    """Return ` (task.py, line 41)` for the user's line that raised `error`; an empty string if there is none.

    The line is the deepest one outside Palaestra, Python and the installed packages. Causes are searched first.
    """
    for link in reversed(_list_causes(error)):
        for frame in reversed(traceback.extract_tb(link.__traceback__)):
            if is_user_file(frame.filename):
                return _describe(frame.filename, frame.lineno or 0)
    return ""


def describe_error(error: BaseException) -> str:
    """Describe an error in one line with the user's line that raised it. Errors of Palaestra are shown without a type."""
    message = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    origin = describe_origin(error)
    if origin in message:
        origin = ""
    if isinstance(error, PalaestraError) and message:
        return f"{message}{origin}"
    return f"{type(error).__name__}: {message}{origin}" if message else f"{type(error).__name__}{origin}"


def describe_error_within(error: BaseException, folder: Path) -> str:
    """Describe an error in one line with its innermost line inside a file or folder."""
    message = f"{type(error).__name__}: {' '.join(str(error).split())}".removesuffix(": ")
    frames = traceback.extract_tb(error.__traceback__)
    place = next((frame for frame in reversed(frames) if Path(frame.filename).is_relative_to(folder)), None)
    return message if place is None else f"{message} ({Path(place.filename).name}, line {place.lineno})"


def is_user_file(filename: str) -> bool:
    """Whether a source file belongs neither to Palaestra nor to Python nor to an installed package."""
    if filename.startswith("<"):
        return False
    path = Path(filename).resolve()
    return not path.is_relative_to(_OURS) and not any(path.is_relative_to(folder) for folder in _INSTALLED)


def _list_causes(error: BaseException) -> list[BaseException]:
    """Return the error and its chain of causes, the original cause last."""
    chain: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in chain:
        chain.append(link)
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    return chain


def _describe(filename: str, line: int) -> str:
    return f" ({Path(filename).name}, line {line})" if is_user_file(filename) else ""
