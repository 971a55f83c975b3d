"""Evaluate an engine on the problems of a task: draw problems, ask them, score the answers.

Users write tasks too, so everything that a task returns is checked here once.
"""

from __future__ import annotations

import math
import os
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from threading import BoundedSemaphore
from typing import Any, get_args

import numpy as np

from palaestra.core.checks import short_repr
from palaestra.core.errors import TaskError, TooFewProblemsError
from palaestra.core.events import Event, Listener, ignore
from palaestra.core.plugins import describe_location, describe_origin
from palaestra.core.records import (
    Attempt,
    Completion,
    Example,
    Failure,
    FailureCause,
    ImagePart,
    Message,
    Problem,
    Role,
    Score,
    Split,
    TextPart,
    Usage,
)
from palaestra.core.seeding import Seeds
from palaestra.core.statistics import Mean, count_by_problem, get_cluster, mean_pass_at_k
from palaestra.engines.base import Answer, Engine, Request, Sampling, Slot, StreamingEngine
from palaestra.executors.base import Executor, Pool, Resources
from palaestra.runs.ledger import LedgerEntry
from palaestra.tasks.base import EVERY, GenerativeTask, Task, get_hooks

CHUNK = 256
"""Maximum number of problems in a chunk. The attempts of a chunk are stored in one transaction."""
CHUNK_TOKENS = CHUNK * 72
"""Maximum number of tokens in a chunk. An interruption loses one chunk."""
REPORT_TOKENS = 256
"""Tokens between two progress events within a chunk."""
DRAWN = 25
"""Default number of problems per skill of a procedural task."""

THREADS = 2 * (os.cpu_count() or 1)
"""Maximum number of scoring threads. Programs have twice as much wall time as CPU time, so two can share a core."""

REQUESTS = 8
"""Requests that a worker answers in one batch for `WorkerEngine`."""

Keep = Callable[[Sequence[Attempt], LedgerEntry], None]


def choose(
    task: Task, split: Split, per_skill: int, seed: int, skills: Sequence[str] = (), limit: int = 0
) -> list[Problem]:
    """The problems of an evaluation.

    Arguments:
        per_skill: problems per skill; 0 for all problems of a data set, or `DRAWN` of a procedural task.
        limit: maximum number of problems in total, from the skills in turn; 0 for no limit.
    """
    count = len(skills or task.skills())
    if per_skill == EVERY and get_hooks(task).is_procedural:
        per_skill = math.ceil(limit / count) if limit else DRAWN
    problems = draw_problems(task, split, per_skill, seed, skills)
    return problems if not 0 < limit < len(problems) else _in_turn(task, problems, limit)


def _in_turn(task: Task, problems: Sequence[Problem], limit: int) -> list[Problem]:
    """`limit` of `problems`, balanced over the skills. Problems of a group stay together."""
    skills: dict[str, list[list[Problem]]] = {}
    units: dict[str, list[Problem]] = {}
    for problem in problems:
        unit = str(problem.metadata.get("group") or problem.id)
        if unit not in units:
            units[unit] = []
            skills.setdefault(problem.skill, []).append(units[unit])
        units[unit].append(problem)
    left, chosen = limit, set()
    for turn in range(max(map(len, skills.values()))):
        for several in skills.values():
            if turn < len(several) and len(several[turn]) <= left:
                chosen |= {problem.id for problem in several[turn]}
                left -= len(several[turn])
    if not chosen:
        smallest = min(map(len, units.values()))
        raise TaskError(
            f"expected a limit of at least {smallest}, the size of a group of task '{task.name}'; got {limit}"
        )
    return [problem for problem in problems if problem.id in chosen]


def evaluate(
    task: Task,
    problems: Sequence[Problem],
    engine: Callable[[], Engine],
    *,
    sampling: Sampling = Sampling(),
    seed: int = 0,
    phase: str = "evaluate",
    round_: int = 0,
    known: Sequence[Attempt] = (),
    keep: Keep = lambda attempts, cost: None,
    workers: EvaluationWorkers | None = None,
    listener: Listener = ignore,
) -> list[Attempt]:
    """Ask all problems, `sampling.count` times each, and score the answers.

    Arguments:
        engine: returns the engine; not called if all attempts are `known`.
        known: attempts from before an interruption, in whole chunks as `keep` received them.
        keep: called with each finished chunk and its cost.
        workers: evaluates the chunks on the workers of an executor, instead of in this process.

    The chunks are always the same, so a resumed evaluation sends the same batches as an uninterrupted one.
    """
    if len({problem.id for problem in problems}) < len(problems):
        raise TaskError(f"task '{task.name}' returned two problems with the same id; every id must be unique")
    attempts, samples = list(known), sampling.count
    total = samples * len(problems)
    size = max(1, min(CHUNK, CHUNK_TOKENS // (sampling.max_tokens * samples)))
    starts = range(len(attempts) // samples, len(problems), size)
    chunks = (_Chunk(tuple(problems[at : at + size]), sampling, seed, phase) for at in starts)
    listener(Event(phase, len(attempts), total, round_))
    results: Iterator[_Evaluated]
    if workers is None:
        results = (
            _evaluate_chunk(task, engine(), chunk, Event(phase, len(attempts), total, round_), listener)
            for chunk in chunks
        )
    else:
        results = workers.run(chunks, engine, Event(phase, len(attempts), total, round_), listener)
    for new, cost in results:
        keep(new, cost)
        attempts += new
        listener(Event(phase, len(attempts), total, round_))
    return attempts


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Problems that are asked together, and how."""

    problems: tuple[Problem, ...]
    sampling: Sampling
    seed: int
    phase: str


_Evaluated = tuple[list[Attempt], LedgerEntry]
_Item = tuple[str, _Chunk, tuple[str, list[list[Answer]], float] | None]
"""The name of a task, a chunk and, if this process generated them, the model, its answers and the seconds they took."""


EvaluationState = tuple[Mapping[str, Task], Engine | None]
"""The state of a worker: the tasks by name and, if it generates, the engine."""


@dataclass(frozen=True, slots=True)
class EvaluationWorkers:
    """Evaluates chunks on workers. They keep their task and engine from one evaluation to the next.

    Arguments:
        pool: its workers have an `EvaluationState`, see `open`.
        generate: whether the workers generate the answers; otherwise this process does, and the workers only score.
        task: the name of the task in the state of the workers.
    """

    pool: Pool[EvaluationState]
    generate: bool
    task: str = ""

    @classmethod
    @contextmanager
    def open(
        cls,
        executor: Executor,
        resources: Resources,
        make_tasks: Callable[[], Mapping[str, Task]],
        make_engine: Callable[[], Engine] | None = None,
        listener: Listener = ignore,
    ) -> Iterator[EvaluationWorkers]:
        """Open workers that make the tasks and, unless it is `None`, the engine. They stop at the end of the context.

        Without an engine they only score: services with a budget are called by this process, and students live in it.
        """
        make_state = partial(_make_state, make_tasks, make_engine)
        with executor.open_pool(make_state, resources=resources, listener=listener) as pool:
            yield cls(pool, make_engine is not None)

    def run(
        self, chunks: Iterable[_Chunk], engine: Callable[[], Engine], event: Event, listener: Listener
    ) -> Iterator[_Evaluated]:
        """Yield the attempts and the cost of each chunk, in order. A chunk whose workers died has failed attempts."""
        started: deque[_Chunk] = deque()

        def ask() -> Iterator[_Item]:
            for chunk in chunks:
                started.append(chunk)
                if self.generate:
                    yield self.task, chunk, None
                    continue
                start, opened = time.perf_counter(), engine()
                answers = _generate(opened, _make_requests(chunk), event, listener)
                yield self.task, chunk, (opened.name, answers, time.perf_counter() - start)

        for result in self.pool.map(_work, ask()):
            chunk = started.popleft()
            if not isinstance(result, Failure):
                yield result
                continue
            failed = [Attempt(p, None, result, k) for p in chunk.problems for k in range(chunk.sampling.count)]
            yield failed, LedgerEntry(chunk.phase, "", 0, Usage(), 0.0)


class WorkerEngine:
    """The engine in the state of evaluation workers: answers requests on all of them, `REQUESTS` at a time."""

    def __init__(self, name: str, pool: Pool[EvaluationState]) -> None:
        self.name, self.pool = name, pool

    def generate(self, requests: Sequence[Request]) -> list[list[Answer]]:
        parts = [requests[at : at + REQUESTS] for at in range(0, len(requests), REQUESTS)]
        answers: list[list[Answer]] = []
        for part, result in zip(parts, self.pool.map(_answer, parts), strict=True):
            if isinstance(result, Failure):
                answers += [[result] * request.sampling.count for request in part]
            else:
                answers += result
        return answers


def _answer(state: EvaluationState, requests: Sequence[Request]) -> list[list[Answer]]:
    assert state[1] is not None
    return state[1].generate(requests)


def _make_state(
    make_tasks: Callable[[], Mapping[str, Task]], make_engine: Callable[[], Engine] | None
) -> EvaluationState:
    return make_tasks(), make_engine() if make_engine is not None else None


def _work(state: EvaluationState, item: _Item) -> _Evaluated:
    (tasks, engine), (name, chunk, generated) = state, item
    if generated is not None:
        model, answers, seconds = generated
        return _score_chunk(tasks[name], model, chunk, answers, seconds)
    assert engine is not None
    return _evaluate_chunk(tasks[name], engine, chunk, Event(chunk.phase), ignore)


def _evaluate_chunk(task: Task, engine: Engine, chunk: _Chunk, event: Event, listener: Listener) -> _Evaluated:
    start = time.perf_counter()
    answers = _generate(engine, _make_requests(chunk), event, listener)
    return _score_chunk(task, engine.name, chunk, answers, time.perf_counter() - start)


def _score_chunk(task: Task, model: str, chunk: _Chunk, answers: list[list[Answer]], seconds: float) -> _Evaluated:
    """Score the answers of a chunk; `seconds` is the time that they took."""
    start = time.perf_counter()
    attempts = _attempts(task, chunk.problems, answers)
    usage = sum((a.usage for several in answers for a in several if isinstance(a, Completion)), Usage())
    return attempts, LedgerEntry(chunk.phase, model, len(attempts), usage, seconds + time.perf_counter() - start)


def _make_requests(chunk: _Chunk) -> list[Request]:
    seeds = Seeds(chunk.seed)
    return [Request(p.messages, chunk.sampling, seeds.derive("request", p.id).integer()) for p in chunk.problems]


def _generate(engine: Engine, requests: Sequence[Request], event: Event, listener: Listener) -> list[list[Answer]]:
    """Generate the answers of a chunk. A streaming engine reports its tokens, because a chunk may take minutes."""
    if not isinstance(engine, StreamingEngine):
        return engine.generate(requests)
    tokens = 0

    def on_token(slot: Slot, position: int, token: int) -> None:
        nonlocal tokens
        tokens += 1
        if tokens % REPORT_TOKENS == 0:
            listener(replace(event, data={"tokens": tokens}))

    return engine.generate_streaming(requests, on_token)


def measures(task: Task | None, attempts: Sequence[Attempt], samples: int) -> dict[str, Mean]:
    """Metrics in addition to accuracy: pass@k if there are several samples, and those of the task."""
    metrics: dict[str, Mean] = {}
    if samples > 1:
        owners = {attempt.problem.id: get_cluster(attempt.problem) for attempt in attempts}
        scored = count_by_problem(attempts)
        counts, clusters = list(scored.values()), [owners[name] for name in scored]
        powers = [2**power for power in range(samples.bit_length()) if 2**power < samples]
        metrics |= {f"pass@{k}": mean_pass_at_k(counts, k, clusters) for k in (*powers, samples)}
    if task is None:
        return metrics
    own = get_hooks(task).metrics
    figures: Any = own(attempts)
    if isinstance(figures, Mapping) and all(isinstance(n, str) and isinstance(m, Mean) for n, m in figures.items()):
        return metrics | dict(figures)
    raise TaskError(
        f"{type(task).__name__}.metrics returned {short_repr(figures)}{describe_location(own)}; "
        "expected a mapping of names to palaestra.core.statistics.Mean"
    )


def outcomes(attempts: Sequence[Attempt]) -> Mapping[str, int]:
    """How often each outcome occurs that scorers report (`passed`, `wrong_answer`, `time`, ...)."""
    names = (a.outcome.evidence.get("outcome") for a in attempts if isinstance(a.outcome, Score))
    return dict(Counter(outcome for outcome in names if outcome).most_common())


def _attempts(task: Task, problems: Sequence[Problem], answers: Sequence[Sequence[Answer]]) -> list[Attempt]:
    asked = [
        (problem, answer, sample)
        for problem, several in zip(problems, answers, strict=True)
        for sample, answer in enumerate(several)
    ]
    outcomes = iter(score_all(task, [(problem, a) for problem, a, _ in asked if isinstance(a, Completion)]))
    return [
        Attempt(problem, None, answer, sample)
        if isinstance(answer, Failure)
        else Attempt(problem, answer, next(outcomes), sample)
        for problem, answer, sample in asked
    ]


def draw_problems(task: Task, split: Split, per_skill: int, seed: int, skills: Sequence[str] = ()) -> list[Problem]:
    """Call `task.problems` and check the result.

    Raises:
        TaskError: the result is not a list of valid problems with unique ids. The message names the file and line of the method.
        TooFewProblemsError: the list is empty.
    """
    problems: Any = task.problems(split, per_skill, seed, skills)
    _check(task, problems, isinstance(problems, list | tuple), "a list of Problem")
    if not problems:
        raise TooFewProblemsError(f"task '{task.name}' has no {split} problems; choose another split")
    seen: set[str] = set()
    for problem in problems:
        _check(task, problem, isinstance(problem, Problem), "a list of Problem", " in a list")
        for name in ("id", "reference", "skill", "subskill"):
            value = getattr(problem, name)
            _check(task, value, isinstance(value, str), "a text", f" as the {name} of a problem")
        messages, metadata = problem.messages, problem.metadata
        is_valid = isinstance(messages, tuple) and all(isinstance(m, Message) for m in messages)
        _check(task, messages, is_valid, "a tuple of Message", " as the messages of a problem")
        for message in messages:
            _check_message(task, message)
        _check(task, metadata, isinstance(metadata, Mapping), "a mapping", " as the metadata of a problem")
        _check(task, problem.id, problem.id not in seen, "unique ids", " as the id of two problems")
        seen.add(problem.id)
    return list(problems)


def write_examples(
    task: GenerativeTask, skill: str, subskill: str, count: int, generator: np.random.Generator
) -> tuple[Example, ...]:
    """Call `task.write_examples` and check the result.

    Raises:
        TaskError: the result is not a list of at most `count` examples. The message names the file and line of the method.
    """
    returned: Any = task.write_examples(skill, subskill, count, generator)
    is_valid = isinstance(returned, list | tuple) and all(isinstance(example, Example) for example in returned)
    if is_valid and len(returned) <= count:
        return tuple(returned)
    what = f"{len(returned)} examples" if is_valid else short_repr(returned)
    raise TaskError(
        f"{type(task).__name__}.write_examples returned {what}{describe_location(task.write_examples)}; "
        f"expected a list of {count} Example"
    )


def _check_message(task: Task, message: Message) -> None:
    roles = get_args(Role)
    _check(task, message.role, message.role in roles, f"one of {', '.join(roles)}", " as the role of a message")
    parts = (message.content,) if isinstance(message.content, str) else message.content
    is_valid = isinstance(parts, tuple) and all(isinstance(part, str | TextPart | ImagePart) for part in parts)
    _check(task, message.content, is_valid, "a text, or a tuple of TextPart and ImagePart", " as a message's content")


def _check(task: Task, value: Any, is_valid: bool, expected: str, where: str = "") -> None:
    if not is_valid:
        location = describe_location(task.problems)
        raise TaskError(
            f"{type(task).__name__}.problems returned {short_repr(value)}{where}{location}; expected {expected}"
        )


def score(task: Task, problem: Problem, completion: Completion) -> Score | Failure:
    """Score one answer. An exception of the scorer becomes a `Failure`.

    Raises:
        TaskError: the scorer returned neither a `Score` nor a `Failure`.
    """
    try:
        outcome: object = task.score(problem, completion)
    except Exception as error:
        return Failure(FailureCause.SCORER, f"{type(error).__name__}: {error}{describe_origin(error)}")
    if isinstance(outcome, Score | Failure):
        return outcome
    raise TaskError(
        f"{type(task).__name__}.score returned {short_repr(outcome)}{describe_location(task.score)}; "
        "expected a Score or a Failure"
    )


def score_all(task: Task, answers: Sequence[tuple[Problem, Completion]]) -> list[Score | Failure]:
    """Score answers, in order; in several threads if the task allows it (`concurrent_scoring`)."""
    if len(answers) < 2 or not get_hooks(task).concurrent_scoring:
        return [score(task, *answer) for answer in answers]
    with ThreadPoolExecutor(min(THREADS, len(answers)), "score") as threads:
        return list(threads.map(lambda answer: score(task, *answer), answers))


def scoring_slots(task: Task) -> BoundedSemaphore:
    """A semaphore for the threads that may call `task.score` at once."""
    return BoundedSemaphore(THREADS if get_hooks(task).concurrent_scoring else 1)
