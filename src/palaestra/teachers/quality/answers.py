"""Checks of the answers of examples: `scorer`, `equations` and `solved`.

An answer is **verified** if the task solves the question itself (its hook `solve`), or if the question is a published train
problem. The response is then scored against that answer.

The scorer of a task needs a problem, so an example is converted to one. A task may define the conversion:

    def to_problem(self, example: Example) -> Problem | None

For other tasks the reference is the example's own, or that of the published train problem with the same question. Without
both, it is the answer in the example's own response. Such a reference does not verify the answer: the writer wrote both.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from palaestra.core.records import Attempt, Completion, Example, Failure, FailureCause, Problem, Score
from palaestra.tasks.base import FewShot, Task, get_hooks
from palaestra.tasks.code.task import CodeTask
from palaestra.tasks.evaluate import evaluate, score
from palaestra.tasks.group import TaskGroup
from palaestra.tasks.math import base as math_skills
from palaestra.tasks.math.base import AnswerKind, extract
from palaestra.tasks.math.extraction import extract_worked
from palaestra.tasks.math.published import WorkedTask
from palaestra.tasks.math.recipes import SKILLS
from palaestra.tasks.math.solving import find_wrong_unit
from palaestra.tasks.math.task import MathSkills
from palaestra.tasks.readings import to_figures
from palaestra.tasks.texts import digest_texts, pictures, words
from palaestra.tasks.tools.task import ToolsSkills
from palaestra.tasks.vision.answers import extract_short
from palaestra.tasks.vision.task import VisionSkills
from palaestra.teachers.quality.base import KEPT, CheckResult, Context, Ruling, drop, not_judged
from palaestra.teachers.skills.task import Discovered

_WRONG, _NO_ANSWER, _WRONG_EQUATION = "wrong answer", "no answer in the response", "wrong calculation"
_WRONG_UNIT, _FOREIGN, _OTHER_END = "wrong unit", "working of another question", "working without the answer"
_BY_SOLVER, _BY_PUBLISHED = "solved by the task", "published answer"
"""How an answer was verified."""
_CLAIMED = "scored by only the answer of its own response"
SOLVED = "already solved"
NOTHING_TO_SCORE_BY, _NO_CALCULATION, _NO_STUDENT = "nothing to score it by", "no calculation", "no student to ask"

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


class Scorer:
    """Drops examples whose answer is wrong: it differs from the task's own solution, or the task scores it as wrong."""

    name = "scorer"
    rank = 20
    needed = True

    def judge(self, examples: Sequence[Example], context: Context) -> list[CheckResult | Failure]:
        return [_score_example(example, context) for example in examples]


def _score_example(example: Example, context: Context) -> CheckResult | Failure:
    try:
        solved = get_hooks(context.task).solve(example) if "remainder" not in example.reference else None
        problem, claimed = pose(example if solved is None else replace(example, reference=solved), context)
    except (Exception, SystemExit) as error:  # A task may be user code: its errors are failures, not results.
        return Failure(FailureCause.SCORER, f"{type(error).__name__}: {error}")
    if problem is None:
        return not_judged(NOTHING_TO_SCORE_BY)
    if claimed and not problem.reference:
        return drop(_NO_ANSWER)
    method = ""
    if solved is not None:
        method = _BY_SOLVER
    elif _is_mathematical(context.task) and example.messages[-1] in context.published:
        problem, method = replace(problem, reference=context.published[example.messages[-1]].reference), _BY_PUBLISHED
    outcome = score(context.task, problem, Completion(example.response))
    if isinstance(outcome, Failure):
        return outcome
    if outcome.value < 1.0 and not (solved and _is_rounded(str(outcome.evidence.get("extracted", "")), solved)):
        if solved is not None and outcome.evidence.get("extracted") == "":
            return drop(_NO_ANSWER, _describe(outcome))
        return drop(_WRONG, _describe(outcome), verified=method)
    has_unit = solved is not None and _is_mathematical(context.task)
    if has_unit and (wrong := find_wrong_unit(example.messages[-1].text, example.reference)):
        return drop(_WRONG_UNIT, wrong, verified=method)
    return CheckResult(Ruling.KEPT, _CLAIMED if claimed and not method else "", verified=method)


def _is_rounded(given: str, solved: str) -> bool:
    """Whether an answer is the solution rounded or truncated to two or more decimals, for example 3.33 for 10/3."""
    if not re.fullmatch(r"-?\d+\.\d{2,}", given) or not re.fullmatch(r"-?\d+/\d+", solved):
        return False
    return abs(Fraction(given) - Fraction(solved)) < Fraction(1, 10 ** len(given.partition(".")[2]))


def _is_mathematical(task: Task) -> bool:
    return isinstance(bare(task), MathSkills | WorkedTask)


def _describe(score: Score) -> str:
    """The scorer's evidence in one line. The reference comes from the example or the train split."""
    evidence = score.evidence
    if "expected" in evidence:
        return f"expected {evidence['expected']!r}; got {evidence.get('extracted', evidence.get('answer', ''))!r}"
    return "; ".join(f"{name}: {value}" for name, value in evidence.items() if value)[:300]


class Equations:
    """Drops a response with a false equation such as `12*7=94`, or with the working of another question.

    Rounded results must be correct to their last digit. In mathematics the working must share a number with the question,
    most operands must come from the question or from earlier results, and the answer must appear. Parts of a number
    (200, 6 and 28 for 206 and 428) and common constants (60, 100, ...) count as its own.
    """

    name = "equations"
    rank = 25
    needed = True

    def judge(self, examples: Sequence[Example], context: Context) -> list[CheckResult]:
        checks_working = _is_mathematical(context.task)
        return [_check_equations(example, context, checks_working) for example in examples]


def _check_equations(example: Example, context: Context, checks_working: bool) -> CheckResult:
    equations = _find_equations(example.response)
    for match in equations:
        if not holds(match["left"], match["right"]):
            return drop(_WRONG_EQUATION, match["equation"])
    fault = None
    if checks_working and example.messages:
        fault = check_working(example.messages[-1].text, example.response, id(example) in context.verified)
    return fault or (KEPT if equations else not_judged(_NO_CALCULATION))


def _find_equations(text: str) -> list[re.Match[str]]:
    # In "50 / 1/2" most writers mean a half.
    return [match for match in _EQUATION.finditer(text) if match["left"].count("/") <= 1]


_END = re.compile(r"answer\s{0,9}(?:is|:|=)", re.IGNORECASE)
_CONSTANTS = {Fraction(n) for n in (*range(13), 20, 24, 30, 31, 52, 60, 100, 180, 360, 365, 1000)}
_MULTIPLES = dict.fromkeys(("half", "twice", "double", "pair"), 2) | dict.fromkeys(("triple", "thrice", "third"), 3)
_MULTIPLES |= {"quarter": 4, "dozen": 12}


def check_working(question: str, response: str, verified: bool = False) -> CheckResult | None:
    """Return why the working of a response does not belong to a question or to its answer; `None` if it may belong.

    Arguments:
        verified: the answer is known to be right. The working may then stop before it, if all operands are derived.

    >>> check_working("What is 3 + 4?", "206+428=634. Answer: 7").reason
    'working of another question'
    >>> check_working("What is 206 + 428?", "200+400=600. 6+28=34. 600+34=634. Answer: 634") is None
    True
    """
    ends = list(_END.finditer(response))
    working, answer = (response[: ends[-1].start()], response[ends[-1].end() :]) if ends else (response, "")
    asked, stated = _read_numbers(question), _read_numbers(working)
    own = {part for number in asked for part in _split_number(number)}
    final = {part for n in _read_numbers(answer) for part in (n, n * 100, n / 100, Fraction(n.numerator))}
    if asked and stated - final and not stated & own:
        return drop(_FOREIGN, f"it has no number of the question: {working.strip()[:80]}")
    equations = _find_equations(working)
    known, foreign, constants, count = set(own), [], 0, 0
    for match in equations:
        operands = _read_numbers(match["left"])
        count += len(operands)
        constants += len(operands - known)
        foreign += sorted(operands - known - _CONSTANTS - _read_numbers(working[: match.start("equation")]))
        known |= _read_numbers(match["right"])
    if asked and foreign and 2 * len(foreign) >= count:
        return drop(_FOREIGN, f"{', '.join(map(str, foreign))} not from the question")
    if equations and final and not final & stated and not (verified and not constants):
        return drop(_OTHER_END, f"it ends with {equations[-1]['equation']}; the answer is {answer.strip()[:40]}")
    return None


def _read_numbers(text: str) -> set[Fraction]:
    """The numbers of a text, in digits and in words."""
    numbers = {Fraction(number.replace(",", "")) for number in re.findall(_NUMBER, text)}
    for word in to_figures(words(text)):
        if word[0].isdigit() and re.fullmatch(r"\d+(?:\.\d+)?", word):
            numbers.add(Fraction(word))
        elif word.rstrip("s") in _MULTIPLES:
            multiple = _MULTIPLES[word.rstrip("s")]
            numbers |= {Fraction(multiple), Fraction(1, multiple)}
        elif word == "one":
            numbers.add(Fraction(1))
    return numbers


def _split_number(number: Fraction) -> set[Fraction]:
    """A number with its decimal parts, and the forms of a percentage."""
    parts = {number, number / 100, 1 - number / 100, 1 + number / 100, 100 - number, 100 + number, number * 100}
    whole, place = int(number), 1
    while number.denominator == 1 and place <= whole:
        rest = whole % (10 * place)
        parts |= {Fraction(n) for n in (rest, whole - rest, whole // (10 * place), whole // place % 10 * place)}
        place *= 10
    return parts


def holds(left: str, right: str) -> bool:
    """Whether a calculation equals a number, to the precision of the number.

    >>> holds("12*7", "84"), holds("10/3", "3.33"), holds("10/3", "3.35"), holds("7/2", "5")
    (True, True, False, False)
    """
    value, stated = _value(left), right.translate(_SIGNS).replace("$", "").replace(",", "")
    if value is None:
        return False
    digits = len(stated.partition(".")[2])
    off = abs(value - Fraction(stated))
    # "3.33" is right to its last digit, rounded or truncated; so is the whole number of a division.
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


class Solved:
    """Drops examples that the current student always answers correctly."""

    name = "solved"
    rank = 60
    needed = False

    def judge(self, examples: Sequence[Example], context: Context) -> list[CheckResult | Failure]:
        if context.engine is None:
            return [not_judged(_NO_STUDENT)] * len(examples)
        posed = [pose(example, context)[0] for example in examples]
        problems = list({p.id: p for p in posed if p is not None and p.reference}.values())
        sampling, seed, keep = context.sampling, context.seed, context.keep
        attempts: dict[str, list[Attempt]] = {}
        for attempt in evaluate(
            context.task, problems, context.engine, sampling=sampling, seed=seed, phase=self.name, keep=keep
        ):
            attempts.setdefault(attempt.problem.id, []).append(attempt)
        return [_judge_attempts(attempts.get(problem.id, []) if problem else []) for problem in posed]


def _judge_attempts(attempts: Sequence[Attempt]) -> CheckResult | Failure:
    if not attempts:
        return not_judged(NOTHING_TO_SCORE_BY)
    if any(attempt.correct is False for attempt in attempts):
        return KEPT
    failures = (attempt.outcome for attempt in attempts if isinstance(attempt.outcome, Failure))
    return next(failures, drop(SOLVED, f"{len(attempts)} of {len(attempts)} answers are right"))


def pose(example: Example, context: Context) -> tuple[Problem | None, bool]:
    """Convert an example to a problem; `None` without a reference.

    Returns also whether the reference is only the answer of the example's own response.
    """
    task = _undress(context.task)
    if isinstance(task, TaskGroup):
        name, plain = task.resolve_example(example)
        problem, claimed = pose(plain, replace(context, task=task.members[name].task))
        return None if problem is None else task.label(problem, name), claimed
    hooks = get_hooks(task)
    if hooks.overrides("to_problem"):
        return hooks.to_problem(example), False
    # Problems of code and tools contain our own solutions and plans, which are executed: never text of a model.
    if not example.messages or isinstance(task, CodeTask | ToolsSkills):
        return None, False
    if example.reference:
        problem = _make_problem(task, example, example.reference)
        return problem, not problem.reference
    if example.messages[-1] in context.published:
        return context.published[example.messages[-1]], False
    answer = _extract_answer(task, example)
    return None if answer is None else _make_problem(task, example, answer), True


def bare(task: Task) -> Task:
    """Unwrap a task: remove few-shot prompts and discovered skills. A group yields its main task."""
    task = _undress(task)
    return bare(task.members[task.main].task) if isinstance(task, TaskGroup) else task


def _undress(task: Task) -> Task:
    while isinstance(task, FewShot | Discovered):
        task = task.task
    return task


def make_problem_id(example: Example) -> str:
    """An id for the problem of an example; the same question and response give the same id."""
    parts = [part for m in example.messages for part in (m.role, m.text, pictures(m))]
    return f"example/{digest_texts(*parts, example.response)}"


def _make_problem(task: Task, example: Example, reference: str) -> Problem:
    """The problem of an example. Its reference is empty if it is not an answer of the task."""
    # Scorers read the question of worked problems, and the choices of visual ones; no choices mean an open answer.
    metadata = {"choices": [], "question": example.messages[-1].text, **example.metadata}
    skill, subskill = example.skill, example.subskill
    if isinstance(task, MathSkills):
        # The skill determines the kind of answer. For a discovered skill the form of the reference determines it; all
        # skills of one kind are scored in the same way.
        kind = _infer_kind(reference) or AnswerKind.NUMBER
        if skill not in SKILLS or (SKILLS[skill].kind is not kind and extract(reference, kind) == reference):
            skill, subskill = next(name for name, known in SKILLS.items() if known.kind is kind), ""
        reference = extract(f"Answer: {reference}", SKILLS[skill].kind) or ""  # "7 apples" and "$7" are 7.
    return Problem(make_problem_id(example), example.messages, reference, skill, subskill, metadata)


def _extract_answer(task: Task, example: Example) -> str | None:
    """The answer in the response of an example; empty if it has none, `None` if the task has no rule to extract it."""
    if isinstance(task, MathSkills) and example.skill in SKILLS:
        return math_skills.extract(example.response, SKILLS[example.skill].kind) or ""
    if isinstance(task, WorkedTask):
        worked = extract_worked(example.response)
        return worked.text if worked else ""
    if isinstance(task, VisionSkills):
        return extract_short(example.response, list(example.metadata.get("choices", ()))) or ""
    return None


def _infer_kind(reference: str) -> AnswerKind | None:
    """The kind of answer of a reference; `None` if unknown.

    >>> [_infer_kind(text) for text in ("1,200", "4:05", "3, 1, 2", "7 nuts", "Paris")]
    [<AnswerKind.NUMBER: 'number'>, <AnswerKind.CLOCK: 'clock'>, <AnswerKind.LIST: 'list'>, <AnswerKind.NUMBER: 'number'>, None]
    """
    # Numbers come first, because a number may contain commas like a list; with words around it, they come last.
    exact = [kind for kind in AnswerKind if extract(reference, kind) == reference]
    loose = [kind for kind in reversed(AnswerKind) if extract(reference, kind) is not None]
    return next(iter(exact + loose), None)
