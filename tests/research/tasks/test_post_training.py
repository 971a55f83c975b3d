"""The task `nano_post_train`: the judge reruns the training, audits it, and rejects planted cheats."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from research_judges import load_judge
from safetensors.torch import load_file, save

from palaestra.core.records import Split
from palaestra.models.embedded import EMBEDDED
from palaestra.research.tasks.task import Grade, InvalidSubmission, JudgeResult
from palaestra.tasks.base import make_task

NAME, WEIGHTS = "nano_post_train", "student/model.safetensors"
NANO = EMBEDDED["nano"].folder
SKETCH = """
import argparse
from pathlib import Path
import torch
from safetensors.torch import load_file, save_file
from palaestra.models.registry import locate
parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int)
torch.manual_seed(parser.parse_args().seed)
weights = load_file(Path(locate("nano")) / "model.safetensors")
for tensor in weights.values():
    tensor += NOISE * torch.randn_like(tensor)
Path("student").mkdir()
save_file(weights, "student/model.safetensors")
"""
"""A training that leaves nano as it is, up to noise that depends on the seed."""


Submit = Callable[..., JudgeResult]


@pytest.fixture
def submit(monkeypatch: pytest.MonkeyPatch) -> Submit:
    """Judge a submission whose student is nano but for its scale, with four problems of each skill."""
    judge = load_judge(NAME)
    monkeypatch.setitem(judge._evaluate.__globals__, "PROBLEMS", 4)

    def judge_files(script: str = SKETCH, noise: float = 1e-3, more: Mapping[str, bytes] = {}) -> JudgeResult:
        weights = {
            name: tensor.float() * (1 + noise / 100) for name, tensor in load_file(NANO / "model.safetensors").items()
        }
        files = {"train.py": script.replace("NOISE", str(noise)).encode(), WEIGHTS: save(weights)}
        return judge.judge({**files, **more}, "validation")

    return judge_files


def write_published(per_skill: int) -> bytes:
    problems = make_task("math-skills").problems(Split.TEST, per_skill, 0)
    rows = [{"question": problem.messages[-1].text, "response": problem.metadata["worked"]} for problem in problems]
    return "\n".join(map(json.dumps, rows)).encode()


def test_an_honest_submission_is_scored_by_its_rerun(submit: Submit) -> None:
    own = {f"student/{name}": (NANO / name).read_bytes() for name in ("tokenizer.json", "chat_template.jinja")}
    outcome = submit(more={**own, "data.jsonl": b'{"question": "What is 2 + 2?", "response": "2+2=4. Answer: 4"}'})
    assert isinstance(outcome, Grade), outcome
    assert outcome.score == outcome.scores["accuracy"]
    assert 0.4 < outcome.score < 0.7
    assert abs(outcome.score - outcome.scores["published"]) < 0.2


CHEATS: Mapping[str, Mapping[str, Any]] = {
    "copied problems": {"more": {"data.jsonl": write_published(4)}},
    "changed files": {"more": {"student/chat_template.jinja": b"{{ messages[-1].content }} Think."}},
    "picked seed": {"noise": 0.1},
    "same weights": {"noise": 0},
}


@pytest.mark.backends
@pytest.mark.parametrize("cheat", CHEATS)
def test_a_planted_cheat_is_found(submit: Submit, cheat: str) -> None:
    outcome = submit(**CHEATS[cheat])
    assert isinstance(outcome, InvalidSubmission), outcome
    assert outcome.exposed
    assert cheat in outcome.reason


def test_the_rerun_has_the_code_only(submit: Submit) -> None:
    names = "train.py", "student", "test.jsonl", "/data/test.jsonl"
    script = f"import os\nraise SystemExit(str([os.path.exists(name) for name in {names}]))\n"
    outcome = submit(script)
    assert isinstance(outcome, InvalidSubmission), outcome
    assert "[True, False, False, False]" in outcome.reason
    assert not outcome.exposed


@pytest.mark.parametrize(
    ("content", "expected"),
    [(b"weights", "safetensors"), (save({"lm_head.weight": torch.zeros(2)}), "names and shapes")],
)
def test_other_weights_are_refused(submit: Submit, content: bytes, expected: str) -> None:
    outcome = submit(more={WEIGHTS: content})
    assert isinstance(outcome, InvalidSubmission), outcome
    assert expected in outcome.reason


def test_the_published_problems_are_those_that_are_measured() -> None:
    rows = map(json.loads, (load_judge(NAME).task.folder / "starter" / "test.jsonl").read_text().splitlines())
    problems = make_task("math-skills").problems(Split.TEST, 20, 0)
    assert [row["question"] for row in rows] == [problem.messages[-1].text for problem in problems]
