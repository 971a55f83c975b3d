r"""The structure of an answer: a scalar, words, a time, a list, a set, a tuple or interval, a union, a matrix, a relation.

`same` compares two forms part by part; `parsing.read` creates them. Scalars that are not plain numbers, such as
`\sqrt{8}`, are compared by a callback, so numbers and tuples of numbers do not need a computer algebra system.

Equality:

- (1,2) is a pair or an open interval, [1,2] a closed one, \{1,2\} a set; no two of these are equal. A list without
  brackets has no order, as in "find all solutions", and equals the set of the same elements. In a list of tuples a
  repeated one counts once. 0.5 or 1/2 is one value, written twice.
- x = 5 equals 5, and does not equal y = 5. x = 1, y = 2 equals (1,2). (x, y) = (1,2) equals (1,2).
- 1 < x < 2 equals (1,2). Inequalities in one variable are equal if they have the same solutions.
- A unit counts only if both sides name a known one: 5 cm equals 5, and does not equal 5 m. The same holds for a.m.
  and p.m.
- 10\% is a tenth.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from palaestra.tasks.math.equivalence.numerals import Numeral


@dataclass(frozen=True, slots=True)
class Scalar:
    """One value: its text, its number if it is a plain number, its unit if known."""

    text: str
    number: Numeral | None = None
    unit: str = ""
    too_large: bool = False


@dataclass(frozen=True, slots=True)
class Words:
    """An answer in words, lower case; a choice is its letter."""

    text: str


@dataclass(frozen=True, slots=True)
class Collection:
    """Parts inside `brackets`: "()", "[]", "[)", "(]", "{}", "<>", ":" for a ratio, "u" for a union, "&" for
    inequalities that hold together, "_" for a number in a named base, "" for none, "or" for none and alternatives."""

    brackets: str
    parts: tuple[Form, ...]

    @property
    def ordered(self) -> bool:
        return self.brackets not in ("", "or", "{}", "u")


@dataclass(frozen=True, slots=True)
class TimeOfDay:
    """A time of day; `half` is "am" or "pm"."""

    hour: int
    minute: int
    half: str

    @property
    def minutes(self) -> int:
        """Minutes since midnight."""
        return (self.hour % 12 + (12 if self.half == "pm" else 0)) * 60 + self.minute


@dataclass(frozen=True, slots=True)
class Matrix:
    rows: tuple[tuple[Form, ...], ...]


@dataclass(frozen=True, slots=True)
class Relation:
    r"""`left sign right`, with `sign` one of = < \le \ne; `name` is the variable of an assignment."""

    left: Form
    sign: str
    right: Form
    name: str = ""


Form = Scalar | Words | TimeOfDay | Collection | Matrix | Relation
Decide = Callable[[Form, Form], bool]
"""Whether two forms are equal that need algebra: scalars, equations, inequalities, regions, matrices."""

_INTERVALS = ("()", "[]", "[)", "(]")
_FUNCTION = re.compile(r"[A-Za-z]\([A-Za-z]\)")


def same(form: Form, other: Form, decide: Decide) -> bool:
    """Whether two forms are equal; `decide` compares equations and scalars that are not plain numbers.

    It is symmetric if `decide` is.
    """
    if isinstance(form, Scalar) and isinstance(other, Scalar):
        return _same_scalar(form, other, decide)
    if is_inequality(form) or is_inequality(other):
        return form == other or (is_region(form) and is_region(other) and decide(form, other))
    if isinstance(form, Relation) or isinstance(other, Relation):
        return _same_relation(form, other, decide)
    if isinstance(form, TimeOfDay) or isinstance(other, TimeOfDay):
        return _same_time(form, other)
    if isinstance(form, Words) and isinstance(other, Words):
        return form.text == other.text and form.text != ""
    if isinstance(form, Words | Scalar) and isinstance(other, Words | Scalar):
        words, scalar = (form, other) if isinstance(form, Words) else (other, form)
        return isinstance(scalar, Scalar) and len(words.text) == 1 and scalar.text.lower() == words.text
    if isinstance(form, Matrix) and isinstance(other, Matrix):
        return [len(row) for row in form.rows] == [len(row) for row in other.rows] and all(
            same(a, b, decide)
            for left, right in zip(form.rows, other.rows, strict=True)
            for a, b in zip(left, right, strict=True)
        )
    if isinstance(form, Matrix | Scalar) and isinstance(other, Matrix | Scalar):
        text = "".join(side.text for side in (form, other) if isinstance(side, Scalar))
        return "\\begin{" in text and decide(form, other)
    if isinstance(form, Collection) and isinstance(other, Collection):
        return _same_collection(form, other, decide)
    for either, value in ((form, other), (other, form)):
        if isinstance(either, Collection) and either.brackets == "or":
            return all(same(part, value, decide) for part in either.parts)
    return False


def is_inequality(form: Form) -> bool:
    """Whether `form` is an inequality that is not an interval."""
    if isinstance(form, Relation):
        return form.sign in ("<", "\\le")
    return isinstance(form, Collection) and form.brackets == "&"


def is_region(form: Form) -> bool:
    """Whether `form` may be a set of numbers: an inequality, an interval, a union or a set."""
    if isinstance(form, Collection):
        if form.brackets in ("u", "&"):
            return all(map(is_region, form.parts))
        return form.brackets == "{}" or (form.brackets in _INTERVALS and len(form.parts) == 2)
    return is_inequality(form)


def _same_scalar(scalar: Scalar, other: Scalar, decide: Decide) -> bool:
    if scalar.unit and other.unit and scalar.unit != other.unit:
        return False
    if scalar.number and other.number:
        return scalar.number.same(other.number)
    return scalar.text == other.text or decide(scalar, other)


def _same_relation(form: Form, other: Form, decide: Decide) -> bool:
    if isinstance(form, Relation) and isinstance(other, Relation):
        if form.name and other.name:
            return _same_name(form.name, other.name) and same(form.right, other.right, decide)
        if form.sign != other.sign:
            return False
        return form == other or decide(form, other)
    named, value = (form, other) if isinstance(form, Relation) else (other, form)
    return isinstance(named, Relation) and bool(named.name) and same(named.right, value, decide)


def _same_name(symbol: str, other: str) -> bool:
    """Whether two names are the same. f(x) is named like f(n) and like y."""
    functions = [bool(_FUNCTION.fullmatch(name)) for name in (symbol, other)]
    return symbol == other or (all(functions) and symbol[0] == other[0]) or (any(functions) and "y" in (symbol, other))


def _same_time(form: Form, other: Form) -> bool:
    if isinstance(form, TimeOfDay) and isinstance(other, TimeOfDay):
        return form.minutes == other.minutes
    clock, bare = (form, _face(other)) if isinstance(form, TimeOfDay) else (other, _face(form))
    if not isinstance(clock, TimeOfDay) or bare is None:
        return False
    return bare in ((clock.hour, clock.minute), divmod(clock.minutes, 60))


def _face(form: Form) -> tuple[int, int] | None:
    """The hour and minute of a time without a.m. or p.m.: 9 or 9:00."""
    parts = form.parts if isinstance(form, Collection) and form.brackets == ":" else (form,)
    values = [part.number.value for part in parts if isinstance(part, Scalar) and part.number]
    if len(values) != len(parts) or len(parts) > 2 or any(value.denominator != 1 for value in values):
        return None
    return int(values[0]), int(values[1]) if len(values) > 1 else 0


def _same_collection(collection: Collection, other: Collection, decide: Decide) -> bool:
    kinds = {collection.brackets.removeprefix("or"), other.brackets.removeprefix("or")}
    if kinds == {"", "()"}:
        listed, pair = (collection, other) if collection.brackets in ("", "or") else (other, collection)
        return _assigns(listed) and _each_same([part.right for part in listed.parts], pair.parts, decide)  # type: ignore[union-attr]
    if len(kinds) > 1 and kinds != {"", "{}"}:
        return False
    left, right = collection.parts, other.parts
    if "{}" in kinds or (kinds == {""} and all(isinstance(part, Collection) for part in (*left, *right))):
        left, right = _distinct(left, decide), _distinct(right, decide)
    if collection.ordered:
        return _each_same(left, right, decide)
    if len(left) != len(right):
        return False
    rest = list(right)
    for part in left:
        for index, candidate in enumerate(rest):
            if same(part, candidate, decide):
                del rest[index]
                break
        else:
            return False
    return True


def _each_same(forms: Sequence[Form], other: Sequence[Form], decide: Decide) -> bool:
    return len(forms) == len(other) and all(same(a, b, decide) for a, b in zip(forms, other, strict=True))


def _assigns(form: Collection) -> bool:
    """Whether `form` gives a value to each of several variables: x = 1, y = 2."""
    names = [part.name for part in form.parts if isinstance(part, Relation) and part.name]
    return len(names) == len(form.parts) == len(set(names))


def _distinct(parts: Sequence[Form], decide: Decide) -> tuple[Form, ...]:
    kept: list[Form] = []
    for part in parts:
        if not any(same(part, other, decide) for other in kept):
            kept.append(part)
    return tuple(kept)
