"""The check `readable`: the text of an example is intact and fits the student's context."""

from __future__ import annotations

import re
from collections.abc import Sequence

from palaestra.core.errors import LessonError
from palaestra.core.records import Example
from palaestra.teachers.quality.base import Context
from palaestra.teachers.quality.records import KEPT, CheckResult, drop

EMPTY, BROKEN, UNTEACHABLE = "empty", "broken text", "the student cannot be taught it"

_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ufffe\uffff]")


class Readable:
    """Drops examples that are empty, damaged, or too long for the student's context."""

    name = "readable"
    rank = 0
    needed = True

    def judge(self, examples: Sequence[Example], context: Context) -> list[CheckResult]:
        verdicts = [_text(example) for example in examples]
        good = [example for example, verdict in zip(examples, verdicts, strict=True) if verdict is KEPT]
        if context.student is None or not good:
            return verdicts
        try:
            context.student.check(good)  # One call for all is faster; most lessons pass.
        except LessonError:
            for place, example in enumerate(examples):
                if verdicts[place] is KEPT:
                    try:
                        context.student.check([example])
                    except LessonError as error:
                        verdicts[place] = drop(UNTEACHABLE, str(error))
        return verdicts


def _text(example: Example) -> CheckResult:
    if not example.response.strip():
        return drop(EMPTY, "the response")
    if not example.messages:
        return drop(EMPTY, "no question")
    if not example.messages[-1].text.strip() and isinstance(example.messages[-1].content, str):
        return drop(EMPTY, "the question")
    for name, text in (*((m.role, m.text) for m in example.messages), ("response", example.response)):
        fault = damage(text)
        if fault:
            return drop(BROKEN, f"{name}: {fault}")
    return KEPT


def damage(text: str) -> str:
    r"""Describe the damage of a text; empty if it is intact.

    >>> damage("café"), damage("cafÃ©"), damage("a\ufffdb")
    ('', 'bytes that were decoded as something else', 'a character that was lost')
    """
    if "\ufffd" in text:
        return "a character that was lost"
    match = _CONTROL.search(text)
    if match:
        return f"the control character {match.group()!r}"
    if text.isascii():
        return ""
    try:
        # UTF-8 that was decoded as Windows-1252 can be converted back; intact text almost never can.
        text.encode("cp1252").decode("utf-8")
    except UnicodeError:
        return ""
    return "bytes that were decoded as something else"
