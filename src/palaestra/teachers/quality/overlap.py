"""No problem that is measured on gets into a lesson.

Two kinds of overlap are told apart. **The same problem**: the question itself, or most of its stretches of eight
words, as PaLM's authors looked for it (Chowdhery et al., 2022: 70 % of the 8-grams), with all of its numbers. That is
dropped. **The same template**: the same words, or most of them, with other numbers. Tasks that draw their problems
share templates by design, and to practise with other numbers is what lessons are for; so that is counted, by split,
and dropped only on request.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np

from palaestra.core.errors import SettingsError
from palaestra.core.records import Example, Message, Problem, Split
from palaestra.teachers.quality.base import Context
from palaestra.teachers.quality.records import KEPT, Ruling, Verdict, dropped
from palaestra.teachers.quality.texts import (
    Grams,
    Hashes,
    among,
    distinct,
    frequent,
    grams,
    hashes,
    is_number,
    pictures,
    without_numbers,
    words,
)

BLOCK = 4096
"""Examples that are looked at together."""
Shares = dict[int, tuple[int, float]]
"""Of an example: a problem, and how much of it is there."""
_SEVEREST = (Split.TEST, Split.VALIDATION, Split.TRAIN)


class Overlap:
    """Drops what repeats a held-out problem.

    An example overlaps if one of its messages is the problem's question, word for word in normal form, or if its
    messages and response together hold at least `share` of the question's 8-grams and all of its numbers. Short
    questions have no 8-grams: they are only ever found as a whole, for `3 + 4` is in every second calculation. Grams
    that more than `common` problems share are the task's wording and do not count. Questions about images overlap only
    with the same images.

    Arguments:
        length: words in a stretch.
        templates: what becomes of the same words with other numbers: `"report"` keeps and counts them.
    """

    name = "overlap"
    rank = 10
    needed = True

    def __init__(
        self,
        length: int = 8,
        share: float = 0.7,
        *,
        common: int = 10,
        templates: Literal["report", "drop"] = "report",
    ) -> None:
        if not (length >= 1 and 0 < share <= 1 and common >= 1 and templates in ("report", "drop")):
            raise SettingsError(
                "overlap needs a length and common of at least 1, a share above 0 and at most 1, and templates as "
                f"report or drop; got {length}, {common}, {share}, {templates!r}"
            )
        self.length, self.share, self.common, self.templates = length, share, common, templates

    def judge(self, examples: Sequence[Example], context: Context) -> list[Verdict]:
        held = [(split, p) for split in _SEVEREST for p in context.held_out.get(split, ())]
        if not held:
            return [Verdict(Ruling.NOT_JUDGED, "no held-out problems were given")] * len(examples)
        index = _Index(held, self.length, self.common)
        verdicts: list[Verdict] = []
        for first in range(0, len(examples), BLOCK):
            verdicts += self._block(examples[first : first + BLOCK], index)
        return verdicts

    def _block(self, examples: Sequence[Example], index: _Index) -> Iterator[Verdict]:
        asked = [[(words(m.text), pictures(m)) for m in example.messages] for example in examples]
        parts = [
            (place, *part)
            for place, (example, several) in enumerate(zip(examples, asked, strict=True))
            for part in (*several, (words(example.response), ""))
        ]
        same_numbers, other_numbers = index.shares(parts, self.share)
        for place, several in enumerate(asked):
            same = next((found for text, seen in several if (found := index.same(text, seen)) is not None), None)
            if same is not None:
                split, problem = index.held[same]
                yield dropped(f"repeats a {split} problem", f"the question of {problem.id}")
            elif place in same_numbers:
                at, share = same_numbers[place]
                split, problem = index.held[at]
                yield dropped(f"repeats a {split} problem", f"{share:.0%} of the {self.length}-grams of {problem.id}")
            elif several and (like := index.template(*several[-1], other_numbers.get(place))) is not None:
                split, problem = index.held[like]
                reason = f"has the template of a {split} problem"
                yield dropped(reason, problem.id) if self.templates == "drop" else Verdict(Ruling.KEPT, reason)
            else:
                yield KEPT


class _Index:
    """The held-out problems, to be looked up by their questions, templates and grams."""

    def __init__(self, held: Sequence[tuple[Split, Problem]], length: int, common: int) -> None:
        self.held, self.length = held, length
        texts = [_asked(problem.messages) for _, problem in held]
        self._same: dict[tuple[str, str], int] = {}
        self._templates: dict[tuple[str, str], int] = {}
        for at, (text, seen) in enumerate(texts):
            self._same.setdefault((seen, " ".join(text)), at)
            self._templates.setdefault((seen, " ".join(without_numbers(text))), at)
        long = np.array([at for at, (text, _) in enumerate(texts) if len(text) >= length], dtype=np.int64)
        own = _salted([texts[at] for at in long.tolist()], length)
        rare_G = ~among(own.hashes_G, frequent(own, common)) if own.texts else np.zeros(0, dtype=np.bool_)
        self._grams, self._owners = distinct(own.hashes_G[rare_G], long[own.owners_G[rare_G]])
        self._counts = np.bincount(self._owners, minlength=len(held))

    def same(self, text: Sequence[str], seen: str) -> int | None:
        """The problem with just this question."""
        return self._same.get((seen, " ".join(text)))

    def template(self, text: Sequence[str], seen: str, most: tuple[int, float] | None) -> int | None:
        """A problem with this question but for its numbers; else the one of which most is there."""
        same = self._templates.get((seen, " ".join(without_numbers(text))))
        return most[0] if same is None and most is not None else same

    def shares(self, parts: Sequence[tuple[int, list[str], str]], least: float) -> tuple[Shares, Shares]:
        """The problem of which an example holds the most grams, and how many, where that is at least `least`.

        Once of problems all of whose numbers are in the example, once of the others.

        Arguments:
            parts: texts of examples, each with the place of its example and the images that it is about.
        """
        if not len(self._grams) or not parts:
            return {}, {}
        found = _salted([(text, seen) for _, text, seen in parts], self.length)
        places_T = np.array([place for place, _, _ in parts], dtype=np.int64)
        hit_G = among(found.hashes_G, self._grams)
        hashes_H, examples_H = distinct(found.hashes_G[hit_G], places_T[found.owners_G[hit_G]])
        begin = np.searchsorted(self._grams, hashes_H, "left")
        times = np.searchsorted(self._grams, hashes_H, "right") - begin
        problems = self._owners[np.arange(int(times.sum())) + np.repeat(begin - (np.cumsum(times) - times), times)]
        both = np.repeat(examples_H, times) * len(self.held) + problems
        codes, counts = np.unique(both, return_counts=True)
        examples_C, problems_C = np.divmod(codes, len(self.held))
        shares_C = counts / self._counts[problems_C]
        best: tuple[Shares, Shares] = ({}, {})
        numbers: dict[int, Counter[str]] = {}
        close = np.flatnonzero(shares_C >= least - 1e-12)
        wanted = set(examples_C[close].tolist())
        for place, text, _ in parts:
            if place in wanted:
                numbers.setdefault(place, Counter()).update(filter(is_number, text))
        for k in close.tolist():
            example, problem, share = int(examples_C[k]), int(problems_C[k]), float(shares_C[k])
            kind = best[0] if self._numbers(problem) <= numbers[example] else best[1]
            if example not in kind or share > kind[example][1]:
                kind[example] = (problem, share)
        return best

    def _numbers(self, at: int) -> Counter[str]:
        return Counter(filter(is_number, words(self.held[at][1].messages[-1].text)))


def _asked(messages: Sequence[Message]) -> tuple[list[str], str]:
    """A problem's own question: what comes before it, worked problems for example, is of the train split."""
    return words(messages[-1].text), pictures(messages[-1])


def _salted(texts: Sequence[tuple[list[str], str]], length: int) -> Grams:
    salts: Hashes = hashes(seen for _, seen in texts)
    return grams([text for text, _ in texts], length).salted(salts)
