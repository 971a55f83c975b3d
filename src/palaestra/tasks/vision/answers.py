"""Short visual answers: finding the answer in a response, and comparing it.

Both sides are brought to one form: lower case, no articles, no punctuation, numbers in digits. Where
the set of possible answers is closed, a whole sentence may be the response, as long as it affirms
exactly one of them: "It is not red" names a colour and answers nothing. Where it is open, the answer must be
equal, or its plural.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache

from palaestra.tasks.vision.plurals import is_plural
from palaestra.tasks.vision.words import ARTICLES, MARKS, Word, read_words, statement_words

LONGEST = 20_000
"""Characters of the part that holds the answer; a longer one holds none."""
_MARK = re.compile(r"answer\s*(?:is|:|=)", re.IGNORECASE)
BOOLEAN = frozenset({"yes", "no"})
_REFUSAL = re.compile(
    r"(?:(?:is|was) (?:wrong|incorrect|false)|(?:(?:is|was|would|can) not|isn't|isnt|wasn't|wouldn't|can't|cannot)(?: be)? "
    r"(?:right|correct|answer|one|true|case|it))\b"
)


def normalise(text: str) -> str:
    """One form for what means the same.

    >>> normalise("  The Dogs. "), normalise("Three"), normalise("1,200"), normalise("light-blue")
    ('dogs', '3', '1200', 'light blue')
    """
    return " ".join(read_words(text))


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
    text = candidate(response)
    if len(text) > LONGEST:
        return None
    if choices and all(len(choice) == 1 and choice.isalpha() for choice in choices):
        return _find_letter(text, choices)
    whole = normalise(text)
    if not choices or not whole:
        return whole or None
    known = _normalise_all(tuple(choices))
    if whole in known:
        return whole
    words = statement_words(text)
    named = _find_boolean(words) if known <= BOOLEAN else _find_choices(words, known)
    return named.pop() if len(named) == 1 else None


@lru_cache(maxsize=256)
def _normalise_all(choices: tuple[str, ...]) -> frozenset[str]:
    return frozenset(map(normalise, choices))


def _find_letter(text: str, choices: Sequence[str]) -> str | None:
    """The option that `text` names: the letter that it begins with, or the only one that it affirms."""
    options = "".join(choices).upper()
    begins = re.match(rf"[\s(\[*'\"]*([{options}])(?=[)\].:,*'\"\s]*$|[)\].:,*'\"]|\s*\n)", text, re.IGNORECASE)
    if begins:
        return begins[1].lower()
    words = statement_words(text, keep_articles=True)
    named = set()
    for place, word in enumerate(words):
        after = words[place + 1].raw if place + 1 < len(words) else ""
        # "A red car" begins with an article, "A is right" does not.
        article = word.raw == "A" and after[:1].islower() and after not in {"or", "and", "is", "because"}
        if (
            len(word.raw) == 1
            and word.raw in options
            and not article
            and not word.denied
            and not _is_refused(words, place + 1)
        ):
            named.add(word.raw.lower())
    return named.pop() if len(named) == 1 else None


def _find_boolean(words: Sequence[Word]) -> set[str]:
    """What `words` say, yes or no. "No, there is no circle": the first word decides. "Not true" is no."""
    opposite = {"yes": "no", "no": "yes"}
    values = [opposite[word.text] if word.denied else word.text for word in words if word.text in BOOLEAN]
    return {values[0]} if values and words[0].text in BOOLEAN else set(values)


def _find_choices(words: Sequence[Word], known: Iterable[str]) -> set[str]:
    """The choices that `words` affirm: whole words only, and not inside a longer choice that occurs."""
    plain = [word for word in words if word.text not in MARKS]
    taken = [False] * len(plain)
    matches: list[tuple[str, int, int]] = []
    for choice in sorted(known, key=lambda c: -len(c.split())):
        parts = choice.split()
        for at in range(len(plain) - len(parts) + 1):
            span = slice(at, at + len(parts))
            if not any(taken[span]) and all(map(_names, plain[span], parts)):
                taken[span] = [True] * len(parts)
                matches.append((choice, at, at + len(parts)))
    return {choice for choice, at, end in matches if not plain[at].denied and not _is_refused(plain, end)}


def _names(word: Word, part: str) -> bool:
    return word.text == part or is_plural(word.text, part)


def _is_refused(words: Sequence[Word], place: int) -> bool:
    """Whether what stands before `place` is called wrong there: "red is not right", "red is wrong"."""
    following = " ".join(word.raw.lower() for word in words[place : place + 6] if word.raw.lower() not in ARTICLES)
    return _REFUSAL.match(following) is not None


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
    return head_a == head_b and (is_plural(last_a, last_b) or is_plural(last_b, last_a))


def judge(response: str, reference: str, choices: Sequence[str] = ()) -> tuple[bool, str]:
    """Whether `response` answers `reference`, and the answer that was found in it."""
    given = extract(response, choices)
    if given is None:
        return False, ""
    right = given == normalise(reference) if choices else equal(given, reference)
    return right, given
