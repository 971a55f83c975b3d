"""The worker process of `lint`: finds errors in Python sources. Reads and writes one JSON value per line.

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
"""Pyflakes messages about code that fails at run time; matters of style are left to the agent."""


def findings(source: str) -> dict[str, object]:
    """Return the errors of a source; `broken` if it cannot be parsed."""
    try:
        tree = ast.parse(source)
        compile(
            tree, "file", "exec", dont_inherit=True
        )  # finds errors that the parser misses, such as an invalid `nonlocal`
    except SyntaxError as error:
        return {"broken": True, "errors": [[error.lineno or 1, f"{type(error).__name__}: {error.msg}"]]}
    except ValueError as error:  # a NUL, or a lone surrogate
        return {"broken": True, "errors": [[1, f"SyntaxError: {error}"]]}
    try:
        from pyflakes.checker import Checker
    except ImportError:
        return {"broken": False, "errors": []}
    errors = [
        [message.lineno, message.message % message.message_args]
        for message in Checker(tree, filename="file").messages
        if type(message).__name__ in FATAL
    ]
    return {"broken": False, "errors": sorted(errors)}


def main() -> None:
    if sys.argv[1]:
        sys.path.append(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    warnings.simplefilter("ignore")  # Ignore warnings such as invalid escapes.
    gc.disable()  # A syntax tree is many small objects without garbage; collect after the answer.
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
