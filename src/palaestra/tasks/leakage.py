"""Find training examples that repeat a held-out problem, word for word or lightly reworded.

    index = HeldOut({Split.TEST: problems})
    leaks = index.find(examples)             # for each example a `Leak`, or None

An example leaks a problem if one of these holds:

1. **Copy.** One of its messages is the question, or contains all of it, in normal form (case, punctuation, white
   space and number formats do not count). A short question inside a longer expression, `3 + 4` in `3 + 4 + 5`, is
   no copy.
2. **Mostly copied.** The example holds at least 70 % of the question's stretches of eight words (Chowdhery et al.,
   2022, use the same measure) and all of its numbers, and its response gives the same answer; from 90 % on the answer
   does not matter. Stretches that many problems share do not count.
3. **Reworded.** The question has the same numbers, and the response gives the same answer. Short questions of the same
   skill need two numbers; all others must share half of their words, and have two numbers or an answer that is rare.
4. **Word swapped.** The question is the same but for one or two words, and the response gives the same answer. It needs
   two numbers or an answer that is rare. If the words are names and there are two numbers, the answer does not matter.

A question is compared with every message, with all messages together and with the response; once with its whole
prompt, and once without the instructions that many problems end or begin with (or as the problem's metadata give it
under `question`). Questions about images only match examples with the same images, pixel by pixel.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from palaestra.core.records import Example, Problem, Split
from palaestra.tasks.texts import (
    Grams,
    Hashes,
    Places,
    addresses,
    among,
    digest_pictures,
    distinct,
    frequent,
    grams,
    hashes,
    in_figures,
    is_number,
    words,
)

LENGTH = 8
"""Words in a stretch."""
SHARE = 0.7
"""The fraction of a question's stretches from which on an example counts as mostly copied."""
COMMON = 10
"""Stretches that more problems than this share are the task's wording; of fewer than 50 problems, a fifth of them."""
SURE = 0.9
"""The fraction from which on it counts as copied whatever the response says."""
SHORT = 16
"""Words of a short question: its numbers and its answer say which one it is."""
ALIKE = 0.5
"""The fraction of words that two long questions with the same numbers and answer share if they are one."""
SWAPPED = 2
"""Different words that may be swapped for others."""
NAMED = 5
"""Words that two questions share if they differ in names alone, beside two numbers or more."""
_ORDER = (Split.TEST, Split.VALIDATION, Split.TRAIN)
_SIGNS = frozenset("+-*/^(%")
_CAPITAL = re.compile(r"\b[A-Z][^\W\d_]*")
_ANSWER = re.compile(r"answer|####|boxed", re.IGNORECASE)
_SENTENCE = re.compile(r"(?<=[.?!])\s+|\n+")
_LABEL = re.compile(r"\w+:\s+")
Shares = dict[int, tuple[int, float]]
"""By example: a problem, and the fraction of it that the example holds."""


@dataclass(frozen=True, slots=True)
class Leak:
    """A held-out problem that an example repeats.

    Arguments:
        split: of the problem.
        problem_id: never its text, so that a record of leaks leaks nothing.
        how: in a few words.
    """

    split: Split
    problem_id: str
    how: str

    @property
    def reason(self) -> str:
        """For counts: the same for all leaks of a split."""
        return f"repeats a {self.split} problem"


@dataclass(frozen=True, slots=True)
class _Text:
    """A text in normal form.

    Arguments:
        numbers: sorted. A spelled "one" is none of them, as it most often counts nothing; among the words it is `1`.
        capitals: its words that are written with a capital letter.
    """

    words: tuple[str, ...]
    numbers: tuple[str, ...]
    pictures: str = ""
    capitals: frozenset[str] = frozenset()

    @property
    def signs(self) -> list[str]:
        return sorted(filter(_calculates, self.words))


class HeldOut:
    """An index of held-out problems.

    Arguments:
        problems: by split.
        length, common: see `LENGTH` and `COMMON`.
    """

    def __init__(
        self, problems: Mapping[Split, Sequence[Problem]], length: int = LENGTH, common: int | None = None
    ) -> None:
        self.held = [(split, problem) for split in _ORDER for problem in problems.get(split, ())]
        self.length = length
        if common is None:
            common = min(COMMON, max(1, len(self.held) // 5))
        times = Counter(normal(problem.reference) for _, problem in self.held)
        few = max(1, len(self.held) // 50)
        prompts = [problem.messages[-1] for _, problem in self.held]
        self.texts = [_read(prompt.text, digest_pictures(addresses(prompt))) for prompt in prompts]
        self._prompts = len(self.texts)
        for place, question in _strip_instructions([problem for _, problem in self.held], common):
            self.held.append(self.held[place])
            self.texts.append(_read(question, self.texts[place].pictures))
        self._answers = [normal(problem.reference) for _, problem in self.held]
        # An answer that many problems share says little about which of them was asked.
        self._telling = [times[answer] <= few for answer in self._answers]
        self._whole: dict[tuple[str, tuple[str, ...]], int] = {}
        self._by_numbers: dict[tuple[str, tuple[str, ...]], list[int]] = {}
        for place, text in enumerate(self.texts):
            self._whole.setdefault((text.pictures, text.words), place)
            self._by_numbers.setdefault((text.pictures, text.numbers), []).append(place)
        self._swappable = self._index_swappable()
        self._anchors = self._index_anchors()
        self._grams, self._owners = self._index_grams(common)
        self._counts = np.bincount(self._owners, minlength=len(self.held))

    def find(self, examples: Sequence[Example], share: float = SHARE) -> list[Leak | None]:
        """For each example the problem that it repeats, if any."""
        return self.search(examples, share)[0]

    def search(self, examples: Sequence[Example], share: float = SHARE) -> tuple[list[Leak | None], Shares]:
        """The same, and by example the problem that it mostly copies but for the numbers."""
        texts = [_read_example(example) for example in examples]
        copied, templates = self._shares(_number(texts), share)
        leaks: list[Leak | None] = []
        for place, (example, (asked, everything)) in enumerate(zip(examples, texts, strict=True)):
            problem, how = self._copy(example, asked, everything), "the question"
            if problem is None and place in copied and self._is_copied(example, *copied[place]):
                problem, how = copied[place][0], f"{copied[place][1]:.0%} of its {self.length}-grams"
            if problem is None:
                problem, how = self._find_reworded(example, asked), "the question in other words"
            leaks.append(None if problem is None else Leak(self.held[problem][0], self.held[problem][1].id, how))
        return leaks, templates

    def shares(self, examples: Sequence[Example], least: float = SHARE) -> tuple[Shares, Shares]:
        """By example the problem of which it holds the largest fraction of grams, where that is at least `least`.

        Once of problems all of whose numbers are in the example, once of the others.
        """
        return self._shares(_number([_read_example(example) for example in examples]), least)

    # Copies of a whole question

    def _index_anchors(self) -> dict[tuple[str, str], list[tuple[int, int]]]:
        """Each question of three words or more under its rarest pair of neighbours, with the place of the pair."""
        times = Counter(pair for text in self.texts for pair in set(pairwise(text.words)))
        anchors: dict[tuple[str, str], list[tuple[int, int]]] = {}
        for place in self._whole.values():
            pairs = list(pairwise(self.texts[place].words))
            if len(pairs) >= 2:
                offset = min(range(len(pairs)), key=lambda at: times[pairs[at]])
                anchors.setdefault(pairs[offset], []).append((place, offset))
        return anchors

    def _copy(self, example: Example, asked: Sequence[_Text], everything: _Text) -> int | None:
        """The problem whose whole question is in one of the messages, or in the response."""
        for text in asked:
            if (place := self._whole.get((text.pictures, text.words))) is not None:
                return place
        for text in asked:
            if (place := self._inside(text)) is not None:
                return place
        if any(pair in self._anchors for pair in pairwise(everything.words)):
            # A question that numbers follow is whole if its sentence ends there.
            for text in _read_sentences(example, everything.pictures):
                if (place := self._inside(text)) is not None:
                    return place
        return self._inside(everything, response=True)

    def _inside(self, text: _Text, response: bool = False) -> int | None:
        for at, pair in enumerate(pairwise(text.words)):
            for place, offset in self._anchors.get(pair, ()):
                start, question = at - offset, self.texts[place]
                end = start + len(question.words)
                if start < 0 or text.words[start:end] != question.words or text.pictures != question.pictures:
                    continue
                if self._is_whole(question, text.words, start, end, response):
                    return place
        return None

    def _is_whole(self, question: _Text, words_: Sequence[str], start: int, end: int, response: bool) -> bool:
        """Whether a question that stands in a longer text is asked there, and is no part of something larger."""
        numbers, others = len(question.numbers), sum(map(str.isalpha, question.words))
        if response and (others < 2 or (numbers < 2 and not question.pictures)):
            return False  # Reasoning repeats short calculations all the time.
        if not numbers and not question.pictures and (end - start < 4 or len(words_) - (end - start) > 2 * LENGTH):
            return False  # A common phrase in a longer text.
        before, after = words_[start - 1 : start], words_[end : end + 1]
        return not (
            (before and _calculates(before[0]) and not words_[start].isalpha())
            or (after and (_calculates(after[0]) or is_number(after[0])) and not words_[end - 1].isalpha())
        )

    # Other words for the same question

    def _index_swappable(self) -> dict[tuple[str, int, int, tuple[str, ...]], list[int]]:
        """Questions under what stays the same if at most two words, or all names, are swapped."""
        index: dict[tuple[str, int, int, tuple[str, ...]], list[int]] = {}
        for place in self._whole.values():
            for key in _parts(self.texts[place]):
                index.setdefault(key, []).append(place)
        return index

    def _find_reworded(self, example: Example, asked: Sequence[_Text]) -> int | None:
        answer = _answer(example)
        for text in asked:
            numbers = text.numbers
            same = self._by_numbers.get((text.pictures, numbers), []) if numbers or text.pictures else []
            for place in same:
                if self._is_answered(example, answer, place) and self._is_alike(text, place, example.skill):
                    return place
            close = [place for key in _parts(text) for place in self._swappable.get(key, ())]
            for place in dict.fromkeys(close + (same if len(numbers) >= 2 else [])):
                if self._is_swapped(text, place, answer):
                    return place
        return None

    def _is_answered(self, example: Example, answer: Sequence[str], place: int) -> bool:
        """Whether a response gives the answer of a problem, or its worked solution."""
        worked = self.held[place][1].metadata.get("worked")
        return _contains(answer, self._answers[place]) or (
            isinstance(worked, str) and worked.strip() in example.response
        )

    def _is_alike(self, text: _Text, place: int, skill: str) -> bool:
        """Whether two questions with the same numbers and answer are taken for one."""
        question = self.texts[place]
        if question.signs and text.signs and question.signs != text.signs:
            return False
        if len(question.numbers) < 2 and not question.pictures and not self._telling[place]:
            return False
        short = len(question.numbers) >= 2 and max(len(text.words), len(question.words)) <= SHORT
        return (short and skill in ("", self.held[place][1].skill)) or _alike(text, question) >= ALIKE

    def _is_swapped(self, text: _Text, place: int, answer: Sequence[str]) -> bool:
        """Whether a question is the same but for a name or two, wherever they stand."""
        question = self.texts[place]
        asked = _align(text.words, question.words)
        swapped = {a: b for a, b in zip(question.words, asked, strict=False) if a != b}
        same = tuple(swapped.get(word, word) for word in question.words) == asked
        if not same or len(swapped) > SWAPPED or not all(a.isalpha() and b.isalpha() for a, b in swapped.items()):
            return False
        shared = sum(word.isalpha() and word not in swapped for word in question.words)
        if len(text.words) > len(asked) and shared < NAMED:
            return False  # A few words of a longer text.
        has_numbers, capitals = len(question.numbers) >= 2, all(a in question.capitals for a in swapped)
        if has_numbers and capitals and shared >= NAMED and all(b in text.capitals for b in swapped.values()):
            return True  # Names: the response may say what it likes.
        expected = [swapped.get(word, word) if capitals else word for word in self._answers[place]]
        return (has_numbers or self._telling[place]) and _contains(answer, expected)

    # Most of a long question

    def _is_copied(self, example: Example, place: int, share: float) -> bool:
        """Whether so much of a question says that it was copied, and not only that the task words all questions alike."""
        return (share >= SURE and place < self._prompts) or self._is_answered(example, _answer(example), place)

    def _index_grams(self, common: int) -> tuple[Hashes, Places]:
        long = np.array([k for k, text in enumerate(self.texts) if len(text.words) >= self.length], dtype=np.int64)
        own = _make_grams([self.texts[k] for k in long.tolist()], self.length)
        # Each problem counts once, with or without its instructions.
        prompts = _make_grams([self.texts[k] for k in long.tolist() if k < self._prompts], self.length)
        shared = frequent(prompts, common) if prompts.texts else np.zeros(0, dtype=np.uint64)
        rare_G = ~among(own.hashes_G, shared) if own.texts else np.zeros(0, dtype=np.bool_)
        return distinct(own.hashes_G[rare_G], long[own.owners_G[rare_G]])

    def _shares(self, parts: Sequence[tuple[int, _Text]], least: float) -> tuple[Shares, Shares]:
        """See `shares`. Arguments: `parts` are the texts of examples, each with the place of its example."""
        examples_C, problems_C, shares_C = self._compare(parts)
        best: tuple[Shares, Shares] = ({}, {})
        numbers: dict[int, Counter[str]] = {}
        close = np.flatnonzero(shares_C >= least - 1e-12)
        wanted = set(examples_C[close].tolist())
        for place, text in parts:
            if place in wanted:
                numbers[place] = numbers.get(place, Counter()) | Counter(text.numbers)
        for k in close.tolist():
            example, problem, share = int(examples_C[k]), int(problems_C[k]), float(shares_C[k])
            kind = best[0] if Counter(self.texts[problem].numbers) <= numbers[example] else best[1]
            if example not in kind or share > kind[example][1]:
                kind[example] = (problem, share)
        return best

    def _compare(self, parts: Sequence[tuple[int, _Text]]) -> tuple[Places, Places, npt.NDArray[np.float64]]:
        """Every example and problem that share a gram, and the fraction of the problem's grams that they share."""
        if not len(self._grams) or not parts:
            return np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0)
        own = _make_grams([text for _, text in parts], self.length)
        places_T = np.array([place for place, _ in parts], dtype=np.int64)
        hit_G = among(own.hashes_G, self._grams)
        hashes_H, examples_H = distinct(own.hashes_G[hit_G], places_T[own.owners_G[hit_G]])
        begin = np.searchsorted(self._grams, hashes_H, "left")
        times = np.searchsorted(self._grams, hashes_H, "right") - begin
        problems = self._owners[np.arange(int(times.sum())) + np.repeat(begin - (np.cumsum(times) - times), times)]
        both = np.repeat(examples_H, times) * len(self.held) + problems
        codes, counts = np.unique(both, return_counts=True)
        examples_C, problems_C = np.divmod(codes, len(self.held))
        return examples_C, problems_C, counts / self._counts[problems_C]


def normal(text: str) -> tuple[str, ...]:
    """The words of a text in normal form, numbers in figures.

    >>> normal("Twenty-five apples, 1,200.50 in all?")
    ('25', 'apples', '1200.5', 'in', 'all')
    """
    return _read(text).words


def _number(texts: Sequence[tuple[Sequence[_Text], _Text]]) -> list[tuple[int, _Text]]:
    """All texts of examples, each with the place of its example."""
    return [(place, text) for place, (asked, everything) in enumerate(texts) for text in (*asked, everything)]


def _read(text: str, pictures: str = "") -> _Text:
    tokens = in_figures(words(text))
    numbers = tuple(sorted(filter(is_number, tokens)))
    capitals = frozenset(map(str.casefold, _CAPITAL.findall(text)))
    return _Text(tuple("1" if word == "one" else word for word in tokens), numbers, pictures, capitals)


def _read_example(example: Example) -> tuple[list[_Text], _Text]:
    """The texts that may ask a held-out question, and all text of the example, response included.

    The first are each message, the user's messages together, and all together; with all images, and with each by itself.
    """
    urls = [url for message in example.messages for url in addresses(message)]
    images = digest_pictures(urls)
    messages = [_read(message.text, images) for message in example.messages]
    asked = list(messages)
    if len(messages) > 1:
        users = [text for text, message in zip(messages, example.messages, strict=True) if message.role == "user"]
        asked += [_join(users, images), _join(messages, images)]
    if len(urls) > 1:
        asked += [replace(text, pictures=digest_pictures([url])) for url in urls for text in asked]
    return asked, _join([*messages, _read(example.response)], images)


def _join(texts: Sequence[_Text], images: str) -> _Text:
    return _Text(
        tuple(word for text in texts for word in text.words),
        tuple(sorted(number for text in texts for number in text.numbers)),
        images,
        frozenset(word for text in texts for word in text.capitals),
    )


def _read_sentences(example: Example, images: str) -> list[_Text]:
    return [_read(sentence, images) for message in example.messages for sentence in _SENTENCE.split(message.text)]


def _strip_instructions(problems: Sequence[Problem], common: int) -> Iterator[tuple[int, str]]:
    """Problems by place, and their questions without what many of them begin or end with, and without a label.

    Questions that stay as they are or become short are left out. A sentence that asks is never taken for an instruction.
    """
    sentences = [_SENTENCE.split(problem.messages[-1].text.strip()) for problem in problems]
    times = Counter(sentence for several in sentences for sentence in set(several))
    for place, problem in enumerate(problems):
        question = problem.metadata.get("question")
        if not isinstance(question, str) or len(normal(question)) < 3:  # Or it is a number of a question.
            several = sentences[place]
            own = [k for k, part in enumerate(several) if times[part] <= common or part.endswith("?")]
            stripped = "\n".join(several[own[0] : own[-1] + 1]) if own else ""
            question = stripped[label.end() :] if (label := _LABEL.match(stripped)) else stripped
            if len(normal(question)) < LENGTH or question == "\n".join(several):
                continue
        yield place, question


def _answer(example: Example) -> tuple[str, ...]:
    """The answer that the response ends with: from the sentence with the first mark of one on, or else all of it.

    The reference of the example counts as one, too: a student that practises is rewarded by it.
    """
    mark = _ANSWER.search(example.response)
    start = max((m.end() for m in _SENTENCE.finditer(example.response) if mark and m.end() <= mark.start()), default=0)
    return (*normal(example.response[start:]), "\n", *normal(example.reference))


def _contains(text: Sequence[str], part: Sequence[str]) -> bool:
    size = len(part)
    return size > 0 and any(list(text[k : k + size]) == list(part) for k in range(len(text) - size + 1))


def _align(text: tuple[str, ...], question: tuple[str, ...]) -> tuple[str, ...]:
    """The words of a text that may be the question: all of them, or those around its first number."""
    if len(text) <= len(question):
        return text
    first, own = (next((k for k, word in enumerate(sequence) if is_number(word)), 0) for sequence in (text, question))
    start = max(0, first - own)
    return text[start : start + len(question)]


def _alike(question: _Text, other: _Text) -> float:
    """The fraction of the words, numbers apart, that two texts share."""
    a, b = ({word for word in text.words if not is_number(word)} for text in (question, other))
    return len(a & b) / max(len(a), len(b), 1)


def _parts(text: _Text) -> Iterator[tuple[str, int, int, tuple[str, ...]]]:
    """A text of four words or more without its capitals, and in three parts: what texts share if words are swapped."""
    size = len(text.words)
    if size >= 4:
        yield text.pictures, size, 3, tuple("" if word in text.capitals else word for word in text.words)
        for part in range(3):
            yield text.pictures, size, part, text.words[size * part // 3 : size * (part + 1) // 3]


def _calculates(word: str) -> bool:
    return word in _SIGNS


def _make_grams(texts: Sequence[_Text], length: int) -> Grams:
    return grams([text.words for text in texts], length).add_salts(hashes(text.pictures for text in texts))
