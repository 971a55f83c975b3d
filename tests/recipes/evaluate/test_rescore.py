from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from stored_runs import attempts, evaluate_run, write_train_run

from palaestra.core.errors import PalaestraError, RunError
from palaestra.core.records import (
    Attempt,
    Completion,
    Failure,
    FailureCause,
    Message,
    Problem,
    Score,
    Segment,
    Split,
    Trajectory,
)
from palaestra.core.statistics import mean_interval
from palaestra.envs.factory import make_single_turn_env, make_token_env
from palaestra.envs.token.base import TokenVectorEnv
from palaestra.recipes.evaluate.rescore import RESCORE, rescore, write_rescoring
from palaestra.recipes.train.presets import fill_presets, make_settings
from palaestra.report import write_report
from palaestra.runs.files import to_data
from palaestra.runs.provenance import LedgerEntry
from palaestra.runs.run import Run
from palaestra.tasks.base import make_task

OPTIONS = {"skills": "addition", "problems": 4}


def has_answer(completion: str, answer: str) -> float:
    return float(completion.endswith(answer))


def count_words(completions: list[str]) -> list[float]:
    return [float(len(completion.split())) for completion in completions]


def count_messages(completions: list[list[dict[str, str]]]) -> list[float]:
    return [float(len(completion)) for completion in completions]


def fail(completion: str) -> float:
    raise ValueError("no such thing")


def evaluated(folder: Path, right: int) -> Path:
    """An evaluation of 8 problems of math-skills: the first answers are right, one failed, and one scorer failed."""
    problems = make_task("math-skills").problems(Split.VALIDATION, 8, 0, ["addition"])
    stored = []
    for k, problem in enumerate(problems):
        text = f"Answer: {problem.reference if k < right else 'nothing'}"
        stored.append(Attempt(problem, Completion(text), Score(float(k < right))))
    stored[6] = Attempt(problems[6], None, Failure(FailureCause.ENGINE, "it broke"))
    stored[7] = replace(stored[7], outcome=Failure(FailureCause.SCORER, "no sandbox"))
    return evaluate_run(folder, stored)


def train_run(folder: Path, env: str, trajectories: list[Trajectory], **options: object) -> Path:
    settings = fill_presets(make_settings({"env": env, "env_kwargs": options, "iterations": 1}))
    with Run.create(folder, "train", to_data(settings)) as run:
        run.store.add_iteration(1, {"reward": 0.5}, trajectories, LedgerEntry("1/train"))
    return folder


def token_run(folder: Path) -> Path:
    """One iteration with a right, a wrong and a failed response to a prompt, and one to a prompt that is not known."""
    env = make_token_env("palaestra/CoT-v0", 1, OPTIONS, tokenizer="nano", max_tokens=8)
    prompt = env.prompt(0)  # type: ignore[attr-defined]
    stored = []
    for response, reward, more in (
        (f"Answer: {prompt.source.reference}", 1.0, {}),
        ("Answer: -1", 0.0, {}),
        (f"Answer: {prompt.source.reference}", 0.0, {"failure": "scorer: broken"}),
    ):
        info = {"prompt": prompt.text, "response": response, "stop_reason": "end", "group": 0, **more}
        segments = (
            Segment(prompt.ids, (False,) * len(prompt.ids), (0.0,) * len(prompt.ids)),
            Segment((5,), (True,), (-0.5,)),
        )
        stored.append(Trajectory("palaestra/CoT-v0", 0, (reward,), segments, True, infos=(info,)))
    other = replace(stored[0], segments=(Segment((1,), (False,), (0.0,)), stored[0].segments[1]))
    return train_run(folder, "palaestra/CoT-v0", [*stored, other], **OPTIONS)


def turn_trajectory(messages: list[Message], reward: float, opening: int = 1) -> Trajectory:
    info = {"turns": 2, "group": 0, "opening": opening, "messages": [to_data(message) for message in messages]}
    return Trajectory("", 0, (0.0, reward), (), True, infos=(info,))


def test_task_of_the_run_scores_again(tmp_path: Path) -> None:
    result = rescore(evaluated(tmp_path / "run", 4))
    [part] = result.parts
    assert (part.before.value, part.after.value, part.count, part.new) == (4 / 6, 4 / 6, 6, 1)
    assert part.unscored == {"the model gave no answer: it broke": 1}
    assert not result.most_changed
    assert part.correlation == 1.0


def test_reward_is_compared_by_episode(tmp_path: Path) -> None:
    result = rescore(evaluated(tmp_path / "run", 4), reward=[has_answer, count_words], reward_weights=[-1, 0])
    [part] = result.parts
    assert (part.before.value, part.after.value) == (4 / 6, -4 / 6)
    assert (part.rose, part.fell, part.correlation) == (0, 4, -1.0)
    changes = [episode.change for episode in result.episodes if episode.change is not None]
    expected = mean_interval(changes, clusters=list(map(str, range(6))))
    assert (part.change.low, part.change.high) == pytest.approx((expected.low, expected.high))
    assert [episode.change for episode in result.most_changed] == [-2.0] * 4
    assert result.summary["gain"] == pytest.approx(sum(changes) / 6)


def test_scorer_by_name_and_of_one_episode(tmp_path: Path) -> None:
    run = evaluated(tmp_path / "run", 4)
    name = rescore(run, scorer="contains").episodes[5].name
    [episode] = rescore(run, scorer="contains", episode=name).episodes
    assert (episode.before, episode.after, episode.response) == (0.0, 0.0, "Answer: nothing")


def test_episodes_of_a_token_environment(tmp_path: Path) -> None:
    run = token_run(tmp_path / "run")
    [part] = rescore(run).parts
    assert (part.count, part.rose, part.fell, part.new) == (2, 0, 0, 1)
    assert part.unscored == {"its prompt is not in the environment any more": 1}
    # Two episodes of one group say nothing about others.
    assert (part.change.low, part.change.high) == (-1.0, 1.0)
    assert [e.after for e in rescore(run, reward=has_answer).episodes] == [1.0, 0.0, 1.0, None]


def test_token_rewards_are_not_given_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = token_run(tmp_path / "run")
    monkeypatch.setattr(TokenVectorEnv, "has_token_rewards", True)
    with pytest.raises(RunError, match="its tokens were rewarded one by one; give --reward"):
        rescore(run)
    assert [e.after for e in rescore(run, reward=has_answer).episodes] == [1.0, 0.0, 1.0, None]


def test_episodes_of_several_turns(tmp_path: Path) -> None:
    task = make_single_turn_env("palaestra/Task-v0", OPTIONS)
    problem: Problem = task.problem_set.problems[0]  # type: ignore[attr-defined]
    wrong = [*problem.messages, Message("assistant", "Answer: x"), Message("user", "That is not right.")]
    messages = [*wrong, Message("assistant", f"Answer: {problem.reference}")]
    old = replace(turn_trajectory([], 1.0), infos=({"turns": 2, "group": 0},))
    run = train_run(
        tmp_path / "run",
        "palaestra/Task-v0",
        [turn_trajectory(messages, 0.0), turn_trajectory(wrong, 0.0), old],
        **OPTIONS,
    )
    assert [episode.after for episode in rescore(run).episodes] == [1.0, 0.0, None]
    assert rescore(run).parts[0].unscored == {"it was stored by an earlier version, without its messages": 1}
    assert [episode.after for episode in rescore(run, reward=count_messages).episodes] == [3.0, 2.0, None]


def test_report_shows_the_last_rescoring(tmp_path: Path) -> None:
    run = evaluated(tmp_path / "run", 4)
    data = json.loads(write_rescoring(rescore(run, reward=has_answer)).read_text())
    assert len(data["values"]) == 8
    assert (run / RESCORE).exists()
    page = write_report(run).read_text()
    assert "reward has_answer" in page
    assert "it broke" in page


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"reward": fail}, "no such thing"),
        ({"reward": has_answer, "scorer": "number"}, "not both"),
        ({"reward_weights": [1.0]}, "reward_weights"),
        ({"scorer": "nobody"}, "unknown scorer"),
        ({"episode": "0/test/x/0"}, "no episode '0/test/x/0'"),
        ({"reward": "nowhere.py:f"}, "nowhere.py"),
    ],
)
def test_wrong_inputs_are_answered_in_one_line(tmp_path: Path, options: dict[str, object], reason: str) -> None:
    with pytest.raises(PalaestraError, match=reason) as caught:
        rescore(evaluate_run(tmp_path / "run", attempts(3)), **options)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_runs_that_cannot_be_rescored_say_why(tmp_path: Path) -> None:
    guess = train_run(tmp_path / "guess", "palaestra/Guess-v0", [])
    with Run.open(guess) as run:
        run.store.add_iteration(
            2, {}, [turn_trajectory([Message("user", "?"), Message("assistant", "3")], 1.0)], LedgerEntry("")
        )
    with pytest.raises(RunError, match="depend on the state of the environment; give --reward"):
        rescore(guess)
    settings = fill_presets(make_settings({"env": "CartPole-v1", "policy": "mlp"}))
    Run.create(tmp_path / "classic", "train", to_data(settings)).close()
    with pytest.raises(RunError, match="have no text"):
        rescore(tmp_path / "classic", reward=has_answer)
    write_train_run(tmp_path / "old")
    with pytest.raises(RunError, match="its prompt is not in the environment any more"):
        rescore(tmp_path / "old")


def test_clusters_widen_the_interval_of_a_mean() -> None:
    single = mean_interval([0.0, 1.0, 0.0, 1.0])
    pairs = mean_interval([0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0, 1.0], clusters=list("aabbccdd"))
    assert pairs.value == single.value
    # The variance is divided by 7 / 8 instead of 3 / 4 of the count; the number of independent values is the same.
    assert pairs.high - pairs.value == pytest.approx((single.high - single.value) * (6 / 7) ** 0.5)
