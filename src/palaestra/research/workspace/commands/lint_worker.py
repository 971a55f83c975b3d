"""The worker process of `lint`: finds errors in Python sources. Reads and writes one JSON value per line.

Run as a script with the folder that holds pyflakes; it imports nothing of this package.
"""

from __future__ import annotations

import ast
import gc
import io
import json
import resource
import sys
import tokenize
import warnings

_MEMORY = 1 << 30
_FATAL = frozenset({
    "UndefinedName", "UndefinedExport", "UndefinedLocal", "DuplicateArgument", "ReturnOutsideFunction",
    "YieldOutsideFunction", "ContinueOutsideLoop", "BreakOutsideLoop", "DefaultExceptNotLast", "TwoStarredExpressions",
    "TooManyExpressionsInStarredAssignment", "FutureFeatureNotDefined", "LateFutureImport",
    "ForwardAnnotationSyntaxError",
})  # fmt: skip
"""Pyflakes messages about code that fails at run time; matters of style are left to the agent."""


def _findings(source: str) -> dict[str, object]:
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
    errors = _find_indentation(source)
    try:
        from pyflakes.checker import Checker
    except ImportError:
        return {"broken": False, "errors": errors}
    errors += [
        [message.lineno, message.message % message.message_args]
        for message in Checker(tree, filename="file").messages
        if type(message).__name__ in _FATAL
    ]
    return {"broken": False, "errors": sorted(errors)}


def _find_indentation(source: str) -> list[list[object]]:
    """Return the first line of code whose indentation is not a multiple of 4. MLGym rejects it too (flake8's E111).

    The others are left out, so that a file which has such lines already can get more of them.
    """
    starts = True
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in (tokenize.NEWLINE, tokenize.NL):
            starts = starts or token.type == tokenize.NEWLINE
        elif starts and token.type not in (tokenize.INDENT, tokenize.DEDENT, tokenize.COMMENT, tokenize.ENDMARKER):
            starts = False
            if len(token.line[: token.start[1]].expandtabs()) % 4:
                return [[token.start[0], "E111 indentation is not a multiple of 4"]]
    return []


def main() -> None:
    if sys.argv[1]:
        sys.path.append(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    warnings.simplefilter("ignore")  # Ignore warnings such as invalid escapes.
    gc.disable()  # A syntax tree is many small objects without garbage; collect after the answer.
    for line in sys.stdin.buffer:
        try:
            answer: object = _findings(json.loads(line))
        except (RecursionError, MemoryError):
            answer = None
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
        gc.collect()


if __name__ == "__main__":
    main()
