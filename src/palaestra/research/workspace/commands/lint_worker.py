"""Finds the errors in Python sources; a process of its own, see `lint`. Reads and writes JSON, a line each.

Run as a script with the folder that holds pyflakes; it imports nothing of this package.
"""

from __future__ import annotations

import ast
import gc
import json
import resource
import sys
import warnings

MEMORY = 1 << 30
FATAL = frozenset({
    "UndefinedName", "UndefinedExport", "UndefinedLocal", "DuplicateArgument", "ReturnOutsideFunction",
    "YieldOutsideFunction", "ContinueOutsideLoop", "BreakOutsideLoop", "DefaultExceptNotLast", "TwoStarredExpressions",
    "TooManyExpressionsInStarredAssignment", "FutureFeatureNotDefined", "LateFutureImport",
    "ForwardAnnotationSyntaxError",
})  # fmt: skip
"""What pyflakes finds that fails when it is run; matters of style are the agent's own."""


def findings(source: str) -> dict[str, object]:
    """The errors of a source: `broken` where it cannot be parsed at all."""
    try:
        tree = ast.parse(source)
        compile(tree, "file", "exec", dont_inherit=True)  # finds what the parser lets pass, as a `nonlocal` of nothing
    except SyntaxError as error:
        return {"broken": True, "found": [[error.lineno or 1, f"{type(error).__name__}: {error.msg}"]]}
    except ValueError as error:  # a NUL, or a lone surrogate
        return {"broken": True, "found": [[1, f"SyntaxError: {error}"]]}
    try:
        from pyflakes.checker import Checker
    except ImportError:
        return {"broken": False, "found": []}
    found = [
        [message.lineno, message.message % message.message_args]
        for message in Checker(tree, filename="file").messages
        if type(message).__name__ in FATAL
    ]
    return {"broken": False, "found": sorted(found)}


def main() -> None:
    if sys.argv[1]:
        sys.path.append(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    warnings.simplefilter("ignore")  # Of doubtful escapes nobody here wants to hear.
    gc.disable()  # A tree is many small objects, none of them garbage. Swept when the answer is out.
    for line in sys.stdin.buffer:
        try:
            answer: object = findings(json.loads(line))
        except (RecursionError, MemoryError):
            answer = None
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
        gc.collect()


if __name__ == "__main__":
    main()
