"""Normalised words of texts, and problems and training examples as normalised texts (see `palaestra.tasks.leakage`).

Normalisation: Unicode compatibility decomposition, lower case, no accents and no invisible characters, Latin letters in
place of lookalikes, no markup (Markdown, HTML, JSON escapes) and no punctuation. Numbers and the signs of calculations
and calls (`+`, `-`, `(`, `=`) are words.
"""

from __future__ import annotations

import hashlib
import html
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache

from palaestra.core.errors import MissingExtraError
from palaestra.core.records import Example, ImagePart, Message, Problem
from palaestra.core.tables import load_table
from palaestra.tasks.code.canonical import canonicalize, find_programs
from palaestra.tasks.readings import HAS_NUMBER, IMPLIED, is_number, read_disguised, read_values, to_figures

_UNSPACED = "぀-ヿ㐀-鿿豈-﫿"
"""Scripts without spaces between words. Each character counts as a word."""
_WORD = re.compile(rf"0x[0-9a-f]+\b|0o[0-7]+\b|0b[01]+\b|\d+(?:\.\d+)?|[{_UNSPACED}]|[^\W\d_{_UNSPACED}]+|[^\w\s]|_")
_THOUSANDS = re.compile(r"(?<=\d)[,'_\u00a0\u2009\u202f](?=\d{3}(?!\d))")
_TABLE = load_table(__file__, "words")
_PATTERNS = {name: "|".join(alternatives) for name, alternatives in _TABLE["patterns"].items()}
_SIGNS: dict[str, str] = _TABLE["signs"]
_PUNCTUATION = frozenset(".,;:?\"'`“”‘’…_\\$#|~")
_INVISIBLE = re.compile("[\u0300-\u036f\u20d0-\u20ff\ufe00-\ufe0f\U000e0100-\U000e01ef\u115f\u1160\u3164\uffa0]")
"""Combining accents, enclosing marks, variation selectors and fillers. Format characters are invisible too."""
_LOOKALIKES = dict(zip(*_TABLE["lookalikes"], strict=True))
"""Cyrillic and Greek letters that look like Latin ones."""
_LATIN = re.compile(r"LATIN (SMALL |CAPITAL )?LETTER (?:\w+ )*?([A-Z])(?: WITH .*)?")
_ESCAPE = re.compile(r"\\u([0-9a-fA-F]{4})|\\x([0-9a-fA-F]{2})|\\[nrt]")
_FRACTION = re.compile(r"\\[dtc]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}")
_LATEX = re.compile(_PATTERNS["latex"])
_LATEX_SIGNS: dict[str, str] = _TABLE["latex_signs"]
_MARKUP = re.compile(_PATTERNS["markup"], re.MULTILINE)


def words(text: str) -> list[str]:
    """The words of a text in normal form.

    >>> words("Tom has 1,200 Apples.  What is 3×4?")
    ['tom', 'has', '1200', 'apples', 'what', 'is', '3', '*', '4']
    """
    text = html.unescape(text) if "&" in text else text
    if "\\" in text:
        text = _ESCAPE.sub(_unescape, _strip_latex(text))
    text = _THOUSANDS.sub("", text)
    if not text.isascii():
        text = "".join(map(_to_plain, unicodedata.normalize("NFKD", text)))
        text = _THOUSANDS.sub("", unicodedata.normalize("NFC", text))
    text = _MARKUP.sub(" ", text).casefold()
    return [word for word in _WORD.findall(text) if word not in _PUNCTUATION]


def _unescape(escape: re.Match[str]) -> str:
    code = escape[1] or escape[2]
    return chr(int(code, 16)) if code else " "


def _strip_latex(text: str) -> str:
    plain, fractions = _FRACTION.subn(r"\1/\2", text)
    plain, commands = _LATEX.subn(lambda command: _LATEX_SIGNS.get(command[0], " "), plain)
    return plain.replace("{", " ").replace("}", " ") if fractions or commands else text


@lru_cache(maxsize=4096)
def _to_plain(character: str) -> str:
    """A character without accents, as a Latin letter or ASCII digit if it looks like one; empty if it is invisible."""
    if character.isascii():
        return character
    if _INVISIBLE.match(character) or unicodedata.category(character) == "Cf":
        return ""
    if sign := _SIGNS.get(character) or _LOOKALIKES.get(character):
        return sign
    value = unicodedata.numeric(character, None)
    if value is not None and unicodedata.category(character) in ("Nd", "No") and value == int(value):
        return str(int(value))
    if character.isspace():
        return " " if character not in "\u00a0\u2009\u202f\n" else character
    if latin := _LATIN.fullmatch(unicodedata.name(character, "")):
        return latin[2] if latin[1] == "CAPITAL " else latin[2].lower()
    return character


def without_numbers(tokens: Iterable[str]) -> list[str]:
    """The words with every number replaced by `0`."""
    return ["0" if word[0].isdigit() else word for word in tokens]


def pictures(message: Message) -> str:
    """A digest of the images of a message; empty if it has none."""
    return _digest_pictures(_addresses(message))


def _addresses(message: Message) -> list[str]:
    """The URLs of the images of a message."""
    return [] if isinstance(message.content, str) else [p.url for p in message.content if isinstance(p, ImagePart)]


def _digest_pictures(urls: Sequence[str]) -> str:
    """A digest of the pixels of images, independent of their location and format; empty without images."""
    return digest_texts(*map(_digest_picture, urls)) if urls else ""


def _digest_picture(url: str) -> str:
    if url.startswith(("http://", "https://")):
        return url  # Remote images are not downloaded.
    from palaestra.models.images import ImageError, load_image

    try:
        image = load_image(url)
    except (ImageError, MissingExtraError):
        return url
    return f"{image.size} {hashlib.blake2b(image.tobytes(), digest_size=12).hexdigest()}"


def digest_texts(*texts: str) -> str:
    """A digest of texts that is the same on every machine."""
    hashed = hashlib.blake2b(digest_size=12)
    for text in texts:
        encoded = text.encode("utf-8", "surrogatepass")
        hashed.update(len(encoded).to_bytes(8, "little") + encoded)
    return hashed.hexdigest()


LENGTH = 8
"""Words in an n-gram."""
SIGNS = frozenset("+-*/^(%")
"""Signs of a calculation."""
OPERATIONS: dict[str, str] = {
    word: sign for sign, words_ in _TABLE["operations"].items() for word in (sign, *words_.split())
}
"""The operations that words and signs name."""
STOP_WORDS: frozenset[str] = frozenset(_TABLE["stop_words"].split())
"""Words that tell nothing about the content of a question."""
_STEM = 5
"""Letters of a word that are compared."""
_CAPITAL = re.compile(r"\b[A-Z][^\W\d_]*")
_ANSWER = re.compile(r"answer|####|boxed", re.IGNORECASE)
_SENTENCE = re.compile(r"(?<=[.?!])\s+|\n+")
_LABEL = re.compile(r"\w+:\s+")
_ITEM = re.compile(_PATTERNS["item"], re.IGNORECASE | re.MULTILINE)
_ASKING = re.compile(_PATTERNS["asking"], re.IGNORECASE)
_MAX_ITEMS = 50
"""Questions of one message that are compared separately."""


@dataclass(frozen=True, slots=True)
class NormalText:
    """A text in normal form.

    Arguments:
        numbers: sorted. The word "one" is excluded, because it is rarely a number; among the words it is `1`.
        implied: numbers that words such as "one" or "half" may stand for.
        capitals: the words that are written with a capital letter.
    """

    words: tuple[str, ...]
    numbers: tuple[str, ...]
    pictures: str = ""
    capitals: frozenset[str] = frozenset()
    implied: tuple[str, ...] = ()

    @property
    def operations(self) -> set[str]:
        """The signs of the operations that the text names."""
        return {OPERATIONS[word] for word in self.words if word in OPERATIONS}

    @property
    def content(self) -> frozenset[str]:
        """Stems of the words that tell what the text is about, and the operations."""
        return frozenset(
            OPERATIONS.get(word) or word[:_STEM]
            for word in self.words
            if word in OPERATIONS or (word not in STOP_WORDS and word[0].isalpha())
        )


@dataclass(frozen=True, slots=True)
class GivenAnswer:
    """The words of an answer, and the values of the numbers among them."""

    words: tuple[str, ...]
    values: frozenset[Fraction]


@dataclass(frozen=True, slots=True)
class ProblemSolution:
    """The answer of a problem: its words, its value if it is one number, and its programs."""

    words: tuple[str, ...]
    value: Fraction | None
    programs: frozenset[str]


@dataclass(frozen=True, slots=True)
class ExampleTexts:
    """The texts of an example that may repeat a problem.

    Arguments:
        asked: each message, the user's messages together, all messages together; with all images, and with each image.
            Messages in disguise (see `palaestra.tasks.readings`) follow in every other reading.
        items: the single questions of messages and responses that contain several.
        everything: all messages and the response.
        answers: the answer, in every reading of the response.
        stated: all words of the messages and of the response, which may answer one of several questions.
        disguised: the other readings of the response.
        programs: canonical forms of the programs in the response.
    """

    asked: list[NormalText]
    items: list[NormalText]
    everything: NormalText
    answers: list[GivenAnswer]
    stated: GivenAnswer
    disguised: list[NormalText]
    programs: set[str]


def normalize(text: str) -> tuple[str, ...]:
    """The words of a text in normal form, numbers in figures.

    >>> normalize("Twenty-five apples, 1,200.50 in all?")
    ('25', 'apples', '1200.5', 'in', 'all')
    """
    return read_text(text).words


def read_text(text: str, pictures: str = "") -> NormalText:
    tokens = to_figures(words(text))
    numbers = tuple(sorted(filter(is_number, tokens)))
    capitals = frozenset(map(str.casefold, _CAPITAL.findall(text)))
    implied = tuple(str(number) for word in tokens if word in IMPLIED for number in IMPLIED[word])
    return NormalText(tuple("1" if word == "one" else word for word in tokens), numbers, pictures, capitals, implied)


def read_example(example: Example, is_known: Callable[[str], bool]) -> ExampleTexts:
    """The texts of an example in normal form.

    Arguments:
        is_known: see `read_disguised`.
    """
    urls = [url for message in example.messages for url in _addresses(message)]
    images = _digest_pictures(urls)
    raw = [message.text for message in example.messages]
    messages = [read_text(text, images) for text in raw]
    asked = list(messages)
    if len(messages) > 1:
        users = [text for text, message in zip(messages, example.messages, strict=True) if message.role == "user"]
        asked += [_join(users, images), _join(messages, images)]
    readings = [reading for text in raw for reading in read_disguised(text, is_known)]
    asked += [read_text(reading, images) for reading in readings]
    if len(urls) > 1:
        asked += [replace(text, pictures=_digest_pictures([url])) for url in urls for text in asked]
    response = read_text(example.response)
    responses = list(read_disguised(example.response, is_known))
    items = [item for text in (*raw, *readings) for item in _split_items(text)]
    for text in (example.response, *responses):
        items += [sentence for sentence in _SENTENCE.split(text)[:_MAX_ITEMS] if _ASKING.search(sentence)]
    everything = _join([*messages, response], images)
    return ExampleTexts(
        asked,
        [read_text(item, images) for item in dict.fromkeys(items) if images or HAS_NUMBER.search(item)],
        everything,
        [_read_answer(text, example.reference) for text in (example.response, *responses)],
        _to_answer(everything.words),
        [read_text(text, images) for text in responses],
        find_programs(example.response),
    )


def _split_items(text: str) -> list[str]:
    """The lines and questions of a text that contains several; otherwise nothing."""
    items = [item.strip() for item in _ITEM.split(text) if len(item.strip()) > 3]
    return items[:_MAX_ITEMS] if len(items) > 1 else []


def _join(texts: Sequence[NormalText], images: str) -> NormalText:
    return NormalText(
        tuple(word for text in texts for word in text.words),
        tuple(sorted(number for text in texts for number in text.numbers)),
        images,
        frozenset(word for text in texts for word in text.capitals),
        tuple(number for text in texts for number in text.implied),
    )


def read_sentences(example: Example, images: str) -> list[NormalText]:
    return [read_text(sentence, images) for message in example.messages for sentence in _SENTENCE.split(message.text)]


def strip_instructions(problems: Sequence[Problem], common: int) -> Iterator[tuple[int, str]]:
    """The questions of problems without the instructions that many problems share, by index of the problem.

    Unchanged and very short questions are left out. A sentence with a question mark is not an instruction.
    """
    sentences = [_SENTENCE.split(problem.messages[-1].text.strip()) for problem in problems]
    times = Counter(sentence for several in sentences for sentence in set(several))
    for place, problem in enumerate(problems):
        question = problem.metadata.get("question")
        if not isinstance(question, str) or len(normalize(question)) < 3:  # It may be the number of a question.
            several = sentences[place]
            own = [k for k, part in enumerate(several) if times[part] <= common or part.endswith("?")]
            stripped = "\n".join(several[own[0] : own[-1] + 1]) if own else ""
            question = stripped[label.end() :] if (label := _LABEL.match(stripped)) else stripped
            if len(normalize(question)) < LENGTH or question == "\n".join(several):
                continue
        yield place, question


def _read_answer(response: str, reference: str = "") -> GivenAnswer:
    """The answer in a response: from the sentence that announces the answer, or all of it.

    The reference of the example is included, because a student that practises is rewarded by it.
    """
    mark = _ANSWER.search(response)
    start = max((m.end() for m in _SENTENCE.finditer(response) if mark and m.end() <= mark.start()), default=0)
    return _to_answer((*normalize(response[start:]), "\n", *normalize(reference)))


def _to_answer(words: tuple[str, ...]) -> GivenAnswer:
    return GivenAnswer(words, frozenset(read_values(words)))


def read_solution(problem: Problem) -> ProblemSolution:
    """The answer of a problem in normal form."""
    words, worked = normalize(problem.reference), problem.metadata.get("worked")
    values = read_values(words) if not any(map(str.isalpha, words)) else set()
    is_value = len(values) == 1 and sum(map(is_number, words)) <= 1 + ("/" in words)
    programs = {canonicalize(problem.reference)} | (find_programs(worked) if isinstance(worked, str) else set())
    return ProblemSolution(words, values.pop() if is_value else None, frozenset(programs - {""}))
