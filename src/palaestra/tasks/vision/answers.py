"""Extract short visual answers from responses, and compare them.

Both sides are normalised: lower case, no articles, no punctuation, numbers as digits. If the set of possible answers is
closed, the response may be a sentence that affirms exactly one of them: "It is not red" affirms none. Otherwise the
answer must be equal to the reference, or its plural.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache

from palaestra.tasks.vision.plurals import is_plural
from palaestra.tasks.vision.words import ARTICLES, MARKS, Word, read_words, statement_words

LONGEST = 20_000
"""Maximum length of the part with the answer."""
_MARK = re.compile(r"answer\s*(?:is|:|=)", re.IGNORECASE)
BOOLEAN = frozenset({"yes", "no"})
_REFUSAL = re.compile(
    r"(?:(?:is|was) (?:wrong|incorrect|false)|(?:(?:is|was|would|can) not|isn't|isnt|wasn't|wouldn't|can't|cannot)(?: be)? "
    r"(?:right|correct|answer|one|true|case|it))\b"
)


def normalise(text: str) -> str:
    """Normalise an answer.

    >>> normalise("  The Dogs. "), normalise("Three"), normalise("1,200"), normalise("light-blue")
    ('dogs', '3', '1200', 'light blue')
    """
    return " ".join(read_words(text))


def candidate(response: str) -> str:
    """The part of `response` after its last "Answer:", or all of it."""
    marks = list(_MARK.finditer(response))
    return response[marks[-1].end() :].strip() if marks else response.strip()


def extract(response: str, choices: Sequence[str] = ()) -> str | None:
    """The answer of `response` in normal form; `None` if it gives none or several.

    Arguments:
        choices: the possible answers, if the set is closed.

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
    """The chosen option: by the letter that `text` begins with, or the only one that it affirms."""
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
    """The meaning of `words`, yes or no. The first word decides: "No, there is no circle". "Not true" means no."""
    opposite = {"yes": "no", "no": "yes"}
    values = [opposite[word.text] if word.denied else word.text for word in words if word.text in BOOLEAN]
    return {values[0]} if values and words[0].text in BOOLEAN else set(values)


def _find_choices(words: Sequence[Word], known: Iterable[str]) -> set[str]:
    """The choices that `words` affirm, as whole words and not as part of a longer choice."""
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
    """Whether the words from `place` on negate what is before: "red is not right", "red is wrong"."""
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
    """Whether `response` gives the answer `reference`, and the extracted answer."""
    given = extract(response, choices)
    if given is None:
        return False, ""
    right = given == normalise(reference) if choices else equal(given, reference)
    return right, given
