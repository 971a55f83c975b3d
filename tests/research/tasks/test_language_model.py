"""The tiny language model: invalid probabilities are rejected, and a program never receives a target."""

from __future__ import annotations

import json
import math

import pytest
from research_judges import judge_submission, load_judge

from palaestra.research.tasks.task import Grade, InvalidSubmission

NAME = "tiny_language_model"
SIZE = 47


def model(row: str, before: str = "") -> str:
    return f"import math\n{before}\ndef log_probs(contexts):\n    return [{row} for context in contexts]\n"


def test_uniform_model_scores_the_log_of_the_alphabet_size() -> None:
    outcome = judge_submission(NAME, model(f"[-math.log({SIZE})] * {SIZE}"))
    assert isinstance(outcome, Grade)
    assert outcome.score == pytest.approx(math.log(SIZE))


def test_probabilities_are_normalized() -> None:
    outcome = judge_submission(NAME, model(f"[0.0009 - math.log({SIZE})] * {SIZE}"))
    assert isinstance(outcome, Grade)
    assert outcome.score == pytest.approx(math.log(SIZE))


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (f"[0.0] * {SIZE}", "must sum to 1"),
        (f"[1000.0] * {SIZE}", "must sum to 1"),
        (f"[-math.log({SIZE}) + 0.01] * {SIZE}", "must sum to 1"),
        (f"[float('nan')] * {SIZE}", "no character is impossible"),
        (f"[0.0] + [-math.inf] * {SIZE - 1}", "no character is impossible"),
        (f"[0.0] + [-31.0] * {SIZE - 1}", "no character is impossible"),
        (f"[-math.log({SIZE})] * {SIZE - 1}", f"{SIZE} numbers"),
        (f"['-3.85'] * {SIZE}", f"{SIZE} numbers"),
        (f"[True] * {SIZE}", f"{SIZE} numbers"),
        (f"[10 ** 400] * {SIZE}", "does not fit a float"),
        ("None", f"{SIZE} numbers"),
        ("1 / 0", "ZeroDivisionError"),
    ],
)
def test_what_are_no_chances_is_unusable(row: str, expected: str) -> None:
    outcome = judge_submission(NAME, model(row))
    assert isinstance(outcome, InvalidSubmission)
    assert expected in outcome.reason


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("def log_probs(contexts):\n    return []\n", "250 contexts; got 0"),
        ("def log_probs(contexts):\n    return {'nats': 0.0}\n", "got dict"),
        ("def chances(contexts):\n    return []\n", "log_probs"),
        ("raise SystemExit(0)\n", "SystemExit"),
        ('print(\'{"value": {"nats": 0.0}}\')\nimport os\nos._exit(0)\n', "ended before it answered"),
        ("def log_probs(contexts):\n    return open('/data/../hidden/test.json').read()\n", "FileNotFoundError"),
    ],
)
def test_programs_that_do_something_else_get_no_score(text: str, expected: str) -> None:
    outcome = judge_submission(NAME, text)
    assert isinstance(outcome, InvalidSubmission)
    assert expected in outcome.reason


def test_contexts_come_from_separate_unseen_documents() -> None:
    data = load_judge(NAME).data
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
