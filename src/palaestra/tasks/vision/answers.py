"""Short visual answers: finding the answer in a response, and comparing it.

Both sides are brought to one form: lower case, no articles, no punctuation, numbers in digits. Where
the set of possible answers is closed, a whole sentence may be the response, as long as it names
exactly one of them. Where it is open, the answer must be equal, or its safe plural.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence

_MARK = re.compile(r"answer\s*(?:is|:|=)", re.IGNORECASE)
_WORDS = re.compile(r"-?\d+(?:\.\d+)?|[^\W_]+(?:'[^\W_]+)?")
_DECIMAL = re.compile(r"(?P<sign>-?)(?P<whole>[0-9]+)(?:\.(?P<part>[0-9]+))?")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_ARTICLES = frozenset({"a", "an", "the"})
_NUMBERS: Mapping[str, str] = {
    word: str(value)
    for value, word in enumerate((
        "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
        "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen", "twenty",
    ))
} | {"none": "0"}  # fmt: skip
_SPELLINGS: Mapping[str, str] = {
    "color": "colour", "gray": "grey", "yeah": "yes", "yep": "yes", "nope": "no", "true": "yes", "false": "no",
    "correct": "yes", "incorrect": "no",
}  # fmt: skip
_NOT_PLURALS = frozenset({
    "glasses", "shorts", "pants", "jeans", "news", "goods", "arms", "scales", "greens", "sands", "waters", "woods",
    "clothes", "stairs", "irons", "means", "species", "series", "bangs", "briefs", "customs", "papers", "spectacles",
})  # fmt: skip
"""Words that are another thing than their singular, or have none: glass and glasses, short and shorts."""
BOOLEAN = frozenset({"yes", "no"})


def normalise(text: str) -> str:
    """One form for what means the same.

    >>> normalise("  The Dogs. "), normalise("Three"), normalise("1,200"), normalise("light-blue")
    ('dogs', '3', '1200', 'light blue')
    """
    return " ".join(_words(text))


def _words(text: str) -> list[str]:
    text = _THOUSANDS.sub("", unicodedata.normalize("NFKC", text).lower().replace("’", "'"))
    found = [_SPELLINGS.get(word, word) for word in _WORDS.findall(text)]
    kept = [word for word in found if word not in _ARTICLES] or found
    return [_number(word) for word in kept]


def _number(word: str) -> str:
    if word in _NUMBERS:
        return _NUMBERS[word]
    # 3.0 is 3, and 007 is 7, however many digits there are; a word stays a word.
    found = _DECIMAL.fullmatch(word)
    if found is None:
        return word
    whole, part = found["whole"].lstrip("0") or "0", (found["part"] or "").rstrip("0")
    number = f"{whole}.{part}" if part else whole
    return number if number == "0" else f"{found['sign']}{number}"


def candidate(response: str) -> str:
    """The part of `response` in which the answer is given: what follows its last "Answer:", or all of it."""
    marks = list(_MARK.finditer(response))
    return response[marks[-1].end() :].strip() if marks else response.strip()


def extract(response: str, choices: Sequence[str] = ()) -> str | None:
    """The answer that `response` gives, in normal form; `None` where it gives none, or several.

    Arguments:
        choices: the possible answers, where they are closed.

    >>> extract("The shape on the left is red.", ["red", "blue"])
    'red'
    >>> extract("It is red or blue.", ["red", "blue"]) is None
    True
    >>> extract("2+3=5. Answer: five", [str(n) for n in range(10)])
    '5'
    """
    if choices and all(len(choice) == 1 and choice.isalpha() for choice in choices):
        return _letter(candidate(response), choices)
    given = _words(candidate(response))
    if not given:
        return None
    whole = " ".join(given)
    if not choices:
        return whole
    known = {normalise(choice) for choice in choices}
    if whole in known:
        return whole
    if known <= BOOLEAN:
        # "No, there is no circle": the first word decides; "there is no circle" says it too.
        said = [word for word in given if word in BOOLEAN]
        return said[0] if said and (given[0] in BOOLEAN or len(set(said)) == 1) else None
    named = _named(given, known)
    return named.pop() if len(named) == 1 else None


def _letter(text: str, choices: Sequence[str]) -> str | None:
    """The option that `text` names: the letter that it begins with, or the only one that it holds."""
    options = "".join(choices).upper()
    begins = re.match(rf"[\s(\[*'\"]*([{options}])(?=[)\].:,*'\"\s]*$|[)\].:,*'\"]|\s*\n)", text, re.IGNORECASE)
    if begins:
        return begins[1].lower()
    # "A red car" begins with an article, "A is right" does not.
    article = r"A(?=\s+(?!or\b|and\b|is\b|because\b)[a-z])"
    named = set(re.findall(rf"(?<![\w'])(?!{article})([{options}])(?![\w'])", text))
    return named.pop().lower() if len(named) == 1 else None


def _named(words: list[str], known: Iterable[str]) -> set[str]:
    """The choices that occur in `words`, whole words only, and not inside a longer choice that occurs."""
    found: set[str] = set()
    taken = [False] * len(words)
    singular = [_singular(word) for word in words]
    for choice in sorted(known, key=lambda c: -len(c.split())):
        parts = choice.split()
        for at in range(len(words) - len(parts) + 1):
            span = slice(at, at + len(parts))
            if not any(taken[span]) and parts in (words[span], singular[span]):
                taken[span] = [True] * len(parts)
                found.add(choice)
    return found


def equal(given: str, expected: str) -> bool:
    """Whether two short answers mean the same: equal in normal form, or one the safe plural of the other.

    >>> equal("The dogs", "dog"), equal("glass", "glasses"), equal("3", "three"), equal("red", "reed")
    (True, False, True, False)
    """
    a, b = normalise(given), normalise(expected)
    if a == b:
        return a != ""
    *head_a, last_a = a.split() or [""]
    *head_b, last_b = b.split() or [""]
    return head_a == head_b and bool(last_a and last_b) and (_singular(last_a) == last_b or _singular(last_b) == last_a)


def _singular(word: str) -> str:
    """The singular of a regular plural; any other word as it is."""
    if word in _NOT_PLURALS or len(word) < 4 or not word.endswith("s") or word.endswith(("ss", "us", "is", "'s")):
        return word
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    if word.endswith(("ses", "xes", "zes", "ches", "shes")):
        stem = word[:-2]
        return stem if not word.endswith(("ses", "zes")) or stem.endswith(("ss", "us", "zz")) else word[:-1]
    return word[:-1]


def judge(response: str, reference: str, choices: Sequence[str] = ()) -> tuple[bool, str]:
    """Whether `response` answers `reference`, and the answer that was found in it."""
    given = extract(response, choices)
    if given is None:
        return False, ""
    right = given == normalise(reference) if choices else equal(given, reference)
    return right, given
