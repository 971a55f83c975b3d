"""`math-skills`: procedural mathematics in 18 skills, with worked reasoning for every problem."""

from __future__ import annotations

from palaestra.core.records import Completion, Example, Failure, Message, Problem, Score, Split
from palaestra.tasks.base import UnusableError, get_split
from palaestra.tasks.content import read_brief
from palaestra.tasks.math.base import MathDatum, MathDraft, equal, extract, plain
from palaestra.tasks.math.recipes import SKILLS
from palaestra.tasks.math.solving import solve_question
from palaestra.tasks.procedural import Family, ProceduralTask, format_response, make_problem


def draft_split(skill: str, draft: MathDraft) -> Split | None:
    """The split of a draft, which is the same under any wording and in every subskill.

    None for a problem with the numbers and the answer of a problem in another split: it is neither asked nor taught. Moving
    it there would put problems on which the embedded model was trained into the validation and test splits.
    """
    split = get_split(f"{skill}|{draft.key}")
    return split if not draft.like or get_split(f"{skill}|{draft.like}") is split else None


class MathSkills(ProceduralTask[MathDraft]):
    """Procedural mathematics.

    Example:
        >>> task = MathSkills()
        >>> problem = task.problems(Split.TEST, per_skill=1, seed=0, skills=["addition"])[0]
        >>> task.score(problem, Completion(text=f"Answer: {problem.reference}")).value
        1.0
    """

    name = "math-skills"
    max_tokens = 72
    lesson_size = 480
    epochs = 1
    datum = MathDatum
    family: Family[MathDraft] = {name: skill.subskills for name, skill in SKILLS.items()}  # noqa: RUF012

    def get_split(self, skill: str, draft: MathDraft) -> Split | None:
        return draft_split(skill, draft)

    def key(self, draft: MathDraft) -> str:
        return draft.question

    def content(self, draft: MathDraft) -> tuple[int | str, ...]:
        return *(draft.like or draft.key), draft.answer

    def problem(self, skill: str, subskill: str, draft: MathDraft) -> Problem:
        identity = f"{skill}|{subskill}|{draft.question}"
        question = Message("user", draft.question)
        return make_problem(skill, subskill, identity, question, draft.answer, {"worked": draft.response})

    def example(self, skill: str, subskill: str, draft: MathDraft) -> Example:
        return Example((Message("user", draft.question),), draft.response, skill, subskill, draft.answer)

    def brief(self) -> str:
        return read_brief("math-skills")

    def make_example(self, datum: MathDatum, skill: str, subskill: str) -> Example:
        answer = plain(datum.answer)
        question = Message("user", datum.question.strip())
        if not question.text:
            raise UnusableError("the question is empty")
        return Example((question,), format_response([datum.reasoning], answer), skill, subskill, answer)

    def solve(self, example: Example) -> str | None:
        solution = solve_question(example.messages[-1].text)
        return None if solution is None else solution.answer

    def recognize_skill(self, example: Example) -> tuple[str, str] | None:
        solution = solve_question(example.messages[-1].text)
        return (solution.skill, solution.subskill) if solution is not None and solution.skill else None

    def score(self, problem: Problem, completion: Completion) -> Score | Failure:
        kind = SKILLS[problem.skill].kind
        given = extract(completion.text, kind)
        right = given is not None and equal(given, problem.reference, kind)
        return Score(float(right), {"extracted": given or "", "expected": problem.reference})
