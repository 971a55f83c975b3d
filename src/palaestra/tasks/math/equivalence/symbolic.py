"""Compare scalars and equations with math-verify and sympy.

This module is only loaded in the server of `sympy_process`, which can be killed. Texts are parsed by `parsing.read` and
then by math-verify's LaTeX grammar, never by `eval` or `sympify`.

Constants are compared numerically to `_DIGITS` digits, expressions with variables at several points. Only expressions
that cannot be evaluated, for example with an unknown function, are compared by math-verify's `verify`.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache

import sympy
from latex2sympy2_extended import NormalizationConfig, latex2sympy, normalize_latex
from latex2sympy2_extended.latex2sympy2 import ConversionConfig
from math_verify import verify

from palaestra.tasks.math.equivalence.forms import Collection, Form, Matrix, Relation, Scalar, is_inequality
from palaestra.tasks.math.equivalence.latex import closing
from palaestra.tasks.math.equivalence.numerals import TooLargeError, read_number

_DIGITS = 60
"""Number of computed digits. Values are equal if they agree in all but the last ten."""
_POINTS = 5
"""Number of points at which two equal expressions must have the same real value."""
_MAX_EXPONENT = 2000

_NORMAL = NormalizationConfig(
    basic_latex=True, units=False, malformed_operators=True, nits=False, boxed="none", equations=False
)
_READING = {
    "is_real": None,
    "convert_degrees": False,
    "normalization_config": None,
    "conversion_config": ConversionConfig(lowercase_symbols=False),
}
_NUMERIC = re.compile(r"(?:[\d\s.+\-/^(){}!]|\\cdot|\\times|\\frac)+", re.ASCII)
_OPERAND = re.compile(r"(\d+|\([^()]*\)|\{[^{}]*\})\Z", re.ASCII)
_SUBSCRIPT = re.compile(r"\d_\{\d", re.ASCII)
_DEGREES = re.compile(r"(\d+(?:\.\d+)?|[A-Za-z]|\([^()]*\))\^\\circ", re.ASCII)
_BARE = re.compile(
    r"(?<![\\A-Za-z])(sqrt|sin|cos|tan|cot|sec|csc|log|ln|exp|pi|arcsin|arccos|arctan|infty)(?![A-Za-z])"
)


class UnreadableError(ValueError):
    """The text is not a formula, or it is too large to compute."""


def check_readable(form: Form) -> None:
    """Raise `UnreadableError` unless every scalar of `form` can be parsed."""
    if isinstance(form, Scalar):
        _expression(form)
    elif isinstance(form, Relation):
        check_readable(form.left)
        check_readable(form.right)
    elif isinstance(form, Collection | Matrix):
        for part in form.parts if isinstance(form, Collection) else (cell for row in form.rows for cell in row):
            check_readable(part)


def decide(form: Form, other: Form) -> bool:
    """Whether two scalars, matrices, equations, inequalities or regions are equal."""
    if isinstance(form, Matrix) or isinstance(other, Matrix):
        return _same_matrix(_expression(form), _expression(other))
    if isinstance(form, Relation) and isinstance(other, Relation) and _same_relation(form, other):
        return True
    if is_inequality(form) or is_inequality(other):
        return _same_region(_region(form), _region(other))
    if not (isinstance(form, Scalar) and isinstance(other, Scalar)):
        return False
    if (form.number and form.number.decimals) or (other.number and other.number.decimals):
        rounded, exact = (form, other) if form.number else (other, form)
        return _near(rounded, exact)
    return _same(_expression(form), _expression(other))


def _expression(scalar: Form) -> sympy.Expr | sympy.MatrixBase:
    if isinstance(scalar, Matrix):
        return sympy.Matrix([[_expression(cell) for cell in row] for row in scalar.rows])
    if not isinstance(scalar, Scalar):
        raise UnreadableError(f"expected one value on each side; got {type(scalar).__name__}")
    if scalar.number:
        return sympy.Rational(scalar.number.value.numerator, scalar.number.value.denominator)
    if scalar.too_large:
        raise UnreadableError(f"too large to compute: {scalar.text[:40]}")
    return _parse(scalar.text)


@lru_cache(maxsize=256)
def _parse(text: str) -> sympy.Expr:
    """Parse a tidied text into a sympy expression.

    Raises:
        UnreadableError: it is not a formula, or its powers and factorials are too large.
    """
    _guard(text)
    if _SUBSCRIPT.search(text):
        raise UnreadableError(f"'{text[:80]}' has a number with a subscript")  # The grammar would drop it.
    percent = text.endswith("%")
    plain = _DEGREES.sub(r"(\1\\cdot\\frac{\\pi}{180})", text.removesuffix("%")).replace("^\\circ", "")
    plain = _BARE.sub(r"\\\1", plain).replace("\\cr", "\\\\ ")
    try:
        expression = latex2sympy(normalize_latex(plain, _NORMAL), **_READING)
        # Euler's number and the imaginary unit are read as letters.
        constants = {"i": sympy.I, "e": sympy.E}
        expression = expression.subs({s: constants[s.name] for s in expression.free_symbols if s.name in constants})
        expression = expression.xreplace({f: sympy.Rational(str(f)) for f in expression.atoms(sympy.Float)})
    except (MemoryError, RecursionError):
        raise
    except Exception as error:  # The grammar and sympy raise various exceptions.
        raise UnreadableError(f"'{text[:80]}' cannot be read as mathematics") from error
    return expression / 100 if percent else expression


def _guard(text: str) -> None:
    """Raise `UnreadableError` for powers and factorials that would be too large to compute."""
    if "!!" in text:
        raise UnreadableError("too large to compute: a factorial of a factorial")
    for index, char in enumerate(text):
        if char == "^" and text[index + 1 : index + 2] == "{":
            end = closing(text, index + 1)
            _check_bounds(text[index + 2 : end if end >= 0 else len(text)])
        elif char == "!" and (before := _OPERAND.search(text, 0, index)):
            _check_bounds(before[1])


def _check_bounds(text: str) -> None:
    try:
        number = read_number(text) if _NUMERIC.fullmatch(text) else None
    except TooLargeError as error:
        raise UnreadableError(f"too large to compute: {error}") from None
    if number and abs(number.value) > _MAX_EXPONENT:
        raise UnreadableError(
            f"too large to compute: a power, factorial or bound of {text[:20]}; the maximum is {_MAX_EXPONENT}"
        )


def _near(rounded: Scalar, exact: Scalar) -> bool:
    """Whether a decimal equals a constant, or is a rounding of it."""
    assert rounded.number is not None
    if exact.number:
        return rounded.number.same(exact.number)
    value = _value(_parse(exact.text), {})
    if value is None or abs(sympy.im(value)) > sympy.Float(10) ** (10 - _DIGITS):
        return False
    real = Fraction(str(sympy.re(value)))
    scale: Fraction = max(Fraction(1), abs(real))
    return rounded.number.rounds(real) or abs(rounded.number.value - real) <= scale / 10 ** (_DIGITS - 10)


def _same(value: sympy.Basic, reference: sympy.Basic) -> bool:
    if any(isinstance(side, sympy.Expr) and side.has(sympy.nan, sympy.zoo) for side in (value, reference)):
        return False  # 5/0 is undefined, and undefined values are not equal.
    if value == reference:
        return True
    if not (isinstance(value, sympy.Expr) and isinstance(reference, sympy.Expr)):
        return bool(verify(value, reference, timeout_seconds=None) and verify(reference, value, timeout_seconds=None))
    compared = 0
    for point in _points(value.free_symbols | reference.free_symbols):
        left, right = _value(value, point), _value(reference, point)
        if left is None or right is None or (point and not (_real(left) and _real(right))):
            continue
        if not _equal(left, right):
            return False
        compared += 1
        if not point or compared == _POINTS:
            return True
    return bool(verify(value, reference, timeout_seconds=None) or verify(reference, value, timeout_seconds=None))


def _same_relation(relation: Relation, reference: Relation) -> bool:
    """Whether two equations or inequalities are equivalent: one is a multiple of the other."""
    if relation.sign != reference.sign:
        return False
    first = _expression(relation.left) - _expression(relation.right)
    second = _expression(reference.left) - _expression(reference.right)
    ratio, compared = None, 0
    for point in _points(first.free_symbols | second.free_symbols):
        left, right = _value(first, point), _value(second, point)
        if left is None or right is None or _equal(left, 0) or _equal(right, 0):
            continue
        if ratio is not None and not _equal(left / right, ratio):
            return False
        ratio, compared = left / right, compared + 1
        if compared == _POINTS:
            return relation.sign in ("=", "\\ne") or bool(_real(ratio) and sympy.re(ratio) > 0)
    return False


def _same_matrix(matrix: sympy.MatrixBase, reference: sympy.MatrixBase) -> bool:
    sides = [side.doit().as_explicit() if hasattr(side, "as_explicit") else side for side in (matrix, reference)]
    if not all(isinstance(side, sympy.MatrixBase) for side in sides) or sides[0].shape != sides[1].shape:
        return False
    return all(_same(left, right) for left, right in zip(*sides, strict=True))


def _same_region(left: sympy.Set, right: sympy.Set) -> bool:
    return bool(left == right or left.symmetric_difference(right) == sympy.EmptySet)


def _region(form: Form) -> sympy.Set:
    """The set of real numbers that an interval, a union or an inequality in one variable describes."""
    if isinstance(form, Relation):
        difference = _expression(form.left) - _expression(form.right)
        if len(difference.free_symbols) > 1:
            raise UnreadableError("an inequality in several variables has no interval")
        difference = difference.subs({symbol: sympy.Symbol("x", real=True) for symbol in difference.free_symbols})
        holds = (sympy.Lt if form.sign == "<" else sympy.Le)(difference, 0)
        return sympy.S.Reals if holds == sympy.true else holds.as_set()
    if isinstance(form, Collection) and form.brackets in ("u", "&"):
        parts = [_region(part) for part in form.parts]
        both = sympy.Intersection(*parts) if form.brackets == "&" else sympy.EmptySet
        # "x < 1 and x > 2" names two regions: no number is in both.
        return sympy.Union(*parts) if both == sympy.EmptySet else both
    if isinstance(form, Collection) and form.brackets == "{}":
        return sympy.FiniteSet(*map(_expression, form.parts))
    if isinstance(form, Collection) and len(form.parts) == 2:
        low, high = map(_expression, form.parts)
        return sympy.Interval(low, high, form.brackets[0] == "(", form.brackets[1] == ")")
    raise UnreadableError(f"expected an interval; got {type(form).__name__}")


def _points(symbols: set[sympy.Symbol]) -> Iterator[dict[sympy.Symbol, sympy.Rational]]:
    """Points for the comparison: irregular rationals of both signs, the same in every process."""
    if not symbols:
        yield {}
        return
    generator = random.Random(20_241)
    for attempt in range(4 * _POINTS):
        # First positive points, where logarithms and roots are defined; then points with a negative coordinate.
        signs = [1] * len(symbols)
        while attempt % 2 and all(sign > 0 for sign in signs):
            signs = generator.choices((1, -1), k=len(symbols))
        sizes = [sympy.Rational(generator.randrange(1009, 10_982), 4999) for _ in symbols]
        names = sorted(symbols, key=lambda symbol: symbol.name)
        yield {symbol: sign * size for symbol, sign, size in zip(names, signs, sizes, strict=True)}


def _value(expression: sympy.Expr, point: dict[sympy.Symbol, sympy.Rational]) -> sympy.Expr | None:
    """The value of `expression` at `point`, or `None` if it has none."""
    try:
        value = expression.subs(point).doit().evalf(_DIGITS)
    except (ArithmeticError, ValueError, TypeError, NotImplementedError, AttributeError):
        return None
    if not value.is_number or value.has(sympy.nan, sympy.zoo, sympy.oo):
        return value if value in (sympy.oo, -sympy.oo) and not point else None
    parts = value.as_real_imag()
    return value if all(part.is_Float or part.is_Rational for part in parts) else None


def _real(value: sympy.Expr) -> bool:
    return bool(abs(sympy.im(value)) <= sympy.Float(10) ** (10 - _DIGITS) * max(1, abs(sympy.re(value))))


def _equal(left: sympy.Expr, right: sympy.Expr | int) -> bool:
    if left in (sympy.oo, -sympy.oo) or right in (sympy.oo, -sympy.oo):
        return bool(left == right)
    scale = max(1, abs(left), abs(right)) if abs(left) > 1e-9 or abs(right) > 1e-9 else max(abs(left), abs(right))
    return bool(abs(left - right) <= sympy.Float(10, _DIGITS) ** (10 - _DIGITS) * (scale or 1))
