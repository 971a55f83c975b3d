"""Extract short visual answers from responses, and compare them.

Both sides are normalized: lower case, no articles, no punctuation, numbers as digits. If the set of possible answers is
closed, the response may be a sentence that affirms exactly one of them: "It is not red" affirms none. Otherwise the
answer must be equal to the reference, or its plural.

A word is negated if it is in the scope of a negation: "not red", "isn't a circle", "blue rather than red". The scope ends
with the clause, at "but", or at "and" if a new subject follows.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from palaestra.core.tables import load_table
from palaestra.tasks.readings import NUMBER_WORDS, read_number_words

_MAX_LENGTH = 20_000
"""Maximum length of the part with the answer."""
_MARK = re.compile(r"answer\s*(?:is|:|=)", re.IGNORECASE)
_BOOLEAN = frozenset({"yes", "no"})
_REFUSAL = re.compile(
    r"(?:(?:is|was) (?:wrong|incorrect|false)|(?:(?:is|was|would|can) not|isn't|isnt|wasn't|wouldn't|can't|cannot)(?: be)? "
    r"(?:right|correct|answer|one|true|case|it))\b"
)


def normalize_short(text: str) -> str:
    """Normalise an answer.

    >>> normalize_short("  The Dogs. "), normalize_short("Three"), normalize_short("1,200"), normalize_short("light-blue")
    ('dogs', '3', '1200', 'light blue')
    """
    return " ".join(word.text for word in _read(text) if word.text not in _MARKS)


def find_candidate(response: str) -> str:
    """The part of `response` after its last "Answer:", or all of it."""
    marks = list(_MARK.finditer(response))
    return response[marks[-1].end() :].strip() if marks else response.strip()


def extract_short(response: str, choices: Sequence[str] = ()) -> str | None:
    """The answer of `response` in normal form; `None` if it gives none or several.

    Arguments:
        choices: the possible answers, if the set is closed.

    >>> extract_short("The shape on the left is red.", ["red", "blue"])
    'red'
    >>> extract_short("It is red or blue.", ["red", "blue"]) is None
    True
    >>> extract_short("2+3=5. Answer: five", [str(n) for n in range(10)])
    '5'
    """
    text = find_candidate(response)
    if len(text) > _MAX_LENGTH:
        return None
    if choices and all(len(choice) == 1 and choice.isalpha() for choice in choices):
        return _find_letter(text, choices)
    whole = normalize_short(text)
    if not choices or not whole:
        return whole or None
    known = frozenset(map(normalize_short, choices))
    if whole in known:
        return whole
    words = _statement_words(text)
    named = _find_boolean(words) if known <= _BOOLEAN else _find_choices(words, known)
    return named.pop() if len(named) == 1 else None


def _find_letter(text: str, choices: Sequence[str]) -> str | None:
    """The chosen option: by the letter that `text` begins with, or the only one that it affirms."""
    options = "".join(choices).upper()
    begins = re.match(rf"[\s(\[*'\"]*([{options}])(?=[)\].:,*'\"\s]*$|[)\].:,*'\"]|\s*\n)", text, re.IGNORECASE)
    if begins:
        return begins[1].lower()
    words = _statement_words(text, keep_articles=True)
    named = set()
    for place, word in enumerate(words):
        after = words[place + 1].raw if place + 1 < len(words) else ""
        # "A red car" begins with an article, "A is right" does not.
        article = word.raw == "A" and after[:1].islower() and after not in {"or", "and", "is", "because"}
        is_option = len(word.raw) == 1 and word.raw in options and not article
        if is_option and not word.denied and not _is_refused(words, place + 1):
            named.add(word.raw.lower())
    return named.pop() if len(named) == 1 else None


def _find_boolean(words: Sequence[_Word]) -> set[str]:
    """The meaning of `words`, yes or no. The first word decides: "No, there is no circle". "Not true" means no."""
    opposite = {"yes": "no", "no": "yes"}
    values = [opposite[word.text] if word.denied else word.text for word in words if word.text in _BOOLEAN]
    return {values[0]} if values and words[0].text in _BOOLEAN else set(values)


def _find_choices(words: Sequence[_Word], known: Iterable[str]) -> set[str]:
    """The choices that `words` affirm, as whole words and not as part of a longer choice."""
    plain = [word for word in words if word.text not in _MARKS]
    taken = [False] * len(plain)
    matches: list[tuple[str, int, int]] = []
    for choice in sorted(known, key=lambda c: -len(c.split())):
        parts = choice.split()
        for at in range(len(plain) - len(parts) + 1):
            span = slice(at, at + len(parts))
            named = (
                word.text == part or is_plural(word.text, part) for word, part in zip(plain[span], parts, strict=True)
            )
            if not any(taken[span]) and all(named):
                taken[span] = [True] * len(parts)
                matches.append((choice, at, at + len(parts)))
    return {choice for choice, at, end in matches if not plain[at].denied and not _is_refused(plain, end)}


def _is_refused(words: Sequence[_Word], place: int) -> bool:
    """Whether the words from `place` on negate what is before: "red is not right", "red is wrong"."""
    following = " ".join(word.raw.lower() for word in words[place : place + 6] if word.raw.lower() not in _ARTICLES)
    return _REFUSAL.match(following) is not None


def equal_short(given: str, expected: str) -> bool:
    """Whether two short answers mean the same: equal in normal form, or one the safe plural of the other.

    >>> equal_short("The dogs", "dog"), equal_short("glass", "glasses"), equal_short("3", "three"), equal_short("red", "reed")
    (True, False, True, False)
    """
    a, b = normalize_short(given), normalize_short(expected)
    if a == b:
        return a != ""
    *head_a, last_a = a.split() or [""]
    *head_b, last_b = b.split() or [""]
    return head_a == head_b and (is_plural(last_a, last_b) or is_plural(last_b, last_a))


def judge(response: str, reference: str, choices: Sequence[str] = ()) -> tuple[bool, str]:
    """Whether `response` gives the answer `reference`, and the extracted answer."""
    given = extract_short(response, choices)
    if given is None:
        return False, ""
    right = given == normalize_short(reference) if choices else equal_short(given, reference)
    return right, given


_TOKEN = re.compile(
    r"(?P<number>-?\d+(?:\.\d+)?)(?P<ordinal>(?:st|nd|rd|th)(?![^\W_]))?|[^\W_]+(?:'[^\W_]+)?|[.,;:!?()\n\u2013\u2014]"
)
_DECIMAL = re.compile(r"(?P<sign>-?)(?P<whole>[0-9]+)(?:\.(?P<part>[0-9]+))?")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_ARTICLES = frozenset({"a", "an", "the"})
_ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth")
_WORDS = load_table(__file__, "words")
_SPELLINGS: Mapping[str, str] = _WORDS["spellings"]

_MARKS = frozenset(".,;:!?()\n\u2013\u2014")
_SENTENCE_ENDS = frozenset(".!?;\n")
_DENIALS, _TURNS, _SUBJECTS = (frozenset[str](_WORDS[name]) for name in ("denials", "turns", "subjects"))
_DENIAL_PAIRS = frozenset((first, second) for first, second in _WORDS["denial_pairs"])
_IDIOMS = [(re.compile(pattern, re.IGNORECASE), meaning) for pattern, meaning in _WORDS["idioms"]]
"""Phrases with a word of negation that negate nothing, and "no longer", which means "not"."""


@dataclass(frozen=True, slots=True)
class _Word:
    """A word or a punctuation mark of an answer.

    Arguments:
        text: in normal form.
        raw: as it was written.
        denied: it is in the scope of a negation.
    """

    text: str
    raw: str
    denied: bool = False


def _statement_words(text: str, *, keep_articles: bool = False) -> list[_Word]:
    """The words and punctuation marks of the statements of `text`, without its questions."""
    for pattern, replacement in _IDIOMS:
        text = pattern.sub(replacement, text)
    kept: list[_Word] = []
    sentence: list[_Word] = []
    for word in _read(text, find_denied=True, keep_articles=keep_articles):
        sentence.append(word)
        if word.text in _SENTENCE_ENDS:
            kept += sentence if word.text != "?" else ()
            sentence = []
    return kept + sentence


def _read(text: str, *, find_denied: bool = False, keep_articles: bool = False) -> list[_Word]:
    text = _THOUSANDS.sub("", unicodedata.normalize("NFKC", text).replace("’", "'"))
    tokens = [match.group() for match in _TOKEN.finditer(text)]
    lower = [token.lower() for token in tokens]
    denied = _find_denied(lower) if find_denied else [False] * len(lower)
    kept = [k for k, token in enumerate(lower) if token not in _ARTICLES]
    if keep_articles or all(lower[k] in _MARKS for k in kept):
        kept = list(range(len(tokens)))
    words, place = [], 0
    while place < len(kept):
        first = kept[place]
        token, length = _read_number([lower[k] for k in kept[place : place + 16]])
        words.append(_Word(_plain_number(_SPELLINGS.get(token, token)), tokens[first], denied[first]))
        place += length
    return words


def _read_number(tokens: Sequence[str]) -> tuple[str, int]:
    """The first token, or the number that begins there in digits, and its length in tokens.

    >>> _read_number(["twenty", "five", "cats"]), _read_number(["one", "hundred", "and", "five"]), _read_number(["red"])
    (('25', 2), ('105', 4), ('red', 1))
    """
    if tokens[0] == "dozen" or tokens[:2] == ["half", "dozen"]:
        return ("12", 1) if tokens[0] == "dozen" else ("6", 2)
    if tokens[0] not in NUMBER_WORDS:
        return tokens[0], 1
    value, size = read_number_words(tokens, 0)
    if value >= 20 and value % 10 == 0 and tokens[size : size + 1] and tokens[size] in _ORDINALS:
        return "".join(tokens[: size + 1]), size + 1  # An ordinal such as "twenty-fifth" is not a number.
    return str(value), size


def _find_denied(tokens: Sequence[str]) -> list[bool]:
    """Whether each token is in the scope of a negation."""
    denied, active, commas = [], False, 0  # `commas`: the number of commas that do not end the scope.
    for place, token in enumerate(tokens):
        before = tokens[place - 1] if place else ""
        after = tokens[place + 1] if place + 1 < len(tokens) else ""
        inside = active
        if (before, token) in _DENIAL_PAIRS or token in _DENIALS or token.endswith("n't"):
            active = True
            # "It is not, I think, red": the insertion does not end the scope. "No, it is red" does.
            commas = 2 if after == "," and token != "no" else 0
        elif token == "," and commas:
            commas -= 1
        elif token in _MARKS or token in _TURNS or (token == "and" and after in _SUBJECTS):
            active = inside = False
        denied.append(inside)
    return denied


def _plain_number(word: str) -> str:
    """A number without superfluous zeros: 3.0 becomes 3, 007 becomes 7. Words are returned unchanged."""
    match = _DECIMAL.fullmatch(word) if word[0] in "-0123456789" else None
    if match is None:
        return word
    whole, part = match["whole"].lstrip("0") or "0", (match["part"] or "").rstrip("0")
    number = f"{whole}.{part}" if part else whole
    return number if number == "0" else f"{match['sign']}{number}"


_IRREGULAR: Mapping[str, str] = _WORDS["irregular"]
_ENDINGS: Mapping[str, str] = _WORDS["endings"]
_DIFFERENT = frozenset[str](_WORDS["different"])
_VOWELS = "aeiou"


def is_plural(word: str, singular: str) -> bool:
    """Whether `word` is a plural of `singular` with the same meaning. Both are in lower case.

    >>> is_plural("tomatoes", "tomato"), is_plural("wolves", "wolf"), is_plural("glasses", "glass")
    (True, True, False)
    """
    if word in _DIFFERENT or len(singular) < 2 or not singular.isalpha():
        return False
    if singular in _IRREGULAR:
        return word == _IRREGULAR[singular]
    for ending, plural in _ENDINGS.items():
        if singular.endswith(ending):
            return word == singular[: -len(ending)] + plural
    if singular.endswith(("s", "x", "z", "ch", "sh")):
        classical = {"us": "i", "is": "es"}.get(singular[-2:])
        return word == singular + "es" or (classical is not None and word == singular[:-2] + classical)
    if singular[-1] == "y" and singular[-2] not in _VOWELS:
        return word == singular[:-1] + "ies"
    if singular[-1] == "o" and singular[-2] not in _VOWELS and word == singular + "es":
        return True
    return word == singular + "s" or (singular.endswith("um") and word == singular[:-2] + "a")
