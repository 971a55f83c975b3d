r"""Whether an answer equals a reference, in bounded time.

Plain numbers, words, and lists, tuples, sets, intervals and matrices of them are compared exactly in pure
Python. Everything else is compared by math-verify and sympy in another process (`sympy_process`), which is killed at the
time limit.

If the comparison is undecided, the side that caused it is responsible:

- The answer cannot be read, exceeds the limit, or crashes the process twice: it is *wrong*, and the verdict says why.
  Otherwise a model could have its worst answers excluded from the accuracy.
- The reference cannot be read, or exceeds the limit by itself: a `Failure`, because no answer could be right.

A missing answer equals nothing, not even a missing reference.
"""

from __future__ import annotations

from dataclasses import dataclass

from palaestra.core.records import Failure, FailureCause
from palaestra.tasks.math.equivalence.forms import Form, Relation, Scalar, same
from palaestra.tasks.math.equivalence.latex import MAX_DEPTH, MAX_INPUT, MAX_LENGTH, measure_depth, tidy
from palaestra.tasks.math.equivalence.numerals import Numeral
from palaestra.tasks.math.equivalence.parsing import read
from palaestra.tasks.math.equivalence.sympy_process import get_client

TIMEOUT = 5.0
"""Default time limit of a comparison in seconds."""

_NONE = frozenset(
    {"", "no answer", "no_answer", "noanswer", "[invalidanswer]", "invalid", "n/a", "?", "unknown", "no final answer"}
)
_ABSENT = frozenset({"None", "NaN", "nan", "null"})


@dataclass(frozen=True, slots=True)
class AnswerVerdict:
    """Whether an answer is equal to the reference.

    Arguments:
        method: `none` (no answer), `text` (the same characters), `exact` (numbers and shapes),
            `symbolic` (math-verify and sympy) or `undecided`.
        note: the reason, if it needs one.
    """

    equal: bool
    method: str
    note: str = ""


NO_NUMBER = AnswerVerdict(False, "exact", "the answer is not a number")


class _NeedsAlgebra(Exception):
    """The comparison needs sympy."""


def is_answer(text: str | None) -> bool:
    """Whether `text` is an answer. `None`, `NaN`, "no answer" and the like are not."""
    if text is None:
        return False
    if text.isdigit():
        return True
    if len(text) > MAX_INPUT:
        return any(char.isalnum() for char in text)
    if text.strip() in _ABSENT:
        return False
    plain = tidy(text)
    return plain.lower() not in _NONE and any(char.isalnum() or char == "\\" for char in plain)


def compare_answers(answer: str | None, reference: str, *, limit: float = TIMEOUT) -> AnswerVerdict | Failure:
    r"""Compare an answer with a reference.

    Arguments:
        limit: time limit in seconds, without the start of the server before the first comparison (see
            `SympyClient.start`) and without waiting for other threads.

    >>> compare_answers(r"\frac12", "0.5"), compare_answers("1,2", "12").equal, compare_answers(None, "5").method
    (AnswerVerdict(equal=True, method='exact', note=''), False, 'none')

    Raises:
        MissingExtraError: it needs math-verify, which is not installed.
    """
    if answer is None or not is_answer(answer):
        return AnswerVerdict(False, "none", "no answer")
    if not is_answer(reference):
        return Failure(FailureCause.SCORER, f"the reference {reference[:80]!r} is not an answer")
    if answer == reference:
        return AnswerVerdict(True, "text")
    given, expected = _tidy_bounded(answer), _tidy_bounded(reference)
    if expected is None:
        return Failure(
            FailureCause.SCORER, f"the reference {reference[:80]!r}... is too long or too deeply nested to compare"
        )
    if given is None:
        return AnswerVerdict(False, "undecided", "the answer is too long or too deeply nested")
    if given == expected:
        return AnswerVerdict(True, "text")
    try:
        return AnswerVerdict(same(read(answer), read(reference), _by_number), "exact")
    except _NeedsAlgebra:
        return _by_algebra(answer, reference, limit)


def compare_numbers(answer: str | None, reference: str) -> AnswerVerdict | Failure:
    """Compare with a reference that is a plain number. Needs neither sympy nor another process.

    An answer that is not arithmetic on plain numbers is unequal.
    """
    if answer is None or not is_answer(answer):
        return AnswerVerdict(False, "none", "no answer")
    expected = _numeral(reference)
    if expected is None:
        return Failure(FailureCause.SCORER, f"the reference {reference[:80]!r} is not a number")
    given = _numeral(answer)
    if given is None:
        return NO_NUMBER
    return AnswerVerdict(given.same(expected), "exact")


def _numeral(text: str) -> Numeral | None:
    form = read(text)
    while isinstance(form, Relation) and form.name:
        form = form.right
    return form.number if isinstance(form, Scalar) else None


def _tidy_bounded(text: str) -> str | None:
    """Tidy a text; `None` if it is too long or too deeply nested to be read."""
    if len(text) > MAX_INPUT:
        return None
    plain = tidy(text)
    return None if len(plain) > MAX_LENGTH or measure_depth(plain) > MAX_DEPTH else plain


def _by_number(form: Form, other: Form) -> bool:
    raise _NeedsAlgebra


def _by_algebra(answer: str, reference: str, limit: float) -> AnswerVerdict | Failure:
    client = get_client()
    result = client.compare(answer, reference, limit)
    if result.outcome == "crash":
        # Compare the reference with itself first, to see which side is at fault.
        alone = client.compare(reference, reference, limit)
        if alone.outcome != "equal":
            why = alone.note or alone.outcome
            return Failure(FailureCause.SCORER, f"comparing with the reference {reference[:80]!r} failed: {why}")
        result = client.compare(answer, reference, limit)
    if result.outcome in ("equal", "unequal"):
        return AnswerVerdict(result.outcome == "equal", "symbolic")
    undecided = {
        "unreadable": f"the answer: {result.note}",
        "limit": f"undecided within {limit:g} s",
        "crash": "the answer crashed the comparison process twice",
    }
    if result.outcome in undecided:
        return AnswerVerdict(False, "undecided", undecided[result.outcome])
    if result.outcome == "start":
        return Failure(FailureCause.SCORER, result.note)
    why = result.note or f"takes more than {limit:g} s to read"
    return Failure(FailureCause.SCORER, f"the reference {reference[:80]!r} cannot be used: {why}")
