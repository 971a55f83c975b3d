"""The check `duplicates`: exact and near duplicates within a lesson and of earlier lessons."""

from __future__ import annotations

from collections.abc import Sequence

from palaestra.core.errors import SettingsError
from palaestra.core.records import Example
from palaestra.tasks.texts import Grams, digest, frequent, grams, hashes, is_number, pictures, words
from palaestra.teachers.quality.base import Context
from palaestra.teachers.quality.minhash import Repeats
from palaestra.teachers.quality.records import KEPT, CheckResult, drop

EXACT, NEAR = "exact duplicate", "near duplicate"
COMMON = 10
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
            common = frequent(grams(held, self.length), max(COMMON, len(held) // 100))
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
