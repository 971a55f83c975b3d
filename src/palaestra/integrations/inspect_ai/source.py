"""Tasks of Inspect AI for `palaestra evaluate`: the task name `inspect:REFERENCE`.

An Inspect solver writes the prompt, calls the model and may change its answer; a scorer scores the result. A problem is the
prompt at the solver's model call. To score an answer, the solver runs again with it as the model's output, then the scorer.
"""

from __future__ import annotations

import asyncio
import math
import os
import random
from collections.abc import Callable, Coroutine, Mapping, Sequence
from copy import deepcopy
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from palaestra.core.errors import MissingExtraError, TaskError
from palaestra.core.foreign import ForeignCallError, call_foreign
from palaestra.core.records import Completion, Failure, FailureCause, Message, Problem, Score, Split
from palaestra.envs.base import Options
from palaestra.tasks.base import TaskHooks, check_choice, check_skills, part_by_hash, take

if TYPE_CHECKING:
    from inspect_ai import Task
    from inspect_ai.dataset import Dataset, Sample
    from inspect_ai.solver import Generate, TaskState

T = TypeVar("T")
_MODEL = "palaestra/policy"
"""The name of the model in the state of a solver."""


class ModelCalledError(Exception):
    """The solver has called the model. Ends the solver when only its prompt is needed."""

    def __init__(self, state: TaskState) -> None:
        super().__init__("the solver has called the model")
        self.state = state


def make_source(reference: str) -> Callable[..., InspectTask]:
    """Return the class of the task `inspect:REFERENCE`, bound to its reference."""
    return partial(InspectTask, reference)


class InspectTask(TaskHooks):
    """A task of Inspect AI whose solver calls the model once, without tools or a sandbox.

    Arguments:
        reference: as for `inspect eval`: `package/task`, `file.py` or `file.py@task`.
        args: arguments of the task.
        grader: the model of Inspect that model-graded scorers use, for example `openai/gpt-5`.
        parts: `published`: all samples are test; `auto`: the hash of a sample's id decides. The seed of `problems` shuffles
            the samples as `inspect eval --sample-shuffle SEED` does.
        max_seconds: time limit of one run of the solver or the scorer.

    Raises:
        TaskError: there is no such task, or it needs a sandbox, tools, or several model calls.
    """

    def __init__(
        self,
        reference: str,
        /,
        args: Options | None = None,
        grader: str = "",
        parts: str = "auto",
        max_seconds: float = 60.0,
    ) -> None:
        self.name = f"inspect:{reference}"
        check_choice(self.name, "parts", parts, ("auto", "published"))
        self.grader, self.parts, self.max_seconds = grader, parts, max_seconds
        self._task = self._load(reference, dict(args or {}))
        self._skill = str(self._task.name)
        self._samples = {f"{self._skill}/{n}": s for n, s in _number(self._task.dataset).items()}
        config = self._task.config
        if config.max_tokens:
            self.max_tokens = config.max_tokens
        first = next(iter(self._samples.values()), None)
        if first is None:
            raise TaskError(f"{self.name} has no samples")
        try:
            self._run("solver", self._solve, first, "")
        except TaskError as error:
            raise TaskError(
                f"{error}; `evaluate` needs a solver that calls `generate` once, without tools. Inspect plays other solvers "
                f"with the same model: inspect eval {reference} --model palaestra/MODEL"
            ) from error

    def skills(self) -> Mapping[str, tuple[str, ...]]:
        return {self._skill: ()}

    def problems(self, split: Split, per_skill: int, seed: int, skills: Sequence[str] = ()) -> list[Problem]:
        check_skills(self, skills)
        names = list(self._samples)
        random.Random(seed).shuffle(names)  # The order of `inspect eval --sample-shuffle SEED`.
        part = part_by_hash if self.parts == "auto" else lambda name: Split.TEST
        own = [name for name in names if part(name) is Split(split)]
        return [self._make_problem(name) for name in take(own, per_skill, self, split, self._skill)]

    def score(self, problem: Problem, completion: Completion) -> Score | Failure:
        sample = self._samples[problem.id]
        try:
            value, evidence = self._run("scorer", self._score, sample, completion.text)
        except TaskError as error:
            return Failure(FailureCause.SCORER, str(error))
        if not 0.0 <= value <= 1.0:
            return Failure(FailureCause.SCORER, f"the scorer of {self.name} returned {value}; expected 0 to 1")
        return Score(value, evidence)

    def _make_problem(self, name: str) -> Problem:
        sample = self._samples[name]
        messages = self._run("solver", self._prompt, sample)
        target = sample.target if isinstance(sample.target, str) else "\n".join(sample.target)
        metadata = {key: value for key, value in (sample.metadata or {}).items() if key in ("level", "type")}
        return Problem(name, messages, target, self._skill, metadata=metadata)

    def _load(self, reference: str, args: Options) -> Task:
        if find_spec("inspect_ai") is None:
            raise MissingExtraError("inspect-ai", "inspect", "a task of Inspect AI")
        from inspect_ai._eval.loader import load_task_spec

        if Path(reference).is_absolute() and "@" not in reference:
            reference = os.path.relpath(reference)  # Inspect searches for files below the current folder.
        try:
            tasks = call_foreign(f"loading {reference}", load_task_spec, reference, args, seconds=600.0)
        except ForeignCallError as error:
            raise TaskError(f"{self.name} cannot be loaded: {error}") from error
        if len(tasks) != 1:
            names = ", ".join(str(task.name) for task in tasks) or "none"
            raise TaskError(f"expected one task of Inspect in {reference}; found {names}; use file.py@task")
        task = tasks[0]
        if task.sandbox is not None:
            raise TaskError(f"{self.name} needs a sandbox of Inspect, which `evaluate` does not start")
        if not task.scorer:
            raise TaskError(f"{self.name} has no scorer")
        return task

    def _run(self, what: str, function: Callable[..., Coroutine[object, object, T]], *arguments: object) -> T:
        """Run a coroutine of the task with a time limit. Raises `TaskError` if it fails."""
        try:
            name = f"the {what} of {self.name}"
            return call_foreign(name, lambda: asyncio.run(function(*arguments)), seconds=self.max_seconds)
        except ForeignCallError as error:
            raise TaskError(str(error)) from error

    async def _prompt(self, sample: Sample) -> tuple[Message, ...]:
        """Run the solver up to its model call. Returns the messages of the call."""

        async def generate(state: TaskState, *arguments: object, **config: object) -> TaskState:
            raise ModelCalledError(state)

        try:
            await self._call_solvers(sample, generate)
        except ModelCalledError as call:
            return tuple(Message(message.role, message.text) for message in call.state.messages)
        raise TaskError(f"the solver of {self.name} does not call the model")

    async def _solve(self, sample: Sample, text: str) -> TaskState:
        """Run the solver with an answer as the model's output. Returns the final state."""
        from inspect_ai.model import ModelOutput

        calls = 0

        async def generate(state: TaskState, *arguments: object, **config: object) -> TaskState:
            nonlocal calls
            calls += 1
            if calls > 1:
                raise TaskError(f"the solver of {self.name} calls the model several times; expected one call")
            if state.tools:
                raise TaskError(f"the solver of {self.name} uses tools, which `evaluate` does not offer")
            state.output = ModelOutput.from_content(_MODEL, text)
            state.messages.append(state.output.message)
            return state

        state = await self._call_solvers(sample, generate)
        if not calls:
            raise TaskError(f"the solver of {self.name} does not call the model through `generate`")
        return state

    async def _score(self, sample: Sample, text: str) -> tuple[float, dict[str, str]]:
        """Run the solver and the first scorer. Returns the value and its evidence."""
        from inspect_ai.scorer import Target, value_to_float

        state = await self._solve(sample, text)
        state.completed = True
        score = await self._task.scorer[0](state, Target(sample.target))
        if score is None or (isinstance(score.value, Sequence | Mapping) and not isinstance(score.value, str)):
            raise TaskError(f"the scorer of {self.name} returned {score and score.value!r}; expected one value")
        value = float(value_to_float()(score.value))
        if not math.isfinite(value):
            raise TaskError(f"the scorer of {self.name} gave no score: {score.reason or score.explanation}")
        texts = {"extracted": score.answer, "explanation": score.explanation}
        return value, {name: text for name, text in texts.items() if text}

    async def _call_solvers(self, sample: Sample, generate: Generate) -> TaskState:
        from inspect_ai.log._transcript import Transcript, init_transcript
        from inspect_ai.model import ChatMessageUser, ModelName, get_model
        from inspect_ai.model._model import init_model_roles
        from inspect_ai.scorer import Target
        from inspect_ai.solver import TaskState

        init_transcript(Transcript())
        init_model_roles({"grader": get_model(self.grader)} if self.grader else {})
        sample = deepcopy(sample)
        messages = [ChatMessageUser(content=sample.input)] if isinstance(sample.input, str) else sample.input
        target, options = Target(sample.target), {"choices": sample.choices, "metadata": sample.metadata}
        state = TaskState(ModelName(_MODEL), sample.id or 0, 1, sample.input, list(messages), target, **options)
        setup = self._task.setup or ()
        for solver in (*(setup if isinstance(setup, Sequence) else (setup,)), self._task.solver):
            state = await solver(state, generate)
        return state


def _number(dataset: Dataset) -> dict[str, Sample]:
    """The samples by their ids, or by their numbers if they have none."""
    return {str(number if sample.id is None else sample.id): sample for number, sample in enumerate(dataset, start=1)}
