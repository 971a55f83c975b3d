"""Call a function in another process, whose hashes of texts and clock differ from those of this one."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any

_CHILD = """
import importlib.util, pickle, sys
modules, call = pickle.load(sys.stdin.buffer)
for name, file in modules:
    if importlib.util.find_spec(name.partition(".")[0]) is None:
        spec = importlib.util.spec_from_file_location(name, file)
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
function, arguments = pickle.loads(call)
sys.stdout.buffer.write(b"result:" + pickle.dumps(function(*arguments)))
"""
_SECONDS = 20.0


def call_elsewhere(function: Callable[..., Any], *arguments: Any, seconds: float = _SECONDS) -> Any | None:
    """Return what a function of a module returns in a new process; `None` if its arguments cannot be sent there.

    Texts have other hashes there. Classes of the first argument are imported from the same files.
    """
    kinds = type(arguments[0]).__mro__
    modules = dict.fromkeys(kind.__module__ for kind in kinds if kind.__module__ not in ("builtins", "__main__"))
    files = [(name, getattr(sys.modules.get(name), "__file__", None)) for name in modules]
    try:
        data = pickle.dumps(([pair for pair in files if pair[1]], pickle.dumps((function, arguments))))
        inside = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONHASHSEED": "20260"}
        command = [sys.executable, "-c", _CHILD]
        done = subprocess.run(command, input=data, capture_output=True, timeout=seconds, env=inside, check=False)
        result = done.stdout.partition(b"result:")[2]
        return pickle.loads(result) if done.returncode == 0 and result else None
    except Exception:  # What cannot be pickled raises errors of many types.
        return None
