"""The environment in which a writer of lessons learns: what it rewards, and that it compares like with like."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from small_coder import make_small_coder

from palaestra import train
from palaestra.core.errors import SettingsError
from palaestra.core.records import Problem, StopReason
from palaestra.envs.token.prompts import Response
from palaestra.runs.run import Run
from palaestra.tasks.base import make_task
from palaestra.tasks.evaluate import write_examples
from palaestra.teachers.writer_env import WriterVectorEnv

SKILLS = ("percent", "missing_number")
EPISODES = itertools.count()


@pytest.fixture(scope="module")
def env() -> WriterVectorEnv:
    return WriterVectorEnv(
        skills=SKILLS, students=2, first_lesson=8, examples=8, rehearsal=4, validation=16, copies=4, device="cpu"
    )


def write(env: WriterVectorEnv, skill: str, text: str, student: int = 0) -> Response:
    """A response to the order of a skill for a student."""
    place = next(k for k, item in enumerate(env.items) if isinstance(item, Problem) and item.id == f"{student}/{skill}")
    return Response(env._prompts[place], (1,), text, StopReason.END, next(EPISODES))


def write_lesson(skill: str, count: int = 8, right: bool = True) -> str:
    """Data of a skill as a language model writes them."""
    data = []
    for example in write_examples(make_task("math-skills"), skill, "", count, np.random.default_rng(5)):
        steps, _, answer = example.response.rpartition(" Answer: ")
        answer = answer if right else str(int(answer) + 1)
        data.append({"question": example.messages[-1].text, "reasoning": steps, "answer": answer})
    return json.dumps({"data": data})


@pytest.mark.backends
def test_a_lesson_of_the_skill_helps_more_than_another(env: WriterVectorEnv) -> None:
    responses = [write(env, "percent", write_lesson(skill)) for skill in SKILLS]
    own, other = env.score_responses(responses)
    assert own.reward_parts["usable"] > 0.5
    assert own.reward is not None
    assert other.reward is not None
    assert own.reward > max(0.0, other.reward)


def test_nothing_usable_is_penalized(env: WriterVectorEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(env, "cohort", None)  # No student is trained.
    texts = ["I would rather not.", write_lesson("percent", right=False)]
    for response in env.score_responses([write(env, "percent", text) for text in texts]):
        assert response.reward == -env.penalty
        assert response.reward_parts["usable"] == 0.0
        assert (response.reward_parts["solved"], response.reward_parts["logprob"]) == (0.0, 0.0)


@pytest.mark.backends
def test_rewards_depend_on_nothing_but_the_response(env: WriterVectorEnv) -> None:
    texts = ["Nothing usable.", *(write_lesson(skill, count) for count in (3, 8) for skill in SKILLS)]
    together = env.score_responses([write(env, "percent", text, k % 2) for k, text in enumerate(texts)])
    alone = [env.score_responses([write(env, "percent", text, k % 2)])[0] for k, text in enumerate(texts)]
    assert [r.reward for r in together] == pytest.approx([r.reward for r in alone], abs=1e-4)


def test_held_out_problems_teach_nothing(env: WriterVectorEnv) -> None:
    data = [
        {
            "question": problem.messages[-1].text,
            "reasoning": problem.metadata["worked"].rpartition(" Answer: ")[0],
            "answer": problem.reference,
        }
        for problem in env.problems
        if problem.skill == "percent"
    ]
    response = write(env, "percent", json.dumps({"data": data}))
    assert env.read_lesson(response) == []


def test_orders_ask_for_skills_with_hard_problems(env: WriterVectorEnv) -> None:
    for item in env.items:
        assert isinstance(item, Problem)
        assert item.metadata["hard"]
        assert {env.problems[k].skill for k in item.metadata["hard"]} == {item.skill}
        assert "Write 8 new data" in item.messages[-1].text


def test_single_view_passes_gymnasiums_checks() -> None:
    single = gymnasium.make(
        "palaestra/Writer-v0", skills=("missing_number",), students=1, copies=1, validation=4, max_tokens=2
    )
    observation, _ = single.reset(seed=0)
    assert single.observation_space.contains(observation)
    single.step(5)
    _, reward, _, truncated, _ = single.step(5)
    assert truncated
    assert reward == -0.1


@pytest.mark.backends
def test_training_runs_with_a_model_that_writes_nothing_usable(tmp_path: Path) -> None:
    writer = make_small_coder()
    for part in (writer.weights, writer.tokenizer):
        part.save_pretrained(tmp_path / "writer")
    result = train(
        env="palaestra/Writer-v0",
        env_kwargs={"skills": SKILLS, "students": 1, "copies": 2, "validation": 4},
        model=str(tmp_path / "writer"),
        algorithm="rest_em",
        iterations=1,
        episodes=4,
        group_size=2,
        num_envs=4,
        max_tokens=4,
        evaluation=0,
        out=tmp_path / "run",
    )
    row = Run.open(result.folder).store.metrics()[1]
    assert (row["reward"], row["rewards/usable/mean"], row["kept"]) == (pytest.approx(-0.1), 0.0, 0.0)


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(SettingsError, match="copies"):
        WriterVectorEnv(students=4, copies=2)
