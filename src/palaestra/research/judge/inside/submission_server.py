"""Runs inside the sandbox of a submission: imports its module and calls its functions on request.

Requests and answers are messages of `palaestra.sandbox.rpc`. The submission's output goes to stderr. It can do anything
to this process, but can only change its own answers.
"""

from __future__ import annotations

import importlib
import os
import sys


def main() -> None:
    from channel import HostChannel  # type: ignore[import-not-found]

    channel = HostChannel()
    # From here on, `import channel` imports a module of the submission.
    del sys.modules["channel"]
    sys.path[0] = os.getcwd()
    module = None

    def answer(value: object) -> None:
        try:
            channel.send({"value": value})
        except TypeError:
            channel.send({"value": plain(value)})

    while (request := channel.receive()) is not None:
        try:
            if module is None:
                module = importlib.import_module(request["module"])
                answer(None)
                continue
            function = getattr(module, request["function"])
            if "many" in request:
                answer([function(*arguments) for arguments in request["many"]])
            else:
                answer(function(*request["arguments"], **request["named"]))
        except BaseException as error:
            channel.send({"error": f"{type(error).__name__}: {error}"[:2000]})
            if module is None:
                break
    os._exit(0)  # Threads of the submission must not keep it alive.


def plain(value: object) -> object:
    """Convert NumPy and torch arrays and numbers within a value to lists and numbers."""
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if value is None or isinstance(value, str | int | float):
        return value
    for way in ("tolist", "item"):
        if hasattr(value, way):
            return getattr(value, way)()
    raise TypeError(f"an answer is made of numbers, texts, lists and dictionaries; got {type(value).__name__}")


if __name__ == "__main__":
    main()
