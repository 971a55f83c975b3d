"""The rewards of texts: of a task's problems, and of an environment whose actions are texts.

Both become cases with a prompt, a reference where one is known, and an oracle: the texts that solve the case. The checks
of scorers, leaks and floors see cases and rewards only.
"""

from __future__ import annotations

import operator
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from gymnasium import Wrapper

from palaestra.core.errors import PalaestraError, TooFewProblemsError
from palaestra.core.records import Completion, Example, Failure, Message, Problem, Score, Split
from palaestra.core.registry import describe_error
from palaestra.core.seeding import Seeds
from palaestra.core.text import clean_text
from palaestra.envs.base import GymEnv, draw_up_to
from palaestra.envs.token.base import TokenEnv
from palaestra.recipes.check.play import Value
from palaestra.recipes.check.subjects import EnvPart, Subject
from palaestra.tasks.base import GenerativeTask, Task, get_hooks
from palaestra.tasks.texts import digest_texts

MAX_TURNS = 8
"""Turns in which the same text is repeated until an environment ends its episode."""
_CASES = 24
"""Cases of a subject; of a task with many skills at least one per skill."""
_SAMPLE = 200
_SECRETS = re.compile(r"answer|target|solution|secret|reference|expected|gold|truth|label", re.IGNORECASE)
"""Names of attributes of an environment that hold what the agent should find out."""
FORMS: tuple[str, ...] = (
    "{}", "Answer: {}", "The answer is {}.", "\\boxed{{{}}}", "#### {}", "<answer>{}</answer>", "[{}]",
    "```python\n{}\n```", "```\n{}\n```", "Final answer: {}", "<think>I know it.</think><answer>{}</answer>",
)  # fmt: skip
"""Ways to write an answer. The first that solves the most cases is the form of the oracle."""


@dataclass(frozen=True)
class Case:
    """One prompt whose answers are rewarded.

    Arguments:
        key: the id of the problem, or the seed of the episode.
        reference: the expected answer as the subject stores it; empty if unknown.
        oracle: the texts of a right answer, one per turn, if the subject provides them; otherwise empty.
        source: the `Problem`, or the seed.
    """

    key: str
    messages: tuple[Message, ...]
    reference: str = ""
    oracle: tuple[str, ...] = ()
    source: Value = None
    info: Value = None

    @property
    def prompt(self) -> str:
        return "\n".join(message.text for message in self.messages)

    @property
    def skill(self) -> str:
        """The skill of the problem; empty for an episode. An answer of another skill may be no answer at all."""
        return str(getattr(self.source, "skill", ""))


@dataclass(frozen=True)
class TextReward:
    """What answering a case with certain texts gave.

    Arguments:
        value: the reward; `None` if there is none.
        failure: the failure that the subject reported; empty if none.
        error: the exception that it raised; empty if none.
        turns: number of texts until the end.
        ended: whether the episode ended by itself.
        replies: what the environment said after each text.
        infos: the `info` of each step.
    """

    value: float | None
    failure: str = ""
    error: str = ""
    seconds: float = 0.0
    turns: int = 1
    ended: bool = True
    replies: tuple[tuple[Message, ...], ...] = ()
    infos: tuple[Value, ...] = field(default=(), compare=False)


class Answers(ABC):
    """The cases of a subject, and the reward of any text for each."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject

    @cached_property
    def cases(self) -> Sequence[Case]:
        """About `_CASES` cases, the same in every call."""
        return self._draw()

    @abstractmethod
    def _draw(self) -> Sequence[Case]:
        """Draw the cases."""

    @abstractmethod
    def score(self, case: Case, texts: str | Sequence[str]) -> TextReward:
        """Answer a case. A single text is repeated until the end, at most `MAX_TURNS` times."""

    def forget(self) -> None:  # noqa: B027  (a task has nothing to forget)
        """Make the environment again before the next answer, because it was interrupted."""

    @cached_property
    def form(self) -> str:
        """The form of `FORMS` in which references solve the most cases; empty if references are not answers.

        They are not if none is accepted in any form, but the texts of other cases' oracles are.
        """
        cases = [case for case in self.cases if case.reference and not case.oracle][:8]
        sums = {
            form: sum(self.score(case, form.format(case.reference)).value or 0.0 for case in cases) for form in FORMS
        }
        if not cases or (not any(sums.values()) and any(case.oracle for case in self.cases)):
            return ""
        return max(FORMS, key=lambda form: sums[form])

    def solve(self, case: Case) -> Sequence[str] | None:
        """The texts of the oracle; `None` if there is no reference and no oracle."""
        if case.oracle:
            return case.oracle
        return [self.form.format(case.reference)] if case.reference and self.form else None

    @cached_property
    def solved(self) -> Sequence[tuple[Case, Sequence[str], TextReward]]:
        """Every case that has an oracle, with its texts and their reward."""
        pairs = ((case, self.solve(case)) for case in self.cases)
        return [(case, texts, self.score(case, texts)) for case, texts in pairs if texts is not None]

    @cached_property
    def ceiling(self) -> float | None:
        """The mean reward of the oracle; `None` without one."""
        values = [reward.value for _, _, reward in self.solved if reward.value is not None]
        return sum(values) / len(values) if values else None


def make_answers(subject: Subject) -> Answers | None:
    """Return the cases of a subject; `None` if its actions are not texts."""
    if subject.task is not None:
        return TaskAnswers(subject, subject.task)
    if subject.env is not None and (subject.env.takes_text or _takes_tokens(subject.env)):
        return EnvAnswers(subject, subject.env)
    return None


def _takes_tokens(part: EnvPart) -> bool:
    with part.open() as env:
        return isinstance(env.unwrapped, TokenEnv) and env.unwrapped.vector.tokenizer is not None


class TaskAnswers(Answers):
    """The problems of a task."""

    def __init__(self, subject: Subject, task: Task) -> None:
        super().__init__(subject)
        self.task = task

    @cached_property
    def samples(self) -> Mapping[Split, Sequence[Problem]]:
        """About `_SAMPLE` problems of each split, unchecked."""
        per_skill, errors = max(3, _SAMPLE // len(self.task.skills())), list[PalaestraError]()
        samples: dict[Split, Sequence[Problem]] = {}
        for split in Split:
            try:
                samples[split] = self.draw_unchecked(split, per_skill, self.subject.seed)
            except PalaestraError as error:  # A folder of data may lack a split.
                errors.append(error)
        if errors and not any(samples.values()):
            raise errors[0]
        return {split: samples.get(split, ()) for split in Split}

    def draw_unchecked(self, split: Split, per_skill: int, seed: int, skills: Sequence[str] = ()) -> list[Problem]:
        """What the task returns: `per_skill` problems of each skill, or all that a skill has."""
        drawn: list[Problem] = []
        for skill in skills or self.task.skills():
            try:
                drawn += self.task.problems(split, per_skill, seed, [skill])
            except TooFewProblemsError as error:
                if error.available:
                    drawn += self.task.problems(split, error.available, seed, [skill])
        return drawn

    def draw_problems(self, split: Split, per_skill: int) -> list[Problem]:
        """Problems of every skill; none if the split has none."""
        try:
            return draw_up_to(per_skill, self.task, split, self.subject.seed)
        except PalaestraError:
            return []

    def _draw(self) -> Sequence[Case]:
        per_skill = max(1, -(-_CASES // len(self.task.skills())))
        splits = (self.draw_problems(split, per_skill) for split in (Split.TEST, Split.VALIDATION, Split.TRAIN))
        problems: list[Problem] = next(filter(None, splits), [])
        cases = [self._make_case(problem) for problem in problems]
        if self.subject.oracle is None and isinstance(self.task, GenerativeTask):
            cases += self._draw_examples(per_skill)
        return cases

    def _make_case(self, problem: Problem) -> Case:
        oracle = self.subject.oracle(problem) if self.subject.oracle is not None else ()
        texts = (oracle,) if isinstance(oracle, str) else tuple(oracle)
        return Case(problem.id, tuple(problem.messages), problem.reference, texts, problem)

    def _draw_examples(self, per_skill: int) -> list[Case]:
        """Cases of the task's own worked examples, which carry a right answer."""
        assert isinstance(self.task, GenerativeTask)
        generator, cases = Seeds(self.subject.seed).derive("check").generator(), []
        for skill in self.task.skills():
            with suppress(PalaestraError):  # A skill may have no right answers.
                for example in self.task.write_examples(skill, "", min(per_skill, 4), generator):
                    problem = pose(self.task, example)
                    if problem is not None:
                        cases.append(
                            Case(problem.id, example.messages, example.reference, (example.response,), problem)
                        )
        return cases

    def score(self, case: Case, texts: str | Sequence[str]) -> TextReward:
        text = texts if isinstance(texts, str) else texts[-1]
        start = time.perf_counter()
        try:
            outcome = self.task.score(case.source, Completion(text))
        except Exception as error:  # The task is the user's code.
            return TextReward(None, error=describe_error(error), seconds=time.perf_counter() - start)
        seconds = time.perf_counter() - start
        if isinstance(outcome, Failure):
            return TextReward(None, failure=f"{outcome.cause}: {outcome.message}", seconds=seconds)
        if not isinstance(outcome, Score):
            return TextReward(None, error=f"score returned {outcome!r}, not a Score or a Failure", seconds=seconds)
        return TextReward(outcome.value, seconds=seconds)


def pose(task: Task, example: Example) -> Problem | None:
    """The problem of a worked example; `None` if its answer cannot be scored."""
    hooks = get_hooks(task)
    if hooks.overrides("to_problem") or not example.reference:
        return hooks.to_problem(example)
    name = digest_texts(*(message.text for message in example.messages))
    return Problem(name, example.messages, example.reference, example.skill, example.subskill, example.metadata)


class EnvAnswers(Answers):
    """The episodes of an environment whose actions are texts, or tokens of texts."""

    def __init__(self, subject: Subject, part: EnvPart) -> None:
        super().__init__(subject)
        self.part = part
        self._env: GymEnv | None = None

    def forget(self) -> None:
        self._env = None

    @property
    def is_token(self) -> bool:
        """Whether texts are given as tokens."""
        return isinstance(self.env.unwrapped, TokenEnv)

    @property
    def env(self) -> GymEnv:
        if self._env is None:
            self._env = self.part.make()
        return self._env

    def _draw(self) -> Sequence[Case]:
        return [self._make_case(self.subject.seed + offset) for offset in range(_CASES)]

    def _make_case(self, seed: int) -> Case:
        observation, info = self.env.reset(seed=seed)
        messages = read_messages(self.env, observation)
        oracle = self.subject.oracle or find_oracle(self.env)
        given = oracle(self.env.unwrapped) if oracle is not None else ()
        texts = (given,) if isinstance(given, str) else tuple(map(str, given))
        return Case(str(seed), messages, find_secret(self.env), texts, seed, info)

    def score(self, case: Case, texts: str | Sequence[str]) -> TextReward:
        start = time.perf_counter()
        turns = [texts] * MAX_TURNS if isinstance(texts, str) else list(texts)
        total, failure, replies, infos, ended = 0.0, "", list[tuple[Message, ...]](), list[Value](), False
        try:
            observation, _ = self.env.reset(seed=case.source)
            count = len(read_messages(self.env, observation))
            for text in turns:
                observation, reward, terminated, truncated, info = send(self.env, text)
                total += float(reward)
                messages = read_messages(self.env, observation)
                replies.append(messages[count:] if len(messages) > count else messages[-1:])
                count = len(messages)
                infos.append(info)
                failure = str(info.get("failure") or "") if isinstance(info, dict) else ""
                if terminated or truncated or failure:
                    ended = True
                    break
        except Exception as error:  # The environment is the user's code.
            self._env = None
            return TextReward(None, error=describe_error(error), seconds=time.perf_counter() - start, turns=len(infos))
        seconds = time.perf_counter() - start
        value = None if failure else total
        return TextReward(value, failure, "", seconds, len(infos), ended, tuple(replies), tuple(infos))


def send(env: GymEnv, text: str) -> tuple[Value, Value, bool, bool, Value]:
    """Step with a text. A token environment gets the tokens of the text and then its end token."""
    if not isinstance(env.unwrapped, TokenEnv):
        return env.step(text)
    vector = env.unwrapped.vector
    assert vector.tokenizer is not None
    ids = vector.tokenizer.encode(clean_text(text), add_special_tokens=False, verbose=False)[: vector.max_tokens - 1]
    total = 0.0
    for token in (*ids, vector.end_ids[0]):
        observation, reward, terminated, truncated, info = env.step(int(token))
        total += float(reward)
        if terminated or truncated:
            response = info.get("response")
            return observation, total, terminated, truncated, {**info, "failure": getattr(response, "failure", "")}
    return observation, total, terminated, truncated, info


def read_messages(env: GymEnv, observation: Value) -> tuple[Message, ...]:
    """The messages of an observation; a text counts as one user message."""
    messages = getattr(observation, "messages", None)
    if messages is not None:
        return tuple(messages)
    if isinstance(env.unwrapped, TokenEnv):
        vector = env.unwrapped.vector
        ids = observation["tokens"][: int(observation["length"])]
        return (Message("user", str(vector.tokenizer.decode(ids))),)
    return (Message("user", observation if isinstance(observation, str) else str(observation)),)


def find_oracle(env: GymEnv) -> Callable[[Any], Any] | None:
    """The method `oracle` or `solve` of an environment, without arguments, that returns the right text or texts."""
    inside = env.unwrapped
    for name in ("oracle", "solve"):
        method = getattr(inside, name, None)
        if callable(method):
            return operator.methodcaller(name)
    return None


def list_secrets(env: GymEnv) -> dict[str, str]:
    """The attributes of an environment whose names say that they hold the answer, as texts."""
    secrets: dict[str, str] = {}
    layer: Any = env
    layers = [layer]
    while isinstance(layer, Wrapper):
        layer = layer.env
        layers.append(layer)
    if isinstance(env.unwrapped, TokenEnv):
        prompt = getattr(env.unwrapped.vector, "_slot_prompts", [None])[0]
        return {"reference": prompt.source.reference} if isinstance(getattr(prompt, "source", None), Problem) else {}
    for holder in layers:
        for name, value in vars(holder).items():
            if isinstance(value, Problem):
                secrets[f"{name}.reference"] = value.reference
            elif _SECRETS.search(name) and isinstance(value, str | int | float) and not isinstance(value, bool):
                secrets[name] = str(value)
    return {name: text for name, text in secrets.items() if text.strip()}


def find_secret(env: GymEnv) -> str:
    """The answer that an environment holds in an attribute; empty if it has none."""
    return next(iter(list_secrets(env).values()), "")
