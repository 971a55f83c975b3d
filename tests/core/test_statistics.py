import math
from dataclasses import replace
from fractions import Fraction
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palaestra.core.records import Attempt, Completion, Failure, FailureCause, Majority, Message, Problem, Score
from palaestra.core.statistics import (
    cluster_interval,
    compare,
    compute_paired_gain,
    find_best,
    find_majority,
    holm,
    is_better,
    mean_interval,
    mean_pass_at_k,
    measure_gain,
    pass_at_k,
    rate_interval,
    report_on,
    sign_flip_test,
    slice_by_metadata,
    t_test,
    wilson_interval,
)


def attempt(name: str, value: float | None, skill: str = "s", subskill: str = "p", *, sample: int = 0) -> Attempt:
    problem = Problem(name, (Message("user", "?"),), "1", skill, subskill)
    outcome = Failure(FailureCause.ENGINE, "broke") if value is None else Score(value)
    return Attempt(problem, Completion("1"), outcome, sample)


@pytest.mark.parametrize(
    ("correct", "count", "low", "high"),
    [(0, 10, 0.0, 0.2775), (5, 10, 0.2366, 0.7634), (10, 10, 0.7225, 1.0), (81, 263, 0.2553, 0.3662)],
)
def test_wilson_matches_published_values(correct: int, count: int, low: float, high: float) -> None:
    # Newcombe (1998), table I, method 3, and its values for 0, 5 and 10 of 10.
    assert wilson_interval(correct, count) == pytest.approx((low, high), abs=2e-4)


def test_wilson_covers_the_true_rate_95_percent_of_the_time() -> None:
    rng = np.random.default_rng(0)
    hits = [
        low <= rate <= high
        for rate in (0.1, 0.5, 0.9)
        for low, high in (wilson_interval(int(k), 40) for k in rng.binomial(40, rate, 2000))
    ]
    assert 0.93 <= np.mean(hits) <= 0.975


def test_the_paired_interval_covers_the_gain_95_percent() -> None:
    rng = np.random.default_rng(1)
    # Both wrong, gained, lost, both right: the true gain is 20 points.
    cells, hits = (0.4, 0.25, 0.05, 0.3), []
    for _ in range(1500):
        draw = rng.choice(4, size=60, p=cells)
        gain = compute_paired_gain((draw >= 2).tolist(), ((draw == 1) | (draw == 3)).tolist())
        hits.append(gain.low <= 20.0 <= gain.high)
    assert 0.93 <= np.mean(hits) <= 0.985


def test_pairing_makes_the_interval_narrower() -> None:
    before = [True] * 50 + [False] * 50
    after = [True] * 70 + [False] * 30
    gain = compute_paired_gain(before, after)
    assert gain.points == 20.0
    assert 0 < gain.low < 20 < gain.high < 35


def test_no_change_has_an_interval_around_zero() -> None:
    gain = compute_paired_gain([True, False] * 20, [True, False] * 20)
    assert gain.points == 0.0
    assert gain.low < 0 < gain.high


def test_a_failure_does_not_count_in_the_accuracy() -> None:
    report = report_on([attempt("a", 1.0), attempt("b", 0.0), attempt("c", None)])
    assert (report.accuracy, report.count, report.correct) == (0.5, 2, 1)
    assert report.failures == {"engine": 1}


def test_all_failures_leave_the_accuracy_unknown() -> None:
    report = report_on([attempt("a", None)])
    assert report.accuracy is None
    assert (report.low, report.high) == (0.0, 1.0)


def test_slices_by_skill_and_subskill_add_up() -> None:
    report = report_on([attempt("a", 1.0, "x", "1"), attempt("b", 0.0, "x", "2"), attempt("c", 1.0, "y", "1")])
    assert [part.name for part in report.slices] == ["x", "y"]
    assert report.slice("x").slice("2").correct == 0
    assert sum(part.count for part in report.slices) == report.count


def test_a_gain_compares_only_problems_scored_both_times() -> None:
    gain = measure_gain([attempt("a", 0.0), attempt("b", None)], [attempt("a", 1.0), attempt("b", 1.0)])
    assert (gain.points, gain.count) == (100.0, 1)


def test_a_gain_of_unequal_lengths_is_refused() -> None:
    with pytest.raises(ValueError, match="equal lengths"):
        compute_paired_gain([True], [])


@given(st.integers(1, 8), st.data())
@settings(max_examples=40, deadline=None)
def test_pass_at_k_is_the_share_of_draws_that_hold_a_pass(samples: int, data: st.DataObject) -> None:
    passed, k = data.draw(st.integers(0, samples)), data.draw(st.integers(1, samples))
    draws = list(combinations([True] * passed + [False] * (samples - passed), k))
    assert pass_at_k(samples, passed, k) == pytest.approx(sum(map(any, draws)) / len(draws))


def test_pass_at_k_checks_counts_and_skips_few_samples() -> None:
    for arguments in ((3, 4, 1), (3, 1, 4), (3, 1, 0), (3, -1, 1)):
        with pytest.raises(ValueError, match="pass@k needs"):
            pass_at_k(*arguments)
    actual = mean_pass_at_k([(1, 2), (2, 2), (0, 1)], 2)
    assert (actual.value, actual.count) == (1.0, 2)


def test_answers_to_one_problem_are_not_counted_as_independent() -> None:
    one_each = wilson_interval(30, 60)
    alike = cluster_interval([(4, 4)] * 30 + [(0, 4)] * 30)  # Four answers that say no more than one.
    mixed = cluster_interval([(2, 4)] * 60)  # As if every answer were drawn anew.
    assert alike == pytest.approx(one_each, abs=0.005)
    assert mixed == wilson_interval(120, 240)
    assert cluster_interval([(4, 4)] * 10) == wilson_interval(10, 10)


def test_the_clustered_interval_covers_the_rate_95_percent() -> None:
    rng = np.random.default_rng(2)
    hits = []
    for _ in range(1500):
        hard = rng.beta(0.8, 0.8, size=50)
        low, high = cluster_interval([(int(k), 4) for k in rng.binomial(4, hard)])
        hits.append(low <= 0.5 <= high)
    assert 0.92 <= np.mean(hits) <= 0.98


def test_rate_interval_is_wilsons_for_zeros_and_ones() -> None:
    actual = rate_interval([1.0] * 7 + [0.0] * 3)
    assert (actual.low, actual.high) == pytest.approx(wilson_interval(7, 10))
    between = rate_interval([0.6, 0.7, 0.8] * 4)
    assert 0 <= actual.low < between.low < 0.7 < between.high < actual.high <= 1
    assert rate_interval([]).count == 0


def test_cuts_run_across_skills_and_leave_out_what_has_none() -> None:
    hard = attempt("a", 1.0, "x"), attempt("b", 0.0, "y"), attempt("c", 0.0, "y")
    marked = [
        replace(a, problem=replace(a.problem, metadata={"level": n})) for a, n in zip(hard, (1, 1, 2), strict=True)
    ]
    cuts = slice_by_metadata([*marked, attempt("d", 1.0)])
    assert {cut: [(part.name, part.correct, part.count) for part in parts] for cut, parts in cuts.items()} == {
        "level": [("1", 1, 2), ("2", 0, 1)]
    }


def make_closed_problem(name: str, reference: str, choices: tuple[str, ...] = ()) -> Problem:
    return Problem(name, (), reference, metadata={"choices": list(choices)} if choices else {})


def test_the_majority_counts_scored_problems_only() -> None:
    problems = [make_closed_problem(str(k), "True" if k < 6 else "false") for k in range(10)]
    attempts = [Attempt(problem, Completion("true"), Score(float(problem.reference == "True"))) for problem in problems]
    assert report_on(attempts).majority == Majority("true", 6, 10)
    failed = [replace(a, outcome=Failure(FailureCause.ENGINE, "")) if a.problem.id < "2" else a for a in attempts]
    assert report_on(failed).majority == Majority("true", 4, 8)
    assert report_on([*attempts, *attempts]).majority == Majority("true", 6, 10)  # Two answers, one problem.


def test_each_set_of_answers_has_its_own_majority() -> None:
    colours = [make_closed_problem(f"c{k}", "red" if k < 3 else "blue", ("red", "blue", "green")) for k in range(5)]
    truths = [make_closed_problem(f"t{k}", "yes" if k < 4 else "no", ("yes", "no")) for k in range(5)]
    assert find_majority([*colours, *truths]) == Majority("", 7, 10)
    assert find_majority([*colours, make_closed_problem("open", "a man")]) is None
    assert find_majority([]) is None


def test_rewordings_count_as_one_problem_in_a_gain() -> None:
    before, after = [0.0] * 30, [1.0, 0.0] * 15
    alone = compute_paired_gain(before, after)
    assert compute_paired_gain(before, after, [str(k) for k in range(30)]) == alone
    repeated = compute_paired_gain(before * 4, after * 4, [str(k) for k in range(30)] * 4)
    assert (repeated.points, repeated.count) == (alone.points, 120)
    assert (repeated.low, repeated.high) == pytest.approx((alone.low, alone.high), abs=0.5)
    independent = compute_paired_gain(before * 4, after * 4)
    assert independent.high - independent.low < 0.6 * (repeated.high - repeated.low)
    same = compute_paired_gain([0.0] * 40, [1.0] * 40, ["a"] * 20 + ["b"] * 20)
    assert same == replace(compute_paired_gain([0.0] * 2, [1.0] * 2), count=40)


def test_the_clustered_interval_of_a_gain_covers_95_percent() -> None:
    rng, covered = np.random.default_rng(0), 0
    clusters = [str(k // 3) for k in range(120)]
    for _ in range(400):
        change = rng.choice([-1.0, 0.0, 1.0], 40, p=[0.1, 0.5, 0.4]).repeat(3)
        gain = compute_paired_gain((change < 0).astype(float).tolist(), (change > 0).astype(float).tolist(), clusters)
        covered += gain.low <= 30 <= gain.high
    assert 0.92 <= covered / 400 <= 0.99


def test_a_mean_of_rates_counts_rewordings_as_one() -> None:
    values = [0.0, 1.0, 0.5, 1.0] * 5
    alone = rate_interval(values)
    repeated = rate_interval(values * 3, [str(k) for k in range(20)] * 3)
    assert (repeated.low, repeated.high) == pytest.approx((alone.low, alone.high), abs=0.01)
    assert rate_interval(values, [str(k) for k in range(20)]) == alone


def test_attempts_know_their_rewordings() -> None:
    def make_reworded_attempt(name: str, content: str, value: float) -> Attempt:
        actual = attempt(name, value)
        return replace(actual, problem=replace(actual.problem, metadata={"content": content}))

    attempts = [make_reworded_attempt(f"{k}/{word}", str(k), float(k % 2)) for k in range(10) for word in range(5)]
    assert (report_on(attempts).low, report_on(attempts).high) == pytest.approx(wilson_interval(5, 10), abs=0.02)
    before = [replace(a, outcome=Score(0.0)) for a in attempts]
    plain = [[attempt(a.problem.id, float(bool(a.correct))) for a in part] for part in (before, attempts)]
    assert measure_gain(before, attempts).low < measure_gain(*plain).low - 10


def attempts(values: dict[str, list[float | None]]) -> list[Attempt]:
    return [
        attempt(name, value, name[0], sample=k) for name, several in values.items() for k, value in enumerate(several)
    ]


@given(st.lists(st.fractions(-1, 1, max_denominator=5), max_size=9))
@settings(max_examples=60, deadline=None)
def test_the_p_value_is_the_fraction_of_larger_sign_flips(changes: list[Fraction]) -> None:
    observed = abs(sum(changes))
    flips = [
        abs(sum(s * c for s, c in zip(signs, changes, strict=True))) for signs in product((1, -1), repeat=len(changes))
    ]
    assert sign_flip_test(changes) == pytest.approx(sum(f >= observed for f in flips) / len(flips))


@pytest.mark.parametrize(("gained", "lost"), [(8, 2), (0, 7), (30, 14), (5, 5), (1, 0)])
def test_for_single_answers_it_is_mcnemars_exact_test(gained: int, lost: int) -> None:
    count = gained + lost
    tail = sum(math.comb(count, k) for k in range(min(gained, lost) + 1)) / 2**count
    changes = [Fraction(1)] * gained + [Fraction(-1)] * lost + [Fraction(0)] * 11
    assert sign_flip_test(changes) == pytest.approx(min(1.0, 2 * tail))


def test_equal_models_differ_significantly_once_in_twenty() -> None:
    rng = np.random.default_rng(0)
    actual = []
    for _ in range(400):
        hard = rng.uniform(size=60)
        item, other = ([Fraction(int(k), 3) for k in rng.binomial(3, hard)] for _ in range(2))
        actual.append(sign_flip_test([a - b for a, b in zip(item, other, strict=True)]) < 0.05)
    assert np.mean(actual) <= 0.08


def test_failures_are_left_out_of_both_sides_and_named() -> None:
    first = attempts({"a1": [0], "a2": [1], "b1": [None], "b2": [1], "b3": [0]})
    second = attempts({"a1": [1], "a2": [1], "b1": [1], "b2": [None], "c1": [1]})
    actual = compare(first, second)
    assert (actual.gain.count, actual.gain.points, actual.better, actual.worse) == (2, 50.0, 1, 0)
    assert actual.unpaired == {"asked of the first only": 1, "asked of the second only": 1, "failed": 2}
    assert (actual.first.correct, actual.second.correct, actual.first.failure_count) == (1, 2, 0)


def test_several_answers_are_compared_by_their_shares() -> None:
    first = attempts({"a1": [1, 0, 0, 0], "b1": [1, 1, 1, 1]})
    second = attempts({"a1": [1, 1, 0, 1], "b1": [1, 1, 1, None]})
    actual = compare(first, second)
    assert actual.gain.points == pytest.approx(100 * (0.5 + 0.0) / 2)
    assert [part.name for part in actual.parts] == ["a", "b"]
    assert actual.parts[0].gain.points == 50.0
    assert actual.p_value == 1.0  # One change can always have had the other sign.


@pytest.mark.parametrize(
    ("freedom", "quantile"), [(1, 12.70620), (2, 4.30265), (3, 3.18245), (4, 2.77645), (9, 2.26216), (30, 2.04227)]
)
def test_the_p_value_is_that_of_the_tables(freedom: int, quantile: float) -> None:
    # Values around a mean so that t is the quantile of 97.5 %.
    spread = np.array([-1.0, 1.0] + [0.0] * (freedom - 1))
    error = np.sqrt(2 / freedom / (freedom + 1))
    assert t_test((spread + quantile * error).tolist()) == pytest.approx(0.05, abs=1e-5)
    assert t_test((spread - quantile * error).tolist()) == pytest.approx(0.05, abs=1e-5)


def test_the_t_test_agrees_with_the_interval() -> None:
    generator = np.random.default_rng(0)
    rejected = 0
    for _ in range(4000):
        values = generator.normal(0.0, 2.0, size=5).tolist()
        p_value, mean = t_test(values), mean_interval(values)
        assert p_value is not None
        assert (p_value < 0.05) == (mean.low > 0 or mean.high < 0)
        rejected += p_value < 0.05
    assert 0.04 < rejected / 4000 < 0.06


def test_several_tests_are_adjusted_in_their_order() -> None:
    assert holm([]) == []
    assert holm([0.2]) == [0.2]
    assert holm([0.01, 0.02, 0.03]) == pytest.approx([0.03, 0.04, 0.04])
    assert holm([0.9, 0.6]) == [1.0, 1.0]


def make_attempts(*outcomes: bool | None) -> list[Attempt]:
    """An attempt at each of the same problems; `None` failed."""
    return [
        Attempt(
            Problem(f"p{k}", (Message("user", f"{k}?"),), "1"),
            None,
            Failure(FailureCause.ENGINE, "lost") if right is None else Score(float(right)),
        )
        for k, right in enumerate(outcomes)
    ]


def test_the_first_of_the_highest_accuracies_is_best() -> None:
    assert find_best([make_attempts(True, False, False)]) == 0
    assert (
        find_best(
            [
                make_attempts(True, False),
                make_attempts(False, False),
                make_attempts(True, True),
                make_attempts(True, True),
            ]
        )
        == 2
    )
    assert find_best([make_attempts(True, False), make_attempts(False, True)]) == 0


def test_losing_hard_problems_makes_no_measurement_better() -> None:
    before, lucky = make_attempts(True, True, False, False), make_attempts(True, None, None, None)
    assert not is_better(lucky, before)
    assert is_better(make_attempts(True, True, None, True), before)


def test_any_score_is_better_than_none() -> None:
    nothing, wrong = make_attempts(None, None), make_attempts(False, False)
    assert is_better(wrong, nothing)
    assert not is_better(nothing, wrong)
    assert not is_better(nothing, nothing)
    assert find_best([nothing, wrong, nothing]) == 1
