"""`--engine vllm` on `teach`, `evaluate` and `research`. Runs in an environment with vLLM."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

pytest.importorskip("vllm")
from palaestra.core.records import Attempt, Completion, Request, Sampling
from palaestra.engines.transformers import TransformersEngine
from palaestra.models import registry as models
from palaestra.recipes.evaluate.recipe import evaluate
from palaestra.recipes.research.recipe import run_research
from palaestra.recipes.teach.recipe import TeachResult, teach
from palaestra.research.workspace.workspace import Step
from palaestra.runs.run import Run

pytestmark = [pytest.mark.backends, pytest.mark.filterwarnings("ignore")]  # vLLM warns of its own dependencies
LESSON: dict[str, Any] = {
    "teacher": "no_state", "skills": ["percent", "geometry", "fractions"], "rounds": 1, "validation": 2, "test": 40,
}  # fmt: skip


def read_texts(folder: Path, phase: str) -> list[str]:
    with Run.open(folder, read_only=True) as run:
        return [attempt.completion.text for attempt in run.store.attempts(phase) if attempt.completion is not None]


def read_attempts(folder: Path, phase: str) -> Sequence[Attempt]:
    with Run.open(folder, read_only=True) as run:
        return run.store.attempts(phase)


def predict_with_transformers(model: str, attempts: Sequence[Attempt]) -> list[str]:
    requests = [Request(attempt.problem.messages, Sampling(72)) for attempt in attempts]
    answers = [answers[0] for answers in TransformersEngine.from_loaded(models.load(model)).generate(requests)]
    return [answer.text for answer in answers if isinstance(answer, Completion)]


def check_predictions(result: TeachResult) -> None:
    """The predictions of the run are those of transformers with the saved weights, up to ties."""
    for phase, model in (("0/test", "nano"), ("1/test", str(result.folder))):
        attempts = read_attempts(result.folder, phase)
        expected = predict_with_transformers(model, attempts)
        same = [attempt.completion.text == text for attempt, text in zip(attempts, expected, strict=True)]  # type: ignore[union-attr]
        assert sum(same) >= 0.95 * len(same)
    assert read_texts(result.folder, "0/test") != read_texts(result.folder, "1/test")
    assert psutil.Process().children(recursive=True) == []


def test_a_student_is_taught_and_predicts_with_vllm(tmp_path: Path) -> None:
    settings = LESSON | {"lesson_size": 240}
    result = teach(engine="vllm", out=tmp_path / "vllm", **settings)
    assert result.summary["gain_low"] > 0
    check_predictions(result)
    # The engine does not change the training.
    reference = teach(out=tmp_path / "transformers", **settings)
    hashes = [run.trajectory.infos[-1]["weights_sha256"] for run in (result, reference)]
    assert hashes[0] == hashes[1]


def test_an_adapter_is_handed_to_the_live_engine(tmp_path: Path) -> None:
    settings = LESSON | {"rounds": 2, "lesson_size": 120, "method": "lora", "rank": 4, "learning_rate": 5e-3}
    result = teach(student="vllm:nano", checkpoints="all", out=tmp_path / "run", **settings)
    folders = [str(tmp_path / "run" / "checkpoints" / f"round-{round_}") for round_ in (1, 2)]
    for round_, folder in enumerate(folders, 1):
        attempts = read_attempts(result.folder, f"{round_}/validation")
        expected = predict_with_transformers(folder, attempts)
        assert [attempt.completion.text for attempt in attempts] == expected  # type: ignore[union-attr]
    assert result.summary["gain_low"] > 0
    # The run is a model for vLLM as well: its adapter is merged into the base model.
    again = evaluate(model=f"vllm:{tmp_path / 'run'}", problems=2, out=tmp_path / "evaluation")
    attempts = read_attempts(again.folder, "0/test")
    assert [a.completion.text for a in attempts] == predict_with_transformers(str(tmp_path / "run"), attempts)  # type: ignore[union-attr]


@pytest.mark.parametrize("prompt", ["chat", "plain"])
def test_an_evaluation_with_vllm_is_that_with_transformers(tmp_path: Path, prompt: Any) -> None:
    ours = evaluate(engine="vllm", prompt=prompt, problems=2, out=tmp_path / "vllm")
    reference = evaluate(prompt=prompt, problems=2, out=tmp_path / "transformers")
    named = evaluate(model="vllm:nano", prompt=prompt, problems=2, out=tmp_path / "named")
    assert ours.summary["model"] == named.summary["model"] == "vllm:nano"
    texts = [read_texts(run.folder, "0/test") for run in (ours, reference, named)]
    assert texts[0] == texts[2]
    same = [a == b for a, b in zip(texts[0], texts[1], strict=True)]
    assert sum(same) >= 0.95 * len(same)
    assert psutil.Process().children(recursive=True) == []


def test_the_agent_of_a_research_run_writes_with_vllm(tmp_path: Path) -> None:
    options = ['hf_overrides={"max_position_embeddings": 8192}']  # The conversation is longer than nano's context.
    result = run_research(
        task="prisoners_dilemma",
        model="nano",
        engine="vllm",
        engine_kwargs=options,
        steps=2,
        answer_tokens=16,
        cache=str(tmp_path / "calls.sqlite"),
        out=tmp_path / "run",
    )
    with Run.open(result.folder, read_only=True) as run:
        steps = run.store.steps(Step, 0)
    assert [step.message is not None for step in steps] == [False, True, True]
    assert result.summary["model"] == "vllm:nano"
    assert result.summary["completion_tokens"] == 32
    assert psutil.Process().children(recursive=True) == []
