"""Tasks on a given model: generation must give the same tokens, and submitted weights are read as data."""

from __future__ import annotations

import io
import zipfile

import numpy as np
import pytest
from research_judges import load_judge, load_part

from palaestra.research.tasks.task import Grade, InvalidSubmission


def pack(**arrays: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def load_weights() -> dict[str, np.ndarray]:
    public = load_judge("fine_tune_digits").data.public
    assert public is not None
    return dict(np.load(public / "weights.npz"))


def test_cached_generation_gives_the_tokens_of_the_baseline(monkeypatch: pytest.MonkeyPatch) -> None:
    public = load_judge("faster_generation").data.public
    assert public is not None
    load, rng = np.load, np.random.default_rng(3)
    monkeypatch.setattr(np, "load", lambda path: load(str(path).replace("/data", str(public))))
    plain, cached = (
        load_part("faster_generation", "generate", f"{part}/generate.py") for part in ("starter", "reference")
    )
    prompts = [rng.integers(0, 64, int(size)).tolist() for size in (8, 40, 13, 8)]
    assert cached(prompts, 12) == plain(prompts, 12)


def test_other_tokens_are_refused() -> None:
    judge = load_judge("faster_generation")
    outcome = judge.judge(
        {"generate.py": b"def generate(prompts, count):\n    return [[0] * count for _ in prompts]\n"}, "test"
    )
    assert isinstance(outcome, InvalidSubmission), outcome
    assert outcome.exposed


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"no archive", "numpy.savez"),
        (pack(w0=np.zeros((64, 48))), "must have the arrays"),
        (pack(w0=np.array([{}], dtype=object)), "numpy.savez"),
    ],
)
def test_malformed_weights_are_told_why(content: bytes, expected: str) -> None:
    outcome = load_judge("fine_tune_digits").judge({"weights.npz": content}, "test")
    assert isinstance(outcome, InvalidSubmission), outcome
    assert expected in outcome.reason
    assert not outcome.exposed


def test_weights_without_finite_outputs_or_values_are_refused() -> None:
    judge, weights = load_judge("fine_tune_digits"), load_weights()
    for value, expected in ((np.nan, "finite numbers"), (1e300, "outputs")):
        bad = {**weights, **{name: np.full(weights[name].shape, value) for name in ("w1", "w2")}}
        outcome = judge.judge({"weights.npz": pack(**bad)}, "validation")
        assert isinstance(outcome, InvalidSubmission), outcome
        assert expected in outcome.reason


def test_an_archive_that_unpacks_to_gigabytes_is_refused() -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("w0.npy", bytes(1 << 25))
    outcome = load_judge("fine_tune_digits").judge({"weights.npz": file.getvalue()}, "test")
    assert isinstance(outcome, InvalidSubmission), outcome
    assert "larger" in outcome.reason


def test_captions_in_any_right_wording_score_one() -> None:
    compare = load_part("picture_captions", "_compare")
    describe = load_part("picture_captions", "describe", "data.py")
    wordings = describe(("small", "red", "circle"), "above", ("large", "blue", "square"))
    assert "below a large blue square is a small red circle" not in wordings
    assert all(compare(text.split(), text.split()) == 1.0 for text in wordings)
    right = wordings[0].split()
    assert compare([*right[:2], "green", *right[3:]], right) == pytest.approx(1 - 1 / len(right))
    assert compare(["word"] * 100, right) == 0.0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[", "must be JSON"),
        ("[]", "fields validation and test"),
        ('{"validation": [], "test": []}', "a list of 250 texts"),
        ('{"validation": 3, "test": []}', "got int"),
    ],
)
def test_malformed_captions_are_told_why(text: str, expected: str) -> None:
    outcome = load_judge("picture_captions").judge({"captions.json": text.encode()}, "validation")
    assert isinstance(outcome, InvalidSubmission), outcome
    assert expected in outcome.reason


def test_untouched_network_is_good_at_old_digits_only() -> None:
    outcome = load_judge("fine_tune_digits").judge({"weights.npz": pack(**load_weights())}, "test")
    assert isinstance(outcome, Grade), outcome
    assert outcome.scores["old"] > 0.9 > 0.2 > outcome.scores["new"]
