"""Parse plain numbers exactly: integers, decimals, fractions, mixed numbers, percent, powers of ten; and units after them.

Values are `Fraction`s and never rounded. Numbers above `_MAX_BITS` and expressions above `_MAX_WORK` are not computed.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction

from palaestra.tasks.math.equivalence.latex import NOTATION
from palaestra.tasks.readings import NUMBER_WORDS, SCALES

_MAX_BITS = 20_000
"""The largest number that is computed: about 6,000 digits."""
_MAX_WORK = 50 * _MAX_BITS
"""Maximum sum of the sizes, in bits, of all numbers that are computed for one expression."""
_MAX_LITERAL = 1000
"""Maximum length of a number that is read, in digits."""
_ROUNDED = 6
"""A decimal with at least this many decimals and significant digits equals any value that rounds to it."""

_SPELLED = {word: Fraction(value) for word, value in NUMBER_WORDS.items() if value <= 20 or value % 10 == 0}
_GROUPED = r"\d{1,3}(?:,\d{3})+(?![\d,])|\d{1,3}(?:[ ]\d{3})+(?![\d ]*[\d/])"
_PLAIN = re.compile(rf"([+-]?)\s*((?:{_GROUPED}|\d+)(?:\.\d*)?|\.\d+)", re.ASCII)
_PERCENT = re.compile(r"\s*(?:%|percent(?:age)?|per cent|pct\.?)$", re.IGNORECASE)
_MIXED = re.compile(
    r"([+-]?)\s*(\d+)(?:\s+(\d+)\s*/\s*(\d+)|\s*(?:\s+and\s+)?\\frac\{\s*(\d+)\s*\}\{\s*(\d+)\s*\})", re.ASCII
)
_SCIENTIFIC = re.compile(
    r"([+-]?)\s*(\d+\.\d+)\s*(?:[eE]([+-]?\d{1,4})|(?:\\cdot|\\times)\s*10\^\{([+-]?\d{1,4})\})", re.ASCII
)
_REPEATING = re.compile(r"([+-]?)\s*(\d*)\.(\d*)\\(?:overline|bar|dot)\s*\{?\s*(\d+)\s*\}?", re.ASCII)
_LITERAL = re.compile(
    rf"(?P<number>(?:(?:{_GROUPED}|\d+)(?:\.\d+)?|\.\d+)(?:[eE][+-]?\d+)?)(?P<factorial>!(?!!))?", re.ASCII
)
_ARITHMETIC = re.compile(r"[\d\s.,eE+\-*/()!]+", re.ASCII)
_IMPLICIT = re.compile(r"(?<=[\d)}])\s*\(", re.ASCII)  # 2(3) is a product; 2 3 is not.
_TIMES = re.compile(r"\\(?:cdot|times)(?![a-zA-Z])|(?<=\d\s)x(?=\s\d)", re.ASCII)
_FRACTION = re.compile(r"\\frac\{([^{}]*)\}\{([^{}]*)\}")
_POWER = re.compile(r"\^\{([^{}]*)\}")


class TooLargeError(ArithmeticError):
    """The number is too large to compute."""


@dataclass(frozen=True, slots=True)
class Numeral:
    """A number and the precision of its notation.

    Arguments:
        decimals: number of digits after the point of a plain decimal.
        digits: number of significant digits.
    """

    value: Fraction
    decimals: int = 0
    digits: int = 0

    def same(self, other: Numeral) -> bool:
        """Whether both are the same number, or one is the other rounded to six decimals or more."""
        return self.value == other.value or self.rounds(other.value) or other.rounds(self.value)

    def rounds(self, value: Fraction) -> bool:
        """Whether this is a rounding of `value` with enough digits."""
        if self.decimals < _ROUNDED or self.digits < _ROUNDED:
            return False
        # A computed double has 16 or 17 digits, and the last ones may be off: 0.1 + 0.2 is 0.30000000000000004.
        error = abs(value) / 10**15 if self.digits in (16, 17) else 0
        return bool(abs(self.value - value) <= max(Fraction(1, 2 * 10**self.decimals), error))


def read_number(text: str) -> Numeral | None:
    r"""The number in a tidied text, or `None` if it is not exactly a number.

    >>> read_number("1,234.50").value, read_number(r"2\frac{1}{2}").value, read_number("10%").value
    (Fraction(2469, 2), Fraction(5, 2), Fraction(1, 10))
    >>> read_number("1,2") is None
    True

    Raises:
        TooLargeError: the number is too large to compute.
    """
    text = text.strip()
    if not text or len(text) > _MAX_LITERAL:
        return None
    if match := _PLAIN.fullmatch(text):
        return _plain(match[1], match[2])
    if percent := _PERCENT.search(text):
        inner = read_number(text[: percent.start()])
        return inner and Numeral(inner.value / 100, inner.decimals + 2 if inner.decimals else 0, inner.digits)
    if match := _MIXED.fullmatch(text):
        sign, whole, *parts = match.groups()
        top, bottom = (int(part) for part in parts if part)
        if 0 < top < bottom:
            return Numeral((int(whole) + Fraction(top, bottom)) * (-1 if sign == "-" else 1))
        return None
    if match := _SCIENTIFIC.fullmatch(text):
        return _scientific(match[1], match[2], int(match[3] or match[4]))
    if match := _REPEATING.fullmatch(text):
        return _repeating(*match.groups())
    if (spelled := _SPELLED.get(text.lower())) is not None:
        return Numeral(spelled)
    return _compute(text)


def _plain(sign: str, body: str) -> Numeral:
    body = body.replace(",", "").replace(" ", "")
    whole, _, part = body.partition(".")
    value = Fraction(int(whole + part or "0"), 10 ** len(part))
    return Numeral(-value if sign == "-" else value, len(part), len((whole + part).lstrip("0")))


def _scientific(sign: str, mantissa: str, exponent: int) -> Numeral:
    number = _plain(sign, mantissa)
    value = number.value * Fraction(10) ** _check_bounds(exponent)
    return Numeral(value, max(0, number.decimals - exponent), number.digits)


def _repeating(sign: str, whole: str, fixed: str, again: str) -> Numeral:
    shift = 10 ** len(fixed)
    value = Fraction(int(whole + fixed or "0"), shift) + Fraction(int(again), shift * (10 ** len(again) - 1))
    return Numeral(-value if sign == "-" else value)


def _compute(text: str) -> Numeral | None:
    """Evaluate sums, products, quotients and integer powers of numbers, in the syntax of Python."""
    if "," in text and any(bracket in text for bracket in "({"):
        return None  # (1,234) is a pair.
    values: dict[str, Fraction] = {}
    work = 0

    def name(match: re.Match[str]) -> str:
        key = f"n{len(values)}"
        values[key] = check(_literal(match["number"], factorial=bool(match["factorial"])))
        return key

    def check(value: Fraction) -> Fraction:
        nonlocal work
        bits = max(value.numerator.bit_length(), value.denominator.bit_length())
        work += bits
        if bits > _MAX_BITS or work > _MAX_WORK:
            raise TooLargeError("the number is too large")
        return value

    def evaluate(node: ast.expr) -> Fraction:
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
            return check(_OPERATIONS[type(node.op)](evaluate(node.left), evaluate(node.right)))
        if isinstance(node, ast.UnaryOp):
            value = evaluate(node.operand)
            return -value if isinstance(node.op, ast.USub) else value
        if isinstance(node, ast.Name) and node.id in values:
            return values[node.id]
        raise ValueError("not arithmetic on numbers")

    source, before = _TIMES.sub("*", _IMPLICIT.sub("*(", text)), ""
    while source != before:
        before, source = source, _POWER.sub(r"**(\1)", _FRACTION.sub(r"((\1)/(\2))", source))
    if not _ARITHMETIC.fullmatch(source):
        return None
    try:
        return Numeral(evaluate(ast.parse(_LITERAL.sub(name, source).strip(), mode="eval").body))
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return None


def _literal(number: str, *, factorial: bool) -> Fraction:
    mantissa, _, exponent = number.lower().partition("e")
    if len(exponent) > 5:
        raise TooLargeError(f"the exponent {exponent[:8]}... is too large")
    value = _plain("", mantissa).value
    if exponent:
        value *= Fraction(10) ** _check_bounds(int(exponent))
    return _factorial(value) if factorial else value


def _check_bounds(exponent: int) -> int:
    if abs(exponent) > _MAX_BITS // 4:
        raise TooLargeError(f"the exponent {exponent} is too large")
    return exponent


def _raise_power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1:
        raise ValueError("a root is not rational in general")
    if base == 0 and exponent <= 0:
        raise ValueError("a power of zero without a value")
    bits = max(abs(base.numerator), base.denominator).bit_length() - (0 if abs(base) != 1 else 1)
    if bits * abs(exponent.numerator) > _MAX_BITS:
        raise TooLargeError("the power is too large")
    return base**exponent.numerator


def _factorial(value: Fraction) -> Fraction:
    if value.denominator != 1:
        raise ValueError("a factorial of a fraction")
    if value > _MAX_BITS or math.lgamma(float(value) + 1) > _MAX_BITS * math.log(2):
        raise TooLargeError("the factorial is too large")
    return Fraction(math.factorial(value.numerator))


_OPERATIONS: Mapping[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: _raise_power,
}


_UNIT_OF = {name: unit for unit, names in NOTATION["units"].items() for name in names.split("|")}


def get_scale(tail: str) -> tuple[int, str]:
    """The factor of a word such as "million" at the start of `tail`, and the rest."""
    first, _, rest = tail.partition(" ")
    scale = 12 if first.lower() == "dozen" else SCALES.get(first.lower(), 1)
    return (scale, rest.strip()) if scale != 1 else (1, tail)


def get_unit(words: str) -> str:
    """The unit that `words` name, if known; square and cubic units with their power."""
    words = words.lower().replace(" per ", "/")
    if words.count("/") == 1:
        parts = [get_unit(part) for part in words.split("/")]
        if parts[0] in ("dollar", "cent", "euro", "gbp"):
            return parts[0]  # $18 a day is $18.
        return "/".join(parts) if all(parts) else ""
    words, _, power = words.partition("^")
    power = power.strip("{}")
    kept = []
    for word in words.replace(".", " ").split():
        if word in ("square", "sq", "cubic", "cu"):
            power = "2" if word in ("square", "sq") else "3"
        else:
            kept.append(_UNIT_OF.get(word) or _UNIT_OF.get(word.removesuffix("s")) or "")
    if len(kept) != 1 or not kept[0]:
        return ""
    return f"{kept[0]}^{power}" if power and power != "1" else kept[0]
