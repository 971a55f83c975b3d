"""Taking an answer apart along its outermost structure: from a text to its form."""

from __future__ import annotations

import re
from fractions import Fraction

from palaestra.tasks.math.forms import Collection, Form, Matrix, Relation, Scalar, Words
from palaestra.tasks.math.latex import MAX_DEPTH, MAX_LENGTH, depth_of, tidy
from palaestra.tasks.math.numerals import Numeral, TooLargeError, read_number
from palaestra.tasks.math.splitting import bracketed, cut, elements, split
from palaestra.tasks.math.units import scale_of, unit_of

MAX_PARTS = 40
"""Collections with more parts than this are compared as they stand."""

# Words after a number that make another number of it.
_CHANGES = re.compile(
    r"\b(?:hal(?:f|ves)|thirds?|quarters?|(?:ten|hundred|thousand|fif|six|seven|eigh|nin|twelf)ths?|squared|cubed|than|plus|minus|times \w*[\d.]|divided|factorial|root|power|million|thousand)\b",
    re.IGNORECASE,
)
_FUNCTIONS = frozenset({
    "sin", "cos", "tan", "cot", "sec", "csc", "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh", "log",
    "ln", "exp", "sqrt", "lcm", "gcd", "max", "min", "mod", "pi", "cis", "det",
})  # fmt: skip
_SHORT_WORDS = frozenset({
    "no", "on", "yes", "or", "and", "odd", "not", "all", "any", "one", "two", "six", "ten", "the", "sum", "set",
    "add", "top", "low", "up", "to", "in", "is", "it", "as", "at", "if", "of", "mon", "tue", "wed", "thu",
    "fri", "sat", "sun", "red", "day", "dog", "cat", "old", "new", "big", "few",
})  # fmt: skip
_CURRENCY = re.compile(r"\s*(\\\$|[$€£¢]|US\$|USD\b)\s*(?=[-+]?\s*[\d.])")
_HEDGE = re.compile(
    r"(?:about|approximately|approx\.?|roughly|exactly|only|around|\\approx|\\sim)\s*(?=[-+\d\\.$])", re.IGNORECASE
)
_TAIL = re.compile(
    r"(?P<head>.*[\d)}!%\]])(?P<gap>\s*)(?P<unit>(?:\\circ|[A-Za-z¢€£][A-Za-z'’.\s/-]*(?:\^\{?\d\}?)?))", re.DOTALL
)
_TRIGONOMETRY = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)")
_BASED = re.compile(r"([0-9A-Z]{1,200})_\{(\d{1,2})\}")
_CLOCK = re.compile(r"(\d{1,2}:\d{2})\s*([ap])\.?\s*m\.?", re.IGNORECASE)
_WORD = re.compile(r"(?<!\\)\b[A-Za-z]{2,}")
_LETTERS = re.compile(r"[A-Za-z][A-Za-z\s'’.,\-]*")
_CHOICE = re.compile(r"\(?([A-Z])\)|\(([a-z])\)|(?:option|choice|answer)\s+\(?([A-Za-z])\)?", re.ASCII)
_NAME = re.compile(
    r"(?!\\pi|[ei]$)(?:\\?[A-Za-z]+(?:_\{?\w+\}?)?'*|\\angle\s*[A-Z]+|[A-Za-z]\([A-Za-z\d, ]+\)|[A-Za-z][A-Za-z\s]*)",
    re.ASCII,
)
_MATRIX = re.compile(r"\\begin\{([pbB]?matrix|array)\}(?:\{[^{}]*\})?(.*)\\end\{\1\}", re.DOTALL)
_RELAXED = {"<": "<", "\\le": "\\le", "\\ge": "\\le", ">": "<", "=": "=", "\\ne": "\\ne"}


def read(text: str) -> Form:
    r"""The form of an answer.

    >>> read("(1, 2]").brackets, read(r"x = \frac12").right.number.value, read("5 cm").unit
    ('(]', Fraction(1, 2), 'cm')
    """
    currency = _CURRENCY.match(text)
    plain = tidy(text)
    unit = ""
    # $5$ is mathematics; $5 is money.
    if currency and (currency[1] != "$" or text.count("$") % 2):
        unit = {"€": "euro", "£": "gbp", "¢": "cent"}.get(currency[1], "dollar")
        plain = plain.lstrip("€£¢ ").removeprefix("USD").removeprefix("US").strip()
    if len(plain) > MAX_LENGTH or depth_of(plain) > MAX_DEPTH:
        return Scalar(plain)
    return _form(_HEDGE.sub("", plain, count=1) if _HEDGE.match(plain) else plain, unit, 0)


def _form(text: str, unit: str, depth: int) -> Form:
    text = text.strip()
    # The common case first.
    quick = _scalar(text, unit, plain_only=True)
    if quick is not None:
        return quick
    if depth > MAX_DEPTH:
        return Scalar(text)
    if choice := _CHOICE.fullmatch(text):
        return Words(next(filter(None, choice.groups())).lower())
    if clock := _CLOCK.fullmatch(text):
        return Words(f"{clock[1]} {clock[2].lower()}m")
    if (based := _BASED.fullmatch(text)) and 2 <= int(based[2]) <= 36 and text[0] != "_":
        return _based(text, based[1], int(based[2]))
    if found := _MATRIX.fullmatch(text):
        return _matrix(found[2], depth)
    if (relation := _relation(text, depth)) is not None:
        return relation
    if text in ("\\emptyset", "\\{\\}"):
        return Collection("{}", ())
    if text in ("\\mathbb{R}", "all real numbers"):
        return Collection("()", (Scalar("-\\infty"), Scalar("\\infty")))
    unions = split(text, "\\cup")
    if len(unions) > 1:
        return Collection("u", tuple(_form(part, "", depth + 1) for part in unions))
    brackets, inner = bracketed(text)
    parts = elements(inner, bare=not brackets)
    if len(parts) > MAX_PARTS:
        return Scalar(text)
    if brackets in ("{}", "<>", "[)", "(]") or (brackets and len(parts) > 1):
        return Collection(brackets, tuple(_form(part, "", depth + 1) for part in parts if part))
    if brackets == "()" or brackets == "group":
        return _form(inner, unit, depth + 1)
    if len(parts) > 1:
        return Collection("", tuple(_form(part, unit, depth + 1) for part in parts if part))
    if brackets == "[]":
        return Collection("[]", (_form(inner, "", depth + 1),))
    ratio = text.split(":")
    if len(ratio) > 1 and all(part.strip().replace(".", "", 1).isdigit() for part in ratio):
        return Collection(":", tuple(_form(part, "", depth + 1) for part in ratio))
    if text.count("\\pm") == 1 and "\\mp" not in text:
        both = (text.replace("\\pm", "+").removeprefix("+"), text.replace("\\pm", "-"))
        return Collection("", tuple(_form(part, unit, depth + 1) for part in both))
    scalar = _scalar(text, unit, plain_only=False)
    return scalar if scalar is not None else Words(_said(text))


def _scalar(text: str, unit: str, *, plain_only: bool) -> Scalar | None:
    """`text` as a scalar; `None` if it is words, or (`plain_only`) more than a number with a unit."""
    number, too_large = _number(text)
    if number or too_large:
        return Scalar(text, number, unit, too_large)
    if found := _TAIL.fullmatch(text):
        head, gap, tail = found["head"].strip(), found["gap"], found["unit"].strip()
        if head.endswith("^") and tail == "\\circ":
            head, gap, tail = head[:-1], " ", "degree"
        scale, tail = scale_of(tail)
        known = unit_of(tail)
        number, too_large = _number(head)
        # "5 apples" is five; "5x" is not, and neither is "5m", where m may be a variable: a unit stands apart.
        apart = gap or len(tail) > 1
        named = known or not tail or (_said(tail) and _is_words(tail) and not _CHANGES.search(tail))
        if (number or too_large) and apart and named:
            scaled = Numeral(number.value * scale, number.decimals, number.digits) if number and scale != 1 else number
            return Scalar(head, scaled, unit or known, too_large)
        if named and apart and scale == 1 and not plain_only and not _is_words(head):
            return Scalar(head, None, unit or known)
    if text.endswith("^\\circ") and not _TRIGONOMETRY.search(text):
        head = text.removesuffix("^\\circ")
        number, too_large = _number(head)
        if number or not plain_only:
            return Scalar(head, number, unit or "degree", too_large)
    if plain_only or _is_words(text):
        return None
    return Scalar(text, None, unit)


def _number(text: str) -> tuple[Numeral | None, bool]:
    try:
        return read_number(text), False
    except TooLargeError:
        return None, True


def _is_words(text: str) -> bool:
    """Whether `text` is language rather than mathematics."""
    if any(sign in text for sign in "'\"`;#@?") or "__" in text:
        return True  # No mathematics has these; nothing that has them is ever parsed.
    runs = [run for run in _WORD.findall(text) if run not in _FUNCTIONS]
    if any(len(run) > 3 for run in runs):
        return True
    if not _LETTERS.fullmatch(text):
        return False
    # Letters alone: xy is a product, "no" is a word, AB is a name.
    return any(run.lower() in _SHORT_WORDS or not run.islower() for run in runs) or (" " in text and bool(runs))


def _said(text: str) -> str:
    return " ".join(re.sub(r"[^\w\s.+/%\\-]", " ", text.lower()).split()).strip(" .")


def _based(text: str, digits: str, base: int) -> Form:
    """A number in another base: equal to the same number in any base that is named, not to bare digits."""
    try:
        value = int(digits, base)
    except ValueError:
        return Scalar(text)
    return Collection("_", (Scalar(str(value), Numeral(Fraction(value))),))


def _matrix(body: str, depth: int) -> Form:
    rows = [row for row in body.split("\\cr") if row.strip()]
    cells = [row.split("&") for row in rows]
    if sum(map(len, cells)) > MAX_PARTS * 2:
        return Scalar(body)
    return Matrix(tuple(tuple(_form(cell, "", depth + 1) for cell in row) for row in cells))


def _relation(text: str, depth: int) -> Form | None:
    """An equation or inequality; what only names or restates a value is that value with its name."""
    parts, signs = cut(text)
    if not signs or any(not part.strip() for part in parts):
        return None
    parts = [part.strip() for part in parts]
    if "\\in" in signs:
        if signs != ["\\in"] or not _NAME.fullmatch(parts[0]):
            return None
        inner = _form(parts[1], "", depth + 1)
        if isinstance(inner, Collection) and inner.brackets == "{}" and len(inner.parts) == 1:
            return inner.parts[0]
        return inner
    if len(elements(text, bare=True)) > 1:
        return None  # x = 1, x = 2 is a list of relations.
    if "\\approx" in signs:
        at = signs.index("\\approx")
        if at == 0 and _NAME.fullmatch(parts[0]):
            signs[0] = "="  # x is about 3.14: the only value that is given.
        else:
            parts, signs = parts[: at + 1], signs[:at]  # An exact value, then what it is about: the exact one counts.
    if not signs:
        return _form(parts[0], "", depth + 1)
    if set(signs) == {"="}:
        return _equation(parts, depth)
    return _inequality(parts, signs, depth)


def _equation(parts: list[str], depth: int) -> Form:
    last = _form(parts[-1], "", depth + 1)
    if _NAME.fullmatch(parts[0]):
        return Relation(Scalar(parts[0]), "=", last, name="".join(parts[0].split()))
    if _NAME.fullmatch(parts[-1]) and len(parts) == 2:
        return Relation(Scalar(parts[-1]), "=", _form(parts[0], "", depth + 1), name="".join(parts[-1].split()))
    first = _form(parts[0], "", depth + 1)
    if isinstance(first, Scalar) and first.number and not _has_variable(parts[-1]):
        return last  # 3 + 4 = 7 is a calculation, and its value is its last part.
    if isinstance(last, Scalar) and last.number and isinstance(first, Scalar) and not _has_variable(parts[0]):
        return last
    return Relation(first, "=", last)


_COMMANDS = re.compile(r"\\[A-Za-z]+")
_VARIABLE = re.compile(r"[A-Za-z]")


def _inequality(parts: list[str], signs: list[str], depth: int) -> Form | None:
    if len(parts) == 2:
        left, right, sign = parts[0], parts[1], signs[0]
        if sign in (">", "\\ge"):
            left, right = right, left
        sign = _RELAXED[sign]
        open_ = sign == "<"
        if sign != "\\ne":
            if _is_variable(left) and not _has_variable(right):
                return Collection("()" if open_ else "(]", (Scalar("-\\infty"), _form(right, "", depth + 1)))
            if _is_variable(right) and not _has_variable(left):
                return Collection("()" if open_ else "[)", (_form(left, "", depth + 1), Scalar("\\infty")))
        return Relation(_form(left, "", depth + 1), sign, _form(right, "", depth + 1))
    if len(parts) == 3 and _is_variable(parts[1]) and not (_has_variable(parts[0]) or _has_variable(parts[2])):
        if signs[0] in (">", "\\ge") and signs[1] in (">", "\\ge"):
            parts, signs = parts[::-1], [{">": "<", "\\ge": "\\le"}[sign] for sign in signs[::-1]]
        if all(sign in ("<", "\\le") for sign in signs):
            brackets = ("(" if signs[0] == "<" else "[") + (")" if signs[1] == "<" else "]")
            return Collection(brackets, (_form(parts[0], "", depth + 1), _form(parts[2], "", depth + 1)))
    return None


def _is_variable(text: str) -> bool:
    return len(text) == 1 and text.isalpha() and text not in "ei"


def _has_variable(text: str) -> bool:
    return any(c not in "ei" for c in _VARIABLE.findall(_COMMANDS.sub("", text)))
