"""Tools for units, money, lists of numbers, arithmetic and texts.

Amounts of money are rounded to cents; the exchange rates are invented. A word is a part of a text between spaces.
With the tools of arithmetic most requests would have a second plan, so they are offered only if a plan needs them.
"""

from __future__ import annotations

import math
import statistics
from typing import Literal

Length = Literal["mm", "cm", "m", "km", "in", "ft", "yd", "mi"]
Mass = Literal["g", "kg", "t", "oz", "lb"]
Volume = Literal["ml", "l", "pt", "gal"]
Temperature = Literal["C", "F", "K"]

METERS: dict[str, float] = {
    "mm": 0.001, "cm": 0.01, "m": 1.0, "km": 1000.0, "in": 0.0254, "ft": 0.3048, "yd": 0.9144, "mi": 1609.344,
}  # fmt: skip
GRAMS: dict[str, float] = {"g": 1.0, "kg": 1000.0, "t": 1e6, "oz": 28.349523125, "lb": 453.59237}
LITERS: dict[str, float] = {"ml": 0.001, "l": 1.0, "pt": 0.473176473, "gal": 3.785411784}


def convert_length(value: float, source: Length, target: Length) -> float:
    """A length in another unit.

    Arguments:
        value: in the unit `source`
        source: the unit it is in
        target: the unit to give it in
    """
    return neat(value * METERS[source] / METERS[target])


def convert_mass(value: float, source: Mass, target: Mass) -> float:
    """A mass in another unit.

    Arguments:
        value: in the unit `source`
        source: the unit it is in
        target: the unit to give it in
    """
    return neat(value * GRAMS[source] / GRAMS[target])


def convert_volume(value: float, source: Volume, target: Volume) -> float:
    """A volume in another unit.

    Arguments:
        value: in the unit `source`
        source: the unit it is in
        target: the unit to give it in
    """
    return neat(value * LITERS[source] / LITERS[target])


def convert_temperature(value: float, source: Temperature, target: Temperature) -> float:
    """A temperature in another scale.

    Arguments:
        value: in the scale `source`
        source: the scale it is in
        target: the scale to give it in
    """
    kelvin = {"C": value + 273.15, "F": (value + 459.67) * 5 / 9, "K": value}[source]
    if kelvin < 0:
        raise ValueError(f"convert_temperature: nothing is colder than 0 K; got {value} {source}")
    return neat({"C": kelvin - 273.15, "F": kelvin * 9 / 5 - 459.67, "K": kelvin}[target])


Currency = Literal["EUR", "USD", "GBP", "CHF", "JPY", "NOK"]
EUROS: dict[str, float] = {"EUR": 1.0, "USD": 0.92, "GBP": 1.17, "CHF": 1.05, "JPY": 0.0061, "NOK": 0.087}


def convert_currency(amount: float, source: Currency, target: Currency) -> float:
    """An amount of money in another currency.

    Arguments:
        amount: in the currency `source`
        source: the currency it is in
        target: the currency to give it in
    """
    return round(amount * EUROS[source] / EUROS[target], 2)


def add_percent(amount: float, percent: float) -> float:
    """An amount raised by a percentage, as by a tax or a tip.

    Arguments:
        amount: what is raised
        percent: 0 or more
    """
    return round(amount * (100 + _percent(percent)) / 100, 2)


def take_percent(amount: float, percent: float) -> float:
    """An amount lowered by a percentage, as by a discount.

    Arguments:
        amount: what is lowered
        percent: 0 to 100
    """
    if _percent(percent) > 100:
        raise ValueError(f"take_percent: at most 100 percent can be taken; got {percent}")
    return round(amount * (100 - percent) / 100, 2)


def split_evenly(amount: float, people: int) -> float:
    """What each pays when an amount is shared equally.

    Arguments:
        amount: what is shared
        people: how many share it
    """
    if people < 1:
        raise ValueError(f"split_evenly: at least 1 person must share; got {people}")
    return round(amount / people, 2)


def savings(amount: float, percent: float, years: int) -> float:
    """What an amount grows to with compound interest.

    Arguments:
        amount: what is saved at the start
        percent: the interest of a year
        years: how many, 0 to 100
    """
    if not 0 <= years <= 100:
        raise ValueError(f"savings: years lie between 0 and 100; got {years}")
    if _percent(percent) > 100:
        raise ValueError(f"savings: the interest is at most 100 percent; got {percent}")
    return round(amount * (1 + percent / 100) ** years, 2)


def _percent(percent: float) -> float:
    if percent < 0:
        raise ValueError(f"a percentage is 0 or more; got {percent}")
    return percent


def mean(numbers: list[float]) -> float:
    """The mean (average) of a list of numbers.

    Arguments:
        numbers: one or more
    """
    return neat(statistics.fmean(numbers))


def median(numbers: list[float]) -> float:
    """The median of a list of numbers.

    Arguments:
        numbers: one or more
    """
    return neat(statistics.median(numbers))


def largest(numbers: list[float]) -> float:
    """The largest of a list of numbers.

    Arguments:
        numbers: one or more
    """
    return max(numbers)


def smallest(numbers: list[float]) -> float:
    """The smallest of a list of numbers.

    Arguments:
        numbers: one or more
    """
    return min(numbers)


def count_above(numbers: list[float], limit: float) -> int:
    """How many of a list of numbers are above a limit.

    Arguments:
        numbers: one or more
        limit: which does not count itself
    """
    return sum(number > limit for number in numbers)


def top(numbers: list[float], count: int) -> list[float]:
    """The largest few of a list of numbers, the largest first.

    Arguments:
        numbers: one or more
        count: how many to keep
    """
    if not 1 <= count <= len(numbers):
        raise ValueError(f"top: count lies between 1 and the {len(numbers)} numbers; got {count}")
    return sorted(numbers, reverse=True)[:count]


def scale(numbers: list[float], factor: float) -> list[float]:
    """A list of numbers, each multiplied by a factor.

    Arguments:
        numbers: one or more
        factor: for each of them
    """
    return [neat(number * factor) for number in numbers]


def round_to(value: float, digits: int = 0) -> float:
    """A number rounded to some digits behind the point.

    Arguments:
        value: the number
        digits: 0 to 9
    """
    if not 0 <= digits <= 9:
        raise ValueError(f"round_to: digits lie between 0 and 9; got {digits}")
    return round(value, digits)


def total(numbers: list[float]) -> float:
    """The sum of a list of numbers.

    Arguments:
        numbers: one or more
    """
    return neat(math.fsum(numbers))


def difference(a: float, b: float) -> float:
    """The number a minus the number b.

    Arguments:
        a: from this
        b: this is taken
    """
    return neat(a - b)


def product(a: float, b: float) -> float:
    """The number a times the number b.

    Arguments:
        a: a factor
        b: the other
    """
    return neat(a * b)


def ratio(a: float, b: float) -> float:
    """The number a divided by the number b.

    Arguments:
        a: what is divided
        b: by which, not 0
    """
    if b == 0:
        raise ValueError("ratio: nothing can be divided by 0; got b = 0")
    return neat(a / b)


def count_words(text: str) -> int:
    """The number of words in a text.

    Arguments:
        text: words with spaces between them
    """
    return len(text.split())


def count_letter(text: str, letter: str) -> int:
    """How often a letter occurs in a text.

    Arguments:
        text: any
        letter: one, of which capitals count too
    """
    if len(letter) != 1:
        raise ValueError(f"count_letter: letter is one character; got {letter[:40]!r}")
    return text.lower().count(letter.lower())


def longest_word(text: str) -> str:
    """The longest word of a text, the first of them if there are several.

    Arguments:
        text: words with spaces between them
    """
    return max(_words(text), key=len)


def nth_word(text: str, number: int) -> str:
    """The word at a place of a text.

    Arguments:
        text: words with spaces between them
        number: the place; the first word is 1
    """
    words = _words(text)
    if not 1 <= number <= len(words):
        raise ValueError(f"nth_word: number lies between 1 and the {len(words)} words; got {number}")
    return words[number - 1]


def replace_word(text: str, old: str, new: str) -> str:
    """A text with every occurrence of a word replaced by another.

    Arguments:
        text: words with spaces between them
        old: the word to replace
        new: the word to put there
    """
    return " ".join(new if word == old else word for word in text.split())


def reverse_text(text: str) -> str:
    """A text with its letters in reverse order.

    Arguments:
        text: any
    """
    return text[::-1]


def capitals(text: str) -> str:
    """A text in capital letters.

    Arguments:
        text: any
    """
    return text.upper()


def first_letters(text: str) -> str:
    """The first letters of all words of a text, together.

    Arguments:
        text: words with spaces between them
    """
    return "".join(word[0] for word in text.split())


def shift_letters(text: str, places: int) -> str:
    """A text with each letter moved some places on in the alphabet, from z on to a.

    Arguments:
        text: any
        places: how many; below 0 for back
    """
    return "".join(_shift(sign, places) for sign in text)


def _words(text: str) -> list[str]:
    words = text.split()
    if not words:
        raise ValueError("a text with at least one word is needed; got none")
    return words


def _shift(sign: str, places: int) -> str:
    for first in ("a", "A"):
        if "a" <= sign.lower() <= "z" and (sign >= "a") == (first == "a"):
            return chr((ord(sign) - ord(first) + places) % 26 + ord(first))
    return sign


def neat(value: float) -> float:
    """A number without rounding errors of floating point in its last digits."""
    return round(value, 9)
