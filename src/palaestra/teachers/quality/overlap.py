"""The check `overlap`: no example repeats a held-out problem.

An example with the wording of a problem and other numbers is kept and counted by split, because procedural tasks share
wordings by design. Such examples are dropped only on request.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from palaestra.core.errors import SettingsError
from palaestra.core.records import Example, Problem, Split
from palaestra.tasks.leakage import COMMON, SHARE, HeldOut
from palaestra.tasks.leakage_texts import LENGTH, normalise
from palaestra.tasks.texts import pictures, without_numbers
from palaestra.teachers.quality.base import Context
from palaestra.teachers.quality.records import KEPT, CheckResult, Ruling, drop

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
