"""The check `scorer`: the task's own scorer accepts the response of an example."""

from __future__ import annotations

from collections.abc import Sequence

from palaestra.core.records import Completion, Example, Failure, FailureCause, Score
from palaestra.tasks.scoring import score
from palaestra.teachers.quality.base import Context
from palaestra.teachers.quality.problems import Basis, pose
from palaestra.teachers.quality.records import KEPT, CheckResult, Ruling, drop, not_judged

WRONG, NO_ANSWER = "wrong answer", "no answer in the response"
NOTHING_TO_SCORE_BY = "nothing to score it by"


class Scorer:
    """Drops examples whose response the task scores as wrong; see `palaestra.teachers.quality.problems`."""

    name = "scorer"
    rank = 20
    needed = True

    def judge(self, examples: Sequence[Example], context: Context) -> list[CheckResult | Failure]:
        return [_judge(example, context) for example in examples]


def _judge(example: Example, context: Context) -> CheckResult | Failure:
    try:
        posed = pose(example, context)
        if posed.problem is None:
            return not_judged(NOTHING_TO_SCORE_BY)
        if posed.basis is Basis.CLAIMED and not posed.problem.reference:
            return drop(NO_ANSWER)
    except Exception as error:  # A task may be user code: its errors are failures, not results.
        return Failure(FailureCause.SCORER, f"{type(error).__name__}: {error}")
    outcome = score(context.task, posed.problem, Completion(example.response))
    if isinstance(outcome, Failure):
        return outcome
    if outcome.value >= 1.0:
        return CheckResult(Ruling.KEPT, f"scored by {posed.basis}") if posed.basis is Basis.CLAIMED else KEPT
    return drop(WRONG, _evidence(outcome))


def _evidence(score: Score) -> str:
    """The scorer's evidence in one line. The reference comes from the example or the train split."""
    evidence = score.evidence
    if "expected" in evidence:
        return f"expected {evidence['expected']!r}; got {evidence.get('extracted', evidence.get('answer', ''))!r}"
    return "; ".join(f"{name}: {value}" for name, value in evidence.items() if value)[:300]
