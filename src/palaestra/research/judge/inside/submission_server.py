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
    objects: dict[str, object] = {}

    def answer(value: object) -> None:
        try:
            channel.send({"value": value})
        except TypeError:
            channel.send({"value": plain(value)})

    while (request := channel.receive()) is not None:
        try:
            if module is None:
                module = importlib.import_module(request["module"])
                answer(sorted(name for name in vars(module) if callable(getattr(module, name))))
                continue
            owner = module if request.get("object") is None else objects[request["object"]]
            function = getattr(owner, request["function"])
            value: object
            if "many" in request:
                value = [function(*arguments) for arguments in request["many"]]
            else:
                value = function(*request["arguments"], **request["named"])
            if request.get("keep"):
                objects[request["keep"]] = value
                value = None
            answer(value)
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
