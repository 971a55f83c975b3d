"""The check `solved`: drops examples that the student already solves."""

from __future__ import annotations

from collections.abc import Sequence

from palaestra.core.errors import SettingsError
from palaestra.core.records import Attempt, Example, Failure, Problem
from palaestra.tasks.texts import hashes
from palaestra.teachers.quality.base import Context
from palaestra.teachers.quality.problems import make_problem_id, pose
from palaestra.teachers.quality.records import KEPT, CheckResult, Ruling, drop, not_judged

SOLVED = "already solved"
"""The reason of dropped and kept examples alike; `CheckReport.share(SOLVED)` is the fraction that the student solves."""
NO_STUDENT, NOTHING_TO_SCORE_BY = "no student to ask", "nothing to score the student by"


class Solved:
    """Drops examples that the current student always answers correctly.

    Arguments:
        stay: the fraction of such examples to keep, against forgetting; 0 drops all, 1 only counts them. The choice
            depends on the example alone.
    """

    name = "solved"
    rank = 60
    needed = False

    def __init__(self, stay: float = 0.0) -> None:
        if not 0 <= stay <= 1:
            raise SettingsError(f"solved needs a share to stay from 0 to 1; got {stay}")
        self.stay = stay

    def judge(self, examples: Sequence[Example], context: Context) -> list[CheckResult | Failure]:
        from palaestra.tasks.evaluate import evaluate

        if context.engine is None:
            return [not_judged(NO_STUDENT)] * len(examples)
        posed = [pose(example, context).problem for example in examples]
        problems = {p.id: p for p in posed if p is not None and p.reference}
        attempts = evaluate(
            context.task,
            list(problems.values()),
            context.engine,
            sampling=context.sampling,
            seed=context.seed,
            phase=self.name,
            keep=context.keep,
        )
        by_id: dict[str, list[Attempt]] = {}
        for attempt in attempts:
            by_id.setdefault(attempt.problem.id, []).append(attempt)
        return [self._judge(e, p, by_id) for e, p in zip(examples, posed, strict=True)]

    def _judge(
        self, example: Example, problem: Problem | None, attempts: dict[str, list[Attempt]]
    ) -> CheckResult | Failure:
        tries = attempts.get(problem.id, []) if problem is not None else []
        if not tries:
            return not_judged(NOTHING_TO_SCORE_BY)
        if any(attempt.correct is False for attempt in tries):
            return KEPT
        for attempt in tries:
            if isinstance(attempt.outcome, Failure):
                return attempt.outcome
        chance = int(hashes([make_problem_id(example)])[0]) / 2**64
        if chance < self.stay:
            return CheckResult(Ruling.KEPT, SOLVED)
        return drop(SOLVED, f"{len(tries)} of {len(tries)} answers are right")
