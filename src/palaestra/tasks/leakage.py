"""Find training examples that repeat a held-out problem, verbatim or slightly reworded.

    index = HeldOut({Split.TEST: problems})
    leaks = index.find(examples)             # for each example a `Leak`, or None

An example leaks a problem if one of these holds:

1. **Copy.** One of its messages contains the whole question in normal form (case, punctuation, white space and number
   formats are ignored). A short question inside a longer expression, `3 + 4` in `3 + 4 + 5`, is not a copy.
2. **Mostly copied.** The example contains at least 70 % of the question's 8-grams of words (the measure of Chowdhery et
   al., 2022) and all of its numbers, and its response gives the same answer; from 90 % on the answer is ignored. Grams
   that many problems share are ignored.
3. **Reworded.** The question has the same numbers, and the response gives the same answer. Short questions of the same
   skill need two numbers. Others must share half of their words, and have two numbers or a rare answer.
4. **Word swapped.** The question differs in one or two words, and the response gives the same answer. It needs two
   numbers or a rare answer. If the words are names and there are two numbers, the answer is ignored.

A question is compared with every message, with all messages together and with the response: once as the whole prompt,
and once without the instructions that many problems share (or as `question` in the problem's metadata). Questions about
images only match examples with identical images.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from palaestra.core.records import Example, Problem, Split
from palaestra.tasks.texts import (
    LENGTH,
    SIGNS,
    NormalText,
    addresses,
    digest_pictures,
    is_number,
    normalise,
    read_answer,
    read_example,
    read_sentences,
    read_text,
    strip_instructions,
)

SHARE = 0.7
"""Fraction of a question's grams from which an example counts as mostly copied."""
COMMON = 10
"""Grams in more problems than this are wording of the task; with fewer than 50 problems, in a fifth of them."""
SURE = 0.9
"""Fraction from which it counts as copied regardless of the response."""
SHORT = 16
"""Maximum length of a short question in words. Its numbers and its answer identify it."""
ALIKE = 0.5
"""Fraction of shared words from which two long questions with the same numbers and answer are the same."""
SWAPPED = 2
"""Maximum number of distinct swapped words."""
NAMED = 5
"""Minimum number of shared words of two questions that differ in names alone."""
_ORDER = (Split.TEST, Split.VALIDATION, Split.TRAIN)
Gram = tuple[str, ...]
Shares = dict[int, tuple[int, float]]
"""By index of the example: the index of a problem, and the fraction of its grams that the example contains."""


@dataclass(frozen=True, slots=True)
class Leak:
    """A held-out problem that an example repeats.

    Arguments:
        split: the split of the problem.
        problem_id: its id. The text is not stored, so that a record of leaks leaks nothing.
        how: the kind of repetition.
    """

    split: Split
    problem_id: str
    how: str

    @property
    def reason(self) -> str:
        """A reason for statistics, the same for all leaks of a split."""
        return f"repeats a {self.split} problem"


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
        times = Counter(normalise(problem.reference) for _, problem in self.held)
        few = max(1, len(self.held) // 50)
        prompts = [problem.messages[-1] for _, problem in self.held]
        self.texts = [read_text(prompt.text, digest_pictures(addresses(prompt))) for prompt in prompts]
        self._prompts = len(self.texts)
        for place, question in strip_instructions([problem for _, problem in self.held], common):
            self.held.append(self.held[place])
            self.texts.append(read_text(question, self.texts[place].pictures))
        self._answers = [normalise(problem.reference) for _, problem in self.held]
        # A frequent answer does not identify a problem.
        self._telling = [times[answer] <= few for answer in self._answers]
        self._whole: dict[tuple[str, tuple[str, ...]], int] = {}
        self._by_numbers: dict[tuple[str, tuple[str, ...]], list[int]] = {}
        for place, text in enumerate(self.texts):
            self._whole.setdefault((text.pictures, text.words), place)
            self._by_numbers.setdefault((text.pictures, text.numbers), []).append(place)
        self._swappable = self._index_swappable()
        self._anchors = self._index_anchors()
        self._owners, self._counts = self._index_grams(common)

    def find(self, examples: Sequence[Example], share: float = SHARE) -> list[Leak | None]:
        """The problem that each example repeats, if any."""
        return self.search(examples, share)[0]

    def search(self, examples: Sequence[Example], share: float = SHARE) -> tuple[list[Leak | None], Shares]:
        """Like `find`; also returns, for examples that mostly copy a problem with other numbers, that problem."""
        texts = [read_example(example) for example in examples]
        copied, templates = self._shares(texts, share)
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
        """The problem of which each example contains the largest fraction of grams, if that is at least `least`.

        Returns two mappings: for problems whose numbers are all in the example, and for the others.
        """
        return self._shares([read_example(example) for example in examples], least)

    # Copies of a whole question

    def _index_anchors(self) -> dict[tuple[str, str], list[tuple[int, int]]]:
        """Questions of at least three words by their rarest pair of neighbouring words, with the position of the pair."""
        times = Counter(pair for text in self.texts for pair in set(pairwise(text.words)))
        anchors: dict[tuple[str, str], list[tuple[int, int]]] = {}
        for place in self._whole.values():
            pairs = list(pairwise(self.texts[place].words))
            if len(pairs) >= 2:
                offset = min(range(len(pairs)), key=lambda at: times[pairs[at]])
                anchors.setdefault(pairs[offset], []).append((place, offset))
        return anchors

    def _copy(self, example: Example, asked: Sequence[NormalText], everything: NormalText) -> int | None:
        """The problem whose whole question is in a message or in the response."""
        for text in asked:
            if (place := self._whole.get((text.pictures, text.words))) is not None:
                return place
        for text in asked:
            if (place := self._inside(text)) is not None:
                return place
        if any(pair in self._anchors for pair in pairwise(everything.words)):
            # A question before numbers is complete if its sentence ends there.
            for text in read_sentences(example, everything.pictures):
                if (place := self._inside(text)) is not None:
                    return place
        return self._inside(everything, response=True)

    def _inside(self, text: NormalText, response: bool = False) -> int | None:
        for at, pair in enumerate(pairwise(text.words)):
            for place, offset in self._anchors.get(pair, ()):
                start, question = at - offset, self.texts[place]
                end = start + len(question.words)
                if start < 0 or text.words[start:end] != question.words or text.pictures != question.pictures:
                    continue
                if self._is_whole(question, text.words, start, end, response):
                    return place
        return None

    def _is_whole(self, question: NormalText, words_: Sequence[str], start: int, end: int, response: bool) -> bool:
        """Whether a question inside a longer text is asked there, and is not part of a larger expression."""
        numbers, others = len(question.numbers), sum(map(str.isalpha, question.words))
        if response and (others < 2 or (numbers < 2 and not question.pictures)):
            return False  # Reasoning often repeats short calculations.
        if not numbers and not question.pictures and (end - start < 4 or len(words_) - (end - start) > 2 * LENGTH):
            return False  # A common phrase in a longer text.
        before, after = words_[start - 1 : start], words_[end : end + 1]
        return not (
            (before and _calculates(before[0]) and not words_[start].isalpha())
            or (after and (_calculates(after[0]) or is_number(after[0])) and not words_[end - 1].isalpha())
        )

    # Other words for the same question

    def _index_swappable(self) -> dict[tuple[str, int, int, tuple[str, ...]], list[int]]:
        """Questions by the parts that stay the same if at most two words, or all names, are swapped."""
        index: dict[tuple[str, int, int, tuple[str, ...]], list[int]] = {}
        for place in self._whole.values():
            for key in _parts(self.texts[place]):
                index.setdefault(key, []).append(place)
        return index

    def _find_reworded(self, example: Example, asked: Sequence[NormalText]) -> int | None:
        answer = read_answer(example)
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
        """Whether a response contains the answer of a problem or its worked solution."""
        worked = self.held[place][1].metadata.get("worked")
        return _contains(answer, self._answers[place]) or (
            isinstance(worked, str) and worked.strip() in example.response
        )

    def _is_alike(self, text: NormalText, place: int, skill: str) -> bool:
        """Whether two questions with the same numbers and answer count as the same."""
        question = self.texts[place]
        if question.signs and text.signs and question.signs != text.signs:
            return False
        if len(question.numbers) < 2 and not question.pictures and not self._telling[place]:
            return False
        short = len(question.numbers) >= 2 and max(len(text.words), len(question.words)) <= SHORT
        return (short and skill in ("", self.held[place][1].skill)) or _alike(text, question) >= ALIKE

    def _is_swapped(self, text: NormalText, place: int, answer: Sequence[str]) -> bool:
        """Whether a question differs only in one or two words, wherever they occur."""
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
            return True  # Names: the response is ignored.
        expected = [swapped.get(word, word) if capitals else word for word in self._answers[place]]
        return (has_numbers or self._telling[place]) and _contains(answer, expected)

    # Most of a long question

    def _is_copied(self, example: Example, place: int, share: float) -> bool:
        """Whether the shared fraction shows a copy, rather than the common wording of the task."""
        return (share >= SURE and place < self._prompts) or self._is_answered(example, read_answer(example), place)

    def _index_grams(self, common: int) -> tuple[dict[Gram, list[int]], list[int]]:
        """The questions of each gram that is not common, and the number of such grams of each question."""
        own = [_make_grams(text, self.length) if len(text.words) >= self.length else set() for text in self.texts]
        # Each problem counts once: only its whole prompt.
        times = Counter(gram for grams in own[: self._prompts] for gram in grams)
        owners: dict[Gram, list[int]] = {}
        for place, grams in enumerate(own):
            for gram in grams:
                if times[gram] <= common:
                    owners.setdefault(gram, []).append(place)
        counts = Counter(place for places in owners.values() for place in places)
        return owners, [counts[place] for place in range(len(own))]

    def _shares(self, texts: Sequence[tuple[Sequence[NormalText], NormalText]], least: float) -> tuple[Shares, Shares]:
        """See `shares`; `texts` are those of each example."""
        best: tuple[Shares, Shares] = ({}, {})
        for example, (asked, everything) in enumerate(texts):
            parts = [*asked, everything]
            grams = {gram for text in parts for gram in _make_grams(text, self.length)}
            hits = Counter(place for gram in grams for place in self._owners.get(gram, ()))
            close = {k: n / self._counts[k] for k, n in hits.items() if n / self._counts[k] >= least - 1e-12}
            if not close:
                continue
            numbers: Counter[str] = Counter()
            for text in parts:
                numbers |= Counter(text.numbers)
            for problem, share in sorted(close.items()):
                kind = best[0] if Counter(self.texts[problem].numbers) <= numbers else best[1]
                if example not in kind or share > kind[example][1]:
                    kind[example] = (problem, share)
        return best


def _contains(text: Sequence[str], part: Sequence[str]) -> bool:
    size = len(part)
    return size > 0 and any(list(text[k : k + size]) == list(part) for k in range(len(text) - size + 1))


def _align(text: tuple[str, ...], question: tuple[str, ...]) -> tuple[str, ...]:
    """The part of a text to compare with a question: all of it, or the words around its first number."""
    if len(text) <= len(question):
        return text
    first, own = (next((k for k, word in enumerate(sequence) if is_number(word)), 0) for sequence in (text, question))
    start = max(0, first - own)
    return text[start : start + len(question)]


def _alike(question: NormalText, other: NormalText) -> float:
    """The fraction of shared words of two texts, without numbers."""
    a, b = ({word for word in text.words if not is_number(word)} for text in (question, other))
    return len(a & b) / max(len(a), len(b), 1)


def _parts(text: NormalText) -> Iterator[tuple[str, int, int, tuple[str, ...]]]:
    """Keys that texts of at least four words share if words are swapped: without capitalised words, and each third."""
    size = len(text.words)
    if size >= 4:
        yield text.pictures, size, 3, tuple("" if word in text.capitals else word for word in text.words)
        for part in range(3):
            yield text.pictures, size, part, text.words[size * part // 3 : size * (part + 1) // 3]


def _calculates(word: str) -> bool:
    return word in SIGNS


def _make_grams(text: NormalText, length: int) -> set[Gram]:
    """The n-grams of a text that has at least `length` words."""
    words = text.words
    return {(text.pictures, *words[k : k + length]) for k in range(len(words) - length + 1)}
