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


def test_wilson_covers_the_true_rate_about_95_percent_of_the_time() -> None:
    rng = np.random.default_rng(0)
    hits = [
        low <= rate <= high
        for rate in (0.1, 0.5, 0.9)
        for low, high in (wilson_interval(int(k), 40) for k in rng.binomial(40, rate, 2000))
    ]
    assert 0.93 <= np.mean(hits) <= 0.975


def test_the_paired_interval_covers_the_true_gain_about_95_percent_of_the_time() -> None:
    rng = np.random.default_rng(1)
    # Both wrong, gained, lost, both right: the true gain is 20 points.
    cells, hits = (0.4, 0.25, 0.05, 0.3), []
    for _ in range(1500):
        draw = rng.choice(4, size=60, p=cells)
        gain = compute_paired_gain((draw >= 2).tolist(), ((draw == 1) | (draw == 3)).tolist())
        hits.append(gain.low <= 20.0 <= gain.high)
    assert 0.93 <= np.mean(hits) <= 0.985


def test_pairing_makes_the_interval_narrower_than_two_independent_rates() -> None:
    before = [True] * 50 + [False] * 50
    after = [True] * 70 + [False] * 30
    gain = compute_paired_gain(before, after)
    assert gain.points == 20.0
    assert 0 < gain.low < 20 < gain.high < 35


def test_no_change_has_an_interval_around_zero() -> None:
    gain = compute_paired_gain([True, False] * 20, [True, False] * 20)
    assert gain.points == 0.0
    assert gain.low < 0 < gain.high


def test_a_failure_is_counted_beside_the_accuracy_and_never_inside_it() -> None:
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


def test_pass_at_k_of_nonsense_is_refused_and_of_too_few_samples_left_out() -> None:
    for arguments in ((3, 4, 1), (3, 1, 4), (3, 1, 0), (3, -1, 1)):
        with pytest.raises(ValueError, match="pass@k needs"):
            pass_at_k(*arguments)
    found = mean_pass_at_k([(1, 2), (2, 2), (0, 1)], 2)
    assert (found.value, found.count) == (1.0, 2)


def test_answers_to_one_problem_are_not_counted_as_independent() -> None:
    one_each = wilson_interval(30, 60)
    alike = cluster_interval([(4, 4)] * 30 + [(0, 4)] * 30)  # Four answers that say no more than one.
    mixed = cluster_interval([(2, 4)] * 60)  # As if every answer were drawn anew.
    assert alike == pytest.approx(one_each, abs=0.005)
    assert mixed == wilson_interval(120, 240)
    assert cluster_interval([(4, 4)] * 10) == wilson_interval(10, 10)


def test_the_clustered_interval_covers_the_true_rate_about_95_percent_of_the_time() -> None:
    rng = np.random.default_rng(2)
    hits = []
    for _ in range(1500):
        hard = rng.beta(0.8, 0.8, size=50)
        low, high = cluster_interval([(int(k), 4) for k in rng.binomial(4, hard)])
        hits.append(low <= 0.5 <= high)
    assert 0.92 <= np.mean(hits) <= 0.98


def test_the_interval_of_a_mean_of_rates_is_wilsons_for_zeros_and_ones_and_narrower_between_them() -> None:
    found = rate_interval([1.0] * 7 + [0.0] * 3)
    assert (found.low, found.high) == pytest.approx(wilson_interval(7, 10))
    between = rate_interval([0.6, 0.7, 0.8] * 4)
    assert 0 <= found.low < between.low < 0.7 < between.high < found.high <= 1
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


def closed(name: str, reference: str, choices: tuple[str, ...] = ()) -> Problem:
    return Problem(name, (), reference, metadata={"choices": list(choices)} if choices else {})


def test_the_majority_class_is_that_of_the_problems_that_were_scored() -> None:
    problems = [closed(str(k), "True" if k < 6 else "false") for k in range(10)]
    attempts = [Attempt(problem, Completion("true"), Score(float(problem.reference == "True"))) for problem in problems]
    assert report_on(attempts).majority == Majority("true", 6, 10)
    failed = [replace(a, outcome=Failure(FailureCause.ENGINE, "")) if a.problem.id < "2" else a for a in attempts]
    assert report_on(failed).majority == Majority("true", 4, 8)
    assert report_on([*attempts, *attempts]).majority == Majority("true", 6, 10)  # Two answers, one problem.


def test_each_set_of_possible_answers_has_its_own_majority_and_an_open_answer_has_none() -> None:
    colours = [closed(f"c{k}", "red" if k < 3 else "blue", ("red", "blue", "green")) for k in range(5)]
    truths = [closed(f"t{k}", "yes" if k < 4 else "no", ("yes", "no")) for k in range(5)]
    assert find_majority([*colours, *truths]) == Majority("", 7, 10)
    assert find_majority([*colours, closed("open", "a man")]) is None
    assert find_majority([]) is None


def test_rewordings_of_one_problem_count_as_one_in_the_interval_of_a_gain() -> None:
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


def test_the_clustered_interval_of_a_gain_covers_the_true_gain_about_95_percent_of_the_time() -> None:
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
    def reworded(name: str, content: str, value: float) -> Attempt:
        found = attempt(name, value)
        return replace(found, problem=replace(found.problem, metadata={"content": content}))

    attempts = [reworded(f"{k}/{word}", str(k), float(k % 2)) for k in range(10) for word in range(5)]
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
def test_the_p_value_is_the_share_of_sign_flips_that_are_as_large(changes: list[Fraction]) -> None:
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


def test_of_models_that_are_alike_one_comparison_in_twenty_is_significant_at_most() -> None:
    rng = np.random.default_rng(0)
    found = []
    for _ in range(400):
        hard = rng.uniform(size=60)
        one, other = ([Fraction(int(k), 3) for k in rng.binomial(3, hard)] for _ in range(2))
        found.append(sign_flip_test([a - b for a, b in zip(one, other, strict=True)]) < 0.05)
    assert np.mean(found) <= 0.08


def test_failures_are_left_out_of_both_sides_and_named() -> None:
    first = attempts({"a1": [0], "a2": [1], "b1": [None], "b2": [1], "b3": [0]})
    second = attempts({"a1": [1], "a2": [1], "b1": [1], "b2": [None], "c1": [1]})
    found = compare(first, second)
    assert (found.gain.count, found.gain.points, found.better, found.worse) == (2, 50.0, 1, 0)
    assert found.unpaired == {"asked of the first only": 1, "asked of the second only": 1, "failed": 2}
    assert (found.first.correct, found.second.correct, found.first.failure_count) == (1, 2, 0)


def test_several_answers_are_compared_by_their_shares() -> None:
    first = attempts({"a1": [1, 0, 0, 0], "b1": [1, 1, 1, 1]})
    second = attempts({"a1": [1, 1, 0, 1], "b1": [1, 1, 1, None]})
    found = compare(first, second)
    assert found.gain.points == pytest.approx(100 * (0.5 + 0.0) / 2)
    assert [part.name for part in found.parts] == ["a", "b"]
    assert found.parts[0].gain.points == 50.0
    assert found.p_value == 1.0  # One change can always have had the other sign.


@pytest.mark.parametrize(
    ("freedom", "quantile"), [(1, 12.70620), (2, 4.30265), (3, 3.18245), (4, 2.77645), (9, 2.26216), (30, 2.04227)]
)
def test_the_p_value_is_that_of_the_tables(freedom: int, quantile: float) -> None:
    # Values around a mean so that t is the quantile of 97.5 %.
    spread = np.array([-1.0, 1.0] + [0.0] * (freedom - 1))
    error = np.sqrt(2 / freedom / (freedom + 1))
    assert t_test((spread + quantile * error).tolist()) == pytest.approx(0.05, abs=1e-5)
    assert t_test((spread - quantile * error).tolist()) == pytest.approx(0.05, abs=1e-5)


def test_it_agrees_with_the_interval_and_is_right_as_often_as_it_says() -> None:
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
