"""Registries of names, and the plugins and user files that add to them."""

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
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from palaestra.core.errors import PalaestraError, SettingsError, UnknownNameError

_DECLARED: defaultdict[str, list[tuple[str, str, str, bool]]] = defaultdict(list)
REFERENCE = re.compile(r"(?P<module>[A-Za-z_][\w.]*|.+\.py):(?P<name>[A-Za-z_]\w*)")
"""`module:Name` or `file.py:Name`."""
_objects: dict[str, object] = {}
"""Objects of this process by reference: those that `make_reference` has named."""
_temporary: set[str] = set()
"""The references among them that another process cannot resolve."""


def declare_entry(group: str, name: str, target: str, description: str, *, is_prefix: bool = False) -> None:
    """Add an import string to the registry of an entry point group. The registry's module is not imported.

    Packages on a higher floor register themselves this way.
    """
    _DECLARED[group].append((name, target, description, is_prefix))


class Registry:
    """Names of one kind (task, teacher, ...) and the objects behind them.

    Arguments:
        kind: the word for an entry in messages, for example `"teacher"`.
        group: the entry point group that plugins use, for example `"palaestra.teachers"`.
    """

    def __init__(self, kind: str, group: str) -> None:
        self.kind, self.group = kind, group
        self._entries: dict[str, object] = {}
        self._descriptions: dict[str, str] = {}
        self._matchers: list[tuple[Callable[[str], bool], str, object]] = []
        """For names that are not entries: the condition, the prefix that is cut off, and the target."""
        self._plugins_loaded = False

    def register(self, name: str, target: object, description: str = "") -> None:
        """Register `target`, an object or an import string, under `name`.

        Raises:
            PalaestraError: the name is already registered for another target.
        """
        if name in self._entries and self._entries[name] != target:
            raise PalaestraError(
                f"{self.kind} '{name}' is already registered as {self._entries[name]!r}; give {target!r} another name"
            )
        self._entries[name] = target
        self._descriptions[name] = description

    def register_prefix(self, prefix: str, target: object, description: str = "") -> None:
        """Register all names `prefix:NAME`, for example of another package.

        Arguments:
            target: a function, or its import string, that returns the object of `NAME`.
        """
        start = f"{prefix}:"
        self._matchers.insert(0, (lambda name: name.startswith(start), start, target))
        self._descriptions[f"{start}NAME"] = description

    def register_matching(
        self, matches: Callable[[str], bool], shown: str, target: object, description: str = ""
    ) -> None:
        """Register all names for which `matches` is true, for example paths of files.

        Arguments:
            shown: the form of such names, for lists.
            target: a function, or its import string, that returns the object of a name.
        """
        self._matchers.append((matches, "", target))
        self._descriptions[shown] = description

    def get(self, name: str) -> Any:
        """Return the object behind `name`. An import string is imported now.

        Raises:
            UnknownNameError: the name is not registered; the message suggests the nearest one.
        """
        self.check(name)
        if name in self._entries:
            return _load(self._entries[name])
        for matches, start, target in self._matchers:
            if matches(name):
                return _load(target)(name.removeprefix(start))
        return load_reference(name)

    def has(self, name: str) -> bool:
        """Whether a name is an entry, or one of a prefix or a form that is registered. Imports nothing."""
        self._load_plugins()
        return name in self._entries or any(matches(name) for matches, *_ in self._matchers)

    def check(self, name: str) -> str:
        """Return `name` if it is registered, without importing anything."""
        if self.has(name):
            return name
        if not is_reference(name):
            raise UnknownNameError(
                self.kind, name, [*self._entries, *(f"{start}NAME" for _, start, _ in self._matchers if start)]
            )
        load_reference(name)
        return name

    def names(self) -> list[str]:
        self._load_plugins()
        return sorted(self._entries)

    def descriptions(self) -> Mapping[str, str]:
        self._load_plugins()
        return {name: self._descriptions[name] for name in sorted(self._descriptions)}

    def _load_plugins(self) -> None:
        if self._plugins_loaded:
            return
        self._plugins_loaded = True
        for name, target, description, is_prefix in _DECLARED[self.group]:
            (self.register_prefix if is_prefix else self.register)(name, target, description)
        for point in entry_points(group=self.group):
            self.register(point.name, point.value, f"plugin from {point.dist.name}" if point.dist else "plugin")


def _load(target: object) -> Any:
    """Return a registered object. An import string is imported."""
    if not isinstance(target, str):
        return target
    module, _, attribute = target.partition(":")
    return getattr(importlib.import_module(module), attribute)


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
    if not module:
        raise SettingsError(f"expected FILE.py:NAME or MODULE:NAME; got '{reference}'")
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


def make_reference(target: Callable[..., Any], name: str = "") -> str:
    """Return the reference to a class or a function, for settings and resumed runs.

    A class of a script is named by the script's file. One of a notebook, a lambda, or one that a function defines has a
    reference that is valid only in this process; see `is_temporary`.

    Arguments:
        name: the name of an object that has none.
    """
    place = getattr(target, "__module__", "") or "object"
    file = getattr(sys.modules.get(place), "__file__", None)
    qualified, own = getattr(target, "__qualname__", ""), name or getattr(target, "__name__", type(target).__name__)
    own = re.sub(r"\W", "_", own)
    if file and "." not in place and is_user_file(file) and qualified.isidentifier():
        place = str(Path(file).resolve())
    reference, count = f"{place}:{own}", 1
    while _objects.get(reference, target) is not target:
        count += 1
        reference = f"{place}:{own}_{count}"
    _objects[reference] = target
    if not qualified.isidentifier() or not file or count > 1:
        _temporary.add(reference)
    return reference


def is_temporary(reference: str) -> bool:
    """Whether a reference is valid only in this process."""
    return reference in _temporary


def make_absolute(text: str) -> str:
    """Make the path of `file.py` or `file.py:Name` absolute, so that a run can be resumed from another folder.

    A prefix stays: the path of `text:games.py:Env` is `games.py`.
    """
    path, colon, name = text.rpartition(":") if is_reference(text) else (text, "", "")
    if not path.endswith(".py"):
        return text
    prefix, mark, path = path.rpartition(":")
    return f"{prefix}{mark}{Path(path).expanduser().resolve()}{colon}{name}"


def _make_label(path: Path) -> str:
    return f"palaestra_plugin_{path.stem}_{zlib.crc32(str(path).encode()):08x}"


def _import_module(name: str) -> ModuleType:
    if importlib.util.find_spec(name.partition(".")[0]) is None:
        # An installed command has its own folder on the path, not the one that it is called in.
        _append_path(os.getcwd())
    spec = importlib.util.find_spec(name)
    label = _make_label(Path(spec.origin)) if spec is not None and spec.origin else ""
    return sys.modules.get(label) or importlib.import_module(name)


def _append_path(folder: str) -> None:
    """Search a folder last, so that no file in it hides an installed module."""
    if folder not in sys.path:
        sys.path.append(folder)


_INSTALLED = {
    Path(folder).resolve()
    for folder in (*sysconfig.get_paths().values(), sys.prefix, str(Path(__file__).resolve().parents[1]))
}
"""Folders of Python, of the installed packages and of Palaestra."""


# Errors in user code


def describe_location(function: Callable[..., object]) -> str:
    """Return ` (task.py, line 41)` for a function in a user's file; an empty string for any other function."""
    try:
        code = inspect.unwrap(function).__code__
    except AttributeError:  # It is not written in Python.
        return ""
    return _describe(code.co_filename, code.co_firstlineno)


def check_signature(
    function: Callable[..., object], owner: str, *names: str, keywords: Iterable[str] = (), error: type[PalaestraError]
) -> None:
    """Raise if a function of the user cannot be called with the arguments `names`, and with `keywords` by name.

    Arguments:
        owner: the name of the function, for the message.
        error: the type of the exception.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # It is not written in Python.
        return
    try:
        signature.bind(*names, **dict.fromkeys(keywords))
    except TypeError:
        raise error(
            f"{owner} must take ({', '.join((*names, *keywords))}); it takes ({', '.join(signature.parameters)})"
            f"{describe_location(function)}"
        ) from None


def describe_origin(error: BaseException) -> str:
    """Return ` (task.py, line 41)` for the user's line that raised `error`; an empty string if there is none.

    The line is the deepest one outside Palaestra, Python and the installed packages. Causes are searched first.
    """
    origin = ""
    link: BaseException | None = error
    while link is not None:
        for frame in traceback.extract_tb(link.__traceback__):
            origin = _describe(frame.filename, frame.lineno or 0) or origin
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    return origin


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
    return not any(path.is_relative_to(folder) for folder in _INSTALLED)


def _describe(filename: str, line: int) -> str:
    return f" ({Path(filename).name}, line {line})" if is_user_file(filename) else ""
