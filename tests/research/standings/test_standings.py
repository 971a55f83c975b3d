"""Standings: best scores over runs, counts of runs, failures that are not zeros, and exact intervals."""

from __future__ import annotations

import pytest

from palaestra.core.records import Failure, FailureCause
from palaestra.core.seeding import Seeds
from palaestra.research.standings.standings import (
    BASELINE,
    Measure,
    MethodCell,
    RunScore,
    Standings,
    TaskScale,
    compare_methods,
)
from palaestra.research.tasks.task import Direction

BROKEN = Failure(FailureCause.SANDBOX, "no room on the disk")
HIGHER, LOWER = Direction.HIGHER, Direction.LOWER
SCALES = {"maze": TaskScale(HIGHER, 2.0, metric="reward"), "loss": TaskScale(LOWER, 4.0)}


def submissions(*scores: float | None, task: str = "maze", method: str = "agent") -> list[RunScore]:
    return [RunScore(task, method, seed, submission=score) for seed, score in enumerate(scores)]


def compute_submission_cell(runs: list[RunScore], task: str = "maze", k: int | None = None) -> MethodCell:
    return compare_methods(runs, SCALES, k=k).profile(Measure.SUBMISSION).cell(task, "agent")


def test_best_attempt_and_best_submission() -> None:
    runs = [
        RunScore("maze", "agent", 0, attempts=(3.0, 9.0, 5.0), submission=5.0),
        RunScore("maze", "agent", 1, attempts=(6.0,), submission=6.0),
        RunScore("loss", "agent", 0, attempts=(3.0, 2.0, 3.5), submission=3.5),
        RunScore("loss", "agent", 1, attempts=(3.2,), submission=3.2),
    ]
    result = compare_methods(runs, SCALES)
    attempt, submission = result.profile(Measure.ATTEMPT), result.profile(Measure.SUBMISSION)
    assert (attempt.cell("maze", "agent").score, submission.cell("maze", "agent").score) == (9.0, 6.0)
    assert (attempt.cell("loss", "agent").score, submission.cell("loss", "agent").score) == (2.0, 3.2)
    assert submission.cell("maze", BASELINE).ratio == pytest.approx(3.0)
    assert submission.cell("loss", BASELINE).ratio == pytest.approx(4.0 / 3.2)


def test_a_run_without_a_score_is_counted_and_is_no_zero() -> None:
    runs = [*submissions(2.5, None), RunScore("maze", "agent", 2, failure=BROKEN)]
    cell = compute_submission_cell(runs)
    assert (cell.score, cell.runs, cell.scored, cell.failures) == (2.5, 3, 1, {"sandbox": 1})
    # Where lower is better, a zero would win.
    lost = [*submissions(3.0, None, task="loss"), RunScore("loss", "agent", 2, failure=BROKEN)]
    assert compute_submission_cell(lost, "loss").score == 3.0
    nothing = compute_submission_cell([RunScore("maze", "agent", 0, failure=BROKEN), RunScore("maze", "agent", 1)])
    assert (nothing.score, nothing.runs, nothing.scored, nothing.feasible) == (None, 2, 0, False)
    assert nothing.ratio == pytest.approx(1.05)


def test_what_was_scored_before_a_failure_still_counts() -> None:
    runs = [RunScore("maze", "agent", 0, attempts=(7.0,), failure=BROKEN), RunScore("maze", "agent", 1, (3.0,), 3.0)]
    result = compare_methods(runs, SCALES)
    attempt, submission = (profile.cell("maze", "agent") for profile in result.profiles)
    assert (attempt.score, attempt.scored, attempt.failures) == (7.0, 2, {})
    assert (submission.score, submission.scored, submission.failures) == (3.0, 1, {"sandbox": 1})


def test_k_takes_the_lowest_seeds() -> None:
    runs = list(reversed(submissions(3.0, 4.0, 9.0)))
    assert [compute_submission_cell(runs, k=k).score for k in (1, 2, 3)] == [3.0, 4.0, 9.0]
    beyond = compute_submission_cell(runs, k=8)
    assert (beyond.score, beyond.runs) == (9.0, 3)
    assert compare_methods(runs, SCALES, k=8).k == 8
    assert compare_methods(runs, SCALES).k == 3


def test_a_task_that_a_method_never_ran_on_is_missing_there() -> None:
    result = compare_methods(submissions(8.0, 6.0), SCALES).profile(Measure.SUBMISSION)
    missing = result.cell("loss", "agent")
    assert (missing.score, missing.runs, missing.feasible) == (None, 0, False)
    assert missing.ratio == pytest.approx(1.05)
    assert (result.area("agent").feasible, result.area(BASELINE).feasible) == (1, 2)


@pytest.mark.parametrize(("task", "worse", "best"), [("maze", 4.0, 6.0), ("loss", 5.0, 3.0)])
def test_interval_is_that_of_the_best_of_a_resample(task: str, worse: float, best: float) -> None:
    # The best of four draws from four runs is the worst run in 1/256 of the draws and at most the third in 16/256:
    # 2.5 % lie between the two, so the interval reaches from the third-best run to the best.
    cell = compute_submission_cell(submissions(3.0, 4.0, 5.0, 6.0, task=task), task)
    assert cell.score == best
    assert (cell.low, cell.high) == (min(worse, best), max(worse, best))


def test_interval_is_open_if_resamples_may_lack_a_score() -> None:
    higher, lower = (
        compute_submission_cell(submissions(5.0, None)),
        compute_submission_cell(submissions(3.0, None, task="loss"), "loss"),
    )
    assert (higher.score, higher.low, higher.high) == (5.0, None, 5.0)
    assert (lower.score, lower.low, lower.high) == (3.0, 3.0, None)


def test_single_run_has_no_interval() -> None:
    runs = [*submissions(5.0), RunScore("maze", "agent", 1, failure=BROKEN), *submissions(3.0, 2.0, task="loss")]
    result = compare_methods(runs, SCALES).profile(Measure.SUBMISSION)
    cell = result.cell("maze", "agent")
    assert (cell.score, cell.low, cell.high, cell.runs) == (5.0, None, None, 2)
    assert (result.area("agent").low, result.area("agent").high) == (None, None)
    assert result.area("agent").runs == 4
    assert result.area(BASELINE).low is None


def test_area_intervals_depend_on_the_seed() -> None:
    runs = [*submissions(2.1, 8.0, 3.0), *submissions(3.9, 1.0, 2.0, task="loss")]
    runs += [*submissions(5.0, 5.0, 5.0, method="steady"), *submissions(2.5, 2.5, 2.5, task="loss", method="steady")]
    result = compare_methods(runs, SCALES, seeds=Seeds(7))
    again = compare_methods(list(reversed(runs)), SCALES, seeds=Seeds(7))
    areas = result.profile(Measure.SUBMISSION)
    for method in ("agent", "steady", BASELINE):
        area = areas.area(method)
        assert area.low is not None
        assert area.high is not None
        assert area.low < area.high
        assert area.low <= area.area <= area.high <= result.limit
        assert again.profile(Measure.SUBMISSION).area(method).area == area.area
    assert again.limit == result.limit
    assert compare_methods(runs, SCALES, seeds=Seeds(7)) == result
    # What cannot vary does not: everyone's runs are alike.
    alike = compare_methods(submissions(5.0, 5.0, 5.0) + submissions(3.0, 3.0, 3.0, task="loss"), SCALES)
    area = alike.profile(Measure.SUBMISSION).area("agent")
    assert area.low == area.area == area.high == pytest.approx(alike.limit)


def test_good_agent_ranks_above_the_baseline() -> None:
    runs = submissions(6.0, 7.0) + submissions(2.0, 2.5, task="loss")
    runs += submissions(2.0, 2.0, method="baseline") + submissions(4.0, 4.0, task="loss", method="baseline")
    profile = compare_methods(runs, SCALES).profile(Measure.SUBMISSION)
    good, baseline = profile.area("agent"), profile.area("baseline")
    assert baseline.high is not None
    assert good.low is not None
    assert good.low > baseline.high
    assert baseline.area == profile.area(BASELINE).area
    assert baseline.feasible == 2


def test_validations_use_the_validation_baseline() -> None:
    scale = TaskScale(HIGHER, baseline=2.0, validation_baseline=6.0)
    run = RunScore("maze", "agent", 0, attempts=(5.0,), submission=5.0)
    attempt, submission = compare_methods([run], {"maze": scale}).profiles
    assert not attempt.cell("maze", "agent").feasible
    assert attempt.cell("maze", BASELINE).score == 6.0
    assert submission.cell("maze", "agent").feasible
    assert submission.cell("maze", BASELINE).score == 2.0


def test_both_profiles_share_one_axis() -> None:
    run = RunScore("maze", "agent", 0, attempts=(200.0,), submission=2.2)
    # 200 / 2 * 1.05 = 105, whose logarithm is 2.02; the submission's own would end at 0.4.
    result = compare_methods([run], {"maze": SCALES["maze"]})
    assert result.limit == pytest.approx(2.1)
    assert result.profile(Measure.SUBMISSION).area("agent").area == pytest.approx(2.1)


def test_standings_come_back_from_a_file_as_they_were() -> None:
    runs = [*submissions(5.0, None), RunScore("loss", "agent", 0, failure=BROKEN)]
    scales = SCALES | {"hopeless": TaskScale(HIGHER, -1.0)}
    result = compare_methods(runs, scales)
    assert result.profile(Measure.SUBMISSION).cell("hopeless", "agent").ratio is None
    assert Standings.model_validate_json(result.model_dump_json()) == result


def test_with_no_runs_there_is_the_baseline_alone() -> None:
    result = compare_methods([], SCALES)
    assert result.methods == (BASELINE,)
    area = result.profile(Measure.SUBMISSION).area(BASELINE)
    assert area.area == pytest.approx(result.limit)
    assert area.low is None
