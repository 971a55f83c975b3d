"""Tasks with a table of predictions: only the predictions of the requested rows change a score."""

from __future__ import annotations

import csv
import random
from functools import cache
from io import StringIO

import numpy as np
import pytest
from own_tasks import judge_of, judged, measured

from palaestra.research.judge.evaluation import EvaluationSplit
from palaestra.research.tasks.records import Grade, InvalidSubmission
from palaestra.research.workspace.workspace import submission_files

SCORES = {
    "tabular_regression": {"baseline": (0.289, 0.289), "reference": (0.129, 0.132)},
    "tabular_classification": {"baseline": (0.527, 0.516), "reference": (0.870, 0.884)},
    "digit_images": {"baseline": (0.543, 0.547), "reference": (0.846, 0.879)},
    "text_classification": {"baseline": (0.371, 0.373), "reference": (0.871, 0.856)},
}
"""On the validation and on the test split."""
CLOSE = {
    "baseline": {"tabular_regression": 0.003, "digit_images": 0.01},
    "reference": {"tabular_regression": 0.006, "digit_images": 0.04},
}
WRONG = {"tabular_regression": "nan", "tabular_classification": "None", "digit_images": "10", "text_classification": ""}
BEST = {name: 0.0 if name == "tabular_regression" else 1.0 for name in SCORES}
SPLITS: tuple[EvaluationSplit, ...] = ("validation", "test")


@cache
def right(name: str, split: EvaluationSplit) -> dict[str, str]:
    """What no agent sees."""
    hidden = judge_of(name).data.hidden
    assert hidden is not None
    with (hidden / f"{split}.csv").open(newline="") as lines:
        return {row["id"]: row["prediction"] for row in csv.DictReader(lines)}


def table(rows: dict[str, str], header: str = "id,prediction") -> str:
    out = StringIO()
    csv.writer(out).writerows([header.split(","), *rows.items()])
    return out.getvalue()


def everything(name: str) -> dict[str, str]:
    return right(name, "validation") | right(name, "test")


@pytest.mark.parametrize("name", SCORES)
def test_the_baseline_reproduces(name: str) -> None:
    found = measured(name, "baseline")
    close = CLOSE["baseline"].get(name, 0.015)
    assert (found.validation.score, found.test.score) == pytest.approx(SCORES[name]["baseline"], abs=close)


@pytest.mark.backends
@pytest.mark.parametrize("name", SCORES)
def test_the_reference_reproduces_and_is_ahead_on_both_splits(name: str) -> None:
    found, baseline, metric = measured(name, "reference"), measured(name, "baseline"), judge_of(name).task.metric
    close = CLOSE["reference"].get(name, 0.02)
    assert (found.validation.score, found.test.score) == pytest.approx(SCORES[name]["reference"], abs=close)
    assert metric.gain(found.validation.score, baseline.validation.score) > 0.8
    assert metric.gain(found.test.score, baseline.test.score) > 0.8


@pytest.mark.parametrize("name", SCORES)
def test_what_is_right_scores_best_in_any_order_and_only_the_asked_rows_count(name: str) -> None:
    rows = list(everything(name).items())
    random.Random(0).shuffle(rows)
    for split in SPLITS:
        best = judged(name, table(dict(rows)), split)
        assert isinstance(best, Grade)
        assert best.score == pytest.approx(BEST[name])
        other = next(iter(right(name, split).values()))
        elsewhere = {key: value if key in right(name, split) else other for key, value in rows}
        assert judged(name, table(elsewhere), split) == Grade(best.score, best.scores, pytest.approx(0, abs=60))
        worse = judged(name, table(dict(rows) | dict.fromkeys(right(name, split), other)), split)
        assert isinstance(worse, Grade)
        assert judge_of(name).task.metric.better(best.score, worse.score)


@pytest.mark.parametrize("name", SCORES)
def test_a_table_of_another_form_is_unusable_and_says_why(name: str) -> None:
    rows = everything(name)
    first, *others = rows
    one = rows[first]
    cases = {
        "the first line of submission.csv must be 'id,prediction'": table(rows, "id,label"),
        "must be 'id,prediction'; got ''": "",
        "1 are missing": table({key: rows[key] for key in others}),
        f"{len(right(name, 'test'))} are missing": table(right(name, "validation")),
        "occurs twice": table(rows) + f"{first},{one}\n",
        "no row with the id": table(rows) + f"stranger,{one}\n",
        "expected 2 fields": table(rows) + f"{first},{one},0.99\n",
        "row 2: expected": table(rows | {first: WRONG[name]}),
        "cannot be read as CSV": table(rows) + f'"{"9" * 200_000}",{one}\n',
    }
    for said, text in cases.items():
        for split in SPLITS:
            outcome = judged(name, text, split)
            assert isinstance(outcome, InvalidSubmission), said
            assert said in outcome.reason


@pytest.mark.parametrize("name", SCORES)
def test_files_that_are_no_text_or_too_large_are_unusable(name: str) -> None:
    judge = judge_of(name)
    for content, said in ((b"\xff\xfe\x00", "not UTF-8 text"), (b"9" * 5_000_000, "exceeds the limit")):
        outcome = judge.judge({"submission.csv": content}, "test")
        assert isinstance(outcome, InvalidSubmission)
        assert said in outcome.reason


@pytest.mark.parametrize("value", ["inf", "-inf", "1e999", "0", "-5", "ten", "", "1e6000", "0x10"])
def test_a_rent_is_a_finite_number_within_bounds(value: str) -> None:
    rows = everything("tabular_regression")
    outcome = judged("tabular_regression", table(rows | {next(iter(rows)): value}))
    assert isinstance(outcome, InvalidSubmission)
    assert "a number between 1 and 1e+06" in outcome.reason


@pytest.mark.parametrize("name", SCORES)
def test_the_baseline_hands_in_what_the_judge_takes_and_the_public_data_hold_no_labels(name: str) -> None:
    assert set(submission_files(measured(name, "baseline"))) == {"submission.csv"}
    public = judge_of(name).data.public
    assert public is not None
    for split in SPLITS:
        if name == "digit_images":
            images = np.load(public / f"{split}_images.npy", allow_pickle=False)
            assert images.shape == (len(right(name, split)), 20, 20)
            assert not (public / f"{split}_labels.npy").exists()
        else:
            with (public / f"{split}.csv").open(newline="") as lines:
                assert {row["id"] for row in csv.DictReader(lines)} == set(right(name, split))
            header = (public / f"{split}.csv").read_text().splitlines()[0].split(",")
            train = (public / "train.csv").read_text().splitlines()[0].split(",")
            assert header == train[:-1]
