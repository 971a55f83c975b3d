"""Load Python files and modules of the user as plugins."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import zlib
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

from palaestra.core.errors import SettingsError
from palaestra.core.user_code import describe_error_within


def load_file(path: Path, label: str) -> ModuleType:
    """Run a Python file and return it as a module named `label`. Its exceptions propagate."""
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
    """Import user code that registers tasks, teachers, engines, environments or agents. Each plugin is imported once.

    Arguments:
        names: paths of files, for example `my_task.py`, or names of importable modules.

    Raises:
        SettingsError: a plugin cannot be imported; the message has the cause and the line.
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
        except (Exception, SystemExit) as error:  # User code may raise anything.
            hint = "" if path.suffix == ".py" else "; a file is named by its path, for example my_task.py"
            raise SettingsError(
                f"setting 'plugins': {name} cannot be imported: {describe_error_within(error, path)}{hint}"
            ) from error
