"""What an evaluator of MLGym said: its scores, and what may be told of it to the agent."""

from __future__ import annotations

import builtins
import json
import math
import re
from collections.abc import Mapping
from hmac import compare_digest
from typing import Any

from palaestra.research.inside.evaluate import KEPT, MARK, sealed

LOOKED_AT = KEPT
"""Characters at the end of what was printed in which scores are looked for."""
EFFORT = 32 * LOOKED_AT
"""Characters that are read in vain before it is given up."""
OBJECT = re.compile(r'\{\s*"')
LINE = re.compile(r'^\{\s*"', re.M)
LAST_LINES = 200
SEALED = re.compile(re.escape(MARK) + rb"[0-9a-f]{64}:([0-9a-f]*)\n")
RAISED = re.compile(r"(?:\[rank\d+\]: ?)?(\w+)(?::|\s*$)")
EXCEPTIONS = frozenset(
    name for name, one in vars(builtins).items() if isinstance(one, type) and issubclass(one, BaseException)
)


def unsealed(stdout: bytes, key: bytes) -> str | None:
    """What the evaluator printed, of what came out of its sandbox; `None` unless it came to its end, once."""
    found = []
    for line in SEALED.finditer(stdout):
        text = bytes.fromhex(line[1][: len(line[1]) // 2 * 2].decode()).decode("utf-8", "replace")
        if compare_digest(sealed(text, key).strip(), line[0].strip()):
            found.append(text)
    return found[0] if len(found) == 1 else None


def scores_in(text: str, metric: str = "", first: bool = False) -> dict[str, float] | None:
    """The scores in what an evaluator printed: the last JSON object, of those with that metric if there are any.

    Arguments:
        first: the first of them instead, of those that begin a line.

    Looks at the end of a long text only, and gives up on one that is full of objects without an end.

    >>> scores_in("loading\\n{'not': 'json'}\\n{\\"Score\\": 1.5}\\n")
    {'Score': 1.5}
    """
    text = text[-LOOKED_AT:]
    found: dict[str, float] | None = None
    fits: dict[str, float] | None = None
    begins = LINE if first else OBJECT
    decoder, start, effort = json.JSONDecoder(), begins.search(text), 0
    while start is not None:
        rest = text[start.start() :]  # By itself: an error counts the lines from the beginning.
        try:
            value, end = decoder.raw_decode(rest)
        except (ValueError, RecursionError) as error:
            end = 1
            effort += error.pos if isinstance(error, json.JSONDecodeError) else len(rest)
            if effort > EFFORT:
                return None
        else:
            numbers = _numbers(value)
            found = numbers or found
            if metric.lower() in map(str.lower, numbers):
                fits = numbers
                if first:
                    break
        start = begins.search(text, start.start() + end)
    return fits or found


def exception_in(stderr: str) -> str:
    """The name of the exception that ended a program, if Python has one of that name; nothing of what it says."""
    for line in reversed(stderr.splitlines()[-LAST_LINES:]):
        raised = RAISED.match(line)
        if raised is not None and raised[1] in EXCEPTIONS:
            return raised[1]
    return ""


def _numbers(value: Any) -> dict[str, float]:
    if not isinstance(value, Mapping):
        return {}
    return {
        str(name): _number(one)
        for name, one in value.items()
        if isinstance(one, int | float) and not isinstance(one, bool)
    }


def _number(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
