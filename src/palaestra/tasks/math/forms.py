r"""The shape of an answer: a scalar, words, a list, a set, a tuple or interval, a union, a matrix, a relation.

`same` compares two shapes part by part (`reading.read` makes them). What a scalar such as `\sqrt{8}` is worth
is left to whoever asks: `same` calls back for it, so that numbers, and tuples of numbers, never need a computer
algebra system.

What is equal and what is not:

- (1,2) is a pair or an open interval, [1,2] a closed one, \{1,2\} a set; none equals another. A list without
  brackets has no order, as in "find all solutions", and equals the set of the same elements.
- x = 5 equals 5, and does not equal y = 5. 1 < x < 2 equals (1,2).
- A unit counts only if both sides name a known one: 5 cm equals 5, and does not equal 5 m.
- 10\% is a tenth.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from palaestra.tasks.math.numerals import Numeral


@dataclass(frozen=True, slots=True)
class Scalar:
    """One value: its text, its number if it is a plain one, its unit if that is a known one."""

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
    """Parts inside `brackets`: "()", "[]", "[)", "(]", "{}", "<>", ":" for a ratio, "u" for a union,
    "_" for a number in a named base, "" for none."""

    brackets: str
    parts: tuple[Form, ...]

    @property
    def ordered(self) -> bool:
        return self.brackets not in ("", "{}", "u")


@dataclass(frozen=True, slots=True)
class Matrix:
    rows: tuple[tuple[Form, ...], ...]


@dataclass(frozen=True, slots=True)
class Relation:
    r"""`left sign right`, with `sign` one of = < \le \ne; `name` is what an assignment assigns to."""

    left: Form
    sign: str
    right: Form
    name: str = ""


Form = Scalar | Words | Collection | Matrix | Relation
Decide = Callable[[Scalar | Relation, Scalar | Relation], bool]
"""Whether two scalars, or two equations or inequalities, of which at least one is no plain number, are equal."""


def same(one: Form, other: Form, decide: Decide) -> bool:
    """Whether two forms are equal; `decide` is asked about scalars that are no plain numbers, and equations.

    Symmetric if `decide` is.
    """
    if isinstance(one, Relation) or isinstance(other, Relation):
        return _same_relation(one, other, decide)
    if isinstance(one, Scalar) and isinstance(other, Scalar):
        return _same_scalar(one, other, decide)
    if isinstance(one, Words) and isinstance(other, Words):
        return one.text == other.text and one.text != ""
    if isinstance(one, Words | Scalar) and isinstance(other, Words | Scalar):
        words, scalar = (one, other) if isinstance(one, Words) else (other, one)
        return isinstance(scalar, Scalar) and len(words.text) == 1 and scalar.text.lower() == words.text
    if isinstance(one, Matrix) and isinstance(other, Matrix):
        return [len(row) for row in one.rows] == [len(row) for row in other.rows] and all(
            same(a, b, decide)
            for left, right in zip(one.rows, other.rows, strict=True)
            for a, b in zip(left, right, strict=True)
        )
    if isinstance(one, Collection) and isinstance(other, Collection):
        return _same_collection(one, other, decide)
    return False


def _same_scalar(one: Scalar, other: Scalar, decide: Decide) -> bool:
    if one.unit and other.unit and one.unit != other.unit:
        return False
    if one.number and other.number:
        return one.number.same(other.number)
    return one.text == other.text or decide(one, other)


def _same_relation(one: Form, other: Form, decide: Decide) -> bool:
    if isinstance(one, Relation) and isinstance(other, Relation):
        if one.name and other.name:
            return one.name == other.name and same(one.right, other.right, decide)
        if one.sign != other.sign:
            return False
        return one == other or decide(one, other)
    named, value = (one, other) if isinstance(one, Relation) else (other, one)
    return isinstance(named, Relation) and bool(named.name) and same(named.right, value, decide)


def _same_collection(one: Collection, other: Collection, decide: Decide) -> bool:
    kinds = {one.brackets, other.brackets}
    if len(kinds) > 1 and kinds != {"", "{}"}:
        return False
    left, right = one.parts, other.parts
    if "{}" in kinds:
        left, right = _distinct(left, decide), _distinct(right, decide)
    if len(left) != len(right):
        return False
    if one.ordered:
        return all(same(a, b, decide) for a, b in zip(left, right, strict=True))
    rest = list(right)
    for part in left:
        for index, candidate in enumerate(rest):
            if same(part, candidate, decide):
                del rest[index]
                break
        else:
            return False
    return True


def _distinct(parts: Sequence[Form], decide: Decide) -> tuple[Form, ...]:
    kept: list[Form] = []
    for part in parts:
        if not any(same(part, other, decide) for other in kept):
            kept.append(part)
    return tuple(kept)
