"""Our tasks as tasks of Inspect AI. `inspect eval palaestra/task_of -T name=math-skills` runs one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

from inspect_ai import Task as TaskOfInspect
from inspect_ai import task as register_task
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.model import (
    ChatMessageAssistant,
    ChatMessageSystem,
    ChatMessageUser,
    ContentImage,
    ContentText,
    GenerateConfig,
)
from inspect_ai.scorer import Score as ScoreOfInspect
from inspect_ai.scorer import Scorer, Target, accuracy, scorer, stderr
from inspect_ai.solver import TaskState, generate

from palaestra.core.errors import TaskError
from palaestra.core.records import Completion, Failure, ImagePart, Json, Message, Problem, Score, Split
from palaestra.engines.openai_format import image_url
from palaestra.integrations.inspect_ai.model import PalaestraModel
from palaestra.tasks.base import Task, get_hooks, make_task, task_signature
from palaestra.tasks.evaluate import choose, score, scoring_slots

__all__ = ["PalaestraModel", "make_inspect_task", "task_of"]  # Inspect registers what this module imports.

_ROLES = {"system": ChatMessageSystem, "user": ChatMessageUser, "assistant": ChatMessageAssistant}


@register_task(name="task_of")  # type: ignore[untyped-decorator]
def make_inspect_task(
    name: str = "math-skills",
    split: str = "test",
    problems: int = 0,
    limit: int = 0,
    skills: str | Sequence[str] = (),
    seed: int = 0,
    shots: int = 0,
    task_kwargs: str | Json = "",
) -> TaskOfInspect:
    """Make a task of Inspect with the problems and the scorer of a task of ours.

    The arguments choose the same problems as those of `palaestra evaluate`. A failure of the scorer is an error of the
    sample, never a score of 0.

    Arguments:
        name: a task (`palaestra list tasks`).
        problems: the number of problems per skill; 0 for all, or 25 of a procedural task.
        limit: the maximum number of problems; 0 for no limit.
        skills: names of skills, a list or separated by commas; all if empty.
        shots: worked problems before each question.
        task_kwargs: options of the task, a dictionary or its JSON.
    """
    options = json.loads(task_kwargs) if isinstance(task_kwargs, str) and task_kwargs else dict(task_kwargs or {})
    if split == Split.TEST and "parts" in task_signature(name).parameters:
        options.setdefault("parts", "published")
    task = make_task(name, shots=shots, **options)
    chosen = [skill.strip() for skill in skills.split(",")] if isinstance(skills, str) and skills else list(skills)
    selected = choose(task, Split(split), problems, seed, chosen, limit)
    get_hooks(task).check_scoring()
    return TaskOfInspect(
        dataset=MemoryDataset([_to_sample(problem) for problem in selected], name=name),
        solver=generate(),
        scorer=score_with_task(task, selected),
        config=GenerateConfig(max_tokens=get_hooks(task).max_tokens),
        name=name.replace(":", "_").replace("/", "_"),
    )


task_of = make_inspect_task


def _to_sample(problem: Problem) -> Sample:
    """Convert a problem to a sample of Inspect."""
    messages = [_ROLES[message.role](content=_to_content(message)) for message in problem.messages]
    metadata = {"skill": problem.skill, "subskill": problem.subskill}
    return Sample(id=problem.id, input=messages, target=problem.reference, metadata=metadata)


def _to_content(message: Message) -> str | list[ContentImage | ContentText]:
    """Convert the content of a message: a text, or a list of texts and images."""
    if isinstance(message.content, str):
        return message.content
    parts = message.content
    return [ContentImage(image=image_url(p)) if isinstance(p, ImagePart) else ContentText(text=p.text) for p in parts]


@scorer(metrics=[accuracy(), stderr()], name="palaestra")  # type: ignore[untyped-decorator]
def score_with_task(task: Task, problems: Sequence[Problem]) -> Scorer:
    """The scorer of a task for Inspect."""
    by_id, slots = {problem.id: problem for problem in problems}, scoring_slots(task)

    def score_answer(name: str, text: str) -> Score | Failure:
        with slots:
            return score(task, by_id[name], Completion(text))

    async def score_state(state: TaskState, target: Target) -> ScoreOfInspect:
        outcome = await asyncio.to_thread(score_answer, str(state.sample_id), state.output.completion)
        if isinstance(outcome, Failure):
            raise TaskError(f"{outcome.cause}: {outcome.message}")
        evidence = dict(outcome.evidence)
        return ScoreOfInspect(value=outcome.value, answer=evidence.get("extracted"), metadata=evidence)

    return score_state
