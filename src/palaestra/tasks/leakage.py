"""Find training examples that repeat a held-out problem, verbatim or reworded.

    index = HeldOut({Split.TEST: problems})
    leaks = index.find(examples)             # for each example a `Leak`, or None

An example leaks a problem if one of these holds:

1. **Copy.** One of its messages contains the whole question in normal form (case, punctuation, white space and number
   formats are ignored). A short question inside a longer expression, `3 + 4` in `3 + 4 + 5`, is not a copy.
2. **Mostly copied.** The example contains at least 70 % of the question's 8-grams of words (the measure of Chowdhery et
   al., 2022) and all of its numbers, and its response gives the same answer; from 90 % on the answer is ignored. Grams
   that many problems share are ignored.
3. **Reworded.** The response gives the same answer, and the question has exactly the problem's numbers: three or more of
   them, or fewer in a short question of the same skill. Otherwise the numbers that both have, the answer and the shared
   words must be improbable enough together (`_is_alike`): a few added numbers change nothing, and one may be missing.
4. **Same program.** The response contains the program or the tool calls of the solution, with any names.
5. **Word swapped.** The question differs in one or two words, and the response gives the same answer. It needs two
   numbers or a rare answer. If the words are names and there are two numbers, the answer is ignored.

A question is compared with every message, with all messages together, with the response, and with each single question
of an example that contains several: once as the whole prompt, and once without the instructions that many problems share
(or as `question` in the problem's metadata). Messages and responses in disguise are compared in every reading
(`palaestra.tasks.readings`). Questions about images only match examples with identical images. An example whose program is
not that of the solution repeats a problem only if it copies it: a program for other values solves another problem.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

from palaestra.core.records import Example, Problem, Split
from palaestra.tasks.grams import GramIndex, Shares, index_pairs
from palaestra.tasks.readings import is_number
from palaestra.tasks.texts import (
    LENGTH,
    SIGNS,
    STOP_WORDS,
    ExampleTexts,
    GivenAnswer,
    NormalText,
    pictures,
    read_example,
    read_sentences,
    read_solution,
    read_text,
    strip_instructions,
)

SHARE = 0.7
"""Fraction of a question's grams from which an example counts as mostly copied."""
COMMON = 10
"""Grams in more problems than this are wording of the task; with fewer than 50 problems, in a fifth of them."""
_SURE = 0.9
"""Fraction from which it counts as copied regardless of the response."""
_SURE_LENGTH = 80
"""Words of a question from which that holds even if the response has another program."""
_MAX_SHORT = 16
"""Maximum length of a short question in words. Its numbers and its answer identify it."""
_ALIKE = 0.5
"""Fraction of a question's words that an example with the same short function must contain."""
_EVIDENCE = 7.0
"""Evidence (negative logarithm of a probability) from which an example asks a problem in other words."""
_ANSWER_WEIGHT, _WORDS_WEIGHT = 0.3, 8.0
"""Weights of the answer, which the numbers mostly determine, and of the fraction of shared words."""
_OTHER_SKILL = 3.0
"""Evidence that an example of another skill needs in addition: 6 * 9 and a field of 6 by 9 are different problems."""
_MISSING = 2.0
"""Evidence that a missing number takes away."""
_PRIOR = 50
"""Problems that the assumed frequencies of numbers are worth; they matter if few problems are held out."""
_MAX_SWAPPED = 2
"""Maximum number of distinct swapped words."""
_NAMED = 5
"""Minimum number of shared words of two questions that differ in names alone."""
_MAX_NUMBERS = 40
"""Distinct numbers of a text that are compared with those of problems."""
_MIN_PROGRAM = 300
"""Characters of the canonical form from which a function identifies its problem whatever the question says."""
_ORDER = (Split.TEST, Split.VALIDATION, Split.TRAIN)


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
        prompts = [problem.messages[-1] for _, problem in self.held]
        self.texts = [read_text(prompt.text, pictures(prompt)) for prompt in prompts]
        self._prompts = len(self.texts)
        own = {place: place for place in range(self._prompts)}
        for place, question in strip_instructions([problem for _, problem in self.held], common):
            own[place] = len(self.texts)
            self.held.append(self.held[place])
            self.texts.append(read_text(question, self.texts[place].pictures))
        # Instructions and lists of tools do not identify a problem: rewordings are compared with the question alone.
        self._questions = dict.fromkeys(own.values())
        self._solutions = [read_solution(problem) for _, problem in self.held]
        # A frequent answer does not identify a problem.
        self._answer_times = Counter(solution.words for solution in self._solutions[: self._prompts])
        few = max(1, self._prompts // 50)
        self._telling = [self._answer_times[solution.words] <= few for solution in self._solutions]
        self._whole: dict[tuple[str, tuple[str, ...]], int] = {}
        for place, text in enumerate(self.texts):
            self._whole.setdefault((text.pictures, text.words), place)
        self._content = [text.content for text in self.texts]
        self._problems_with = Counter(n for place in self._questions for n in set(self.texts[place].numbers))
        times = Counter(word for place in self._questions for word in self._content[place])
        self._weights = {word: math.log(1 + self._prompts / count) for word, count in times.items()}
        self._vocabulary = {word for text in self.texts for word in text.words} | STOP_WORDS
        self._by_numbers = index_pairs(self._find_rare_numbers())
        self._by_program = index_pairs(
            ((self.texts[place].pictures, program), place)
            for place in self._questions
            for program in self._solutions[place].programs
        )
        # By the parts that stay the same if at most two words, or all names, are swapped.
        self._swappable = index_pairs(
            (key, place) for place in self._whole.values() for key in _parts(self.texts[place])
        )
        self._anchors = index_pairs(self._find_anchors())
        self._grams = GramIndex(self.texts, self._prompts, length, common)

    def find(self, examples: Sequence[Example]) -> list[Leak | None]:
        """The problem that each example repeats, if any."""
        return self.search(examples)[0]

    def search(self, examples: Sequence[Example], share: float = SHARE) -> tuple[list[Leak | None], Shares]:
        """Like `find`; also returns, for examples that mostly copy a problem with other numbers, that problem."""
        texts = [read_example(example, self._vocabulary.__contains__) for example in examples]
        copied, templates = self._grams.find_shares(texts, share)
        leaks: list[Leak | None] = []
        for at, (example, text) in enumerate(zip(examples, texts, strict=True)):
            problem, how = self._find_copy(example, text), "the question"
            if problem is None and at in copied and self._is_copied(text, *copied[at]):
                problem, how = copied[at][0], f"{copied[at][1]:.0%} of its {self.length}-grams"
            if problem is None:
                problem, how = self._find_program(text), "its solution"
            if problem is None:
                problem, how = self._find_reworded(text, example.skill), "the question in other words"
            leaks.append(None if problem is None else Leak(self.held[problem][0], self.held[problem][1].id, how))
        return leaks, templates

    # Copies of a whole question

    def _find_anchors(self) -> Iterator[tuple[tuple[str, str], tuple[int, int]]]:
        """The rarest pair of neighbouring words of each question of at least three words, and its position there."""
        times = Counter(pair for text in self.texts for pair in set(pairwise(text.words)))
        for place in self._whole.values():
            pairs = list(pairwise(self.texts[place].words))
            if len(pairs) >= 2:
                offset = min(range(len(pairs)), key=lambda at: times[pairs[at]])
                yield pairs[offset], (place, offset)

    def _find_copy(self, example: Example, texts: ExampleTexts) -> int | None:
        """The problem whose whole question is in a message or in the response."""
        for text in texts.asked:
            if (place := self._whole.get((text.pictures, text.words))) is not None:
                return place
        asked = texts.asked
        if any(pair in self._anchors for pair in pairwise(texts.everything.words)):
            # A question before numbers is complete if its sentence ends there.
            asked = asked + read_sentences(example, texts.everything.pictures)
        for text in asked:
            if (place := self._inside(text)) is not None:
                return place
        for text in (texts.everything, *texts.disguised):
            if (place := self._inside(text, response=True)) is not None:
                return place
        return None

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
            (before and before[0] in SIGNS and not words_[start].isalpha())
            or (after and (after[0] in SIGNS or is_number(after[0])) and not words_[end - 1].isalpha())
        )

    # Other words for the same question

    def _find_rare_numbers(self) -> Iterator[tuple[tuple[str, ...], int]]:
        """The images and two of the rarest numbers of each question, or its only number."""
        times = self._problems_with
        for place in self._questions:
            text = self.texts[place]
            rarest = sorted(text.numbers, key=lambda number: (times[number], number))
            # A question of many numbers is found even if one of them is missing.
            pairs = combinations(rarest[: 3 if len(rarest) > 3 else 2], 2) if len(rarest) > 1 else [tuple(rarest)]
            for pair in {tuple(sorted(pair)) for pair in pairs}:
                yield (text.pictures, *pair), place

    def _find_program(self, texts: ExampleTexts) -> int | None:
        """The problem whose solution is a program of the response. A short function needs a similar question."""
        pictures, content = texts.everything.pictures, texts.everything.content
        for program in texts.programs:
            for place in self._by_program.get((pictures, program), ()):
                is_function = "FunctionDef" in program
                if not is_function or len(program) >= _MIN_PROGRAM or self._coverage(content, place) >= _ALIKE:
                    return place
        return None

    def _find_reworded(self, texts: ExampleTexts, skill: str) -> int | None:
        for text in texts.asked:
            candidates = self._candidates(text)
            if (place := self._find_alike(text, candidates, texts, texts.answers, skill)) is not None:
                return place
            close = [place for key in _parts(text) for place in self._swappable.get(key, ())]
            same = [
                place for place in candidates if len(text.numbers) > 1 and self.texts[place].numbers == text.numbers
            ]
            for place in dict.fromkeys(close + same):
                if not self._is_other_program(texts, place) and self._is_swapped(text, place, texts.answers):
                    return place
        answers = [texts.stated, *texts.answers]
        for text in texts.items:
            if (place := self._find_alike(text, self._candidates(text), texts, answers, skill)) is not None:
                return place
        return None

    def _candidates(self, text: NormalText) -> list[int]:
        """Questions with numbers of the text."""
        times = Counter(text.numbers) + Counter(text.implied)
        numbers = sorted(times)[:_MAX_NUMBERS]
        keys: list[tuple[str, ...]] = [(number,) for number in numbers] + list(combinations(numbers, 2))
        keys += [(number, number) for number in numbers if times[number] > 1]
        keys += [()] if text.pictures else []
        hits = (place for key in keys for place in self._by_numbers.get((text.pictures, *key), ()))
        return list(dict.fromkeys(hits))

    def _find_alike(
        self,
        text: NormalText,
        candidates: Sequence[int],
        texts: ExampleTexts,
        answers: Sequence[GivenAnswer],
        skill: str,
    ) -> int | None:
        """The candidate that a text asks in other words."""
        for place in candidates:
            if self._is_answered(texts, place, answers) and self._is_alike(text, place, skill):
                return place
        return None

    def _is_answered(self, texts: ExampleTexts, place: int, answers: Sequence[GivenAnswer]) -> bool:
        """Whether a response contains the answer of a problem or its program."""
        solution = self._solutions[place]
        if solution.programs and texts.programs:
            return bool(solution.programs & texts.programs)
        if solution.value is not None:
            return any(solution.value in answer.values for answer in answers)
        return any(_contains(answer.words, solution.words) for answer in answers)

    def _is_other_program(self, texts: ExampleTexts, place: int) -> bool:
        programs = self._solutions[place].programs
        return bool(programs and texts.programs) and not programs & texts.programs

    def _coverage(self, content: frozenset[str], place: int) -> float:
        """The fraction of a question's content words that a text contains, weighted by rarity."""
        total = sum(self._weights[word] for word in self._content[place])
        return sum(self._weights[word] for word in self._content[place] & content) / total if total else 0.0

    def _is_alike(self, text: NormalText, place: int, skill: str) -> bool:
        """Whether a text asks a question whose answer it has.

        The evidence for that is the improbability of its numbers, of the answer and of its words. Numbers are the
        more improbable, the rarer they are in problems, and the less, the more others the text contains.
        """
        question = self.texts[place]
        given, wanted = Counter(text.numbers), Counter(question.numbers)
        lost = wanted - given - Counter(text.implied)
        missing, extra, count = lost.total(), (given - wanted).total(), len(question.numbers)
        if missing > (count > 3):
            return False
        if question.pictures:
            return not missing
        operations = question.operations
        if count < 3 and operations and (named := text.operations) and not operations & named:
            return False
        same_skill = skill in ("", self.held[place][1].skill)
        short = max(len(text.words), len(question.words)) <= _MAX_SHORT
        identified = count >= 3 or (short and (count == 2 or self._telling[place]))
        if identified and same_skill and not missing and not extra:
            return True
        present = (wanted - lost).items()
        evidence = sum(_surprise(self._problems_with[n], self._prompts, n) * times for n, times in present)
        evidence -= math.log(math.comb(count - missing + extra, count - missing)) + missing * _MISSING
        answer = self._solutions[place].words
        number = answer[0] if len(answer) == 1 else ""
        evidence += _ANSWER_WEIGHT * _surprise(self._answer_times[answer], self._prompts, number)
        evidence += _WORDS_WEIGHT * self._coverage(text.content, place)
        return evidence >= _EVIDENCE + (0 if same_skill else _OTHER_SKILL)

    def _is_swapped(self, text: NormalText, place: int, answers: Sequence[GivenAnswer]) -> bool:
        """Whether a question differs only in one or two words, wherever they occur."""
        question = self.texts[place]
        asked = _align(text.words, question.words)
        swapped = {a: b for a, b in zip(question.words, asked, strict=False) if a != b}
        same = tuple(swapped.get(word, word) for word in question.words) == asked
        if not same or len(swapped) > _MAX_SWAPPED or not all(a.isalpha() and b.isalpha() for a, b in swapped.items()):
            return False
        shared = sum(word.isalpha() and word not in swapped for word in question.words)
        if len(text.words) > len(asked) and shared < _NAMED:
            return False  # A few words of a longer text.
        has_numbers, capitals = len(question.numbers) >= 2, all(a in question.capitals for a in swapped)
        if has_numbers and capitals and shared >= _NAMED and all(b in text.capitals for b in swapped.values()):
            return True  # Names: the response is ignored.
        expected = [swapped.get(word, word) if capitals else word for word in self._solutions[place].words]
        return (has_numbers or self._telling[place]) and any(_contains(answer.words, expected) for answer in answers)

    # Most of a long question

    def _is_copied(self, texts: ExampleTexts, place: int, share: float) -> bool:
        """Whether the shared fraction shows a copy, rather than the common wording of the task."""
        if share < _SURE or place not in self._questions:
            return self._is_answered(texts, place, texts.answers)
        return len(self.texts[place].words) >= _SURE_LENGTH or not self._is_other_program(texts, place)


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


def _surprise(times: int, problems: int, number: str) -> float:
    """The negative logarithm of a smoothed frequency. Small whole numbers are assumed to be the most frequent."""
    small = int(number) if number.isascii() and number.isdigit() and len(number) < 6 else 500
    return -math.log((times + _PRIOR * max(0.002, 0.5 / (small + 3))) / (problems + _PRIOR))


def _parts(text: NormalText) -> Iterator[tuple[str, int, int, tuple[str, ...]]]:
    """Keys that texts of at least four words share if words are swapped: without capitalised words, and each third."""
    size = len(text.words)
    if size >= 4:
        yield text.pictures, size, 3, tuple("" if word in text.capitals else word for word in text.words)
        for part in range(3):
            yield text.pictures, size, part, text.words[size * part // 3 : size * (part + 1) // 3]
