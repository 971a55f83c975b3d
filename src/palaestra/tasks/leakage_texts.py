"""Problems and training examples as texts in normal form, ready to be compared (see `palaestra.tasks.leakage`)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from palaestra.core.records import Example, Problem
from palaestra.tasks.texts import addresses, digest_pictures, in_figures, is_number, words

LENGTH = 8
"""Words in a stretch (an n-gram)."""
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
        numbers: sorted. A spelled "one" is not among them, as it rarely counts anything; among the words it is `1`.
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
    """The answer of an example: its response from the sentence that announces the answer on, or all of it.

    The reference of the example is included, because a student that practises is rewarded by it.
    """
    mark = _ANSWER.search(example.response)
    start = max((m.end() for m in _SENTENCE.finditer(example.response) if mark and m.end() <= mark.start()), default=0)
    return (*normalise(example.response[start:]), "\n", *normalise(example.reference))
