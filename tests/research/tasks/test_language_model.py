"""The tiny language model: invalid probabilities are rejected, and a program never receives a target."""

from __future__ import annotations

import json
import math

import pytest
from own_tasks import judge_of, judged, measured

from palaestra.research.tasks.records import Grade, InvalidSubmission

NAME = "tiny_language_model"
SIZE = 47
SCORES = {"baseline": (1.576, 1.539), "reference": (0.601, 0.591)}


def model(row: str, before: str = "") -> str:
    return f"import math\n{before}\ndef log_probs(contexts):\n    return [{row} for context in contexts]\n"


def test_the_baseline_reproduces() -> None:
    found = measured(NAME, "baseline")
    assert (found.validation.score, found.test.score) == pytest.approx(SCORES["baseline"], abs=0.01)


@pytest.mark.backends
def test_the_reference_reproduces_and_is_ahead_on_both_splits() -> None:
    found, baseline, metric = measured(NAME, "reference"), measured(NAME, "baseline"), judge_of(NAME).task.metric
    assert (found.validation.score, found.test.score) == pytest.approx(SCORES["reference"], abs=0.02)
    assert metric.gain(found.validation.score, baseline.validation.score) > 0.8
    assert metric.gain(found.test.score, baseline.test.score) > 0.8


def test_the_same_chance_for_all_costs_the_logarithm_of_their_number() -> None:
    outcome = judged(NAME, model(f"[-math.log({SIZE})] * {SIZE}"))
    assert isinstance(outcome, Grade)
    assert outcome.score == pytest.approx(math.log(SIZE))


def test_chances_that_sum_to_a_little_more_are_scaled_and_give_no_advantage() -> None:
    outcome = judged(NAME, model(f"[0.0009 - math.log({SIZE})] * {SIZE}"))
    assert isinstance(outcome, Grade)
    assert outcome.score == pytest.approx(math.log(SIZE))


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (f"[0.0] * {SIZE}", "must sum to 1"),
        (f"[1000.0] * {SIZE}", "must sum to 1"),
        (f"[-math.log({SIZE}) + 0.01] * {SIZE}", "must sum to 1"),
        (f"[float('nan')] * {SIZE}", "no character is impossible"),
        (f"[0.0] + [-math.inf] * {SIZE - 1}", "no character is impossible"),
        (f"[0.0] + [-31.0] * {SIZE - 1}", "no character is impossible"),
        (f"[-math.log({SIZE})] * {SIZE - 1}", f"{SIZE} numbers for each context"),
        (f"['-3.85'] * {SIZE}", f"{SIZE} numbers for each context"),
        (f"[True] * {SIZE}", f"{SIZE} numbers for each context"),
        (f"[10 ** 400] * {SIZE}", "does not fit a float"),
        ("None", f"{SIZE} numbers for each context"),
        ("1 / 0", "ZeroDivisionError"),
    ],
)
def test_what_are_no_chances_is_unusable(row: str, said: str) -> None:
    outcome = judged(NAME, model(row))
    assert isinstance(outcome, InvalidSubmission)
    assert said in outcome.reason


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def log_probs(contexts):\n    return []\n", "one list for each of 250 contexts; got 0"),
        ("def log_probs(contexts):\n    return {'nats': 0.0}\n", "got dict"),
        ("def chances(contexts):\n    return []\n", "log_probs"),
        ("raise SystemExit(0)\n", "SystemExit"),
        ('print(\'{"value": {"nats": 0.0}}\')\nimport os\nos._exit(0)\n', "ended before it answered"),
        ("def log_probs(contexts):\n    return open('/data/../hidden/test.json').read()\n", "FileNotFoundError"),
    ],
)
def test_programs_that_do_something_else_get_no_score(text: str, said: str) -> None:
    outcome = judged(NAME, text)
    assert isinstance(outcome, InvalidSubmission)
    assert said in outcome.reason


def test_every_context_is_of_a_document_of_its_own_that_is_not_in_the_training_text() -> None:
    data = judge_of(NAME).data
    assert data.public is not None
    assert data.hidden is not None
    train = (data.public / "train.txt").read_text()
    alphabet = json.loads((data.public / "alphabet.json").read_text())
    assert len(alphabet) == SIZE
    assert set(train) <= set(alphabet)
    asked = {split: json.loads((data.hidden / f"{split}.json").read_text()) for split in ("validation", "test")}
    long = [[context for context, _ in several if len(context) > 60] for several in asked.values()]
    assert not set(long[0]) & set(long[1])
    assert all(context[:200] not in train for context in (*long[0][:200], *long[1][:200]))
    assert all(target in alphabet and len(context) <= 200 for several in asked.values() for context, target in several)
