"""Tasks with a table of predictions: only the predictions of the requested rows change a score."""

from __future__ import annotations

import csv
import random
from functools import cache
from io import StringIO

import numpy as np
import pytest
from research_judges import judge_submission, load_judge, measure_solution

from palaestra.research.judge.evaluation import EvaluationSplit
from palaestra.research.tasks.task import Grade, InvalidSubmission
from palaestra.research.workspace.workspace import submission_files

WRONG = {"tabular_regression": "nan", "tabular_classification": "None", "digit_images": "10", "text_classification": ""}
BEST = {name: 0.0 if name == "tabular_regression" else 1.0 for name in WRONG}
SPLITS: tuple[EvaluationSplit, ...] = ("validation", "test")


@cache
def read_answers(name: str, split: EvaluationSplit) -> dict[str, str]:
    """What no agent sees."""
    hidden = load_judge(name).data.hidden
    assert hidden is not None
    with (hidden / f"{split}.csv").open(newline="") as lines:
        return {row["id"]: row["prediction"] for row in csv.DictReader(lines)}


def table(rows: dict[str, str], header: str = "id,prediction") -> str:
    out = StringIO()
    csv.writer(out).writerows([header.split(","), *rows.items()])
    return out.getvalue()


def read_all_answers(name: str) -> dict[str, str]:
    return read_answers(name, "validation") | read_answers(name, "test")


@pytest.mark.parametrize("name", WRONG)
def test_only_rows_of_the_split_count_in_any_order(name: str) -> None:
    rows = list(read_all_answers(name).items())
    random.Random(0).shuffle(rows)
    for split in SPLITS:
        best = judge_submission(name, table(dict(rows)), split)
        assert isinstance(best, Grade)
        assert best.score == pytest.approx(BEST[name])
        other = next(iter(read_answers(name, split).values()))
        elsewhere = {key: value if key in read_answers(name, split) else other for key, value in rows}
        assert judge_submission(name, table(elsewhere), split) == Grade(
            best.score, best.scores, pytest.approx(0, abs=60)
        )
        worse = judge_submission(name, table(dict(rows) | dict.fromkeys(read_answers(name, split), other)), split)
        assert isinstance(worse, Grade)
        assert load_judge(name).task.metric.better(best.score, worse.score)


@pytest.mark.parametrize("name", WRONG)
def test_a_table_of_another_form_is_unusable_and_says_why(name: str) -> None:
    rows = read_all_answers(name)
    first, *others = rows
    item = rows[first]
    cases = {
        "the first line of submission.csv must be 'id,prediction'": table(rows, "id,label"),
        "must be 'id,prediction'; got ''": "",
        "1 are missing": table({key: rows[key] for key in others}),
        f"{len(read_answers(name, 'test'))} are missing": table(read_answers(name, "validation")),
        "occurs twice": table(rows) + f"{first},{item}\n",
        "no row with the id": table(rows) + f"stranger,{item}\n",
        "expected 2 fields": table(rows) + f"{first},{item},0.99\n",
        "row 2: expected": table(rows | {first: WRONG[name]}),
        "cannot be read as CSV": table(rows) + f'"{"9" * 200_000}",{item}\n',
    }
    for expected, text in cases.items():
        for split in SPLITS:
            outcome = judge_submission(name, text, split)
            assert isinstance(outcome, InvalidSubmission), expected
            assert expected in outcome.reason


@pytest.mark.parametrize("name", WRONG)
def test_files_that_are_no_text_or_too_large_are_unusable(name: str) -> None:
    judge = load_judge(name)
    for content, expected in ((b"\xff\xfe\x00", "not UTF-8 text"), (b"9" * 5_000_000, "exceeds the limit")):
        outcome = judge.judge({"submission.csv": content}, "test")
        assert isinstance(outcome, InvalidSubmission)
        assert expected in outcome.reason


@pytest.mark.parametrize("value", ["inf", "-inf", "1e999", "0", "-5", "ten", "", "1e6000", "0x10"])
def test_a_rent_is_a_finite_number_within_bounds(value: str) -> None:
    rows = read_all_answers("tabular_regression")
    outcome = judge_submission("tabular_regression", table(rows | {next(iter(rows)): value}))
    assert isinstance(outcome, InvalidSubmission)
    assert "a number between 1 and 1e+06" in outcome.reason


@pytest.mark.parametrize("name", WRONG)
def test_baseline_is_accepted_and_public_data_lack_labels(name: str) -> None:
    assert set(submission_files(measure_solution(name, "baseline"))) == {"submission.csv"}
    public = load_judge(name).data.public
    assert public is not None
    for split in SPLITS:
        if name == "digit_images":
            images = np.load(public / f"{split}_images.npy", allow_pickle=False)
            assert images.shape == (len(read_answers(name, split)), 20, 20)
            assert not (public / f"{split}_labels.npy").exists()
        else:
            with (public / f"{split}.csv").open(newline="") as lines:
                assert {row["id"] for row in csv.DictReader(lines)} == set(read_answers(name, split))
            header = (public / f"{split}.csv").read_text().splitlines()[0].split(",")
            train = (public / "train.csv").read_text().splitlines()[0].split(",")
            assert header == train[:-1]
