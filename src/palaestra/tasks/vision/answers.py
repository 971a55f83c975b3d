"""Extract short visual answers from responses, and compare them.

Both sides are normalised: lower case, no articles, no punctuation, numbers as digits. If the set of possible answers is
closed, the response may be a sentence that affirms exactly one of them: "It is not red" affirms none. Otherwise the
answer must be equal to the reference, or its plural.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

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


_TOKEN = re.compile(
    r"(?P<number>-?\d+(?:\.\d+)?)(?P<ordinal>(?:st|nd|rd|th)(?![^\W_]))?|[^\W_]+(?:'[^\W_]+)?|[.,;:!?()\n\u2013\u2014]"
)
_DECIMAL = re.compile(r"(?P<sign>-?)(?P<whole>[0-9]+)(?:\.(?P<part>[0-9]+))?")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
ARTICLES = frozenset({"a", "an", "the"})
_ONES: Mapping[str, int] = {
    word: value
    for value, word in enumerate((
        "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
        "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
    ))
}  # fmt: skip
_TENS: Mapping[str, int] = {
    word: 10 * value
    for value, word in enumerate(
        ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"), 2
    )
} | {"fourty": 40}  # fmt: skip
_SCALES: Mapping[str, int] = {"thousand": 10**3, "million": 10**6, "billion": 10**9}
_ORDINALS: Mapping[str, int] = {
    word: value
    for value, word in enumerate((
        "first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth", "eleventh", "twelfth",
        "thirteenth", "fourteenth", "fifteenth", "sixteenth", "seventeenth", "eighteenth", "nineteenth",
    ), 1)
} | {word[:-1] + "ieth": value for word, value in _TENS.items()}  # fmt: skip
_NUMBER_STARTS = frozenset({*_ONES, *_TENS, *_SCALES, "hundred", "dozen", "half"})
_SPELLINGS: Mapping[str, str] = {
    "color": "colour", "gray": "grey", "yeah": "yes", "yep": "yes", "nope": "no", "true": "yes", "false": "no",
    "correct": "yes", "incorrect": "no", "untrue": "no", "none": "0",
}  # fmt: skip

MARKS = frozenset(".,;:!?()\n\u2013\u2014")
_SENTENCE_ENDS = frozenset(".!?;\n")
_DENIALS = frozenset({
    "not", "never", "no", "neither", "nor", "non", "without", "except", "excluding", "unlike", "cannot", "isnt", "arent",
    "wasnt", "werent", "doesnt", "dont", "didnt", "cant", "wont", "aint", "hasnt", "havent", "couldnt", "wouldnt", "shouldnt",
})  # fmt: skip
_DENIAL_PAIRS = frozenset({
    ("rather", "than"), ("other", "than"), ("instead", "of"), ("opposed", "to"), ("opposite", "of"), ("far", "from"),
    ("apart", "from"), ("aside", "from"), ("anything", "but"),
})  # fmt: skip
_TURNS = frozenset({
    "but", "however", "instead", "rather", "because", "since", "so", "although", "though", "while", "whereas", "yet",
    "actually", "therefore", "hence",
})  # fmt: skip
_SUBJECTS = frozenset({
    "it", "it's", "they", "they're", "this", "that", "that's", "these", "those", "there", "there's", "he", "she", "we",
    "i", "is", "are",
})  # fmt: skip
_IDIOMS = (
    (re.compile(r"\bno longer\b", re.IGNORECASE), "not"),
    (re.compile(r"\b(?:no|without(?: an?| any)?) (?:doubt|question)\b", re.IGNORECASE), " "),
    (re.compile(r"\bnot (only|just|merely|simply)\b", re.IGNORECASE), r"\1"),
    (re.compile(r"\b(?:nothing|none|no) (?:but|other than)\b", re.IGNORECASE), " "),
    (re.compile(r"\b(?:yes|true)\s*(?:or|and|/)\s*(?:no|false)\b", re.IGNORECASE), " "),
)
"""Phrases that hold the words of a negation or of an answer and are neither, and "no longer", which is a "not"."""


@dataclass(frozen=True, slots=True)
class Word:
    """A word or a punctuation mark of an answer.

    Arguments:
        text: in normal form.
        raw: as it was written.
        denied: it lies in the scope of a negation.
    """

    text: str
    raw: str
    denied: bool = False


def read_words(text: str) -> list[str]:
    """The words in normal form, without punctuation and articles (unless there is nothing else)."""
    return [word.text for word in _read(text) if word.text not in MARKS]


def statement_words(text: str, *, keep_articles: bool = False) -> list[Word]:
    """The words and punctuation marks of what `text` states, without its questions; a word knows if it is denied."""
    for pattern, replacement in _IDIOMS:
        text = pattern.sub(replacement, text)
    kept: list[Word] = []
    sentence: list[Word] = []
    for word in _read(text, find_denied=True, keep_articles=keep_articles):
        sentence.append(word)
        if word.text in _SENTENCE_ENDS:
            kept += sentence if word.text != "?" else ()
            sentence = []
    return kept + sentence


def _read(text: str, *, find_denied: bool = False, keep_articles: bool = False) -> list[Word]:
    text = _THOUSANDS.sub("", unicodedata.normalize("NFKC", text).replace("’", "'"))
    tokens = [match.group() for match in _TOKEN.finditer(text)]
    lower = [token.lower() for token in tokens]
    denied = _find_denied(lower) if find_denied else [False] * len(lower)
    kept = [k for k, token in enumerate(lower) if token not in ARTICLES]
    if keep_articles or all(lower[k] in MARKS for k in kept):
        kept = list(range(len(tokens)))
    words, place = [], 0
    while place < len(kept):
        first = kept[place]
        token, length = lower[first], 1
        if token in _NUMBER_STARTS or token[0].isdigit():
            number, length = _parse_number([lower[k] for k in kept[place : place + 16]])
            token = number or token
        words.append(Word(_plain_number(_SPELLINGS.get(token, token)), tokens[first], denied[first]))
        place += max(length, 1)
    return words


def _find_denied(tokens: Sequence[str]) -> list[bool]:
    """Which tokens lie in the scope of a negation."""
    denied, active, commas = [], False, 0  # `commas`: how many do not end the scope.
    for place, token in enumerate(tokens):
        before = tokens[place - 1] if place else ""
        after = tokens[place + 1] if place + 1 < len(tokens) else ""
        inside = active
        if (before, token) in _DENIAL_PAIRS or token in _DENIALS or token.endswith("n't"):
            active = True
            # "It is not, I think, red": what stands between the commas does not end the scope. "No, it is red" does.
            commas = 2 if after == "," and token != "no" else 0
        elif token == "," and commas:
            commas -= 1
        elif token in MARKS or token in _TURNS or (token == "and" and after in _SUBJECTS):
            active = inside = False
        denied.append(inside)
    return denied


def _plain_number(word: str) -> str:
    # 3.0 is 3, and 007 is 7, however many digits there are; a word stays a word.
    match = _DECIMAL.fullmatch(word) if word[0] in "-0123456789" else None
    if match is None:
        return word
    whole, part = match["whole"].lstrip("0") or "0", (match["part"] or "").rstrip("0")
    number = f"{whole}.{part}" if part else whole
    return number if number == "0" else f"{match['sign']}{number}"


def _parse_number(tokens: Sequence[str]) -> tuple[str, int]:
    """The number that `tokens` begin with in words, and how many of them it takes; `("", 0)` if there is none.

    An ordinal is no number: "twenty-fifth" becomes `25th`. A single ordinal ("second") stays a word.

    >>> _parse_number(["one", "hundred", "and", "five", "cats"]), _parse_number(["two", "three"])
    (('105', 4), ('2', 1))
    >>> _parse_number(["twenty", "fifth"]), _parse_number(["2", "million"]), _parse_number(["2", "cats"])
    (('25th', 2), ('2000000', 2), ('', 0))
    """
    if tokens[:2] == ["half", "dozen"]:
        return "6", 2
    total, group, place = 0, 0, 0
    # What is added to the group must be below `room`; the next scale word must be below `scale`.
    room, scale = 1000, 10**12
    if tokens[0].isascii() and tokens[0].isdecimal() and len(tokens[0]) <= 12 and tokens[1:2]:
        if tokens[1] not in _SCALES and tokens[1] not in ("hundred", "dozen"):
            return "", 0
        group, place, room = int(tokens[0]), 1, 0
    while place < len(tokens):
        token = tokens[place]
        if token == "and" and place and room >= 100 and _is_small(tokens[place + 1 : place + 2]):
            place += 1
            token = tokens[place]
        if (value := _ONES.get(token, _TENS.get(token))) is not None and value < room and (value or not place):
            group, room = group + value, 10 if token in _TENS else 0
        elif (value := _ORDINALS.get(token)) is not None and value < room:
            return (f"{total + group + value}th", place + 1) if place else ("", 0)
        elif token == "hundred" and group < 100 and (room < 100 or not place):
            group, room = 100 * (group or 1), 100
        elif token == "dozen" and not total and room != 100:
            group, room, scale = 12 * (group or 1), 0, 0
        elif (value := _SCALES.get(token, 0)) and value < scale:
            total, group, room, scale = total + value * (group or 1), 0, 1000, value
        else:
            break
        place += 1
    if place and tokens[place : place + 1] == ["point"]:
        digits = _digits(tokens[place + 1 :])
        if digits:
            return _plain_number(f"{total + group}.{digits}"), place + 1 + len(digits)
    return (str(total + group), place) if place else ("", 0)


def _is_small(tokens: Sequence[str]) -> bool:
    return any(token in words for token in tokens for words in (_ONES, _TENS, _ORDINALS))


def _digits(tokens: Sequence[str]) -> str:
    """The digits that stand at the start as words: "two", "five" is `25`."""
    digits = ""
    for token in tokens:
        if _ONES.get(token, 10) > 9:
            break
        digits += str(_ONES[token])
    return digits


_IRREGULAR: Mapping[str, tuple[str, ...]] = {
    "person": ("people", "persons"), "child": ("children",), "man": ("men",), "woman": ("women",), "foot": ("feet",),
    "tooth": ("teeth",), "goose": ("geese",), "mouse": ("mice", "mouses"), "louse": ("lice",), "ox": ("oxen",),
    "die": ("dice",), "penny": ("pennies", "pence"), "quiz": ("quizzes",), "gas": ("gases", "gasses"),
    "bus": ("buses", "busses"), "thief": ("thieves",), "elf": ("elves",), "self": ("selves",), "life": ("lives",),
    "half": ("halves",), "sheaf": ("sheaves",), "scarf": ("scarves", "scarfs"), "hoof": ("hooves", "hoofs"),
    "dwarf": ("dwarves", "dwarfs"), "wharf": ("wharves", "wharfs"), "axis": ("axes",),
    "vertex": ("vertices", "vertexes"), "index": ("indices", "indexes"),
    "matrix": ("matrices", "matrixes"), "appendix": ("appendices", "appendixes"), "phenomenon": ("phenomena",),
    "criterion": ("criteria",), "datum": ("data",),
    "formula": ("formulas", "formulae"), "antenna": ("antennas", "antennae"),
    "larva": ("larvae", "larvas"),
    "alga": ("algae",), "vertebra": ("vertebrae",), "helix": ("helices", "helixes"), "codex": ("codices",),
    "czech": ("czechs",), "eunuch": ("eunuchs",), "stomach": ("stomachs",), "monarch": ("monarchs",),
    "patriarch": ("patriarchs",), "epoch": ("epochs",),
    "sheep": ("sheep",), "deer": ("deer",), "fish": ("fish", "fishes"),
    "passerby": ("passersby",), "human": ("humans",), "german": ("germans",), "roman": ("romans",), "talisman": ("talismans",),
    "ottoman": ("ottomans",), "shaman": ("shamans",), "caiman": ("caimans",), "norman": ("normans",),
    "zucchini": ("zucchinis", "zucchini"), "moose": ("moose",), "bison": ("bison",), "aircraft": ("aircraft",),
    "ski": (), "knife": ("knives",), "wife": ("wives",), "leaf": ("leaves",), "loaf": ("loaves",), "wolf": ("wolves",),
    "calf": ("calves",), "shelf": ("shelves",),
}  # fmt: skip
"""Nouns whose plural no rule gives; "skis" counts as a thing of its own, as in GQA's list of objects."""
_ENDINGS: Mapping[str, str] = {
    "knife": "knives", "wife": "wives", "leaf": "leaves", "loaf": "loaves", "wolf": "wolves", "shelf": "shelves",
    "woman": "women", "man": "men", "child": "children", "person": "people", "foot": "feet", "tooth": "teeth", "mouse": "mice",
}  # fmt: skip
"""The last part of a compound: bookshelf and bookshelves, snowman and snowmen."""
DIFFERENT = frozenset({
    "glasses", "shorts", "pants", "jeans", "news", "goods", "arms", "scales", "greens", "sands", "waters", "woods",
    "clothes", "stairs", "irons", "means", "bangs", "briefs", "customs", "papers", "spectacles", "trunks", "slacks",
    "tights", "overalls", "contents", "remains", "thanks", "quarters", "headquarters", "spirits",
})  # fmt: skip
"""Words that are another thing than their singular, or have none: glass and glasses, short and shorts."""
SINGULARS = frozenset({
    "lens", "gas", "texas", "kansas", "arkansas", "dallas", "vegas", "christmas", "atlas", "canvas", "bias", "alias",
    "pancreas", "pajamas", "pyjamas", "thomas", "nicholas", "douglas", "lucas", "judas", "pegasus", "honduras", "bahamas",
    "james", "charles", "jones", "williams", "athens", "brussels", "naples", "wales", "netherlands", "philippines", "chaos",
    "cosmos", "laos", "rhinoceros", "asbestos", "ethos", "carlos", "barbados", "mathematics", "physics", "athletics",
    "gymnastics", "economics", "politics", "aerobics", "ceramics", "graphics", "mechanics", "statistics", "series", "species",
    "diabetes", "rabies", "measles", "mumps", "molasses", "mars", "hermes", "hercules", "achilles", "corps", "billiards",
    "chess", "always", "perhaps", "sometimes", "besides", "towards", "afterwards", "yes",
    "has", "was", "does", "goes", "this", "his", "hers", "its", "ours", "theirs", "as", "is", "us", "plus", "minus", "los",
    "las", "des", "les", "yours", "pus", "paris", "tennis", "biceps", "triceps", "forceps", "summons",
    "innings", "gallows", "barracks", "crossroads", "bellows", "kudos", "pathos",
})  # fmt: skip
"""Words that end in -s and are no plural of what stands before it."""
_IN_U_OR_I = frozenset({
    "menus", "emus", "gurus", "tutus", "gnus", "caribous", "bayous", "haikus", "kudus", "zebus", "sudokus", "tofus",
    "taxis", "bikinis", "kiwis", "safaris", "alibis", "rabbis", "salamis", "yetis", "khakis", "wasabis", "jacuzzis",
    "graffitis", "israelis", "iraqis", "pakistanis", "broccolis", "spaghettis", "jedis", "wapitis", "maxis", "minis", "chilis",
    "tsunamis", "origamis", "okapis", "macaronis", "pepperonis", "martinis", "paninis", "sushis", "tortellinis",
})  # fmt: skip
"""Plurals in -us and -is; every other such word is taken for a singular (bus, virus, tennis, iris)."""
_VOWELS = "aeiou"


def is_plural(word: str, singular: str) -> bool:
    """Whether `word` is a plural of `singular` and means the same thing. Both are in lower case.

    >>> is_plural("tomatoes", "tomato"), is_plural("wolves", "wolf"), is_plural("lens", "len"), is_plural("glasses", "glass")
    (True, True, False, False)
    """
    if word in DIFFERENT or word in SINGULARS or len(singular) < 2 or not singular.isalpha():
        return False
    if singular in _IRREGULAR:
        return word in _IRREGULAR[singular]
    for ending, plural in _ENDINGS.items():
        if singular.endswith(ending) and len(singular) > len(ending) + 1:
            return word == singular[: -len(ending)] + plural
    return word in _regular(singular)


def _regular(singular: str) -> tuple[str, ...]:
    last, before = singular[-1], singular[-2]
    long = len(singular) > 4
    if last == "s":
        # A plural has no plural: only a word that is known, or looks like a singular, takes -es.
        if singular.endswith("ics") or not (singular in SINGULARS or singular.endswith(("ss", "us", "is"))):
            return ()
        classical = {"us": singular[:-2] + "i", "is": singular[:-2] + "es"}.get(singular[-2:], "") if long else ""
        return singular + "es", classical
    if last in "xz" or singular.endswith(("ch", "sh")):
        return (singular + "es",)
    if last == "y" and (before not in _VOWELS or singular.endswith("quy")):
        return (singular[:-1] + "ies",)
    if last == "o" and before not in _VOWELS:
        return singular + "s", singular + "es"
    if singular.endswith("eau"):
        return singular + "s", singular + "x"
    plural = singular + "s"
    if last in "ui" and plural not in _IN_U_OR_I:
        return ()
    return (plural, singular[:-2] + "a") if long and singular.endswith("um") else (plural,)
