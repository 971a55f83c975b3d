"""The check `readable`: the text of an example is intact and fits the student's context."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from palaestra.core.errors import LessonError, SettingsError
from palaestra.core.records import Example, Problem, Split
from palaestra.core.seeding import Seeds
from palaestra.tasks.leakage import COMMON, SHARE, HeldOut
from palaestra.tasks.leakage_texts import LENGTH, normalise
from palaestra.tasks.texts import (
    Grams,
    Hashes,
    digest,
    frequent,
    grams,
    hashes,
    is_number,
    mix,
    pictures,
    without_numbers,
    words,
)
from palaestra.teachers.quality.base import KEPT, CheckResult, Context, Ruling, drop

EMPTY, BROKEN, UNTEACHABLE = "empty", "broken text", "the student cannot be taught it"

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
                        verdicts[place] = drop(UNTEACHABLE, str(error))
        return verdicts


def _text(example: Example) -> CheckResult:
    if not example.response.strip():
        return drop(EMPTY, "the response")
    if not example.messages:
        return drop(EMPTY, "no question")
    if not example.messages[-1].text.strip() and isinstance(example.messages[-1].content, str):
        return drop(EMPTY, "the question")
    for name, text in (*((m.role, m.text) for m in example.messages), ("response", example.response)):
        fault = damage(text)
        if fault:
            return drop(BROKEN, f"{name}: {fault}")
    return KEPT


def damage(text: str) -> str:
    r"""Describe the damage of a text; empty if it is intact.

    >>> damage("café"), damage("cafÃ©"), damage("a\ufffdb")
    ('', 'bytes that were decoded as something else', 'a character that was lost')
    """
    if "\ufffd" in text:
        return "a character that was lost"
    match = _CONTROL.search(text)
    if match:
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
COMMON_GRAMS = 10
"""Word n-grams in more held-out problems than this (and in more than 1 %) are the task's wording and do not count."""


class Duplicates:
    """Drops an example that repeats the question of an earlier one.

    The last messages are compared. Two questions can be duplicates only if all messages before them and all images are
    equal. **Exact** duplicates have equal normalised words. **Near** duplicates share most of their word n-grams: MinHash
    finds candidates, and the exact Jaccard similarity decides. N-grams that many held-out problems share (an instruction, a
    list of tools) do not count.

    The first of several duplicates is kept. The check runs late (`rank`), so that a wrong example does not exclude a
    correct one.

    Arguments:
        threshold: the Jaccard similarity of near duplicates; 1 or more: exact duplicates only.
        length: words in an n-gram.
        numbers: questions with different numbers are different questions.
        response: compare the responses too, so that a question may be taught with several solutions.
    """

    name = "duplicates"
    rank = 50
    needed = False

    def __init__(
        self,
        threshold: float = 0.85,
        length: int = 3,
        *,
        numbers: bool = True,
        response: bool = False,
        permutations: int = 128,
    ) -> None:
        if not (threshold > 0 and length >= 1 and permutations >= 1):
            raise SettingsError(
                "duplicates needs a threshold above 0, and length and permutations of at least 1; "
                f"got {threshold}, {length}, {permutations}"
            )
        self.threshold, self.length, self.permutations = threshold, length, permutations
        self.numbers, self.response = numbers, response

    def judge(self, examples: Sequence[Example], context: Context) -> list[CheckResult]:
        every = [*context.earlier, *examples]
        before = len(context.earlier)
        texts = [self._words(example) for example in every]
        settings = [_setting(example) for example in every]
        first: dict[tuple[str, str], int] = {}
        verdicts: list[CheckResult] = []
        near = self._repeats(texts, settings, context) if self.threshold < 1 else None
        for place, (text, setting) in enumerate(zip(texts, settings, strict=True)):
            key = (setting, " ".join(text))
            known = first.get(key)
            if place < before:
                first.setdefault(key, place)
                if near is not None and known is None:
                    near.add(place, always=True)
            elif known is not None:
                verdicts.append(_repeats(EXACT, known, before))
            elif near is not None and (repeat := near.add(place)) is not None:
                verdicts.append(_repeats(NEAR, repeat[0], before, f", similarity {repeat[1]:.2f}"))
            else:
                first[key] = place
                verdicts.append(KEPT)
        return verdicts

    def grams(self, texts: Sequence[list[str]], settings: Sequence[str], context: Context) -> Grams:
        """The n-grams that questions are compared by."""
        held = [words(problem.messages[-1].text) for several in context.held_out.values() for problem in several]
        sets = grams(texts, self.length)
        if held:
            common = frequent(grams(held, self.length), max(COMMON_GRAMS, len(held) // 100))
            sets = sets.without(common, hashes(map(" ".join, texts)))
        numbers = [" ".join(sorted(filter(is_number, text))) if self.numbers else "" for text in texts]
        return sets.add_salts(hashes(map(digest, settings, numbers)))

    def _repeats(self, texts: Sequence[list[str]], settings: Sequence[str], context: Context) -> Repeats:
        return Repeats(self.grams(texts, settings, context), self.threshold, self.permutations)

    def _words(self, example: Example) -> list[str]:
        asked = words(example.messages[-1].text) if example.messages else []
        return [*asked, "\n", *words(example.response)] if self.response else asked


def _setting(example: Example) -> str:
    """A digest of the images and of all messages before the question."""
    if len(example.messages) == 1 and isinstance(example.messages[0].content, str):
        return ""
    seen = [pictures(message) for message in example.messages]
    texts = [f"{message.role} {' '.join(words(message.text))}" for message in example.messages[:-1]]
    return digest(*seen, *texts)


def _repeats(reason: str, place: int, before: int, detail: str = "") -> CheckResult:
    if place < before:
        return drop(reason, f"of an example of an earlier lesson{detail}")
    return drop(reason, f"of an example of this lesson{detail}", place - before)


BLOCK = 4096
"""Examples that are compared in one batch."""


class Overlap:
    """Drops examples that repeat a held-out problem, word for word or lightly reworded: see `palaestra.tasks.leakage`.

    The lesson environment applies the same check to every lesson. Here it runs before more expensive checks.

    Arguments:
        length: words in an n-gram.
        templates: what to do with the same words and other numbers: `"report"` keeps and counts them, `"drop"` drops them.
    """

    name = "overlap"
    rank = 10
    needed = True

    def __init__(
        self,
        length: int = LENGTH,
        share: float = SHARE,
        *,
        common: int = COMMON,
        templates: Literal["report", "drop"] = "report",
    ) -> None:
        if not (length >= 1 and 0 < share <= 1 and common >= 1 and templates in ("report", "drop")):
            raise SettingsError(
                "overlap needs a length and common of at least 1, a share above 0 and at most 1, and templates as "
                f"report or drop; got {length}, {common}, {share}, {templates!r}"
            )
        self.length, self.share, self.common, self.templates = length, share, common, templates

    def judge(self, examples: Sequence[Example], context: Context) -> list[CheckResult]:
        if not any(context.held_out.values()):
            return [CheckResult(Ruling.NOT_JUDGED, "no held-out problems were given")] * len(examples)
        index = HeldOut(context.held_out, self.length, self.common)
        templates = _Templates(index)
        verdicts: list[CheckResult] = []
        for first in range(0, len(examples), BLOCK):
            verdicts += self._block(examples[first : first + BLOCK], index, templates)
        return verdicts

    def _block(self, examples: Sequence[Example], index: HeldOut, templates: _Templates) -> Iterator[CheckResult]:
        leaks, other_numbers = index.search(examples, self.share)
        for place, (example, leak) in enumerate(zip(examples, leaks, strict=True)):
            if leak is not None:
                yield drop(leak.reason, f"{leak.how} of {leak.problem_id}")
            elif (like := templates.find(example, other_numbers.get(place))) is not None:
                split, problem = like
                reason = f"has the template of a {split} problem"
                yield drop(reason, problem.id) if self.templates == "drop" else CheckResult(Ruling.KEPT, reason)
            else:
                yield KEPT


class _Templates:
    """The held-out problems by their wording, numbers apart."""

    def __init__(self, index: HeldOut) -> None:
        self.index = index
        self._places: dict[tuple[str, str], int] = {}
        for place, text in enumerate(index.texts):
            self._places.setdefault((text.pictures, " ".join(without_numbers(text.words))), place)

    def find(self, example: Example, most: tuple[int, float] | None) -> tuple[Split, Problem] | None:
        """Find a problem whose question differs only in its numbers, or else the problem of the best match `most`."""
        if not example.messages:
            return None
        asked = example.messages[-1]
        place = self._places.get((pictures(asked), " ".join(without_numbers(normalise(asked.text)))))
        place = most[0] if place is None and most is not None else place
        return None if place is None else self.index.held[place]


HASH_BLOCK = 1 << 16
"""N-grams that are hashed at once; they fit into the processor's cache."""
RECALL = 0.999
"""The probability that a pair at the threshold becomes a candidate."""
DOUBT = 4.0
"""Standard deviations by which a signature may underestimate the similarity of a pair that is compared exactly."""


def signatures(sets: Grams, permutations: int = 128, seed: int = 0) -> Hashes:
    """The MinHash signatures of texts, as `signatures_NP`."""
    rng = Seeds(seed).derive("minhash").generator()
    factors_P = rng.integers(1 << 63, size=permutations, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    shifts_P = rng.integers(1 << 63, size=permutations, dtype=np.uint64)
    signatures_NP = np.empty((sets.texts, permutations), dtype=np.uint64)
    first = 0
    while first < sets.texts:
        begin = int(sets.starts_N[first])
        last = max(first + 1, int(np.searchsorted(sets.starts_N, begin + HASH_BLOCK)))
        end = int(sets.starts_N[last]) if last < sets.texts else len(sets.hashes_G)
        block_G, starts = sets.hashes_G[begin:end], sets.starts_N[first:last] - begin
        room_G = np.empty_like(block_G)
        for column in range(permutations):
            # The n-grams are hashes; a multiplication by an odd number permutes them.
            np.multiply(block_G ^ shifts_P[column], factors_P[column], out=room_G)
            signatures_NP[first:last, column] = np.minimum.reduceat(room_G, starts)
        first = last
    return signatures_NP


def rows_a_band(permutations: int, threshold: float, recall: float = RECALL) -> int:
    """The maximum rows per band with which a pair at `threshold` becomes a candidate with probability `recall`.

    >>> rows_a_band(128, 0.8)
    5
    """
    for rows in range(permutations, 1, -1):
        if 1 - (1 - threshold**rows) ** (permutations // rows) >= recall:
            return rows
    return 1


def band_keys(signatures_NP: Hashes, rows: int) -> Hashes:
    """One hash per band, as `keys_NB`."""
    count, permutations = signatures_NP.shape
    keys_NB = np.zeros((count, permutations // rows), dtype=np.uint64)
    for row in range(rows):
        keys_NB = mix(keys_NB + signatures_NP[:, row : keys_NB.shape[1] * rows : rows])
    return keys_NB


def jaccard(first: frozenset[int], other: frozenset[int]) -> float:
    """The Jaccard similarity of two sets, from 0 to 1; 1 for two empty sets."""
    both = len(first & other)
    every = len(first) + len(other) - both
    return both / every if every else 1.0


class Repeats:
    """Finds near duplicates among texts that are added one by one.

    Arguments:
        sets: the n-grams of the texts, in order.
        threshold: the Jaccard similarity of near duplicates.
    """

    def __init__(self, sets: Grams, threshold: float, permutations: int = 128, seed: int = 0) -> None:
        self.sets, self.threshold = sets, threshold
        self.signatures_NP = signatures(sets, permutations, seed)
        keys_NB = band_keys(self.signatures_NP, rows_a_band(permutations, threshold))
        self._buckets = _find_buckets(keys_NB)
        self._members: dict[int, list[int]] = {}
        self._grams: dict[int, frozenset[int]] = {}
        spread = math.sqrt(threshold * (1 - threshold) / permutations)
        self._least = (threshold - DOUBT * spread) * permutations

    def add(self, text: int, always: bool = False) -> tuple[int, float] | None:
        """Return the first text that `text` nearly repeats, with their similarity; if there is none, add `text`.

        Arguments:
            always: add `text` without a comparison.
        """
        own = self._buckets[text]
        match = None if always else self._find_repeat(text, own)
        if match is None:
            for bucket in own:
                self._members.setdefault(bucket, []).append(text)
        return match

    def _find_repeat(self, text: int, own: list[int]) -> tuple[int, float] | None:
        near = sorted({other for bucket in own for other in self._members.get(bucket, ())})
        if not near:
            return None
        alike = (self.signatures_NP[near] == self.signatures_NP[text]).sum(axis=1)
        for other in np.array(near)[alike >= self._least].tolist():
            similarity = jaccard(self._set(text), self._set(other))
            if similarity >= self.threshold:
                return other, similarity
        return None

    def _set(self, text: int) -> frozenset[int]:
        if text not in self._grams:
            self._grams[text] = frozenset(self.sets.get(text).tolist())
        return self._grams[text]


def _find_buckets(keys_NB: Hashes) -> list[list[int]]:
    """For each text the numbers of the buckets that it shares with another text."""
    buckets: list[list[int]] = [[] for _ in range(len(keys_NB))]
    first = 0
    for band in range(keys_NB.shape[1]):
        _, inverse_N, counts = np.unique(keys_NB[:, band], return_inverse=True, return_counts=True)
        members: npt.NDArray[np.int64] = np.flatnonzero(counts[inverse_N] > 1)
        for text, bucket in zip(members.tolist(), (inverse_N[members] + first).tolist(), strict=True):
            buckets[text].append(bucket)
        first += len(counts)
    return buckets
