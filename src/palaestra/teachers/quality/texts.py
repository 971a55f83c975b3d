"""Checks of the text of examples: `readable`, `duplicates` and `overlap`."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Hashable, Sequence

from palaestra.core.errors import LessonError, SettingsError
from palaestra.core.records import Example, Message
from palaestra.tasks.leakage import COMMON, SHARE, HeldOut
from palaestra.tasks.readings import is_number
from palaestra.tasks.texts import LENGTH, digest_texts, normalize, pictures, without_numbers, words
from palaestra.teachers.quality.base import KEPT, CheckResult, Context, Ruling, drop, not_judged

_EMPTY, _BROKEN, _UNTEACHABLE = "empty", "broken text", "the student cannot be taught it"

_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ufffe\uffff]")


class Readable:
    """Drops examples that are empty, damaged, or too long for the student's context."""

    name = "readable"
    rank = 0
    needed = True

    def judge(self, examples: Sequence[Example], context: Context) -> list[CheckResult]:
        verdicts = [_text(example) for example in examples]
        good = [example for example, verdict in zip(examples, verdicts, strict=True) if verdict is KEPT]
        if context.student is None or not good:
            return verdicts
        try:
            context.student.check(good)  # One call for all is faster; most lessons pass.
        except LessonError:
            for place, example in enumerate(examples):
                if verdicts[place] is KEPT:
                    try:
                        context.student.check([example])
                    except LessonError as error:
                        verdicts[place] = drop(_UNTEACHABLE, str(error))
        return verdicts


def _text(example: Example) -> CheckResult:
    if not example.response.strip():
        return drop(_EMPTY, "the response")
    if not example.messages:
        return drop(_EMPTY, "no question")
    if not example.messages[-1].text.strip() and isinstance(example.messages[-1].content, str):
        return drop(_EMPTY, "the question")
    for name, text in (*((m.role, m.text) for m in example.messages), ("response", example.response)):
        if fault := _damage(text):
            return drop(_BROKEN, f"{name}: {fault}")
    return KEPT


def _damage(text: str) -> str:
    r"""Describe the damage of a text; empty if it is intact.

    >>> _damage("café"), _damage("cafÃ©"), _damage("a\ufffdb")
    ('', 'bytes that were decoded as something else', 'a character that was lost')
    """
    if "\ufffd" in text:
        return "a character that was lost"
    if match := _CONTROL.search(text):
        return f"the control character {match.group()!r}"
    if text.isascii():
        return ""
    try:
        # UTF-8 that was decoded as Windows-1252 can be converted back; intact text almost never can.
        text.encode("cp1252").decode("utf-8")
    except UnicodeError:
        return ""
    return "bytes that were decoded as something else"


EXACT, NEAR = "exact duplicate", "near duplicate"
_COMMON_GRAMS = 10
"""Word n-grams in more held-out problems than this (and in more than 1 %) are the task's wording and do not count."""
NGRAM = 3
"""Words in an n-gram of a question."""

WordGrams = frozenset[tuple[str, ...]]


class Duplicates:
    """Drops an example that repeats the question of an earlier one.

    The last messages are compared. Two questions can be duplicates only if all messages before them, all images and all
    numbers are equal. **Exact** duplicates have equal normalised words. **Near** duplicates share most of their word
    n-grams. N-grams that many held-out problems share (an instruction, a list of tools) do not count.

    The first of several duplicates is kept. The check runs late (`rank`), so that a wrong example does not exclude a
    correct one.

    Arguments:
        threshold: the minimum Jaccard similarity of near duplicates.
    """

    name = "duplicates"
    rank = 50
    needed = False

    def __init__(self, threshold: float = 0.85) -> None:
        if not 0 < threshold <= 1:
            raise SettingsError(f"duplicates needs a threshold above 0 and at most 1; got {threshold}")
        self.threshold = threshold

    def judge(self, examples: Sequence[Example], context: Context) -> list[CheckResult]:
        earlier = len(context.earlier)
        every = [*context.earlier, *examples]
        texts = [words(example.messages[-1].text) if example.messages else [] for example in every]
        settings = [_setting(example) for example in every]
        common = _common_grams(context)
        grams = [cut_grams(text) - common or frozenset({tuple(text)}) for text in texts]
        groups = [(setting, *sorted(filter(is_number, text))) for setting, text in zip(settings, texts, strict=True)]
        first: dict[tuple[str, tuple[str, ...]], int] = {}
        index = NearDuplicates(grams, groups, self.threshold)
        verdicts: list[CheckResult] = []
        for place, (setting, text) in enumerate(zip(settings, texts, strict=True)):
            known = first.setdefault((setting, tuple(text)), place)
            if place < earlier:
                if known == place:
                    index.add(place)
            elif known != place:
                verdicts.append(_repeats(EXACT, known, earlier))
            elif (repeat := index.find(place)) is not None:
                del first[setting, tuple(text)]
                verdicts.append(_repeats(NEAR, repeat[0], earlier, f", similarity {repeat[1]:.2f}"))
            else:
                index.add(place)
                verdicts.append(KEPT)
        return verdicts


class NearDuplicates:
    """Finds near duplicates without comparing all pairs, by prefix filtering (Bayardo et al., 2007).

    Two sets with a Jaccard similarity of at least `threshold` share one of their rarest elements. So only these are
    indexed, and candidates are compared exactly.

    Arguments:
        sets: the n-grams of each text.
        groups: a key of each text; only texts of the same group are compared.
    """

    def __init__(self, sets: Sequence[WordGrams], groups: Sequence[Hashable], threshold: float) -> None:
        self.sets, self.groups, self.threshold = sets, groups, threshold
        self._counts = Counter(gram for grams in sets for gram in grams)
        self._members: dict[tuple[Hashable, tuple[str, ...]], list[int]] = {}

    def add(self, place: int) -> None:
        for gram in self._prefix(place):
            self._members.setdefault((self.groups[place], gram), []).append(place)

    def find(self, place: int) -> tuple[int, float] | None:
        """Return the first added text that the text at `place` nearly repeats, with their similarity."""
        keys = ((self.groups[place], gram) for gram in self._prefix(place))
        for other in sorted({other for key in keys for other in self._members.get(key, ())}):
            similarity = jaccard(self.sets[place], self.sets[other])
            if similarity >= self.threshold:
                return other, similarity
        return None

    def _prefix(self, place: int) -> list[tuple[str, ...]]:
        own = self.sets[place]
        ordered = sorted(own, key=lambda gram: (self._counts[gram], gram))
        return ordered[: len(own) - math.ceil(self.threshold * len(own)) + 1]


def cut_grams(text: Sequence[str]) -> WordGrams:
    """All n-grams of a text; a shorter text is a single one."""
    return frozenset(tuple(text[k : k + NGRAM]) for k in range(max(1, len(text) - NGRAM + 1)))


def jaccard(first: WordGrams, other: WordGrams) -> float:
    """The Jaccard similarity of two sets that are not empty, from 0 to 1."""
    both = len(first & other)
    return both / (len(first) + len(other) - both)


def _common_grams(context: Context) -> WordGrams:
    """The n-grams of many held-out problems."""
    held = [cut_grams(words(p.messages[-1].text)) for several in context.held_out.values() for p in several]
    counts = Counter(gram for grams in held for gram in grams)
    most = max(_COMMON_GRAMS, len(held) // 100)
    return frozenset(gram for gram, count in counts.items() if count > most)


def _setting(example: Example) -> str:
    """A digest of the images and of all messages before the question."""
    if len(example.messages) == 1 and isinstance(example.messages[0].content, str):
        return ""
    seen = [pictures(message) for message in example.messages]
    texts = [f"{message.role} {' '.join(words(message.text))}" for message in example.messages[:-1]]
    return digest_texts(*seen, *texts)


def _repeats(reason: str, place: int, earlier: int, detail: str = "") -> CheckResult:
    lesson, other = ("an earlier", None) if place < earlier else ("this", place - earlier)
    return drop(reason, f"of an example of {lesson} lesson{detail}", other)


class Overlap:
    """Drops examples that repeat a held-out problem, word for word or lightly reworded: see `palaestra.tasks.leakage`.

    The lesson environment applies the same check to every lesson. Here it runs before more expensive checks. An example
    with the wording of a problem and other numbers is kept with a remark, because procedural tasks share wordings.
    """

    name = "overlap"
    rank = 10
    needed = True

    def judge(self, examples: Sequence[Example], context: Context) -> list[CheckResult]:
        if not any(context.held_out.values()):
            return [not_judged("no held-out problems were given")] * len(examples)
        index = HeldOut(context.held_out, LENGTH, COMMON)
        templates: dict[tuple[str, ...], int] = {}
        for place, text in enumerate(index.texts):
            templates.setdefault((text.pictures, *without_numbers(text.words)), place)
        leaks, other_numbers = index.search(examples, SHARE)
        verdicts: list[CheckResult] = []
        for place, (example, leak) in enumerate(zip(examples, leaks, strict=True)):
            asked = example.messages[-1] if example.messages else Message("user", "")
            like = templates.get((pictures(asked), *without_numbers(normalize(asked.text))))
            if like is None and place in other_numbers:
                like = other_numbers[place][0]
            if leak is not None:
                verdicts.append(drop(leak.reason, f"{leak.how} of {leak.problem_id}"))
            elif like is not None:
                verdicts.append(CheckResult(Ruling.KEPT, f"has the template of a {index.held[like][0]} problem"))
            else:
                verdicts.append(KEPT)
        return verdicts
