"""Runs inside the sandbox of a submission: imports its module and calls its functions on request.

Requests and answers are JSON objects, one per line. The submission's output goes to stderr. It can do anything to this
process, but can only change its own answers.
"""

from __future__ import annotations

import importlib
import json
import os
import sys


def main() -> None:
    requests = os.fdopen(os.dup(0), "rb")
    answers = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    os.dup2(2, 1)
    sys.path.insert(0, os.getcwd())

    def say(message: dict[str, object]) -> None:
        data = json.dumps(message, default=plain).encode() + b"\n"
        while data:
            data = data[os.write(answers, data) :]

    module = None
    objects: dict[str, object] = {}
    for text in requests:
        request = json.loads(text)
        try:
            if module is None:
                module = importlib.import_module(request["module"])
                say({"value": sorted(name for name in vars(module) if callable(getattr(module, name)))})
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
            say({"value": value})
        except BaseException as error:
            say({"error": f"{type(error).__name__}: {error}"[:2000]})
            if module is None:
                break
    os._exit(0)  # Threads of the submission must not keep it alive.


def plain(value: object) -> object:
    """Convert NumPy and torch arrays and numbers to lists and numbers."""
    for way in ("tolist", "item"):
        if hasattr(value, way):
            return getattr(value, way)()
    raise TypeError(f"an answer is made of numbers, texts, lists and dictionaries; got {type(value).__name__}")


if __name__ == "__main__":
    main()
