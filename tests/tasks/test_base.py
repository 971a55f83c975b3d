"""Few-shot prompts for any task."""

import copy

import numpy as np
import pytest

from palaestra.core.errors import SettingsError, TaskError
from palaestra.core.records import Completion, Score, Split
from palaestra.tasks.base import GenerativeTask, Task, few_shot, get_hooks, make_task
from palaestra.tasks.math.task import MathSkills

SKILLS = ("addition", "clock")


def test_every_question_follows_the_same_shots() -> None:
    task = make_task("math-skills", shots=2)
    assert isinstance(task, Task)
    plain = {p.id: p for p in MathSkills().problems(Split.TEST, 3, 0, SKILLS)}
    for seed in (0, 0):
        for problem in task.problems(Split.TEST, 3, seed, SKILLS):
            assert [m.role for m in problem.messages] == ["user", "assistant"] * 2 + ["user"]
            assert problem.messages[-1:] == plain[problem.id].messages
            shown = MathSkills().get_shots(problem.skill, 2)
            assert problem.messages[0::2][:2] == tuple(example.messages[0] for example in shown)
            answer = Completion(f"Answer: {problem.reference}")
            assert task.score(problem, answer) == MathSkills().score(plain[problem.id], answer) != Score(0.0)


def test_lessons_have_the_shots_and_do_not_teach_them() -> None:
    task = few_shot(MathSkills(), 3)
    assert isinstance(task, GenerativeTask)
    shown = {example.messages[0].text for example in MathSkills().get_shots("addition", 3)}
    lessons = task.write_examples("addition", "", 60, np.random.default_rng(0))
    assert len(lessons) == 60
    assert not shown & {example.messages[-1].text for example in lessons}
    assert {len(example.messages) for example in lessons} == {7}


def test_few_shot_tasks_keep_all_other_attributes() -> None:
    task = make_task("math-skills", shots=1)
    assert get_hooks(task).max_tokens == MathSkills.max_tokens
    assert copy.deepcopy(task).name == "math-skills"
    with pytest.raises(AttributeError):
        _ = task.no_such_thing  # type: ignore[attr-defined]


def test_invalid_numbers_of_shots() -> None:
    class Bare:
        name = "bare"

    with pytest.raises(SettingsError, match=r"'shots' of math-skills: .*-1"):
        make_task("math-skills", shots=-1)
    with pytest.raises(TaskError, match=r"'bare' .*shots to 0"):
        few_shot(Bare(), 2)  # type: ignore[arg-type]

    class Few(MathSkills):
        def get_shots(self, skill: str, count: int):  # type: ignore[no-untyped-def]
            return super().get_shots(skill, 1)

    with pytest.raises(TaskError, match=r"1 worked problems.* shots=4"):
        few_shot(Few(), 4).problems(Split.TEST, 1, 0, SKILLS)
