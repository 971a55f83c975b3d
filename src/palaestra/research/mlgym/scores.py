"""Reads the output of an MLGym evaluator: its scores, and what the agent may learn of it."""

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
"""Characters at the end of the output in which scores are searched."""
EFFORT = 32 * LOOKED_AT
"""Characters that are parsed in vain before the search stops."""
OBJECT = re.compile(r'(?=\{\s*")')
LINE = re.compile(r'^[ \t]*(?=\{\s*")', re.M)
LINE_END = re.compile(r"[ \t\r]*(?:\n|\Z)")
ANYWHERE = re.compile("")
LAST_LINES = 200
SEALED = re.compile(re.escape(MARK) + rb"[0-9a-f]{64}:([0-9a-f]*)\n")
RAISED = re.compile(r"(?:\[rank\d+\]: ?)?(\w+)(?::|\s*$)")
EXCEPTIONS = frozenset(
    name for name, value in vars(builtins).items() if isinstance(value, type) and issubclass(value, BaseException)
)


def unseal(stdout: bytes, key: bytes) -> str | None:
    """Return the sealed output of an evaluator; `None` unless it finished exactly once."""
    texts = []
    for line in SEALED.finditer(stdout):
        text = bytes.fromhex(line[1][: len(line[1]) // 2 * 2].decode()).decode("utf-8", "replace")
        if compare_digest(seal(text, key).strip(), line[0].strip()):
            texts.append(text)
    return texts[0] if len(texts) == 1 else None


def scores_in(text: str, metric: str = "", first: bool = False) -> dict[str, float] | None:
    """Find the scores in an evaluator's output: the JSON object with the metric, or with any number if none has it.

    An evaluator may also print words of the submission. So an object on lines of its own takes precedence over one
    within a line, and if two of them differ in the metric, neither is taken.

    Arguments:
        first: take the first object that begins a line, whatever the others say.

    Only the end of a long text is searched, and the search stops early in a text full of unterminated objects.

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
    """Return the value of the metric, or all values without one."""
    return next((repr(value) for name, value in numbers.items() if name.lower() == metric.lower()), repr(numbers))


def _objects(text: str, begins: re.Pattern[str], ends: re.Pattern[str]) -> list[dict[str, float]] | None:
    """Return the objects with numbers that match both patterns; `None` if the search takes too long."""
    objects: list[dict[str, float]] = []
    decoder, start, effort = json.JSONDecoder(), begins.search(text), 0
    while start is not None:
        rest = text[start.end() :]  # A copy, because errors count lines from the beginning.
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
                objects.append(numbers)
        start = begins.search(text, start.end() + end)
    return objects


def exception_in(stderr: str) -> str:
    """Return the name of the built-in exception that ended a program, without its message."""
    for line in reversed(stderr.splitlines()[-LAST_LINES:]):
        raised = RAISED.match(line)
        if raised is not None and raised[1] in EXCEPTIONS:
            return raised[1]
    return ""


def _numbers(value: Any) -> dict[str, float]:
    if not isinstance(value, Mapping):
        return {}
    return {
        str(name): _number(number)
        for name, number in value.items()
        if isinstance(number, int | float) and not isinstance(number, bool)
    }


def _number(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
