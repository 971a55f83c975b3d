"""Runs inside the sandbox of a submission: imports its module, and calls its functions when it is asked to.

Requests and answers are one JSON object a line. What the submission prints goes to stderr, which nobody judges. It can
do what it likes to this process: all that it can change is what it answers.
"""

from __future__ import annotations

import importlib
import json
import os
import sys


def main() -> None:
    told = os.fdopen(os.dup(0), "rb")
    line = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    os.dup2(2, 1)
    sys.path.insert(0, os.getcwd())

    def say(message: dict[str, object]) -> None:
        data = json.dumps(message, default=plain).encode() + b"\n"
        while data:
            data = data[os.write(line, data) :]

    module = None
    made: dict[str, object] = {}
    for text in told:
        asked = json.loads(text)
        try:
            if module is None:
                module = importlib.import_module(asked["module"])
                say({"value": sorted(name for name in vars(module) if callable(getattr(module, name)))})
                continue
            owner = module if asked.get("object") is None else made[asked["object"]]
            function = getattr(owner, asked["function"])
            value: object
            if "many" in asked:
                value = [function(*arguments) for arguments in asked["many"]]
            else:
                value = function(*asked["arguments"], **asked["named"])
            if asked.get("keep"):
                made[asked["keep"]] = value
                value = None
            say({"value": value})
        except BaseException as error:
            say({"error": f"{type(error).__name__}: {error}"[:2000]})
            if module is None:
                break
    os._exit(0)  # Threads that a submission left do not keep it alive.


def plain(value: object) -> object:
    """Arrays and numbers of NumPy and torch as lists and numbers."""
    for way in ("tolist", "item"):
        if hasattr(value, way):
            return getattr(value, way)()
    raise TypeError(f"an answer is made of numbers, texts, lists and dictionaries; got {type(value).__name__}")


if __name__ == "__main__":
    main()
