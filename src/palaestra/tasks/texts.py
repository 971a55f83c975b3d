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
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from palaestra.core.errors import MissingExtraError
from palaestra.core.records import Example, ImagePart, Message, Problem

_UNSPACED = "぀-ヿ㐀-鿿豈-﫿"
"""Scripts without spaces between words. Each character counts as a word."""
_WORD = re.compile(rf"\d+(?:\.\d+)?|[{_UNSPACED}]|[^\W\d_{_UNSPACED}]+|[^\w\s]|_")
_THOUSANDS = re.compile(r"(?<=\d)[,'_\u00a0\u2009\u202f](?=\d{3}(?!\d))")
_SIGNS = str.maketrans("×·÷⁄−–—", "**//---")
_PUNCTUATION = frozenset(".,;:?\"'`“”‘’…_\\$#|~")
_INVISIBLE = re.compile("[\u00ad\u0300-\u036f\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff]")
"""Combining accents, soft hyphens, zero-width characters."""
_LOOKALIKES = str.maketrans("авекмнорстухіјѕһԁԛԝαεικνορτυχ", "abekmhopctyxijshdqwaeikvoptux")
"""Cyrillic and Greek letters that look like Latin ones, in lower case."""
_ESCAPE = re.compile(r"\\u([0-9a-fA-F]{4})|\\x([0-9a-fA-F]{2})|\\[nrt]")
_MARKUP = re.compile(
    r"</?[a-zA-Z][^<>\n]{0,200}>"  # HTML
    r"|^[ \t]*(?:[#>]+(?:[ \t]+|$)|[-*+•][ \t]+(?=[^\W\d_]|[\"'(\[`*_$]))+"  # Headings, quotes, comments, lists
    r"|\*{2,3}"
    r"|(?<=[^\W\d_])!|(?<=[^\W\d_]{2})-(?=[^\W\d_]{2})",
    re.MULTILINE,
)
_SMALL = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
)
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
NUMBER_WORDS = {word: value for value, word in enumerate(_SMALL.split())}
NUMBER_WORDS |= {word: 10 * value for value, word in enumerate(_TENS.split(), start=2)}


def words(text: str) -> list[str]:
    """The words of a text in normal form.

    >>> words("Tom has 1,200 Apples.  What is 3×4?")
    ['tom', 'has', '1200', 'apples', 'what', 'is', '3', '*', '4']
    """
    text = html.unescape(text) if "&" in text else text
    text = _ESCAPE.sub(_unescape, text) if "\\" in text else text
    text = _THOUSANDS.sub("", text)
    if not text.isascii():
        text = _INVISIBLE.sub("", unicodedata.normalize("NFKD", text))
        text = _THOUSANDS.sub("", unicodedata.normalize("NFC", text).translate(_SIGNS))
    text = _MARKUP.sub(" ", text).casefold()
    if not text.isascii():
        text = text.translate(_LOOKALIKES)
    return [word for word in _WORD.findall(text) if word not in _PUNCTUATION]


def _unescape(escape: re.Match[str]) -> str:
    code = escape[1] or escape[2]
    return chr(int(code, 16)) if code else " "


def in_figures(tokens: Sequence[str]) -> list[str]:
    """The words with numbers as digits, without redundant zeros.

    >>> in_figures(["twenty", "-", "five", "three", "hundred", "and", "six", "12.50", "05"])
    ['25', '306', '12.5', '5']
    """
    out: list[str] = []
    at = 0
    while at < len(tokens):
        word = tokens[at]
        value, size = read_number_words(tokens, at) if word in NUMBER_WORDS else (0, 0)
        if size > 1 or (size and word != "one"):  # "one" alone is rarely a number.
            out.append(str(value))
            at += size
            continue
        if word[0].isdigit():
            whole, point, rest = word.partition(".")
            rest = rest.rstrip("0")
            word = (whole.lstrip("0") or "0") + (f".{rest}" if point and rest else "")
        out.append(word)
        at += 1
    return out


def read_number_words(tokens: Sequence[str], start: int) -> tuple[int, int]:
    """The value of the number in words at `start`, and its length in words. `tokens[start]` is in `NUMBER_WORDS`."""
    total = current = size = 0
    last = ""
    for at in range(start, len(tokens)):
        word, value = tokens[at], NUMBER_WORDS.get(tokens[at])
        if value is not None and (last in ("", "times") or (last == "tens" and 0 < value < 10)):
            current += value
            last = "tens" if value >= 20 else "units"
        elif word == "hundred" and last in ("units", "tens"):
            current, last = current * 100, "times"
        elif word == "thousand" and current:
            total, current, last = total + current * 1000, 0, "times"
        elif (word == "-" and last == "tens") or (word == "and" and last == "times"):
            continue  # Part of the number if more of it follows.
        else:
            break
        size = at - start + 1
    return total + current, size


def is_number(word: str) -> bool:
    return word[0].isdigit()


def without_numbers(tokens: Iterable[str]) -> list[str]:
    """The words with every number replaced by `0`."""
    return ["0" if word[0].isdigit() else word for word in tokens]


def pictures(message: Message) -> str:
    """A digest of the images of a message; empty if it has none."""
    return digest_pictures(addresses(message))


def addresses(message: Message) -> list[str]:
    """The URLs of the images of a message."""
    return [] if isinstance(message.content, str) else [p.url for p in message.content if isinstance(p, ImagePart)]


def digest_pictures(urls: Sequence[str]) -> str:
    """A digest of the pixels of images, independent of their location and format; empty without images."""
    return digest(*map(_digest_picture, urls)) if urls else ""


def _digest_picture(url: str) -> str:
    if url.startswith(("http://", "https://")):
        return url  # Remote images are not downloaded.
    from palaestra.engines.images import ImageError, load_image

    try:
        image = load_image(url)
    except (ImageError, MissingExtraError):
        return url
    return f"{image.size} {hashlib.blake2b(image.tobytes(), digest_size=12).hexdigest()}"


def digest(*texts: str) -> str:
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
_CAPITAL = re.compile(r"\b[A-Z][^\W\d_]*")
_ANSWER = re.compile(r"answer|####|boxed", re.IGNORECASE)
_SENTENCE = re.compile(r"(?<=[.?!])\s+|\n+")
_LABEL = re.compile(r"\w+:\s+")


@dataclass(frozen=True, slots=True)
class NormalText:
    """A text in normal form.

    Arguments:
        numbers: sorted. The word "one" is excluded, because it is rarely a number; among the words it is `1`.
        capitals: the words that are written with a capital letter.
    """

    words: tuple[str, ...]
    numbers: tuple[str, ...]
    pictures: str = ""
    capitals: frozenset[str] = frozenset()

    @property
    def signs(self) -> list[str]:
        return sorted(word for word in self.words if word in SIGNS)


def normalise(text: str) -> tuple[str, ...]:
    """The words of a text in normal form, numbers in figures.

    >>> normalise("Twenty-five apples, 1,200.50 in all?")
    ('25', 'apples', '1200.5', 'in', 'all')
    """
    return read_text(text).words


def read_text(text: str, pictures: str = "") -> NormalText:
    tokens = in_figures(words(text))
    numbers = tuple(sorted(filter(is_number, tokens)))
    capitals = frozenset(map(str.casefold, _CAPITAL.findall(text)))
    return NormalText(tuple("1" if word == "one" else word for word in tokens), numbers, pictures, capitals)


def read_example(example: Example) -> tuple[list[NormalText], NormalText]:
    """The texts of an example that may contain a question, and all its text with the response.

    The first are: each message, the user's messages together, all messages together; with all images, and with each image.
    """
    urls = [url for message in example.messages for url in addresses(message)]
    images = digest_pictures(urls)
    messages = [read_text(message.text, images) for message in example.messages]
    asked = list(messages)
    if len(messages) > 1:
        users = [text for text, message in zip(messages, example.messages, strict=True) if message.role == "user"]
        asked += [_join(users, images), _join(messages, images)]
    if len(urls) > 1:
        asked += [replace(text, pictures=digest_pictures([url])) for url in urls for text in asked]
    return asked, _join([*messages, read_text(example.response)], images)


def _join(texts: Sequence[NormalText], images: str) -> NormalText:
    return NormalText(
        tuple(word for text in texts for word in text.words),
        tuple(sorted(number for text in texts for number in text.numbers)),
        images,
        frozenset(word for text in texts for word in text.capitals),
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
        if not isinstance(question, str) or len(normalise(question)) < 3:  # It may be the number of a question.
            several = sentences[place]
            own = [k for k, part in enumerate(several) if times[part] <= common or part.endswith("?")]
            stripped = "\n".join(several[own[0] : own[-1] + 1]) if own else ""
            question = stripped[label.end() :] if (label := _LABEL.match(stripped)) else stripped
            if len(normalise(question)) < LENGTH or question == "\n".join(several):
                continue
        yield place, question


def read_answer(example: Example) -> tuple[str, ...]:
    """The answer of an example: its response from the sentence that announces the answer, or all of it.

    The reference of the example is included, because a student that practises is rewarded by it.
    """
    mark = _ANSWER.search(example.response)
    start = max((m.end() for m in _SENTENCE.finditer(example.response) if mark and m.end() <= mark.start()), default=0)
    return (*normalise(example.response[start:]), "\n", *normalise(example.reference))
