"""The flat view of the lesson environment: spaces, seeds, the division of a lesson, and equal lessons for equal actions."""

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from palaestra import resume
from palaestra.core.errors import ModelError, SettingsError
from palaestra.envs.lesson.flat import FEATURES, FlatLessonVectorEnv, compute_weights, divide_lesson
from palaestra.models.registry import load
from palaestra.recipes.train.recipe import Iteration, train
from palaestra.students.pretraining import build_model

SMALL = {"skills": ("percent", "clock"), "rounds": 2, "lesson_size": 8, "first_lesson": 8, "validation": 4, "pool": 16}
EVEN = np.zeros((2, 2), dtype=np.float32)


@pytest.fixture(scope="module")
def untrained(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A student of the smallest size, for tests in which nothing has to be learned."""
    tokenizer, folder = load("nano").tokenizer, tmp_path_factory.mktemp("models") / "untrained"
    build_model(tokenizer, layers=1, width=32).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture
def make() -> Callable[..., FlatLessonVectorEnv]:
    def make_env(num_envs: int = 2, **options: Any) -> FlatLessonVectorEnv:
        return FlatLessonVectorEnv(num_envs, **{**SMALL, "device": "cpu", **options})  # type: ignore[arg-type]

    return make_env


def test_make_vec_makes_the_flat_view(untrained: str) -> None:
    options = {**SMALL, "device": "cpu", "student": untrained}
    envs = gymnasium.make_vec("palaestra/Lesson-v0", 2, vectorization_mode="vector_entry_point", **options)
    observations, _ = envs.reset(seed=3)
    assert envs.observation_space.contains(observations)
    assert observations.shape == (2, 2, len(FEATURES))
    assert (observations[..., -1] == 1).all()  # All rounds are left.
    _, rewards, terminated, truncated, infos = envs.step(EVEN)
    assert not terminated.any() and not truncated.any()  # noqa: PT018
    final, rewards, terminated, _, infos = envs.step(EVEN)
    assert terminated.all()
    assert np.abs(rewards).max() <= 1
    assert [row[..., -1].max() for row in infos["final_obs"]] == [0, 0]
    assert envs.observation_space.contains(final)


def test_equal_seeds_and_actions_give_equal_students(make: Callable[..., FlatLessonVectorEnv]) -> None:
    env = make()
    observations, _ = env.reset(seed=[5, 5])
    assert np.array_equal(observations[0], observations[1])
    actions = np.array([[1.0, -1.0], [1.0, -1.0]], dtype=np.float32)
    observations, rewards, *_ = env.step(actions)
    assert rewards[0] == rewards[1]
    again = make()
    again.reset(seed=[5, 5])
    repeated, rewards_again, *_ = again.step(actions)
    assert np.array_equal(repeated, observations)
    assert np.array_equal(rewards_again, rewards)


def test_seeds_and_episodes_give_other_students(make: Callable[..., FlatLessonVectorEnv]) -> None:
    env = make(first_lesson=16, validation=12)
    first, _ = env.reset(seed=0)
    assert not np.array_equal(first[0], first[1])
    second, _ = env.reset()
    assert not np.array_equal(first, second)


def test_a_data_seed_draws_other_problems_and_examples(make: Callable[..., FlatLessonVectorEnv]) -> None:
    envs = [make(data_seed=seed) for seed in (0, 0, 7)]
    texts = [env.cohort._ids for env in envs]  # type: ignore[attr-defined]
    assert texts[0] == texts[1]
    assert not any(np.array_equal(a, b) for a, b in zip(texts[0], texts[2], strict=True))


@pytest.mark.backends
def test_the_taught_skill_improves(make: Callable[..., FlatLessonVectorEnv]) -> None:
    env = make(rounds=1, lesson_size=64, pool=128, validation=24, first_lesson=0)
    env.reset(seed=0)
    _, rewards, _, _, infos = env.step(np.array([[1.0, -1.0], [-1.0, 1.0]], dtype=np.float32))
    changes_KS = np.stack([final[:, 2] for final in infos["final_obs"]])
    assert changes_KS[0, 0] > 0.1  # percent
    assert changes_KS[0, 0] > changes_KS[1, 0]
    assert rewards[0] > 0


def test_a_discrete_action_teaches_one_skill(make: Callable[..., FlatLessonVectorEnv], untrained: str) -> None:
    env = make(actions="discrete", student=untrained)
    env.reset(seed=0)
    assert env.single_action_space == gymnasium.spaces.Discrete(2)
    observations, *_ = env.step(np.array([0, 1]))
    assert observations[:, :, 3].tolist() == [[1, 0], [0, 1]]


def test_base_retrains_on_all_data(make: Callable[..., FlatLessonVectorEnv], untrained: str) -> None:
    env, rows = make(start="base", student=untrained), []
    env.reset(seed=0)
    learn = env.cohort.learn
    env.cohort.learn = lambda rows_KN, seeds: (rows.append([len(part) for part in rows_KN]), learn(rows_KN, seeds))[1]  # type: ignore[method-assign]
    env.step(EVEN)
    env.step(EVEN)
    assert rows[:2] == [[8, 8], [16, 16]]


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=20), st.integers(0, 200))
def test_a_divided_lesson_has_its_size(action: list[float], size: int) -> None:
    weights = compute_weights(np.array(action))
    counts = divide_lesson(weights, size)
    assert counts.sum() == size
    assert np.abs(counts - size * weights).max() < 1


@pytest.mark.parametrize(
    ("policy", "values"),
    [
        ("set", {"n_steps": 2, "batch_size": 4}),
        ("plan", {"algorithm": "cem", "group_size": 4, "num_envs": 4, "iterations": 1}),
    ],
)
def test_a_trained_policy_teaches(tmp_path: Any, untrained: str, policy: str, values: Any) -> None:
    from palaestra.envs.lesson.env import LessonEnv
    from palaestra.teachers.base import make_teacher

    options = {**SMALL, "device": "cpu", "student": untrained}
    result = train(
        env="palaestra/Lesson-v0", env_kwargs=options, evaluation=2, out=tmp_path / "run", progress=False,
        **{"num_envs": 2, "iterations": 2, **values},
    )  # fmt: skip
    assert result.summary["policy"] == policy
    env = LessonEnv(skills=("percent", "clock", "units"), student=untrained, rounds=1, budget=10, validation=2, test=1)
    state, _ = env.reset(seed=0)
    teacher = make_teacher("learned", env.task, ("percent", "clock", "units"), policy=str(result.folder))
    lesson = teacher.write(state, 10, np.random.default_rng(0))
    assert len(lesson.examples) == 10
    assert {decision.skill for decision in lesson.decisions} == {"percent", "clock", "units"}


def test_tasks_and_models_that_do_not_fit_are_refused() -> None:
    with pytest.raises(SettingsError, match="worked"):
        FlatLessonVectorEnv(1, "code-skills", validation=2, pool=1)
    with pytest.raises(ModelError, match="llama"):
        FlatLessonVectorEnv(1, student="nano-vlm")


@pytest.mark.backends
def test_a_killed_run_repeats_at_most_two_iterations(tmp_path: Any) -> None:
    """Checkpoints have no students, so episodes begin anew after each, also in a run that is never stopped."""

    def stop(iteration: Iteration) -> None:
        if iteration.number == 3:
            raise KeyError

    values: dict[str, Any] = {
        "env": "palaestra/Lesson-v0", "env_kwargs": {**SMALL, "device": "cpu", "lesson_size": 4, "first_lesson": 4}, "num_envs": 2, "n_steps": 1,
        "iterations": 3,
        "evaluation": 0, "batch_size": 2, "n_epochs": 1, "progress": False,
    }  # fmt: skip
    whole = train(out=tmp_path / "whole", **values)
    with pytest.raises(KeyError):
        train(out=tmp_path / "part", callbacks=[stop], **values)
    assert [path.name for path in (tmp_path / "part" / "checkpoints").iterdir()] == ["iteration-2"]
    resumed = resume(tmp_path / "part", progress=False)
    assert resumed.summary["weights_sha256"] == whole.summary["weights_sha256"]
