"""Convert an example to a problem, so that its response or the student's answer can be scored.

An example has no reference. So a task may say how it is read, with one method,

    def to_problem(self, example: Example) -> Problem | None

and where a task has none, these are tried in turn: what the example brings with it (its reference), the problem of the
published train split that asks the same, and the answer that its own response gives. The last proves only that the
scorer finds an answer there; whoever judges by it says so.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from fractions import Fraction
from typing import TYPE_CHECKING

from palaestra.core.errors import SettingsError
from palaestra.core.records import Attempt, Completion, Example, Failure, FailureCause, Problem, Score
from palaestra.tasks.base import Task, get_hooks
from palaestra.tasks.group import TaskGroup
from palaestra.tasks.scoring import score
from palaestra.tasks.texts import digest, hashes, pictures
from palaestra.teachers.quality.base import KEPT, CheckResult, Context, Ruling, drop, not_judged

if TYPE_CHECKING:
    from palaestra.tasks.math.base import AnswerKind


class Basis(StrEnum):
    """The source of a problem's reference."""

    TASK = "the task says so"
    BROUGHT = "the example brings it"
    PUBLISHED = "the published train problem"
    CLAIMED = "only the answer of its own response"
    NONE = "nothing"


@dataclass(frozen=True, slots=True)
class Posed:
    """An example as a problem; `None` without a reference."""

    problem: Problem | None
    basis: Basis


def pose(example: Example, context: Context) -> Posed:
    """Convert `example` to a problem. Returns it with the source of its reference."""
    task = _undress(context.task)
    if isinstance(task, TaskGroup):
        name, plain = task.resolve_example(example)
        posed = pose(plain, replace(context, task=task.members[name].task))
        return replace(posed, problem=None if posed.problem is None else task.label(posed.problem, name))
    hooks = get_hooks(task)
    if hooks.overrides("to_problem"):
        problem = hooks.to_problem(example)
        return Posed(problem, Basis.TASK if problem is not None else Basis.NONE)
    if not example.messages:
        return Posed(None, Basis.NONE)
    reader = _reader(task)
    candidate: Problem | None
    if example.reference:
        candidate, basis = reader(example, example.reference), Basis.BROUGHT
    elif example.messages[-1] in context.published:
        candidate, basis = context.published[example.messages[-1]], Basis.PUBLISHED
    else:
        candidate, basis = reader(example, None), Basis.CLAIMED
    return Posed(candidate, basis if candidate is not None else Basis.NONE)


def bare(task: Task) -> Task:
    """Unwrap a task: remove few-shot prompts and discovered skills. A group yields its main task."""
    task = _undress(task)
    return bare(task.members[task.main].task) if isinstance(task, TaskGroup) else task


def _undress(task: Task) -> Task:
    from palaestra.tasks.shots import FewShot
    from palaestra.teachers.skills.task import Discovered

    while isinstance(task, FewShot | Discovered):
        task = task.task
    return task


def make_problem_id(example: Example) -> str:
    """An id for the problem of an example; the same question and response give the same id."""
    parts = [part for m in example.messages for part in (m.role, m.text, pictures(m))]
    return f"example/{digest(*parts, example.response)}"


Reader = Callable[[Example, str | None], Problem | None]
"""Makes a problem from an example and a reference, or from the answer in its response."""


def _reader(task: Task) -> Reader:
    from palaestra.tasks.code.task import CodeTask
    from palaestra.tasks.math.published import WorkedTask
    from palaestra.tasks.math.task import MathSkills
    from palaestra.tasks.tools.task import ToolsSkills
    from palaestra.tasks.vision.task import VisionSkills

    if isinstance(task, CodeTask | ToolsSkills):
        # Their problems hold solutions and plans of ours, which are executed here: never what a model wrote.
        return lambda example, reference: None
    if isinstance(task, MathSkills):
        return _math_skills
    if isinstance(task, WorkedTask):
        return _read_worked
    if isinstance(task, VisionSkills):
        return _vision_skills
    return _any


def _math_skills(example: Example, reference: str | None) -> Problem | None:
    from palaestra.tasks.math.base import extract
    from palaestra.tasks.math.task import SKILLS

    if example.skill in SKILLS:
        return _problem(example, reference or extract(example.response, SKILLS[example.skill].kind) or "")
    # The skill determines the kind of answer. For a discovered skill, the form of the reference determines it; all skills
    # of one kind are scored in the same way.
    kind = infer_kind(reference) if reference else None
    alike = next((name for name, skill in SKILLS.items() if skill.kind is kind), "")
    return replace(_problem(example, reference), skill=alike, subskill="") if reference and alike else None


def infer_kind(reference: str) -> AnswerKind | None:
    """The kind of answer of a reference; `None` if unknown.

    >>> [infer_kind(text) for text in ("1,200", "4:05", "3, 1, 2", "7 nuts")]
    [<AnswerKind.NUMBER: 'number'>, <AnswerKind.CLOCK: 'clock'>, <AnswerKind.LIST: 'list'>, None]
    """
    from palaestra.tasks.math.base import AnswerKind, extract

    # Numbers come first, because a number may contain commas like a list.
    return next((kind for kind in AnswerKind if extract(reference, kind) == reference), None)


def _read_worked(example: Example, reference: str | None) -> Problem:
    from palaestra.tasks.math.extraction import extract

    candidate = None if reference else extract(example.response)
    return _problem(example, reference or (candidate.text if candidate else ""), question=example.messages[-1].text)


def _vision_skills(example: Example, reference: str | None) -> Problem:
    from palaestra.tasks.vision.answers import extract

    choices = list(example.metadata.get("choices", ()))
    return _problem(example, reference or extract(example.response, choices) or "")


def _any(example: Example, reference: str | None) -> Problem | None:
    """For all other tasks: the reference and metadata of the example."""
    return _problem(example, reference) if reference else None


def _problem(example: Example, reference: str, **metadata: object) -> Problem:
    # Scorers of visual tasks read `choices`; an empty list means an open answer.
    brought = {"choices": [], **(example.metadata), **metadata}
    return Problem(make_problem_id(example), example.messages, reference, example.skill, example.subskill, brought)


WRONG_EQUATION, NONE = "wrong calculation", "no calculation"

_NUMBER = r"\d{1,3}(?:,\d{3})+(?![\d,])(?:\.\d+)?|\d+(?:\.\d+)?"
_SIGN = r"\s?[-+*/×÷−]\s?|\s[x]\s|(?<=\d)x(?=\d)"
# Only unambiguous equations count: they begin a sentence or follow a plain word, and no unit, bracket, power or further
# operator touches either side.
_EQUATION = re.compile(
    rf"(?:^|[.;:,!?]\s|<<|\b(?!x\b|of\b|times\b|by\b|and\b|plus\b|minus\b|over\b|per\b|to\b)[A-Za-z]+\s)"
    rf"(?P<equation>(?P<left>\$?(?:{_NUMBER})(?:(?:{_SIGN})\$?(?:{_NUMBER})){{1,8}})"
    rf"\s?=\s?(?P<right>[-−]?\$?(?:{_NUMBER})))(?![\w%^²³½¼¾(]|[.,:]\d|\s?[-+*/×÷−=x](?:[\s\w($]|$)|\s\d|\sand\b)",
    re.MULTILINE,
)
_TOKEN = re.compile(rf"{_NUMBER}|[-+*/]")
_SIGNS = str.maketrans("×x÷−", "**/-")


class Equations:
    """Drops a response with a false equation such as `12*7=94`. Rounded results are right to the digits given."""

    name = "equations"
    rank = 25
    needed = True

    def judge(self, examples: Sequence[Example], context: Context) -> list[CheckResult]:
        return [_check_equations(example.response) for example in examples]


def _check_equations(response: str) -> CheckResult:
    count = 0
    for match in _EQUATION.finditer(response):
        if match["left"].count("/") > 1:
            continue  # "50 / 1/2" means a half to most who write it.
        count += 1
        if not holds(match["left"], match["right"]):
            return drop(WRONG_EQUATION, match["equation"])
    return KEPT if count else not_judged(NONE)


def holds(left: str, right: str) -> bool:
    """Whether a calculation gives a number, to the digits that the number has.

    >>> holds("12*7", "84"), holds("10/3", "3.33"), holds("10/3", "3.35"), holds("7/2", "5")
    (True, True, False, False)
    """
    value, stated = _value(left), right.translate(_SIGNS).replace("$", "").replace(",", "")
    if value is None:
        return False
    digits = len(stated.partition(".")[2])
    off = abs(value - Fraction(stated))
    # "3.33" is meant to its last digit, rounded or cut off; so is the whole number that a division gives.
    return off < Fraction(1, 10**digits) if digits or re.search(r"[/÷]", left) else off == 0


def _value(expression: str) -> Fraction | None:
    """Evaluate numbers and operators, products first; `None` for a division by zero."""
    total, term, sign = Fraction(0), Fraction(0), "+"
    for token in _TOKEN.findall(expression.translate(_SIGNS).replace("$", "")):
        if token in "+-*/":
            sign = token
            continue
        number = Fraction(token.replace(",", ""))
        if sign in "+-":
            total, term = total + term, number if sign == "+" else -number
        elif sign == "*":
            term *= number
        elif number == 0:
            return None
        else:
            term /= number
    return total + term


WRONG, NO_ANSWER = "wrong answer", "no answer in the response"
NOTHING_TO_SCORE_BY = "nothing to score it by"


class Scorer:
    """Drops examples whose response the task scores as wrong; see `palaestra.teachers.quality.answers`."""

    name = "scorer"
    rank = 20
    needed = True

    def judge(self, examples: Sequence[Example], context: Context) -> list[CheckResult | Failure]:
        return [_score_example(example, context) for example in examples]


def _score_example(example: Example, context: Context) -> CheckResult | Failure:
    try:
        posed = pose(example, context)
        if posed.problem is None:
            return not_judged(NOTHING_TO_SCORE_BY)
        if posed.basis is Basis.CLAIMED and not posed.problem.reference:
            return drop(NO_ANSWER)
    except Exception as error:  # A task may be user code: its errors are failures, not results.
        return Failure(FailureCause.SCORER, f"{type(error).__name__}: {error}")
    outcome = score(context.task, posed.problem, Completion(example.response))
    if isinstance(outcome, Failure):
        return outcome
    if outcome.value >= 1.0:
        return CheckResult(Ruling.KEPT, f"scored by {posed.basis}") if posed.basis is Basis.CLAIMED else KEPT
    return drop(WRONG, _evidence(outcome))


def _evidence(score: Score) -> str:
    """The scorer's evidence in one line. The reference comes from the example or the train split."""
    evidence = score.evidence
    if "expected" in evidence:
        return f"expected {evidence['expected']!r}; got {evidence.get('extracted', evidence.get('answer', ''))!r}"
    return "; ".join(f"{name}: {value}" for name, value in evidence.items() if value)[:300]


SOLVED = "already solved"
"""The reason of dropped and kept examples alike; `CheckReport.share(SOLVED)` is the fraction that the student solves."""
NO_STUDENT, NOTHING_TO_SCORE_STUDENT_BY = "no student to ask", "nothing to score the student by"


class Solved:
    """Drops examples that the current student always answers correctly.

    Arguments:
        stay: the fraction of such examples to keep, against forgetting; 0 drops all, 1 only counts them. The choice
            depends on the example alone.
    """

    name = "solved"
    rank = 60
    needed = False

    def __init__(self, stay: float = 0.0) -> None:
        if not 0 <= stay <= 1:
            raise SettingsError(f"solved needs a share to stay from 0 to 1; got {stay}")
        self.stay = stay

    def judge(self, examples: Sequence[Example], context: Context) -> list[CheckResult | Failure]:
        from palaestra.tasks.evaluate import evaluate

        if context.engine is None:
            return [not_judged(NO_STUDENT)] * len(examples)
        posed = [pose(example, context).problem for example in examples]
        problems = {p.id: p for p in posed if p is not None and p.reference}
        attempts = evaluate(
            context.task,
            list(problems.values()),
            context.engine,
            sampling=context.sampling,
            seed=context.seed,
            phase=self.name,
            keep=context.keep,
        )
        by_id: dict[str, list[Attempt]] = {}
        for attempt in attempts:
            by_id.setdefault(attempt.problem.id, []).append(attempt)
        return [self._judge(e, p, by_id) for e, p in zip(examples, posed, strict=True)]

    def _judge(
        self, example: Example, problem: Problem | None, attempts: dict[str, list[Attempt]]
    ) -> CheckResult | Failure:
        tries = attempts.get(problem.id, []) if problem is not None else []
        if not tries:
            return not_judged(NOTHING_TO_SCORE_STUDENT_BY)
        if any(attempt.correct is False for attempt in tries):
            return KEPT
        for attempt in tries:
            if isinstance(attempt.outcome, Failure):
                return attempt.outcome
        chance = int(hashes([make_problem_id(example)])[0]) / 2**64
        if chance < self.stay:
            return CheckResult(Ruling.KEPT, SOLVED)
        return drop(SOLVED, f"{len(tries)} of {len(tries)} answers are right")
