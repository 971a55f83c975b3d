"""Nothing is asked twice: exact and near duplicates, within a lesson and of what was taught before."""

from __future__ import annotations

from collections.abc import Sequence

from palaestra.core.errors import SettingsError
from palaestra.core.records import Example
from palaestra.tasks.texts import Grams, digest, frequent, grams, hashes, is_number, pictures, words
from palaestra.teachers.quality.base import Context
from palaestra.teachers.quality.minhash import Repeats
from palaestra.teachers.quality.records import KEPT, Verdict, dropped

EXACT, NEAR = "exact duplicate", "near duplicate"
COMMON = 10
"""Grams that more than so many held-out problems (and more than one in a hundred) share are the task's wording."""


class Duplicates:
    """Drops an example that asks what an earlier one asks.

    Compared is the last message. Two questions can only be duplicates if all before it, the images included, is the
    same. **Exact** are equal words in normal form. **Near** are questions whose stretches of words are mostly the
    same: MinHash finds candidates, and the exact Jaccard similarity decides. What many held-out problems have in
    common (an instruction, a list of tools) is no part of a question and does not count.

    Of several, the first stays. It comes late (`rank`), so that a wrong example does not keep a right one out.

    Arguments:
        threshold: the Jaccard similarity from which two questions count as one; 1 or more looks for exact ones only.
        length: words in a stretch.
        numbers: questions with other numbers are other questions, however alike their words.
        response: compare the responses too: the same question may be taught with other reasoning.
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

    def judge(self, examples: Sequence[Example], context: Context) -> list[Verdict]:
        every = [*context.earlier, *examples]
        before = len(context.earlier)
        texts = [self._words(example) for example in every]
        settings = [_setting(example) for example in every]
        first: dict[tuple[str, str], int] = {}
        verdicts: list[Verdict] = []
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
            elif near is not None and (found := near.add(place)) is not None:
                verdicts.append(_repeats(NEAR, found[0], before, f", similarity {found[1]:.2f}"))
            else:
                first[key] = place
                verdicts.append(KEPT)
        return verdicts

    def grams(self, texts: Sequence[list[str]], settings: Sequence[str], context: Context) -> Grams:
        """What two questions are compared by."""
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
    """What must be the same before two questions can be: the images, and all that was said before."""
    if len(example.messages) == 1 and isinstance(example.messages[0].content, str):
        return ""
    seen = [pictures(message) for message in example.messages]
    said = [f"{message.role} {' '.join(words(message.text))}" for message in example.messages[:-1]]
    return digest(*seen, *said)


def _repeats(reason: str, place: int, before: int, detail: str = "") -> Verdict:
    if place < before:
        return dropped(reason, f"of an example of an earlier lesson{detail}")
    return dropped(reason, f"of an example of this lesson{detail}", place - before)
