"""Parse an answer into its form, along its outermost structure.

First the form itself (`read`), then the functions that split a formula at its outermost signs, commas and brackets, and
those that distinguish language from mathematics.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from fractions import Fraction

from palaestra.tasks.math.equivalence.forms import (
    Collection,
    Form,
    Matrix,
    Relation,
    Scalar,
    TimeOfDay,
    Words,
    is_region,
)
from palaestra.tasks.math.equivalence.latex import (
    MAX_DEPTH,
    MAX_INPUT,
    MAX_LENGTH,
    NOTATION,
    closing,
    measure_depth,
    tidy,
)
from palaestra.tasks.math.equivalence.numerals import Numeral, TooLargeError, get_scale, get_unit, read_number

_MAX_PARTS = 40
"""Collections with more parts than this are compared as text."""

_CURRENCY = re.compile(r"\s*(\\\$|[$€£¢]|US\$|USD\b)\s*(?=[-+]?\s*[\d.])")
_HEDGE = re.compile(
    r"(?:about|approximately|approx\.?|roughly|exactly|only|around|\\approx|\\sim)\s*(?=[-+\d\\.$])", re.IGNORECASE
)
_TAIL = re.compile(
    r"(?P<head>.*[\d)}!%\]])(?P<gap>\s*)(?P<unit>(?:\\circ|[A-Za-z¢€£][A-Za-z'’.\s/-]*(?:\^\{?\d\}?)?))", re.DOTALL
)
_TRIGONOMETRY = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)")
_BASED = re.compile(r"(-?[0-9A-Z]{1,200})(?:\.([0-9A-Z]{1,200}))?_\{(\d{1,2})\}")
_CLOCK = re.compile(r"(\d{1,2})(?::(\d{2}))?\s*([ap])\.?\s*m\.?", re.IGNORECASE | re.ASCII)
_CHOICE = re.compile(r"\(?([A-Z])\)|\(([a-z])\)|(?:option|choice|answer)\s+\(?([A-Za-z])\)?", re.ASCII)
_MATRIX = re.compile(
    r"[(\[]?\\begin\{((?:small|[pbB])?matrix|array)\}(?:\{[^{}]*\})?((?:(?!\\begin).)*)\\end\{\1\}[)\]]?", re.DOTALL
)
_ENVIRONMENT = re.compile(r"\\(?:begin|end)\{(?:[pbB]?matrix|array)\}")
_CASES = re.compile(r"\\begin\{cases\}(.*)\\end\{cases\}", re.DOTALL)
_CONDITION = re.compile(r"([A-Za-z])(?:\\in\\mathbb\{R\})?(?:\||:|\\mid|\\colon)(.+)", re.DOTALL)
_OR = re.compile(r"(?<![A-Za-z\\])or(?![A-Za-z])")
_INEQUALITY = re.compile(r"[<>]|\\[lg]e(?![a-zA-Z])")
_REGION = re.compile(rf"{_INEQUALITY.pattern}|[\[\]]|\\infty")
_TURNED = {"\\ge": "\\le", ">": "<"}

# The left side of an assignment: x, x_1, f(x), \angle A, |AB|, a:b, \frac{AB}{CD}, (x,y), the area.
_ATOM = r"\\?[A-Za-z]+(?:_\{?[\w,]+\}?)?'*"
_NAME = re.compile(
    rf"(?!\\pi|[ei]$)(?:{_ATOM}|\\(?:angle|triangle|sin|cos|tan|cot)\s*\\?[A-Za-z]+|[A-Za-z]\((?:[A-Za-z\d, ]|\\(?:cap|cup|mid))+\)|[A-Za-z][A-Za-z\s]*"
    rf"|\|{_ATOM}\||\\(?:overline|vec|hat|bar)\{{{_ATOM}\}}|{_ATOM}(?:[:/]{_ATOM})+|\\frac\{{{_ATOM}\}}\{{{_ATOM}\}}"
    rf"|\({_ATOM}(?:, ?{_ATOM})+\))",
    re.ASCII,
)
_UNKNOWN = re.compile(
    r"(?![ei]$)(?:[A-Za-z]|\\(?:alpha|beta|gamma|theta|lambda|mu|phi))(?:_\{\w+\})?'*(?:\([A-Za-z]\))?"
)


def read(text: str) -> Form:
    r"""The form of an answer.

    >>> read("(1, 2]").brackets, read(r"x = \frac12").right.number.value, read("5 cm").unit
    ('(]', Fraction(1, 2), 'cm')
    """
    if len(text) > MAX_INPUT:
        return Scalar(text)
    currency = _CURRENCY.match(text)
    plain = tidy(text)
    unit = ""
    # $5$ is mathematics; $5 is money.
    if currency and (currency[1] != "$" or text.count("$") % 2):
        unit = {"€": "euro", "£": "gbp", "¢": "cent"}.get(currency[1], "dollar")
        plain = plain.lstrip("€£¢ ").removeprefix("USD").removeprefix("US").strip()
    if len(plain) > MAX_LENGTH or measure_depth(plain) > MAX_DEPTH:
        return Scalar(plain)
    return _form(_HEDGE.sub("", plain, count=1) if _HEDGE.match(plain) else plain, unit, 0)


def _form(text: str, unit: str, depth: int) -> Form:
    text = text.strip()
    # The common case first.
    if number := _scalar(text, unit, plain_only=True):
        return number
    if depth > MAX_DEPTH:
        return Scalar(text)
    if form := _single(text, depth) or _relation(text, depth):
        return form
    if text in ("\\emptyset", "\\{\\}"):
        return Collection("{}", ())
    if text in ("\\mathbb{R}", "all real numbers"):
        return Collection("()", (Scalar("-\\infty"), Scalar("\\infty")))
    unions = _split(text, "\\cup")
    if len(unions) > 1:
        return Collection("u", _forms(unions, depth))
    brackets, inner = _strip_brackets(text)
    if brackets == "{}" and (condition := _CONDITION.fullmatch(inner)):
        return _form(condition[2], "", depth + 1)  # {x | x > 1}
    parts = _elements(inner, bare=not brackets)
    if len(parts) > _MAX_PARTS:
        return Scalar(text)
    if brackets == "group" and len(parts) > 1:
        brackets = "{}"  # {1,3}, whose braces LaTeX would not show.
    if brackets in ("{}", "<>", "[)", "(]") or (brackets and len(parts) > 1):
        return Collection(brackets, _forms(filter(None, parts), depth))
    if brackets in ("()", "group"):
        return _form(inner, unit, depth + 1)
    if len(parts) > 1:
        return _list(text, _forms(filter(None, parts), depth, unit))
    if brackets == "[]":
        return Collection("[]", _forms([inner], depth))
    ratio = _split(text, ":")
    if len(ratio) > 1 and all(part.strip() and not _is_words(part) for part in ratio):
        return Collection(":", _forms(ratio, depth))
    if text.count("\\pm") == 1 and "\\mp" not in text:
        both = (text.replace("\\pm", "+").removeprefix("+"), text.replace("\\pm", "-"))
        return Collection("", _forms(both, depth, unit))
    return _scalar(text, unit, plain_only=False) or Words(_normalize(text))


def _forms(texts: Iterable[str], depth: int, unit: str = "") -> tuple[Form, ...]:
    return tuple(_form(text, unit, depth + 1) for text in texts)


def _single(text: str, depth: int) -> Form | None:
    """A choice, a time of day, a number in another base, a matrix or a system of equations."""
    if choice := _CHOICE.fullmatch(text):
        return Words(next(filter(None, choice.groups())).lower())
    if clock := _CLOCK.fullmatch(text):
        return TimeOfDay(int(clock[1]), int(clock[2] or 0), f"{clock[3].lower()}m")
    if (based := _BASED.fullmatch(text)) and 2 <= int(based[3]) <= 36:
        return _read_base(text, based[1], based[2] or "", int(based[3]))
    if match := _MATRIX.fullmatch(text):
        return _matrix(match[2], depth)
    if match := _CASES.fullmatch(text):
        rows = [row for row in match[1].replace("&", "").split("\\cr") if row.strip(" ,")]
        return Collection("", _forms((row.strip(" ,") for row in rows[:_MAX_PARTS]), depth))
    return None


def _list(text: str, parts: tuple[Form, ...]) -> Form:
    """A list without brackets: alternatives, regions joined by "or", or the same variables several times."""
    regions = all(is_region(part) and not (isinstance(part, Collection) and part.brackets == "{}") for part in parts)
    if regions and _OR.search(text) and _REGION.search(text):
        return Collection("u", parts)
    if regions and _INEQUALITY.search(text) and len(_variables(text)) == 1:
        return Collection("&", parts)  # x > 1 and x < 2
    names = [part.name for part in parts if isinstance(part, Relation) and part.name]
    size = len(dict.fromkeys(names))
    if 1 < size < len(names) == len(parts) and names == names[:size] * (len(names) // size):
        # p = 5, q = 2 and p = 7, q = 2 are two solutions.
        starts = range(0, len(parts), size)
        return Collection("", tuple(Collection("", parts[start : start + size]) for start in starts))
    return Collection("or" if _OR.search(text) else "", parts)


def _scalar(text: str, unit: str, *, plain_only: bool) -> Scalar | None:
    """`text` as a scalar; `None` if it is language, or with `plain_only` if it is not a number with a unit."""
    number, too_large = _number(text)
    if number or too_large:
        return Scalar(text, number, unit, too_large)
    if match := _TAIL.fullmatch(text):
        head, gap, tail = match["head"].strip(), match["gap"], match["unit"].strip()
        if head.endswith("^") and tail == "\\circ":
            head, gap, tail = head[:-1], " ", "degree"
        scale, tail = get_scale(tail)
        known = get_unit(tail)
        number, too_large = _number(head)
        # "5 apples" is five; "5x" is not, and neither is "5m", where m may be a variable: a unit stands apart.
        apart = gap or len(tail) > 1
        named = known or not tail or _is_unit(tail)
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
    if plain_only or _is_words(_ENVIRONMENT.sub("", text)):
        return None
    return Scalar(text, None, unit)


def _number(text: str) -> tuple[Numeral | None, bool]:
    try:
        return read_number(text), False
    except TooLargeError:
        return None, True


def _read_base(text: str, whole: str, part: str, base: int) -> Form:
    """A number in a named base. It equals the same number in any named base, but not bare digits."""
    try:
        value = Fraction(int(whole + part, base), base ** len(part))
    except ValueError:
        return Scalar(text)
    return Collection("_", (Scalar(str(value), Numeral(value)),))


def _matrix(body: str, depth: int) -> Form:
    rows = [row for row in body.split("\\cr") if row.strip()]
    cells = [row.split("&") for row in rows]
    if sum(map(len, cells)) > _MAX_PARTS * 2:
        return Scalar(body)
    return Matrix(tuple(_forms(row, depth) for row in cells))


def _relation(text: str, depth: int) -> Form | None:
    """An equation or inequality. One that only names or restates a value is that value with its name."""
    parts, signs = _split_at(text, _SIGN)
    if not signs or any(not part.strip() for part in parts):
        return None
    parts = [part.strip() for part in parts]
    if len(_elements(text, bare=True)) > 1:
        return None  # x = 1, x = 2 is a list of relations.
    if "\\in" in signs:
        if signs != ["\\in"] or not _NAME.fullmatch(parts[0]):
            return None
        inner = _form(parts[1], "", depth + 1)
        if isinstance(inner, Collection) and inner.brackets == "{}" and len(inner.parts) == 1:
            return inner.parts[0]
        return inner
    if "\\approx" in signs:
        at = signs.index("\\approx")
        if at == 0 and _NAME.fullmatch(parts[0]):
            signs[0] = "="  # x is about 3.14: the only value that is given.
        else:
            parts, signs = parts[: at + 1], signs[:at]  # An exact value and its approximation: the exact one counts.
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


def _inequality(parts: list[str], signs: list[str], depth: int) -> Form | None:
    """An interval if the inequality bounds a single variable by numbers, else the inequality."""
    if all(sign in (">", "\\ge") for sign in signs):
        parts, signs = parts[::-1], signs[::-1]
    elif len(signs) > 1 and not all(sign in ("<", "\\le") for sign in signs):
        return None
    signs = [_TURNED.get(sign, sign) for sign in signs]
    alone = [bool(_UNKNOWN.fullmatch(part)) for part in parts]
    constant = [not _has_variable(part) for part in parts]
    forms = _forms(parts, depth)
    if len(parts) == 2:
        if signs[0] != "\\ne" and alone[0] and constant[1]:
            return Collection("()" if signs[0] == "<" else "(]", (Scalar("-\\infty"), forms[1]))
        if signs[0] != "\\ne" and constant[0] and alone[1]:
            return Collection("()" if signs[0] == "<" else "[)", (forms[0], Scalar("\\infty")))
        return Relation(forms[0], signs[0], forms[1])
    if len(parts) != 3:
        return None
    first, middle, last = forms
    if constant[0] and alone[1] and constant[2]:
        return Collection(("(" if signs[0] == "<" else "[") + (")" if signs[1] == "<" else "]"), (first, last))
    return Collection("&", (Relation(first, signs[0], middle), Relation(middle, signs[1], last)))


_SIGN = re.compile(r"\\(?:le|ge|ne|in|approx)(?![a-zA-Z])|[=<>]")
_AND = re.compile(r"\s*,?\s*(?<![A-Za-z\\])(?:and|or)(?![a-z])\s*")
_GROUP = re.compile(r"\d{3}(?:\.\d+)?", re.ASCII)
_ASSIGNED = re.compile(r"[^,]*[=<>]\s*[-+]?\d{1,3}(?:,\d{3})+(?![\d,])[^,]*", re.ASCII)


def _levels(text: str) -> list[int]:
    """The bracket depth of each character. Escaped braces count; half-open intervals are balanced."""
    depth, levels = 0, []
    for char in text:
        if char in ")]}":
            depth = max(0, depth - 1)
        levels.append(depth)
        if char in "([{":
            depth += 1
    return levels


def _split_at(text: str, pattern: re.Pattern[str]) -> tuple[list[str], list[str]]:
    """The parts between the matches of `pattern` outside brackets, and the matches."""
    levels = _levels(text)
    marks = [mark for mark in pattern.finditer(text) if levels[mark.start()] == 0]
    starts = [0, *(mark.end() for mark in marks)]
    ends = [*(mark.start() for mark in marks), len(text)]
    return [text[start:end] for start, end in zip(starts, ends, strict=True)], [mark[0] for mark in marks]


def _split(text: str, mark: str) -> list[str]:
    """Split `text` at every `mark` outside brackets."""
    return _split_at(text, re.compile(re.escape(mark)))[0] if mark in text else [text]


def _elements(text: str, *, bare: bool) -> list[str]:
    """Split a list at commas, semicolons and (`bare`) "and" and "or". Separators of thousands do not split."""
    if len(parts := _split(text, ";")) > 1:
        return [part.strip() for part in parts]
    if bare:
        if _ASSIGNED.fullmatch(text):
            return [text.strip()]  # x = 1,234
        levels = _levels(text)
        text = _AND.sub(lambda match: ", " if levels[match.end() - 1] == 0 else match[0], text)
    pieces = _split(text, ",")
    if not any(piece.startswith(" ") for piece in pieces[1:]):
        return [piece.strip() for piece in pieces]
    # "1,234, 5": where some commas have a space after them, the others may be separators of thousands.
    joined = [pieces[0]]
    for piece in pieces[1:]:
        digits = joined[-1].rpartition("=")[2].strip().lstrip("+-")
        is_number = digits.replace(",", "").isdigit() and (len(digits) <= 3 or "," in digits)
        if is_number and _GROUP.fullmatch(piece):
            joined[-1] += f",{piece}"
        else:
            joined.append(piece)
    return [piece.strip() for piece in joined]


def _strip_brackets(text: str) -> tuple[str, str]:
    """The outermost brackets and their content if one pair encloses the whole text; else "" and the text."""
    for left, right, name in (("\\{", "\\}", "{}"), ("\\langle", "\\rangle", "<>")):
        if text.startswith(left) and text.endswith(right):
            return name, text[len(left) : -len(right)]
    if len(text) > 1 and text[0] == "{" and closing(text, 0) == len(text) - 1:
        return "group", text[1:-1]
    if len(text) > 1 and text[0] in "([" and text[-1] in ")]" and all(_levels(text)[1:-1]):
        return text[0] + text[-1], text[1:-1]
    return "", text


_FUNCTIONS, _SHORT_WORDS = (frozenset[str](NOTATION[name]) for name in ("functions", "short_words"))
# Words after a number that change its value.
_CHANGES = re.compile(
    r"\b(?:hal(?:f|ves)|thirds?|quarters?|(?:ten|hundred|thousand|fif|six|seven|eigh|nin|twelf)ths?|squared|cubed|than|plus|minus|times \w*[\d.]|divided|factorial|root|power|million|thousand)\b",
    re.IGNORECASE,
)
_WORD = re.compile(r"(?<!\\)\b[A-Za-z]{2,}")
_LETTERS = re.compile(r"[A-Za-z][A-Za-z\s'’.,\-]*")
_COMMANDS = re.compile(r"\\[A-Za-z]+")
_JOINING = re.compile(r"(?<![A-Za-z])(?:and|or)(?![a-z])")
_VARIABLE = re.compile(r"[A-Za-z]")
_PUNCTUATION = re.compile(r"(?<!\b[A-Za-z])(?<!')'|[^\w\s.+/%\\'-]")


def _is_words(text: str) -> bool:
    """Whether `text` is language rather than mathematics."""
    if any(sign in text for sign in "'\"`;#@?") or "__" in text:
        return True  # Mathematics does not contain these. A text with them is never parsed.
    runs = [run for run in _WORD.findall(text) if run not in _FUNCTIONS]
    if any(len(run) > 3 for run in runs):
        return True
    if not _LETTERS.fullmatch(text):
        return False
    # Letters alone: xy is a product, "no" is a word, AB is a name.
    return any(run.lower() in _SHORT_WORDS or not run.islower() for run in runs) or (" " in text and bool(runs))


def _is_unit(text: str) -> bool:
    """Whether the words after a number name what is counted, and do not change the number."""
    return bool(_normalize(text)) and _is_words(text) and not _CHANGES.search(text)


def _normalize(text: str) -> str:
    """Lower-case words without punctuation. The prime of a letter, as in E', is not punctuation."""
    return " ".join(_PUNCTUATION.sub(" ", text.lower()).split()).strip(" .")


def _variables(text: str) -> set[str]:
    """The letters of a formula that may be variables; e and i are numbers."""
    return set(_VARIABLE.findall(_COMMANDS.sub("", _JOINING.sub("", text)))) - {"e", "i"}


def _has_variable(text: str) -> bool:
    return bool(_variables(text))
