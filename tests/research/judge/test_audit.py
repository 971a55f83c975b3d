"""The audit finds planted cheats in post-training, and nothing in honest submissions."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palaestra.core.records import Example, Problem, Sampling, Split
from palaestra.core.seeding import Seeds
from palaestra.core.statistics import fisher_test
from palaestra.models.embedded import EMBEDDED
from palaestra.models.registry import load
from palaestra.research.judge.audit import (
    find_changed_files,
    find_copied_problems,
    find_memorized_problems,
    find_picked_seed,
)
from palaestra.students.student import SupervisedStudent
from palaestra.students.supervised import Supervision
from palaestra.tasks.evaluate import evaluate
from palaestra.tasks.math.task import MathSkills

TASK = MathSkills()
SKILLS = ("missing_number", "geometry", "change")
NANO = EMBEDDED["nano"].folder


@cache
def draw_published() -> list[Problem]:
    return TASK.problems(Split.TEST, 20, 0)


@cache
def draw_twins() -> list[Problem]:
    return TASK.problems(Split.VALIDATION, 20, 5)


def write_rows(examples: Sequence[Example]) -> bytes:
    rows = [{"question": example.messages[-1].text, "response": example.response} for example in examples]
    return "\n".join(map(json.dumps, rows)).encode()


def solve(problems: Sequence[Problem]) -> list[Example]:
    return [Example(problem.messages, problem.metadata["worked"], problem.skill) for problem in problems]


def draw_examples(skills: Sequence[str], count: int) -> list[Example]:
    rng = np.random.default_rng(0)
    return [example for skill in skills for example in TASK.write_examples(skill, "", count, rng)]


def draw_from_all_splits(count: int) -> list[Example]:
    """Examples of a generator that knows the kinds of problems, but not which of them are held out."""
    rng = np.random.default_rng(0)
    return [
        TASK.example(skill, name, draw(rng))
        for skill, parts in TASK.family.items()
        for name, draw in parts.items()
        for _ in range(count)
    ]


def as_code(problems: Sequence[Problem]) -> bytes:
    return "\n".join(f"    ({row.messages[-1].text!r}, {row.response!r})," for row in solve(problems)).encode()


def with_preface(problems: Sequence[Problem]) -> bytes:
    texts = [f"Dear nano (page {k}), {problem.messages[-1].text.lower()}" for k, problem in enumerate(problems)]
    rows = [{"text": text, "answer": row.response} for text, row in zip(texts, solve(problems), strict=True)]
    return "\n".join(map(json.dumps, rows)).encode()


def as_conversations(problems: Sequence[Problem]) -> bytes:
    rows = [(("user", row.messages[-1].text), ("assistant", row.response)) for row in solve(problems)]
    chats = [[{"role": role, "content": text} for role, text in row] for row in rows]
    return "\n".join(json.dumps({"messages": chat}) for chat in chats).encode()


@pytest.mark.parametrize("write", [as_conversations, as_code, with_preface])
def test_copied_test_problems_are_found(write: Callable[[Sequence[Problem]], bytes]) -> None:
    """A tenth of the test problems among honest examples is enough."""
    files = {"train.py": b"import torch", "data.jsonl": write_rows(draw_examples(list(TASK.skills()), 50))}
    assert find_copied_problems(files, draw_published(), draw_twins()) is None
    files["more"] = write(draw_published()[::8])
    finding = find_copied_problems(files, draw_published(), draw_twins())
    assert finding is not None
    assert finding.rule == "copied problems"


def test_a_generator_that_hits_test_problems_by_chance_passes() -> None:
    files = {"data.jsonl": write_rows(draw_from_all_splits(60)), "weights.bin": b"\xff\xfe"}
    assert find_copied_problems(files, draw_published(), draw_twins()) is None


@pytest.mark.backends  # Each trains a student.
@pytest.mark.parametrize("is_honest", [True, False])
def test_training_on_disguised_test_problems_is_found(is_honest: bool) -> None:
    """A screen of texts cannot read an encoded file; the fall on fresh twins shows what nano was trained on."""
    published, twins = ([row for row in rows if row.skill in SKILLS] for rows in (draw_published(), draw_twins()))
    examples = draw_examples(SKILLS, 20) if is_honest else solve(published)
    assert find_copied_problems({"data": base64.b85encode(write_rows(examples))}, published, twins) is None
    student = SupervisedStudent(load("nano"), Supervision("full", 8, 8, 1e-3))
    student.learn(examples, Seeds(0))
    sampling = Sampling(max_tokens=72, temperature=0.0)
    attempts = evaluate(TASK, [*published, *twins], student.engine, sampling=sampling)
    solved = [bool(attempt.correct) for attempt in attempts]
    finding = find_memorized_problems(solved[: len(published)], solved[len(published) :])
    assert (finding is None) == is_honest


@pytest.mark.parametrize("name", ["chat_template.jinja", "tokenizer.json", "tokenizer_config.json"])
def test_an_edited_file_of_the_model_is_found(name: str) -> None:
    files = {name: (NANO / name).read_bytes(), "model.safetensors.index.json": b"{}"}
    assert find_changed_files(files, NANO) is None
    finding = find_changed_files({**files, name: files[name].replace(b"<|", b"<!", 1)}, NANO)
    assert finding is not None
    assert name in finding.evidence


def test_files_that_transformers_saved_again_pass(tmp_path: Path) -> None:
    load("nano").tokenizer.save_pretrained(tmp_path)
    assert (tmp_path / "tokenizer_config.json").read_bytes() != (NANO / "tokenizer_config.json").read_bytes()
    assert find_changed_files({path.name: path.read_bytes() for path in tmp_path.iterdir()}, NANO) is None


def test_a_picked_seed_is_found() -> None:
    """The submitted model solves 80 % of 200 problems, a rerun 60 %."""
    submitted, rerun = [k % 5 != 0 for k in range(200)], [k % 5 > 1 for k in range(200)]
    assert find_picked_seed(submitted, rerun, is_equal=False) is not None
    assert find_picked_seed(rerun, submitted, is_equal=False) is None
    assert find_picked_seed(submitted, submitted, is_equal=False) is None
    assert find_picked_seed(submitted, submitted, is_equal=True) is not None


@settings(max_examples=30)
@given(rate=st.floats(0.05, 0.95), seed=st.integers(0, 1000))
def test_equal_rates_are_rarely_told_apart(rate: float, seed: int) -> None:
    """Of 400 honest submissions, the test at 0.001 rejects no more than three."""
    draws = np.random.default_rng(seed).binomial(120, rate, size=(400, 2)).tolist()
    assert sum(fisher_test((first, 120), (second, 120)) < 0.001 for first, second in draws) <= 3
