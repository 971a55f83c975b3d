"""What an evaluator of MLGym said: its scores, and what may be told of it to the agent."""

from __future__ import annotations

import builtins
import json
import math
import re
from collections.abc import Mapping
from hmac import compare_digest
from typing import Any

from palaestra.research.judge.inside.evaluate import KEPT, MARK, seal

LOOKED_AT = KEPT
"""Characters at the end of what was printed in which scores are looked for."""
EFFORT = 32 * LOOKED_AT
"""Characters that are read in vain before it is given up."""
OBJECT = re.compile(r'(?=\{\s*")')
LINE = re.compile(r'^[ \t]*(?=\{\s*")', re.M)
LINE_END = re.compile(r"[ \t\r]*(?:\n|\Z)")
ANYWHERE = re.compile("")
LAST_LINES = 200
SEALED = re.compile(re.escape(MARK) + rb"[0-9a-f]{64}:([0-9a-f]*)\n")
RAISED = re.compile(r"(?:\[rank\d+\]: ?)?(\w+)(?::|\s*$)")
EXCEPTIONS = frozenset(
    name for name, one in vars(builtins).items() if isinstance(one, type) and issubclass(one, BaseException)
)


def unseal(stdout: bytes, key: bytes) -> str | None:
    """What the evaluator printed, of what came out of its sandbox; `None` unless it came to its end, once."""
    found = []
    for line in SEALED.finditer(stdout):
        text = bytes.fromhex(line[1][: len(line[1]) // 2 * 2].decode()).decode("utf-8", "replace")
        if compare_digest(seal(text, key).strip(), line[0].strip()):
            found.append(text)
    return found[0] if len(found) == 1 else None


def scores_in(text: str, metric: str = "", first: bool = False) -> dict[str, float] | None:
    """The scores in what an evaluator printed: the JSON object with that metric, or with any number if none has it.

    An evaluator may print words of the submission as well. So an object that fills its lines comes before one within a line,
    and where two of them say different things of the metric, neither is taken.

    Arguments:
        first: the first of those that begin a line, whatever the others say.

    Looks at the end of a long text only, and gives up on one that is full of objects without an end.

    >>> scores_in("loading\\n{'not': 'json'}\\n{\\"Score\\": 1.5}\\nrow 1: {\\"Score\\": 9}\\n", "Score")
    {'Score': 1.5}
    """
    for begins, ends in ((LINE, LINE_END), *(() if first else ((OBJECT, ANYWHERE),))):
        objects = _objects(text[-LOOKED_AT:], begins, ANYWHERE if first else ends)
        if objects is None:
            return None
        fits = [numbers for numbers in objects if metric in numbers] if metric else objects
        fits = fits or [numbers for numbers in objects if metric.lower() in map(str.lower, numbers)]
        if first and fits:
            return fits[0]
        if len({_value(numbers, metric) for numbers in fits}) > 1:
            return None
        if fits:
            return fits[-1]
        if objects:
            return objects[-1]
    return None


def _value(numbers: Mapping[str, float], metric: str) -> object:
    """What it says of the metric, or of anything where there is none."""
    return next((repr(value) for name, value in numbers.items() if name.lower() == metric.lower()), repr(numbers))


def _objects(text: str, begins: re.Pattern[str], ends: re.Pattern[str]) -> list[dict[str, float]] | None:
    """The objects with numbers that begin and end so; `None` where that would take too long to find out."""
    found: list[dict[str, float]] = []
    decoder, start, effort = json.JSONDecoder(), begins.search(text), 0
    while start is not None:
        rest = text[start.end() :]  # By itself: an error counts the lines from the beginning.
        try:
            value, end = decoder.raw_decode(rest)
        except (ValueError, RecursionError) as error:
            end = 1
            effort += error.pos if isinstance(error, json.JSONDecodeError) else len(rest)
            if effort > EFFORT:
                return None
        else:
            numbers = _numbers(value)
            if numbers and ends.match(rest, end):
                found.append(numbers)
        start = begins.search(text, start.end() + end)
    return found


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
