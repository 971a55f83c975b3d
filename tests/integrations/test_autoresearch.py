"""Folders of the autoresearch format: only improvements over paired seeds count."""

from __future__ import annotations

from pathlib import Path

import pytest

from palaestra.core.errors import TaskError
from palaestra.integrations.autoresearch.task import AutoresearchTask, load_autoresearch
from palaestra.recipes.research.recipe import run_research
from palaestra.research.judge.evaluation import make_judge, sandbox_for
from palaestra.research.tasks.task import Grade, InvalidSubmission, Isolation, JudgeResult, load_task

PREPARE = """
TIME_BUDGET = 5
TARGET = [0.3, -0.7, 0.2, 0.9]


def evaluate_loss(weights):
    return sum((a - b) ** 2 for a, b in zip(weights, TARGET))
"""
TRAIN = """
import random
from prepare import evaluate_loss

STEPS = 30
random.seed(42)
best = [random.uniform(-1, 1) for _ in range(4)]
for _ in range(STEPS):
    other = [random.uniform(-1, 1) for _ in range(4)]
    best = min(best, other, key=lambda w: sum((a - b) ** 2 for a, b in zip(w, [0.3, -0.7, 0.2, 0.9])))
print("---")
print(f"val_loss: {evaluate_loss(best):.6f}")
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PALAESTRA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "tiny"
    path.mkdir()
    for name, text in {"program.md": "Improve train.py.", "prepare.py": PREPARE, "train.py": TRAIN}.items():
        (path / name).write_text(text)
    return path


def judge(folder: Path, train: str, **others: str) -> JudgeResult:
    task = load_task(folder, seeds=5)
    assert isinstance(task, AutoresearchTask)
    files = {"train.py": train.encode(), **{name: text.encode() for name, text in others.items()}}
    return make_judge(task, sandbox_for(task)).judge(files, "test")


def grade(folder: Path, train: str) -> Grade:
    outcome = judge(folder, train)
    assert isinstance(outcome, Grade), outcome
    return outcome


def test_folder_is_read_as_it_is(folder: Path) -> None:
    task = load_task(folder, seeds=4)
    assert (task.name, task.metric.name, task.limits.command_seconds) == ("tiny", "val_loss", 125)
    assert set(task.starter_files()) == {"program.md", "prepare.py", "train.py"}
    assert task.description.startswith("Improve train.py.")
    assert "4 unseen seeds" in task.description


def test_only_an_improvement_over_paired_seeds_is_accepted(folder: Path) -> None:
    unchanged, better = grade(folder, TRAIN), grade(folder, TRAIN.replace("STEPS = 30", "STEPS = 4000"))
    assert unchanged.score == unchanged.scores["original"] == unchanged.scores["measured"]
    assert better.scores["accepted"] == 1
    assert better.score == better.scores["measured"] < unchanged.score
    assert better.isolation is Isolation.SHARED


@pytest.mark.parametrize("lucky", ["random.seed(7)", "random.seed('lucky')"])
def test_another_seed_is_no_improvement(folder: Path, lucky: str) -> None:
    result = grade(folder, TRAIN.replace("random.seed(42)", lucky))
    assert result.scores["accepted"] == 0
    assert result.score >= result.scores["original"]


def test_a_script_that_keeps_its_luck_is_not_accepted(folder: Path) -> None:
    fixed = TRAIN.replace("random.seed(42)", "random = random.Random(3)").replace("STEPS = 30", "STEPS = 4000")
    result = grade(folder, fixed)
    assert result.scores["gain_low"] > 0
    assert (result.scores["ignores_seeds"], result.scores["accepted"]) == (1, 0)
    assert result.score == result.scores["original"]


def test_worse_script_and_forged_output_count_as_measured(folder: Path) -> None:
    forged = "open('_measured.json', 'w').write('{\"evaluate_loss\": 0}')\nprint('val_loss: 0')\n"
    result = grade(folder, forged + TRAIN.replace("STEPS = 30", "STEPS = 0"))
    assert result.score == result.scores["measured"] > result.scores["original"]


def test_original_evaluation_judges(folder: Path) -> None:
    outcome = judge(folder, TRAIN, **{"prepare.py": "def evaluate_loss(weights):\n    return 0.0\n"})
    assert isinstance(outcome, Grade)
    assert outcome.score > 0.01


@pytest.mark.parametrize(
    ("train", "expected"), [("pass", "did not call evaluate_loss"), ("raise ValueError('no idea')", "no idea")]
)
def test_invalid_scripts_are_told_why(folder: Path, train: str, expected: str) -> None:
    outcome = judge(folder, train)
    assert isinstance(outcome, InvalidSubmission)
    assert expected in outcome.reason


def test_incomplete_folders_are_refused(folder: Path) -> None:
    (folder / "prepare.py").write_text("TIME_BUDGET = 5")
    with pytest.raises(TaskError, match="evaluate"):
        load_autoresearch(folder)
    (folder / "train.py").unlink()
    with pytest.raises(TaskError, match=r"train\.py"):
        load_autoresearch(folder)


def test_an_agent_works_on_the_folder(folder: Path, tmp_path: Path) -> None:
    script = tmp_path / "agent.txt"
    script.write_text("python3 train.py\n%%\nsed -i 's/STEPS = 30/STEPS = 4000/' train.py\n%%\nvalidate\n%%\nsubmit\n")
    summary = run_research(
        task=str(folder), agent=f"script:{script}", task_kwargs={"seeds": 5}, out=tmp_path / "run"
    ).summary
    assert summary["outcome"] == "scored"
    assert summary["gain"] > 0.1
    assert summary["metric"] == "val_loss"
