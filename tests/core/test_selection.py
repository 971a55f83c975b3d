from palaestra.core.records import Attempt, Failure, FailureCause, Message, Problem, Score
from palaestra.core.selection import find_best, is_better


def measured(*outcomes: bool | None) -> list[Attempt]:
    """An attempt at each of the same problems; `None` failed."""
    return [
        Attempt(
            Problem(f"p{k}", (Message("user", f"{k}?"),), "1"), None,
            Failure(FailureCause.ENGINE, "lost") if right is None else Score(float(right)),
        )
        for k, right in enumerate(outcomes)
    ]  # fmt: skip


def test_the_highest_accuracy_is_the_best_and_of_equals_the_first() -> None:
    assert find_best([measured(True, False, False)]) == 0
    assert find_best([measured(True, False), measured(False, False), measured(True, True), measured(True, True)]) == 2
    assert find_best([measured(True, False), measured(False, True)]) == 0


def test_a_measurement_that_lost_its_hard_problems_is_not_better_for_it() -> None:
    before, lucky = measured(True, True, False, False), measured(True, None, None, None)
    assert not is_better(lucky, before)
    assert is_better(measured(True, True, None, True), before)


def test_anything_scored_is_better_than_nothing_and_nothing_is_better_than_no_less() -> None:
    nothing, wrong = measured(None, None), measured(False, False)
    assert is_better(wrong, nothing)
    assert not is_better(nothing, wrong)
    assert not is_better(nothing, nothing)
    assert find_best([nothing, wrong, nothing]) == 1
