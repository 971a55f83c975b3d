"""Score lessons by the accuracy of `nano` on hidden problems after training on them.

The hidden problems are drawn anew for every submission, from the secret seed and the content of the submission: the same
lessons get the same problems, and scores reveal nothing about the problems of the next lessons. Examples that repeat one
(`palaestra.tasks.leakage`) are dropped and counted: enumerating a pool teaches only what was not drawn. The test pools
have at least this many problems (found in 20,000 draws per subskill), apart from wordings and names: clock 1413, groups 516,
missing_number 393, geometry 206, fractions 164, change 156, sequences 138, percent 30.
"""

from __future__ import annotations

import hashlib
import json

from palaestra.core.errors import LessonError, TaskError
from palaestra.core.records import Example, Message, Score, Split
from palaestra.core.seeding import Seeds
from palaestra.research.judge.evaluation import Evaluation
from palaestra.research.tasks.task import SubmissionError
from palaestra.tasks.base import make_task
from palaestra.tasks.evaluate import evaluate as ask
from palaestra.tasks.leakage import HeldOut

FILE = "lessons.jsonl"
SKILLS = ("missing_number", "sequences", "groups", "change", "fractions", "geometry", "percent", "clock")
PROBLEMS = 40
"""Problems of each skill and split."""
MAX_EXAMPLES = 160
EPOCHS, BATCH, RATE = 5, 8, 5e-4
MAX_CHARACTERS = 600
"""Maximum characters of a question or a response."""


def evaluate(evaluation: Evaluation) -> dict[str, float]:
    from palaestra.core.records import Sampling
    from palaestra.models.registry import load
    from palaestra.students.student import SupervisedStudent
    from palaestra.students.supervised import Supervision

    lessons = _read_lessons(evaluation.text(FILE))
    student = SupervisedStudent(load("nano"), Supervision("full", EPOCHS, BATCH, RATE))
    try:
        student.check(lessons)  # Check all examples: errors must not reveal which of them are dropped.
    except LessonError as error:
        raise SubmissionError(f"nano cannot be trained on {FILE}: {error}") from None
    task = make_task("math-skills")
    content = hashlib.blake2b("\n".join(map(repr, lessons)).encode(), digest_size=16).hexdigest()
    seeds = Seeds(evaluation.seed).derive(evaluation.task.name, content)
    # The problems of both splits, so that the same examples are dropped for both.
    problems = {
        split: task.problems(split, PROBLEMS, seeds.derive(split, "problems").integer(), SKILLS)
        for split in (Split.VALIDATION, Split.TEST)
    }
    leaks = HeldOut(problems).find(lessons)
    kept = [example for example, leak in zip(lessons, leaks, strict=True) if leak is None]
    if not kept:
        none = "every example asks what a hidden problem asks, so that none is left to train on"
        raise SubmissionError(none, none, exposed=True)
    student.learn(kept, seeds.derive("training"))
    asked = problems[Split(evaluation.split)]
    attempts = ask(task, asked, student.engine, sampling=Sampling(max_tokens=72, temperature=0.0))
    values: dict[str, list[float]] = {skill: [] for skill in SKILLS}
    for attempt in attempts:
        if not isinstance(attempt.outcome, Score):
            raise TaskError(f"problem {attempt.problem.id} was not scored: {attempt.outcome.message}")
        values[attempt.problem.skill].append(attempt.outcome.value)
    scores = {skill: sum(several) / len(several) for skill, several in values.items()}
    total = sum(scores.values()) / len(scores)
    return {"accuracy": total, "examples": float(len(kept)), "dropped": float(len(lessons) - len(kept)), **scores}


def _read_lessons(text: str) -> list[Example]:
    """Read the examples of a submission and check their format."""
    lines = [(number, line) for number, line in enumerate(text.splitlines(), start=1) if line.strip()]
    if not 1 <= len(lines) <= MAX_EXAMPLES:
        raise SubmissionError(f"{FILE} must contain 1 to {MAX_EXAMPLES} examples, one per line; got {len(lines)}")
    return [_read_example(number, line) for number, line in lines]


def _read_example(number: int, line: str) -> Example:
    try:
        example: object = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise SubmissionError(f"{FILE}, line {number}: expected a JSON object; got {line[:60]!r}") from error
    fields = ("question", "response")
    if not isinstance(example, dict) or set(example) != set(fields):
        got = sorted(map(str, example))[:6] if isinstance(example, dict) else type(example).__name__
        raise SubmissionError(f'{FILE}, line {number}: expected the fields "question" and "response"; got {got}')
    for name in fields:
        value = example[name]
        if not isinstance(value, str) or not 1 <= len(value.strip()) <= MAX_CHARACTERS:
            raise SubmissionError(
                f"{FILE}, line {number}: {name} must be a text of 1 to {MAX_CHARACTERS} characters; got {str(value)[:60]!r}"
            )
    return Example((Message("user", example["question"].strip()),), example["response"].strip())
