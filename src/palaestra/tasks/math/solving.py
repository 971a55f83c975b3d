"""Solve questions of elementary mathematics, to verify the answers of written examples.

A question is solved if all of its words are understood: the wordings of `math-skills`, common variants of them, and
arithmetic in signs or words. Anything else has no solution here; nothing is guessed.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from palaestra.core.tables import load_table
from palaestra.tasks.math.equivalence.numerals import TooLargeError, read_number
from palaestra.tasks.math.units import find_unit
from palaestra.tasks.readings import NUMBER_WORDS, read_number_words
from palaestra.tasks.wordings import read_wordings


@dataclass(frozen=True, slots=True)
class Solution:
    """The answer of a question.

    Arguments:
        skill, subskill: of `math-skills`; empty if the question belongs to none, or to several.
        unit: the unit or the things that the question asks for, if it names them.
    """

    answer: str
    skill: str = ""
    subskill: str = ""
    unit: str = ""


@lru_cache(4096)
def solve_question(question: str) -> Solution | None:
    """Solve a question; `None` if it is not understood.

    >>> solve_question("What is 206 plus 428?")
    Solution(answer='634', skill='addition', subskill='', unit='')
    >>> solve_question("How many sheep are on the farm?") is None
    True
    """
    text = _tidy(question)
    for number in ("one", "1"):  # "one" is rarely a number.
        asked = re.sub(r"\bone\b", number, text)
        for pattern, solve in _TEMPLATES:
            if match := pattern.fullmatch(asked):
                with suppress(ZeroDivisionError):
                    if solution := solve(match):
                        return solution
        if solution := _solve_expression(asked):
            return solution
    return None


_SIGNS = str.maketrans({"×": "*", "÷": "/", "−": "-", "–": "-", "·": "*", "’": "'"})
_LATEX = ((r"\\(?:times|cdot)\b", "*"), (r"\\div\b", "/"), (r"\\[()\[\]]|\\,|\\;", " "), (r"\\([$%])", r"\1"))
_CLOSING = re.compile(
    r"\s*(?:please )?(?:show (?:all )?(?:your|the) (?:steps|work(?:ing)?)|answer with (?:a|one|just the) (?:whole )?number"
    r"|(?:think|reason|work) step by step[^.]*)[.!]*$"
)
_ASKING = re.compile(
    r"^(?:please |can you |could you |tell me |question:? )*(?:what(?:'s| is| are| does| do you get (?:if|when) you)?"
    r"|how much (?:is|are|does)|compute|calculate|evaluate|find|work out|solve|determine|simplify|give|solve for [a-z])?:?"
    r"\s*(?:the (?:value|result|answer) (?:of|to|for))?:?\s*"
)
_ENDING = re.compile(r"\s*(?:equal(?:s| to)?|make|come to|=)?\s*(?:what|how much|\?|_+)?\s*[?.!=:]*$")
_WORDED = re.compile(
    rf"\b(?:{'|'.join(NUMBER_WORDS)})\b(?:[\s-]+(?:and )?(?:hundred|thousand|{'|'.join(NUMBER_WORDS)})\b)*"
)


def _tidy(question: str) -> str:
    """A question in lower case with plain signs, digits for number words, and no thousands separators or currency."""
    text = question.translate(_SIGNS)
    for pattern, plain in _LATEX:
        text = re.sub(pattern, plain, text)
    text = " ".join(re.sub(r"[$€£*_`]{2,}|[$€£`]", "", text).lower().split())
    text = re.sub(r"(?<![\d,])\d{1,3}(?:,\d{3})+(?![\d,])", lambda match: match[0].replace(",", ""), text)
    text = _WORDED.sub(_to_digits, text)
    return _CLOSING.sub("", text).strip()


def _to_digits(match: re.Match[str]) -> str:
    tokens = match[0].replace("-", " - ").split()
    value, size = read_number_words(tokens, 0)
    return match[0] if tokens == ["one"] or size < len(tokens) else str(value)


# Arithmetic in signs and words

_N = r"-?(?:\d+ ?/ ?\d+|\d+(?:\.\d+)?|\.\d+)"
_LIST = rf"(?P<list>{_N}(?:(?:,? and |,? or |, ?|; ?| ){_N})+)"
_TABLE = load_table(__file__, "wordings")
_WORDS: Sequence[tuple[str, str]] = _TABLE["signs"]
_PAIRS: Sequence[tuple[str, str]] = _TABLE["pairs"]


def _solve_expression(asked: str) -> Solution | None:
    body = _ENDING.sub("", _ASKING.sub("", asked))
    for pattern, replacement in _PAIRS:
        pair = re.fullmatch(pattern, body)
        if pair is None:
            continue
        parts = [_write_signs(part) or "" for part in pair.groups()]
        if not all(parts):  # For example "the sum of 3, 4 and 5".
            several = re.fullmatch(rf"(?:add|the (?:sum|total) of|sum of) {_LIST}", body)
            return Solution(str(sum(_read_list(several["list"]), Fraction(0))), "addition") if several else None
        solution = _evaluate(replacement.replace(r"\1", parts[0]).replace(r"\2", parts[-1]))
        # "the difference between 3 and 8" is 5 to some, and -5 to others.
        return None if "difference" in pattern and solution and solution.answer.startswith("-") else solution
    signs = _write_signs(body)
    return _evaluate(signs) if signs is not None and re.search(r"[\d)%] ?[-+*/^]", signs) else None


def _write_signs(body: str) -> str | None:
    """An expression in words with signs; `None` if other words remain."""
    for pattern, sign in _WORDS:
        body = re.sub(pattern, sign, body)
    return body.strip() if re.fullmatch(r"[\d\s.+\-*/(){}^]+", body) and not re.search(r"\d\s+\d", body) else None


def _evaluate(signs: str) -> Solution | None:
    plain = re.sub(r"\((-?[\d.]+(?: ?/ ?\d+)?)\)", r"\1", signs) if signs.count("(") else signs
    terms = re.split(r"[-+]", plain)
    if any(term.count("/") > 1 for term in terms) and "/100*" not in plain and "(" not in plain:
        return None  # In "50 / 1/2" most writers mean a half.
    try:
        number = read_number(signs.replace(" ", ""))
        return Solution(str(number.value), *_name_skill(plain.replace(" ", ""))) if number else None
    except (TooLargeError, ValueError):  # Python writes no integers of more than 4,300 digits.
        return None


def _read_list(text: str) -> list[Fraction]:
    return [Fraction(number.replace(" ", "")) for number in re.findall(_N, text)]


def _name_skill(signs: str) -> tuple[str, str]:
    """The skill and subskill of an expression; the subskill is empty outside of the ranges of the generators."""
    if re.fullmatch(r"\d+(\+\d+){2,}", signs):
        return "addition", ""
    if like := re.fullmatch(r"\d+/(\d+)\+\d+/(\d+)", signs):
        return ("fractions", "like_sum") if like[1] == like[2] else ("", "")
    if percent := re.fullmatch(r"([\d.]+)/100\*[\d.]+", signs):
        return "percent", {"10": "tenths", "20": "fifths", "25": "quarters", "50": "halves"}.get(percent[1], "")
    match = re.fullmatch(r"(\d+)([-+*/])(\d+)", signs)
    if not match:
        return "", ""
    a, b, ones = int(match[1]), int(match[3]), int(match[1][-1]) + int(match[3][-1])
    low, high = sorted((a, b))
    if match[2] == "+":
        in_range = "one_digit" if 1 <= low <= 9 and high <= 19 else ""
        if low >= 11 and high <= 89:
            in_range = "carry" if ones >= 10 else "two_digit"
        return "addition", in_range
    if match[2] == "-":
        in_range = "one_digit" if 9 <= a <= 19 and 1 <= b <= 9 else ""
        if 11 <= b < a <= 99:
            in_range = "borrow" if a % 10 < b % 10 else "two_digit"
        return "subtraction", in_range
    if match[2] == "*":
        if low > 9:
            in_range = "teens" if low > 10 and high <= 29 else "large" if low > 30 and high < 100 else ""
            return "long_multiplication", in_range
        kinds = {"tables": 2 <= high <= 12, "tens": high % 10 == 0 and high <= 120, "two_digit": 13 <= high <= 40}
        names = [name for name, fits in kinds.items() if fits and low >= 2]
        return "multiplication", names[0] if len(names) == 1 else ""
    if b == 0 or a % b:
        return "", ""
    in_range = "tables" if 2 <= a // b <= 12 else "two_digit" if a // b <= 40 else ""
    return "division", in_range if 2 <= b <= 9 else ""


# Questions in words


def find_wrong_unit(question: str, answer: str) -> str:
    """The unit of an answer that is not the one that a question asks for; empty if there is none.

    >>> find_wrong_unit("How many centimetres are 3 metres?", "300 grams")
    'grams'
    >>> find_wrong_unit("3 bags hold 4 figs each. How many figs?", "12 figs")
    ''
    """
    solution = solve_question(question)
    match = re.search(r"\d\s*(%|[a-z]+)\.?\W*$", answer.lower())
    if solution is None or match is None:
        return ""
    unit, asked = match[1], solution.unit
    if find_unit(asked):
        is_wrong = find_unit(unit) not in (None, find_unit(asked))
    else:
        is_named = unit in re.findall(r"[a-z]+", question.lower())
        is_wrong = bool(asked) and is_named and unit.rstrip("s") != asked.rstrip("s")
    return unit if is_wrong or unit == "%" else ""


def _convert(match: re.Match[str]) -> Solution | None:
    large, small = find_unit(match["large"]), find_unit(match["small"])
    if large is None or small is None or large[0] != small[0]:
        return None
    value = Fraction(match["n"].replace(" ", "")) * large[1] / small[1]
    subskill = large[0] if large[0] in ("length", "mass", "time") and large[1] > small[1] else ""
    return Solution(str(value), "units", subskill, match["small"])


def _choose(match: re.Match[str]) -> Solution | None:
    numbers = _read_list(match["list"])
    largest = re.search(r"larg|great|big|more|high|max|most", match["which"])
    subskill = ""
    if len(numbers) == 2 and "or" in match["list"].split():
        subskill = "larger" if largest else "smaller"
    elif len(numbers) == 3 and largest:
        subskill = "largest_of_three"
    return Solution(str(max(numbers) if largest else min(numbers)), "comparison", subskill)


def _sort(match: re.Match[str]) -> Solution | None:
    numbers = _read_list(match["list"])
    descending = bool(re.search(r"descend|decreas|(?:larg|great|high|big)\w+ (?:first|to)", match["how"]))
    ascending = bool(re.search(r"ascend|increas|(?:small|least|low)\w* (?:first|to)", match["how"]))
    if descending == ascending or any(number.denominator != 1 for number in numbers):
        return None
    answer = ", ".join(map(str, sorted(numbers, reverse=descending)))
    return Solution(answer, "ordering", "descending" if descending else "ascending")


def _find_missing(match: re.Match[str], sign: str = "") -> Solution:
    """Solve `a sign b = c`, where `a` or `b` is unknown."""
    groups = match.groupdict()
    sign = sign or groups["s"] or groups["t"]
    is_first = not groups.get("a")
    result, known = Fraction(groups["c"]), Fraction(groups["b"] if is_first else groups["a"])
    if sign == "+":
        return Solution(str(result - known), "missing_number", "addend")
    if sign == "*":
        return Solution(str(result / known), "missing_number", "factor")
    if sign == "-":
        return Solution(
            str(result + known if is_first else known - result), "missing_number", "minuend" if is_first else ""
        )
    return Solution(str(result * known if is_first else known / result), "missing_number")


def _continue(match: re.Match[str]) -> Solution | None:
    terms = _read_list(match["list"])
    steps = {b - a for a, b in itertools.pairwise(terms)}
    if len(terms) < 3:
        return None
    if len(steps) == 1:
        (step,) = steps
        return Solution(str(terms[-1] + step), "sequences", "rising" if step > 0 else "falling" if step else "")
    ratios = {b / a for a, b in itertools.pairwise(terms)} if all(terms) else set()
    return Solution(str(terms[-1] * ratios.pop()), "sequences", "multiplying") if len(ratios) == 1 else None


def _later(match: re.Match[str]) -> Solution | None:
    hours, minutes, in_hours = int(match["h"]), int(match["m"]), match["unit"].startswith("h")
    total = minutes + int(match["wait"]) * (60 if in_hours else 1)
    later = hours + total // 60
    if not 1 <= hours <= 12 or minutes > 59 or later > 12:
        return None  # 1:10 and 13:10 are both right.
    subskill = "within_hour" if total < 60 else "past_hour" if total < 120 else ""
    return Solution(f"{later}:{total % 60:02d}", "clock", "" if in_hours else subskill)


def _rectangle(match: re.Match[str]) -> Solution:
    a, b = Fraction(match["a"]), Fraction(match["b"])
    what = match.groupdict().get("what", "side")
    if what == "side":
        return Solution(str(a / b), "geometry", what)
    return Solution(str(a * b if what == "area" else 2 * (a + b)), "geometry", what)


def _count_words(match: re.Match[str]) -> Solution | None:
    value, subskill = Fraction(match["a"]) * Fraction(match["b"]), "equal"
    if "more" in match.re.groupindex:
        value, subskill = value + Fraction(match["more"]), "with_more"
    if "fewer" in match.re.groupindex:
        value, subskill = value - Fraction(match["fewer"]), "with_fewer"
    if match["thing"] != match["asked"] or value < 0:
        return None
    return Solution(str(value), "groups", subskill, match["asked"])


def _change(match: re.Match[str]) -> Solution | None:
    groups = match.groupdict()
    subskill = "several_items" if "count" in groups else "two_items" if "b" in groups else "one_item"
    cost = Fraction(match["a"]) * Fraction(groups.get("count", 1)) + Fraction(groups.get("b", 0))
    return Solution(str(Fraction(match["paid"]) - cost), "change", subskill)


def _take_fraction(match: re.Match[str]) -> Solution:
    top, bottom = (int(part) for part in match["f"].split("/"))
    subskill = "unit_of_quantity" if top == 1 else "part_of_quantity"
    return Solution(str(Fraction(top, bottom) * Fraction(match["w"])), "fractions", subskill)


def _mean(match: re.Match[str]) -> Solution:
    numbers = _read_list(match["list"])
    subskill = {2: "of_two", 3: "of_three"}.get(len(numbers), "")
    return Solution(str(sum(numbers, Fraction(0)) / len(numbers)), "average", subskill)


def _divisor(match: re.Match[str]) -> Solution:
    return Solution(str(math.gcd(int(match["a"]), int(match["b"]))), "number_theory", "common_divisor")


def _binary(match: re.Match[str]) -> Solution:
    return Solution(f"{int(match['n']):b}", "number_theory", "binary")


_END = r"\s*[?.!]*"
_TEMPLATES: Sequence[tuple[re.Pattern[str], Callable[[re.Match[str]], Solution | None]]] = [
    (re.compile(pattern + _END), solve) for pattern, solve in read_wordings(__file__, "questions", globals())
]
