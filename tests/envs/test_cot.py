import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import palaestra  # noqa: F401  (registers the environments)
from palaestra.core.errors import EnvError, PalaestraError, RewardError, UnknownNameError
from palaestra.core.records import Completion, Failure, FailureCause, Message, Problem, Score, Split
from palaestra.envs.token import CoTEnv, CoTVectorEnv
from palaestra.models.registry import LoadedModel

END = 1
SMALL: dict[str, Any] = {"skills": ["addition", "geometry"], "problems": 3}


class Echo:
    """Asks for words; the score is the share of the word that was said, and a broken scorer is a word away."""

    name = "echo"

    def skills(self) -> Mapping[str, tuple[str, ...]]:
        return {"words": ()}

    def problems(self, split: Split, per_skill: int, seed: int, skills: Sequence[str] = ()) -> list[Problem]:
        return [Problem(word, (Message("user", f"Say {word}"),), word, "words") for word in ("red", "blue", "broken")]

    def score(self, problem: Problem, completion: Completion) -> Score | Failure:
        if problem.reference == "broken":
            return Failure(FailureCause.SCORER, "the judge\nis out")
        return Score(0.5 if problem.reference in completion.text else 0.0)


def answer(env: CoTVectorEnv, texts: Sequence[str], end: bool = True) -> tuple[Any, ...]:
    """Say a text in each slot; those that are done earlier than others ask nothing more."""
    rows = [[*env.tokenizer.encode(text), *([END] if end else [])] for text in texts]
    result: tuple[Any, ...] = ()
    for at in range(max(len(row) for row in rows)):
        result = env.step(np.array([row[at] if at < len(row) else 8 for row in rows]))
    return result


def get_problem(env: CoTVectorEnv, episode: int) -> Problem:
    source = env.prompt(episode).source
    assert isinstance(source, Problem)
    return source


@pytest.mark.parametrize(
    "arguments", [SMALL, {**SMALL, "format_reward": 0.5, "format": "tags", "stop": ["Q:"], "render_mode": "ansi"}]
)
def test_it_passes_gymnasiums_checker(arguments: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(gymnasium.make("CoTEnv-v0", **arguments).unwrapped, skip_render_check=False)


def test_gymnasium_makes_both_views_with_defaults() -> None:
    env = gymnasium.make("CoTEnv-v0", problems=2)
    assert isinstance(env.unwrapped, CoTEnv)
    env.reset(seed=0)
    _, reward, terminated, truncated, _ = env.step(END)
    assert (reward, terminated, truncated) == (0.0, True, False)
    vector = gymnasium.make_vec("CoTEnv-v0", num_envs=3, problems=2)
    assert isinstance(vector, CoTVectorEnv)
    assert (vector.num_envs, len(vector.items)) == (3, 36)


def test_the_reward_is_the_score_of_the_task(nano: LoadedModel) -> None:
    env = CoTVectorEnv(**SMALL, tokenizer=nano.tokenizer, num_envs=2)
    env.reset(seed=0, options={"episodes": 2})
    right, other = get_problem(env, 0), get_problem(env, 1)
    *_, infos = answer(env, [f"Answer: {right.reference}", f"Answer: 1{other.reference}"])
    responses = {r.episode: r for r in infos["responses"]}
    assert responses[1].reward == 0.0
    env.reset(seed=0, options={"episodes": 1})
    *_, infos = answer(env, [f"Answer: {right.reference}", ""])
    assert infos["responses"][0].reward == 1.0
    assert isinstance(infos["responses"][0].prompt.source, Problem)


FORMS = {
    "answer": ("so. Answer: 5", "the answer is 5", "Answer:"),
    "tags": ("<think>a\nb</think> <final_answer>5</final_answer>", "<think>5</think>", "x <think>a</think>"),
    r"\d+!": ("55!", "55! and more", "!"),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("share", [0.25, 1.0])
def test_the_format_is_a_fraction_of_the_reward(nano: LoadedModel, form: str, share: float) -> None:
    env = CoTVectorEnv(Echo(), tokenizer=nano.tokenizer, format_reward=share, format=form, max_tokens=80, context=250)
    env.reset(seed=0)
    first = next(e for e in range(3) if get_problem(env, e).reference == "red")
    good, *bad = FORMS[form]
    rewards = []
    for text in (good, *bad):
        env.reset(seed=0, options={"episode": first, "episodes": 1})
        *_, infos = answer(env, [text])
        rewards.append(infos["responses"][0].reward)
    assert rewards == [share, *[0.0] * len(bad)]


def test_a_truncated_response_has_no_format_reward(nano: LoadedModel) -> None:
    arguments: dict[str, Any] = {"tokenizer": nano.tokenizer, "format_reward": 0.4, "format": "(?s).*red.*"}
    env = CoTVectorEnv(Echo(), **arguments, max_tokens=len(nano.tokenizer.encode("red")) + 1)
    env.reset(seed=0)
    first = next(e for e in range(3) if get_problem(env, e).reference == "red")
    env.reset(seed=0, options={"episode": first, "episodes": 1})
    *_, infos = answer(env, ["red"])
    assert infos["responses"][0].reward == pytest.approx(0.6 * 0.5 + 0.4)
    env.reset(seed=0, options={"episode": first, "episodes": 1})
    *_, infos = answer(env, ["red#"], end=False)
    assert infos["responses"][0].truncated
    assert infos["responses"][0].reward == pytest.approx(0.6 * 0.5)


def test_a_scorer_that_fails_is_a_failure_and_no_zero(nano: LoadedModel) -> None:
    env = CoTVectorEnv(Echo(), tokenizer=nano.tokenizer, num_envs=3, failures="mark")
    env.reset(seed=0)
    words = [get_problem(env, episode).reference for episode in range(3)]
    *_, infos = env.step(np.full(3, END))
    for word, response in zip(words, infos["responses"], strict=True):
        if word == "broken":
            assert response.reward is None
            assert "scorer: the judge" in response.failure
            assert "'Say broken'" in response.failure
        else:
            assert (response.reward, response.failure) == (0.0, "")
    strict = CoTVectorEnv(Echo(), tokenizer=nano.tokenizer, num_envs=3)
    strict.reset(seed=0)
    with pytest.raises(RewardError, match="scorer: the judge") as caught:
        strict.step(np.full(3, END))
    assert "\n" not in str(caught.value)


def test_skills_are_selected_and_splits_are_disjoint(nano: LoadedModel) -> None:
    selected = CoTVectorEnv(skills="addition", problems=40, tokenizer=nano.tokenizer)
    assert {item.skill for item in selected.items} == {"addition"}  # type: ignore[union-attr]
    texts = {}
    for split in Split:
        env = CoTVectorEnv(split=split, skills=["addition", "geometry"], problems=40, tokenizer=nano.tokenizer)
        assert {item.skill for item in env.items} == {"addition", "geometry"}  # type: ignore[union-attr]
        texts[split] = {prompt.text for prompt in env._prompts}
    assert all(len(rewards) == 80 for rewards in texts.values())
    assert texts[Split.TRAIN].isdisjoint(texts[Split.TEST] | texts[Split.VALIDATION])
    other = CoTVectorEnv(skills="addition", problems=40, problem_seed=1, tokenizer=nano.tokenizer)
    assert selected.items != other.items
    few = CoTVectorEnv(split="test", skills="percent", tokenizer=nano.tokenizer)
    assert 20 < len(few.items) < 200, "all that there are, where nobody says how many"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"skills": ["adition"]}, "'addition'"),
        ({"task": "math-skils"}, "'math-skills'"),
        ({"split": "training"}, "split .*train, validation, test; got 'training'"),
        ({"format_reward": 1.5}, r"format_reward .*0 to 1; got 1\.5"),
        ({"format_reward": -0.1}, r"format_reward .*0 to 1; got -0\.1"),
        ({"format": "("}, r"format .*regular expression; got '\('"),
        ({"problems": 10_000_000, "skills": ["addition"]}, "request fewer"),
        ({"problems": 0}, "problems .*at least 1 per skill"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(nano: LoadedModel, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(PalaestraError, match=message) as caught:
        CoTVectorEnv(**arguments, tokenizer=nano.tokenizer)
    assert "\n" not in str(caught.value)
    if "skills" in arguments and "problems" not in arguments:
        assert isinstance(caught.value, UnknownNameError)


def test_a_prompt_of_ones_own_cannot_be_scored_by_the_task(nano: LoadedModel) -> None:
    env = CoTVectorEnv(**SMALL, tokenizer=nano.tokenizer, failures="mark")
    env.reset(seed=0, options={"initial_state": "Hello"})
    with pytest.raises(EnvError, match="not a problem"):
        env.step(np.array([END]))
    env.reset(seed=0, options={"initial_state": get_problem(env, 0)})
    assert env.step(np.array([END]))[4]["responses"][0].reward == 0.0


def test_pictures_are_refused_and_not_left_out() -> None:
    with pytest.raises(EnvError, match="image"):
        CoTVectorEnv(task="vision-skills", skills="count", problems=1)
