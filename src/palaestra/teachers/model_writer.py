"""A language model as the writer: each call requests a few examples in the task's own schema."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from pydantic import BaseModel, Field, create_model

from palaestra.chat.structured import ask
from palaestra.core.errors import SettingsError
from palaestra.core.records import Engine, Example, Failure, FailureCause, Message, Request, Sampling
from palaestra.tasks.base import Task, UnusableError, WritableTask, get_hooks
from palaestra.teachers.base import Order, Written
from palaestra.teachers.prompts import TeacherPrompts

ORDERED_SKILL = "ordered_skill"
"""The metadata key of an example whose skill was corrected: the skill that the teacher ordered."""
DEFAULT_TEMPLATE = "skill_tree/write"
"""The template of teachers without one of their own."""
_SHOWN = 2
"""Number of worked train problems in the prompt. They show the format of questions and answers."""


class WriterFormat:
    """Turns orders into prompts, and answers into examples.

    Arguments:
        task: a task with a schema of its data; see `palaestra.tasks.base`.
        prompts: the templates; an order renders `TEACHER/write`.
        teacher: the name of the teacher, which selects the template.

    Raises:
        SettingsError: the task has no schema of its data.
    """

    def __init__(self, task: Task, prompts: TeacherPrompts, teacher: str) -> None:
        if not isinstance(task, WritableTask):
            raise SettingsError(
                f"task '{task.name}' has no schema for a language model as the writer; use --writer task"
            )
        self.task, self.prompts, self.teacher = task, prompts, teacher
        datum: Any = task.datum
        self.shape: type[BaseModel] = create_model(
            "Lesson",
            hypothesis=(str, Field(default="", description="What the student may be lacking, in a sentence.")),
            data=(list[datum], Field(min_length=1, description="The data.")),
        )

    def render(self, order: Order) -> tuple[Message, ...]:
        """The prompt of an order."""
        known = order.skill in self.task.skills()
        examples = get_hooks(self.task).get_shots(order.skill, _SHOWN) if known else []
        name = f"{self.teacher}/write"
        return self.prompts.messages(
            name if name in self.prompts.names() else DEFAULT_TEMPLATE,
            brief=self.task.brief(),
            skill=order.skill,
            subskill=order.subskill,
            count=order.count,
            hypothesis=order.hypothesis,
            errors=order.errors,
            shown=[(example.messages[-1].text, example.response) for example in examples],
        )

    def read(self, answer: Any, order: Order) -> tuple[list[Example], list[str]]:
        """At most `order.count` examples of an answer, and the reasons why other data are unusable."""
        examples, unusable = [], []
        data = answer.data[: order.count]
        get_hooks(self.task).prepare(data)
        for datum in data:
            try:
                example = self._label(self.task.make_example(datum, order.skill, order.subskill))
            except UnusableError as error:
                unusable.append(str(error))
            else:
                known = {"hypothesis": answer.hypothesis} if answer.hypothesis else {}
                examples.append(replace(example, metadata={**example.metadata, **known}))
        return examples, unusable

    def _label(self, example: Example) -> Example:
        """Correct the skill of an example if the task recognizes another one; the ordered skill goes to its metadata.

        The history of the episode, which teachers plan by, then has the skills that were really taught.
        """
        recognized = get_hooks(self.task).recognize_skill(example)
        if recognized is None or recognized[0] not in self.task.skills():
            return example
        skill, subskill = recognized
        if example.skill == skill:
            return replace(example, subskill=example.subskill or subskill)
        ordered = {ORDERED_SKILL: example.skill} if example.skill else {}
        return replace(example, skill=skill, subskill=subskill, metadata={**example.metadata, **ordered})


class ModelWriter(WriterFormat):
    """Requests the examples of orders from a language model.

    Arguments:
        task, prompts, teacher: see `WriterFormat`.
        engine: the language model, with a cache and a budget if calls cost money (`palaestra.engines.cached`).
        per_call: maximum data per call.
        sampling: the sampling parameters.
        tries: maximum calls for one answer; invalid answers are requested again.
    """

    def __init__(
        self,
        task: Task,
        engine: Engine,
        prompts: TeacherPrompts,
        teacher: str,
        *,
        per_call: int = 10,
        sampling: Sampling = Sampling(max_tokens=4096, temperature=1.0),
        tries: int = 3,
    ) -> None:
        super().__init__(task, prompts, teacher)
        self.engine, self.per_call, self.sampling, self.tries = engine, per_call, sampling, tries

    def write(self, orders: Sequence[Order], generator: np.random.Generator) -> list[Written]:
        # Each call writes at most `per_call` examples of one order.
        calls = [
            (place, replace(order, count=min(self.per_call, order.count - start)))
            for place, order in enumerate(orders)
            for start in range(0, order.count, self.per_call)
        ]
        seeds = [int(seed) for seed in generator.integers(1 << 62, size=len(calls))]
        questions = [
            Request(self.render(order), self.sampling, seed) for (_, order), seed in zip(calls, seeds, strict=True)
        ]

        def complaint(index: int, answer: BaseModel) -> str:
            """Describe the errors of a valid answer. If fewer than half of the data are unusable, they are only left out."""
            examples, unusable = self.read(answer, calls[index][1])
            return "; ".join(unusable[:3]) if len(unusable) > len(examples) else ""

        answers = ask(self.engine, questions, self.shape, tries=self.tries, check=complaint)
        written = [Written(()) for _ in orders]
        for (place, order), answer in zip(calls, answers, strict=True):
            examples, failures = list[Example](), [answer] if isinstance(answer, Failure) else []
            if not isinstance(answer, Failure):
                examples, unusable = self.read(answer, order)
                failures = [Failure(FailureCause.MALFORMED, why) for why in unusable]
            before = written[place]
            written[place] = Written((*before.examples, *examples), (*before.failures, *failures))
        return written
