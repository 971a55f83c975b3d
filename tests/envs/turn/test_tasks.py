"""Tasks as turn environments: several attempts, feedback without the reference, failures that are not zeros."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import pytest

from palaestra.core.errors import PalaestraError, TooFewProblemsError
from palaestra.core.records import Completion, Failure, FailureCause, Message, Problem, Score, Split
from palaestra.envs.factory import make_turn_env
from palaestra.envs.turn import TurnStopReason
from palaestra.envs.turn.tasks import ProblemSet, TaskEnv, TaskVectorEnv, feedback
from palaestra.tasks.base import take

SECRET = "the-reference-4711"


class Riddles:
    """A task whose scorer writes its secrets into the evidence."""

    name = "riddles"
    closed = 0

    def skills(self) -> Mapping[str, tuple[str, ...]]:
        return {"easy": (), "hard": ()}

    def problems(self, split: Split, per_skill: int, seed: int, skills: Sequence[str] = ()) -> list[Problem]:
        return [
            Problem(f"{skill}/{k}", (Message("user", f"{split} {skill} {k}?"),), SECRET, skill)
            for skill in skills or self.skills()
            for k in range(per_skill)
        ]

    def score(self, problem: Problem, completion: Completion) -> Score | Failure:
        if completion.text == "broken":
            return Failure(FailureCause.SANDBOX, "gone")
        if completion.text == "raise":
            raise KeyError("a bug")
        value = {"right": 1.0, "half": 0.5}.get(completion.text, 0.0)
        leaks = dict.fromkeys(("expected", "detail", "note", "made", "answer", "calls", "compared", "tests"), SECRET)
        return Score(value, {**leaks, "extracted": completion.text, "outcome": "wrong_answer", "passed": "2 of 5"})

    def close(self) -> None:
        Riddles.closed += 1


def test_the_attempt_that_ends_it_gives_the_reward() -> None:
    env = TaskEnv(Riddles(), attempts=3, problems=2)
    observation, info = env.reset(seed=0)
    assert info["skill"] in ("easy", "hard") and info["problem"].startswith(info["skill"])  # noqa: PT018
    assert observation.messages == (Message("user", f"train {info['problem'].replace('/', ' ')}?"),)
    _, reward, terminated, _, info = env.step("half")
    assert (reward, terminated, info["score"]) == (0.0, False, 0.5)
    _, reward, terminated, truncated, info = env.step("right")
    assert (reward, terminated, truncated, info["stop_reason"]) == (1.0, True, False, TurnStopReason.SOLVED)
    env.reset(seed=0)
    steps = [env.step(text) for text in ("wrong", "right enough", "half")]
    assert [step[1] for step in steps] == [0.0, 0.0, 0.5]
    assert steps[-1][2] and steps[-1][4]["stop_reason"] is TurnStopReason.ATTEMPTS  # noqa: PT018
    single = TaskEnv(Riddles(), attempts=1, problems=2)
    single.reset(seed=0)
    observation, reward, terminated, *_ = single.step("wrong")
    assert terminated and reward == 0.0 and observation.messages[-1].role == "assistant"  # noqa: PT018


def test_neither_reference_nor_tests_are_ever_told() -> None:
    env = TaskEnv(Riddles(), attempts=9, problems=2, render_mode="ansi")
    env.reset(seed=0)
    for text in ("wrong", "half", ""):
        observation, _, _, _, info = env.step(text)
        assert SECRET not in f"{observation} {info} {env.render()}"
    replies = [message.text for message in observation.messages if message.role == "user"][1:]
    assert (
        replies[0] == "That is not right: wrong answer, 2 of 5 tests passed, your answer was read as wrong. Try again."
    )
    assert replies[1].endswith("your answer was read as half, its score is 0.5. Try again.")
    assert "no answer was found in it" in replies[2]
    assert feedback(Score(0.0)) == "That is not right. Try again."


@pytest.mark.parametrize(("text", "cause"), [("broken", FailureCause.SANDBOX), ("raise", FailureCause.SCORER)])
def test_a_scorer_that_breaks_is_a_failure_and_no_zero(text: str, cause: FailureCause) -> None:
    env = TaskEnv(Riddles(), problems=1)
    env.reset(seed=0)
    _, reward, terminated, truncated, info = env.step(text)
    assert (reward, terminated, truncated) == (0.0, False, True)
    assert info["stop_reason"] is TurnStopReason.FAILED and info["failure"].cause is cause  # noqa: PT018
    assert "score" not in info


def test_every_family_of_tasks_is_an_environment() -> None:
    """Mathematics, code, pictures and tools: a wrong answer, then what the task itself takes for right."""
    for name, skill in (("math-skills", "clock"), ("code-skills", ""), ("vision-skills", ""), ("tools-skills", "")):
        kinds = ProblemSet(name, problems=1).task.skills()
        problems = ProblemSet(name, problems=1, skills=skill or next(iter(kinds)))
        env = TaskEnv(problems, attempts=2)
        observation, _ = env.reset(seed=0)
        assert observation in env.observation_space
        problem = problems.problems[0]
        observation, reward, terminated, truncated, info = env.step("I cannot say.")
        assert (reward, terminated, truncated) == (0.0, False, False), info
        worked = str(problem.metadata.get("worked", "")) or f"```python\n{problem.reference}\n```"
        assert problem.reference not in observation.messages[-1].text
        _, reward, terminated, _, info = env.step(worked)
        assert (reward, terminated, info["stop_reason"]) == (1.0, True, TurnStopReason.SOLVED), name
        problems.close()


def test_slots_share_their_problems_and_groups_start_alike() -> None:
    env = gymnasium.make_vec(
        "palaestra/Task-v0",
        4,
        vectorization_mode="vector_entry_point",
        task="math-skills",
        skills=["clock"],
        problems=9,
        group_size=2,
    )
    assert isinstance(env, TaskVectorEnv)
    assert len({id(member.problem_set) for member in env.envs}) == 1  # type: ignore[attr-defined]
    observations, infos = env.reset(seed=0)
    assert observations[0] == observations[1] and infos["skill"].tolist() == ["clock"] * 4  # noqa: PT018
    env.close()


def test_whoever_made_a_task_closes_it() -> None:
    Riddles.closed = 0
    shared = ProblemSet(Riddles(), problems=1)
    TaskEnv(shared).close()
    TaskVectorEnv(shared, num_envs=2).close()
    assert Riddles.closed == 0
    TaskEnv(Riddles(), problems=1).close()
    TaskVectorEnv(Riddles(), problems=1, num_envs=3).close()
    assert Riddles.closed == 2


def test_what_is_measured_on_are_other_problems() -> None:
    options = {"skills": ["clock"], "problems": 5}
    train, test = (make_turn_env("palaestra/Task-v0", 1, options, held_out=h) for h in (False, True))
    known = [{p.id for p in env.problem_set.problems} for env in (train, test)]  # type: ignore[attr-defined]
    assert len(known[0]) == len(known[1]) == 5 and not known[0] & known[1]  # noqa: PT018


def test_where_nobody_says_how_many_a_skill_gives_what_it_has() -> None:
    """Up to 200: of some skills there are not that many that are kept for the test."""
    skills = ["clock", "percent"]
    counts = Counter(p.skill for p in ProblemSet("math-skills", "test", skills=skills).problems)
    assert counts["clock"] == 200
    assert 20 < counts["percent"] < 200
    assert counts["percent"] == len(ProblemSet("math-skills", "test", counts["percent"], "percent").problems)
    for count in (counts["percent"] + 1, 200):
        with pytest.raises(TooFewProblemsError) as caught:
            ProblemSet("math-skills", "test", count, skills)
        assert caught.value.available == counts["percent"]
        assert pickle.loads(pickle.dumps(caught.value)).available == counts["percent"]
    env = gymnasium.make("palaestra/Task-v0", split="test", skills=skills)
    assert len(env.unwrapped.problem_set.problems) == sum(counts.values())  # type: ignore[attr-defined]


def test_a_skill_without_problems_is_left_out() -> None:
    class Small(Riddles):
        def problems(self, split: Split, per_skill: int, seed: int, skills: Sequence[str] = ()) -> list[Problem]:
            chosen = skills or list(self.skills())
            held = {skill: Riddles.problems(self, split, 3, seed, [skill]) for skill in chosen if skill == "easy"}
            return [p for skill in chosen for p in take(held.get(skill, []), per_skill, self, split, skill)]

    assert len(ProblemSet(Small()).problems) == 3
    with pytest.raises(TooFewProblemsError, match=r"'hard' .*0 train problems"):
        ProblemSet(Small(), skills=["hard"])


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"task": "math-skils"}, "'math-skills'"),
        ({"skills": ["clok"]}, "'clock'"),
        ({"split": "tset"}, "split .*train"),
        ({"attempts": 0}, "attempts .*at least 1; got 0"),
        ({"problems": 0}, "problems .*at least 1 per skill"),
        ({"task_kwargs": {"x": 1}}, "'x'"),
    ],
)
def test_a_wrong_argument_is_one_line(wrong: dict[str, Any], reason: str) -> None:
    for make in (TaskEnv, TaskVectorEnv):
        with pytest.raises(PalaestraError, match=reason) as caught:
            make(**wrong)
        assert "\n" not in str(caught.value)
