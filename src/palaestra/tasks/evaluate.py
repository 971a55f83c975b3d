"""Evaluate an engine on the problems of a task: draw problems, ask them, score the answers.

Users write tasks too, so everything that a task returns is checked here once.
"""

from __future__ import annotations

import itertools
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

import numpy as np
from pydantic import ConfigDict, TypeAdapter, ValidationError

from palaestra.core.errors import TaskError, TooFewProblemsError
from palaestra.core.process import repeat_event
from palaestra.core.records import (
    Answer,
    Attempt,
    Completion,
    Engine,
    Event,
    Example,
    Failure,
    FailureCause,
    Listener,
    Problem,
    Request,
    Sampling,
    Score,
    Split,
    Usage,
    ignore,
)
from palaestra.core.registry import describe_location, describe_origin
from palaestra.core.seeding import Seeds
from palaestra.core.settings import short_repr
from palaestra.core.statistics import Mean, count_by_problem, get_cluster, mean_pass_at_k
from palaestra.engines.base import Slot, StreamingEngine
from palaestra.executors.base import Executor, Pool, Resources
from palaestra.runs.provenance import LedgerEntry
from palaestra.tasks.base import EVERY, GenerativeTask, Task, get_hooks
from palaestra.tasks.data import DataTask

CHUNK = 256
"""Maximum number of problems in a chunk. The attempts of a chunk are stored in one transaction."""
_MAX_CHUNK_TOKENS = CHUNK * 72
"""Maximum number of tokens in a chunk. An interruption loses one chunk."""
_REPORT_TOKENS = 256
"""Tokens between two progress events within a chunk."""
_DRAWN = 25
"""Default number of problems per skill of a procedural task."""

_MAX_THREADS = 2 * (os.cpu_count() or 1)
"""Maximum number of scoring threads. Programs have twice as much wall time as CPU time, so two can share a core."""

REQUESTS = 8
"""Requests that a worker answers in one batch for `WorkerEngine`."""

Keep = Callable[[Sequence[Attempt], LedgerEntry], None]


def choose(
    task: Task, split: Split, per_skill: int, seed: int, skills: Sequence[str] = (), limit: int = 0
) -> list[Problem]:
    """The problems of an evaluation.

    Arguments:
        per_skill: problems per skill; 0 for all problems of a data set, or `_DRAWN` of a procedural task.
        limit: maximum number of problems in total, from the skills in turn; 0 for no limit.
    """
    count = len(skills or task.skills())
    if per_skill == EVERY and get_hooks(task).is_procedural:
        per_skill = math.ceil(limit / count) if limit else _DRAWN
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
    attempts, samples = list(known), sampling.count
    total = samples * len(problems)
    size = max(1, min(CHUNK, _MAX_CHUNK_TOKENS // (sampling.max_tokens * samples)))
    starts = range(len(attempts) // samples, len(problems), size)
    chunks = (_Chunk(tuple(problems[at : at + size]), sampling, seed, phase) for at in starts)
    listener(Event(phase, len(attempts), total, round_))
    results: Iterator[_Evaluated]
    if workers is None:
        results = (
            _score_chunk(task, chunk, _generate(engine(), chunk, Event(phase, len(attempts), total, round_), listener))
            for chunk in chunks
        )
    else:
        results = workers.run(chunks, engine, Event(phase, len(attempts), total, round_), listener)
    with repeat_event(listener, lambda: Event(phase, len(attempts), total, round_)):
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
_Generated = tuple[str, list[list[Answer]], float]
"""The name of a model, its answers to a chunk and the seconds they took."""
_Item = tuple[str, _Chunk, _Generated | None]
"""The name of a task, a chunk and, if this process generated them, the answers."""
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
                yield self.task, chunk, None if self.generate else _generate(engine(), chunk, event, listener)

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
    if generated is None:
        assert engine is not None
        generated = _generate(engine, chunk, Event(chunk.phase), ignore)
    return _score_chunk(tasks[name], chunk, generated)


def _generate(engine: Engine, chunk: _Chunk, event: Event, listener: Listener) -> _Generated:
    """Generate the answers to a chunk. A streaming engine reports its tokens, because a chunk may take minutes."""
    start, seeds, tokens = time.perf_counter(), Seeds(chunk.seed), itertools.count(1)
    requests = [Request(p.messages, chunk.sampling, seeds.derive("request", p.id).integer()) for p in chunk.problems]

    def on_token(slot: Slot, position: int, token: int) -> None:
        if (count := next(tokens)) % _REPORT_TOKENS == 0:
            listener(replace(event, data={"tokens": count}))

    if isinstance(engine, StreamingEngine):
        answers = engine.generate_streaming(requests, on_token)
    else:
        answers = engine.generate(requests)
    return engine.name, answers, time.perf_counter() - start


def _score_chunk(task: Task, chunk: _Chunk, generated: _Generated) -> _Evaluated:
    """Score the answers to a chunk."""
    start, (model, answers, seconds) = time.perf_counter(), generated
    asked = [
        (problem, answer, sample)
        for problem, several in zip(chunk.problems, answers, strict=True)
        for sample, answer in enumerate(several)
    ]
    outcomes = iter(score_all(task, [(problem, a) for problem, a, _ in asked if isinstance(a, Completion)]))
    attempts = [
        Attempt(problem, None, answer, sample)
        if isinstance(answer, Failure)
        else Attempt(problem, answer, next(outcomes), sample)
        for problem, answer, sample in asked
    ]
    usage = sum((a.usage for _, a, _ in asked if isinstance(a, Completion)), Usage())
    return attempts, LedgerEntry(chunk.phase, model, len(attempts), usage, seconds + time.perf_counter() - start)


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
    own: object = get_hooks(task).metrics(attempts)
    if isinstance(own, Mapping) and all(isinstance(n, str) and isinstance(m, Mean) for n, m in own.items()):
        return metrics | dict(own)
    raise _make_error(task, "metrics", short_repr(own), "a mapping of names to palaestra.core.statistics.Mean")


def outcomes(attempts: Sequence[Attempt]) -> Mapping[str, int]:
    """How often each outcome occurs that scorers report (`passed`, `wrong_answer`, `time`, ...)."""
    names = (a.outcome.evidence.get("outcome") for a in attempts if isinstance(a.outcome, Score))
    return dict(Counter(outcome for outcome in names if outcome).most_common())


def draw_problems(task: Task, split: Split, per_skill: int, seed: int, skills: Sequence[str] = ()) -> list[Problem]:
    """Call `task.problems` and check the result.

    Raises:
        TaskError: the result is not a list of valid problems with unique ids. The message names the file and line of the method.
        TooFewProblemsError: the list is empty.
    """
    problems: object = task.problems(split, per_skill, seed, skills)
    if not isinstance(problems, list | tuple):
        raise _make_error(task, "problems", short_repr(problems), "a list of Problem")
    if not problems:
        own = f", or put all rows into it with the task option split={split}" if isinstance(task, DataTask) else ""
        raise TooFewProblemsError(f"task '{task.name}' has no {split} problems; choose another split{own}")
    seen: set[str] = set()
    for problem in problems:
        if not isinstance(problem, Problem):
            raise _make_error(task, "problems", f"{short_repr(problem)} in a list", "a list of Problem")
        try:
            _PROBLEM.validate_python((problem,))
        except ValidationError as error:
            first = error.errors()[0]
            field = ".".join(str(part) for part in first["loc"][1:])
            returned = f"{short_repr(first['input'])} as the {field} of a problem"
            raise _make_error(task, "problems", returned, first["msg"].removeprefix("Input should be ")) from None
        if problem.id in seen:
            raise _make_error(task, "problems", f"{short_repr(problem.id)} as the id of two problems", "unique ids")
        seen.add(problem.id)
    return list(problems)


# In a tuple, because pydantic accepts no configuration for a dataclass type itself.
_PROBLEM = TypeAdapter(tuple[Problem], config=ConfigDict(revalidate_instances="always", strict=True))


def _make_error(task: Task, method: str, returned: str, expected: str) -> TaskError:
    """The error for a method of a task that returned something else than expected, with its file and line."""
    location = describe_location(getattr(task, method))
    return TaskError(f"{type(task).__name__}.{method} returned {returned}{location}; expected {expected}")


def write_examples(
    task: GenerativeTask, skill: str, subskill: str, count: int, generator: np.random.Generator
) -> tuple[Example, ...]:
    """Call `task.write_examples` and check the result.

    Raises:
        TaskError: the result is not a list of at most `count` examples. The message names the file and line of the method.
    """
    returned: object = task.write_examples(skill, subskill, count, generator)
    what = short_repr(returned)
    if isinstance(returned, list | tuple) and all(isinstance(example, Example) for example in returned):
        if len(returned) <= count:
            return tuple(returned)
        what = f"{len(returned)} examples"
    raise _make_error(task, "write_examples", what, f"a list of {count} Example")


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
    raise _make_error(task, "score", short_repr(outcome), "a Score or a Failure")


def score_all(task: Task, answers: Sequence[tuple[Problem, Completion]]) -> list[Score | Failure]:
    """Score answers, in order; in several threads if the task allows it (`concurrent_scoring`)."""
    if len(answers) < 2 or not get_hooks(task).concurrent_scoring:
        return [score(task, *answer) for answer in answers]
    with ThreadPoolExecutor(min(_MAX_THREADS, len(answers)), "score") as threads:
        return list(threads.map(lambda answer: score(task, *answer), answers))


def scoring_slots(task: Task) -> BoundedSemaphore:
    """A semaphore for the threads that may call `task.score` at once."""
    return BoundedSemaphore(_MAX_THREADS if get_hooks(task).concurrent_scoring else 1)
