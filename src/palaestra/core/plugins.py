"""Load files and modules of a user's own, and say in one line what they raise."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
import zlib
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

from palaestra.core.errors import SettingsError


def load_file(path: Path, label: str) -> ModuleType:
    """A Python file as a module of the name `label`, run now. Whatever it raises comes out."""
    spec = importlib.util.spec_from_file_location(label, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[label] = module  # Dataclasses look their module up.
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(label, None)
        raise
    return module


def load_plugins(names: Iterable[str]) -> None:
    """Import code of the user's own, which registers tasks, teachers, environments, agents and the like; each once.

    Arguments:
        names: files by their paths, for example `my_task.py`, or modules that can be imported.

    Raises:
        SettingsError: one of them cannot be imported; says why, and where.
    """
    for name in names:
        path = Path(name).expanduser().resolve()
        label = f"palaestra_plugin_{path.stem}_{zlib.crc32(str(path).encode()):08x}"
        try:
            if path.suffix != ".py":
                importlib.import_module(name)
            elif not path.is_file():
                raise FileNotFoundError("there is no such file")
            elif label not in sys.modules:
                load_file(path, label)
        except (Exception, SystemExit) as error:  # Code of the user's: it may raise anything.
            hint = "" if path.suffix == ".py" else "; a file is named by its path, for example my_task.py"
            raise SettingsError(
                f"setting 'plugins': {name} cannot be imported: {locate_error(error, path)}{hint}"
            ) from error


def locate_error(error: BaseException, within: Path) -> str:
    """What was raised, and the innermost place of it in the file or folder `within`, in one line."""
    said = f"{type(error).__name__}: {' '.join(str(error).split())}".removesuffix(": ")
    frames = traceback.extract_tb(error.__traceback__)
    place = next((frame for frame in reversed(frames) if Path(frame.filename).is_relative_to(within)), None)
    return said if place is None else f"{said} ({Path(place.filename).name}, line {place.lineno})"
