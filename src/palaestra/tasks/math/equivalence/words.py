"""Distinguish language from mathematics."""

from __future__ import annotations

import re

_FUNCTIONS = frozenset({
    "sin", "cos", "tan", "cot", "sec", "csc", "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh", "log",
    "ln", "exp", "sqrt", "lcm", "gcd", "max", "min", "mod", "pi", "cis", "det",
})  # fmt: skip
_SHORT_WORDS = frozenset({
    "no", "on", "yes", "or", "and", "odd", "not", "all", "any", "one", "two", "six", "ten", "the", "sum", "set",
    "add", "top", "low", "up", "to", "in", "is", "it", "as", "at", "if", "of", "mon", "tue", "wed", "thu",
    "fri", "sat", "sun", "red", "day", "dog", "cat", "old", "new", "big", "few",
})  # fmt: skip
# Words after a number that make another number of it.
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


def is_words(text: str) -> bool:
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


def is_unit(text: str) -> bool:
    """Whether the words after a number name what is counted, and do not change the number."""
    return bool(normalize(text)) and is_words(text) and not _CHANGES.search(text)


def normalize(text: str) -> str:
    """Lower-case words without punctuation. The prime of a letter, as in E', is not punctuation."""
    return " ".join(_PUNCTUATION.sub(" ", text.lower()).split()).strip(" .")


def variables(text: str) -> set[str]:
    """The letters of a formula that may be variables; e and i are numbers."""
    return set(_VARIABLE.findall(_COMMANDS.sub("", _JOINING.sub("", text)))) - {"e", "i"}


def has_variable(text: str) -> bool:
    return bool(variables(text))
