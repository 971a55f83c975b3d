"""`palaestra/Writer-v0`: a language model learns to write training data from the progress of students that are taught with it.

A response is a small lesson, in the format that `teach --writer MODEL` requests: the prompt orders examples of one skill for one
student. The responses to a prompt teach copies of the same student, with the same order of examples and the same rehearsal, so
that only the lesson differs. This is the grounded reward of SOAR (arXiv 2601.18778).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from palaestra.chat.structured import instruct, parse_answer
from palaestra.core.errors import RewardError, SettingsError
from palaestra.core.records import Completion, Example, Lesson, Problem, Split
from palaestra.core.seeding import Seeds
from palaestra.core.settings import check_integer
from palaestra.envs.lesson.flat import COHORTS, CONCENTRATION, Cohort, divide_lesson, to_example
from palaestra.envs.token.base import TokenEnv, TokenVectorEnv
from palaestra.envs.token.prompts import Response
from palaestra.envs.token.rewards import ScoredResponse
from palaestra.models import registry as models
from palaestra.tasks.base import GenerativeTask, Task, check_skills, make_task
from palaestra.tasks.evaluate import draw_problems, write_examples
from palaestra.teachers.base import Order
from palaestra.teachers.model_writer import WriterFormat
from palaestra.teachers.prompts import TeacherPrompts
from palaestra.teachers.quality.base import Context, inspect, make_checks

GATE = ("readable", "overlap", "skill", "scorer", "equations", "executes", "duplicates")
"""The quality checks that every example passes before it is taught. The answer must also be verified."""


class WriterVectorEnv(TokenVectorEnv):
    """Orders of examples; the reward is what a student learns from the response.

    The student trains on the examples that pass `GATE`, filled up to `examples` by a fixed set, and on a fixed rehearsal of
    all skills. The reward is the change of the mean log-prob of the worked answers to the hard problems of the ordered skill, in
    nats per token, less that of the same student with the fixed examples only. Hard problems are those that the student cannot
    solve. A response without a usable example has the reward `-penalty`. `Response.reward_parts` has `usable`, the fraction
    of the ordered examples that passed, `solved`, the change of the accuracy on the hard problems, and `logprob`.

    Arguments:
        task: a task whose problems have a worked response and whose data a language model can write, such as `math-skills`.
        student: a small model of the family llama.
        students: number of different students: copies that were first taught a lesson of random composition.
        first_lesson: examples of that lesson.
        examples: examples of an order.
        rehearsal: examples of all skills with which each student trains in addition.
        validation: validation problems per skill.
        copies: students that train side by side.
        penalty: see above.
        skills: only these skills; empty: all.
        teacher: the teacher whose template `TEACHER/write` is the prompt.
        device: the device of the students; empty: a GPU if there is one.
        arguments: arguments of `TokenVectorEnv`, such as the tokenizer of the writer.
    """

    def __init__(
        self,
        task: Task | str = "math-skills",
        student: str = "nano",
        *,
        students: int = 4,
        first_lesson: int = 40,
        examples: int = 4,
        rehearsal: int = 12,
        validation: int = 16,
        copies: int = 8,
        penalty: float = 0.1,
        skills: Sequence[str] = (),
        teacher: str = "no_state",
        device: str = "",
        **arguments: Any,
    ) -> None:
        numbers = {"students": students, "examples": examples, "validation": validation, "copies": copies}
        for name, value in numbers.items():
            check_integer(name, value, 1, error=SettingsError)
        if students > copies:
            raise SettingsError(f"students must be at most copies ({copies}); got {students}")
        taught = make_task(task) if isinstance(task, str) else task
        check_skills(taught, skills)
        if not isinstance(taught, GenerativeTask):
            raise SettingsError(f"task '{taught.name}' has no generators of its own; expected one such as math-skills")
        self.format, self.taught = WriterFormat(taught, TeacherPrompts(), teacher), taught
        self.student_skills = tuple(skills) or tuple(taught.skills())
        self.examples, self.copies, self.penalty = examples, copies, penalty
        self.cohort: Cohort = COHORTS.get("stacked")(models.load(student), copies, device=device)
        self.problems = draw_problems(taught, Split.VALIDATION, validation, 0, self.student_skills)
        held_out = {
            Split.VALIDATION: self.problems,
            Split.TEST: draw_problems(taught, Split.TEST, validation, 0, self.student_skills),
        }
        self.checks, self.quality = make_checks(GATE), Context(taught, held_out)
        self._problem_rows = self.cohort.store([to_example(problem, taught) for problem in self.problems])
        self._teach_first_lessons(students, first_lesson)
        generator = Seeds(0).derive("fixed").generator()
        fixed = [
            write_examples(taught, self.student_skills[k % len(self.student_skills)], "", 1, generator)[0]
            for k in range(examples + rehearsal)
        ]
        rows = self.cohort.store(fixed)
        self._fill_rows, self._rehearsal_rows = rows[:examples], rows[examples:]
        self._stored = int(rows[-1]) + 1
        self._measure_controls(students)
        super().__init__(self._list_orders(), **arguments)
        self._in_batch = True

    def defer_rewards(self) -> bool:
        self._deferred = True
        return True

    def rewards(self, responses: Sequence[Response]) -> Sequence[float | RewardError]:
        """Teach a copy of the student with each response that has a usable example. Without one it would learn as the control."""
        lessons = [self.read_lesson(response) for response in responses]
        usable = [k for k, lesson in enumerate(lessons) if lesson]
        parts = [ScoredResponse(-self.penalty, {"usable": 0.0, "solved": 0.0, "logprob": 0.0}) for _ in responses]
        for start in range(0, len(usable), self.copies):
            places = usable[start : start + self.copies]
            taught = self._teach([responses[k] for k in places], [lessons[k] for k in places])
            for place, part in zip(places, taught, strict=True):
                parts[place] = part
        self._scores |= {r.episode: part for r, part in zip(responses, parts, strict=True)}
        return [part.reward for part in parts]

    def read_lesson(self, response: Response) -> list[Example]:
        """The examples of a response that pass the gate."""
        problem = response.prompt.source
        assert isinstance(problem, Problem)
        answer = parse_answer(
            Completion(response.text, response.token_ids, stop_reason=response.stop_reason), self.format.shape
        )
        if isinstance(answer, str):
            return []
        examples, _ = self.format.read(answer, Order(problem.skill, "", self.examples, "", ""))
        inspection = inspect(Lesson(tuple(examples)), self.checks, self.quality)
        return [example for example, method in zip(inspection.kept, inspection.verified, strict=True) if method]

    def _teach_first_lessons(self, students: int, first_lesson: int) -> None:
        """Make the students. The other copies stay unused until a student is copied to them."""
        seeds = [Seeds(k).derive("first") for k in range(self.copies)]
        self.cohort.reset()
        if first_lesson:
            rows_KN = []
            for seed in seeds:
                generator = seed.generator()
                mixture_S = generator.dirichlet(np.full(len(self.student_skills), CONCENTRATION))
                lesson = [
                    example
                    for skill, count in zip(self.student_skills, divide_lesson(mixture_S, first_lesson), strict=True)
                    for example in write_examples(self.taught, skill, "", int(count), generator)
                ]
                rows_KN.append(self.cohort.store(lesson))
            self.cohort.learn(rows_KN, seeds)
            self.cohort.keep_as_base()
        solved_KN, _ = self.cohort.measure(self._problem_rows)
        self._hard_KN = ~solved_KN[:students]

    def _measure_controls(self, students: int) -> None:
        """Measure each student after training on the fixed examples only."""
        sources = [k % students for k in range(self.copies)]
        rows = np.concatenate([self._fill_rows, self._rehearsal_rows])
        self._control_solved_KN, self._control_logprobs_KN = self._learn([rows] * self.copies, sources)

    def _list_orders(self) -> list[Problem]:
        """One order for each student and each of its skills with a hard problem."""
        skill_N = np.array([problem.skill for problem in self.problems])
        shape = json.dumps(self.format.shape.model_json_schema(), ensure_ascii=False)
        orders = []
        for student, hard_N in enumerate(self._hard_KN):
            for skill in self.student_skills:
                places = np.flatnonzero(skill_N == skill)
                hard = places[hard_N[places]]
                if not len(hard):
                    continue
                hypothesis = f"The student solves {len(places) - len(hard)} of {len(places)} problems of this skill."
                order = Order(skill, "", self.examples, "", "", hypothesis)
                messages = instruct(self.format.render(order), shape)
                metadata = {"student": student, "hard": hard.tolist()}
                orders.append(Problem(f"{student}/{skill}", messages, "", skill, metadata=metadata))
        if not orders:
            raise SettingsError(f"the students solve all validation problems of {', '.join(self.student_skills)}")
        return orders

    def _teach(self, responses: Sequence[Response], lessons: Sequence[Sequence[Example]]) -> list[ScoredResponse]:
        """Teach one copy with each of at most `copies` lessons."""
        sources = [int(response.prompt.source.metadata["student"]) for response in responses]  # type: ignore[attr-defined]
        rows_KN = [
            np.concatenate([self.cohort.store(lesson), self._fill_rows[len(lesson) :], self._rehearsal_rows])
            for lesson in lessons
        ]
        idle = self.copies - len(rows_KN)
        solved_KN, logprobs_KN = self._learn(rows_KN + rows_KN[:1] * idle, sources + sources[:1] * idle)
        self.cohort.drop(self._stored)
        scores = []
        for copy, (response, lesson, source) in enumerate(zip(responses, lessons, sources, strict=True)):
            hard = response.prompt.source.metadata["hard"]  # type: ignore[attr-defined]
            solved = solved_KN[copy, hard].mean() - self._control_solved_KN[source, hard].mean()
            logprob = logprobs_KN[copy, hard].mean() - self._control_logprobs_KN[source, hard].mean()
            parts = {"usable": len(lesson) / self.examples, "solved": float(solved), "logprob": float(logprob)}
            scores.append(ScoredResponse(float(logprob), parts))
        return scores

    def _learn(self, rows_KN: Sequence[np.ndarray], sources: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """Train copies of students, each with the random numbers of its student, and measure them on all problems."""
        self.cohort.restore(sources)
        self.cohort.learn(rows_KN, [Seeds(source).derive("order") for source in sources])
        return self.cohort.measure(self._problem_rows)


class WriterEnv(TokenEnv):
    """The single-environment view of `WriterVectorEnv`."""

    vector_class = WriterVectorEnv
