"""`palaestra/Lesson-v0`: an action is a lesson, the reward is the student's gain."""

from __future__ import annotations

import itertools
import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import gymnasium

from palaestra.core.errors import LessonError, SettingsError, TaskError, TooFewProblemsError
from palaestra.core.records import (
    Attempt,
    Completion,
    Engine,
    Event,
    Example,
    Lesson,
    Listener,
    Problem,
    Report,
    Sampling,
    Split,
    StopReason,
    ignore,
    notice,
)
from palaestra.core.seeding import Seeds
from palaestra.core.settings import check_integer
from palaestra.core.statistics import is_better, measure_gain, report_on
from palaestra.envs.base import Info, ResetOptions
from palaestra.envs.lesson.state import (
    Journal,
    NullJournal,
    Round,
    RoundCheckpoints,
    StudentState,
    action_space,
    check_lesson,
    count_examples,
    hide_results,
    observation_space,
    to_validation_attempt,
)
from palaestra.envs.lesson.student import STUDENTS, Student
from palaestra.models import registry as models
from palaestra.runs.provenance import LedgerEntry
from palaestra.tasks.base import Task, check_skills, get_hooks, make_task
from palaestra.tasks.evaluate import EvaluationWorkers, draw_problems, evaluate
from palaestra.tasks.group import divide_problems
from palaestra.tasks.leakage import HeldOut

REHEARSAL = "0/rehearsal"
"""The phase of the answers that a student rehearses."""
REHEARSAL_FRACTION = 0.5
"""The default fraction of a training's examples that are rehearsed."""
_MAX_REHEARSED = 100
"""Maximum number of rehearsed problems of each skill."""
_UNKNOWN = -1
"""The round of the weights in memory after an aborted training."""


class LessonEnv(gymnasium.Env[StudentState, Lesson]):
    """A teacher's environment.

    `reset` restores the student and evaluates it. `step(lesson)` trains the student and evaluates it. Training starts from
    the base model on *all* data so far, or, for a student with `start="last"`, from the current weights on the new data.
    `step` returns

    - the observation: a `StudentState` (report by skill, attempts on validation problems, data so far),
    - the reward: the change of validation accuracy since the last round, from -1 to 1,
    - `terminated`: the data budget is spent,
    - `truncated`: the last round is over,
    - `info`: `taught` (the number of training examples), `dropped` (excluded examples by reason), `report`
      (validation), `test` (the test report, at the start and at the end, with `test_every_round` after every round; never
      part of an observation), `loss`, `weights_sha256`, and `compared`: the number of problems scored both times.
      The reward is computed from these; if there are none, it is 0 and has no meaning. At the end also `kept_round` and
      `kept_sha256`: the round whose student is kept, and the hash of its weights.

    Every lesson is checked before training. An invalid lesson, or one that the student cannot be trained on, raises
    `LessonError`. Examples that repeat a validation or test problem are dropped and counted (`palaestra.tasks.leakage`); a
    lesson without other examples raises `LessonError`.

    With `keep="best"` the episode ends with the student of the round with the best validation accuracy, including
    the untaught student; the earlier round wins ties. Only this student is tested, so the test has no influence.

    With `rehearsal` a student that supports it also trains on what it could do before the first lesson: `reset` asks it train
    problems of every skill, and its correct answers are added to the lessons. They are no part of the budget.

    Arguments:
        task: a task, or its registered name.
        student: a student, or the name of a model.
        rounds: maximum rounds of an episode, at least 1.
        budget: maximum examples of an episode, at least 1.
        validation, test: problems per skill in each split.
        skills: only these skills; empty: all.
        sampling: the sampling parameters of all evaluations; default: greedy, with the task's token limit.
        show_state: include the student's results in the observation; otherwise only rounds and amounts of data.
        show_references: include the expected answers of validation problems.
        keep: which student is kept and tested at the end: that of the `"last"` or of the `"best"` round.
        rehearsal: the maximum fraction of a training's examples that are rehearsed, below 1; 0: none.
        test_task: the task of the test problems; default: `task`.
        test_every_round: test the student after every round. The results are not part of the observation or the reward.
        journal: stores finished work, so that an episode can be resumed; see `palaestra.envs.lesson.state`.
        checkpoints: saves the weights of the rounds. Default: a temporary folder if `keep="best"` needs one.
        workers: score the answers of the student; their tasks are named `validation` and `test`. Default: this process.
        listener: receives progress events.

    Example:
        >>> import gymnasium, palaestra                                          # doctest: +SKIP
        >>> env = gymnasium.make("palaestra/Lesson-v0", rounds=2, budget=100)    # doctest: +SKIP
        >>> state, info = env.reset(seed=0)                                      # doctest: +SKIP
        >>> state, reward, terminated, truncated, info = env.step(lesson)        # doctest: +SKIP
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012  (as Gymnasium declares it)
    trained_as_vector = True
    """Policies are trained in the flat view, `palaestra.envs.lesson.flat`."""

    def __init__(
        self,
        task: Task | str = "math-skills",
        student: Student | str = "nano",
        *,
        rounds: int = 3,
        budget: int = 480,
        validation: int = 12,
        test: int = 25,
        skills: tuple[str, ...] = (),
        sampling: Sampling | None = None,
        show_state: bool = True,
        show_references: bool = False,
        keep: Literal["last", "best"] = "last",
        rehearsal: float = REHEARSAL_FRACTION,
        test_task: Task | str | None = None,
        test_every_round: bool = False,
        journal: Journal | None = None,
        checkpoints: RoundCheckpoints | None = None,
        workers: EvaluationWorkers | None = None,
        listener: Listener = ignore,
        render_mode: str | None = None,
    ) -> None:
        for name, value in {"rounds": rounds, "budget": budget}.items():
            check_integer(name, value, 1, error=SettingsError)
        for name, value in {"validation": validation, "test": test}.items():
            check_integer(name, value, 0, error=SettingsError)
        self.task = make_task(task) if isinstance(task, str) else task
        check_skills(self.task, skills)
        self.student: Student = (
            STUDENTS.get("supervised")(models.load(student)) if isinstance(student, str) else student
        )
        self.rounds, self.budget, self.skills = rounds, budget, skills
        self.validation, self.test = validation, test
        self.test_task = make_task(test_task) if isinstance(test_task, str) else test_task or self.task
        self.test_every_round = test_every_round
        self.sampling = sampling or Sampling(max_tokens=get_hooks(self.task).max_tokens)
        self._given_sampling = sampling
        if keep not in ("last", "best"):
            raise SettingsError(f"keep: expected 'last' or 'best'; got {keep!r}")
        if not 0 <= rehearsal < 1:
            raise SettingsError(f"rehearsal: expected a fraction from 0 to below 1; got {rehearsal}")
        self.rehearsal = rehearsal
        self.show_state, self.show_references, self.keep = show_state, show_references, keep
        self.journal: Journal = journal or NullJournal()
        self.checkpoints = checkpoints or (RoundCheckpoints() if keep == "best" else None)
        self.workers, self.listener = workers, listener
        self.render_mode = render_mode
        self.observation_space = observation_space()
        self.action_space = action_space(self.task.skills())
        # Validation and test problems, for checks of lessons. Teachers must not see test problems.
        self.held_out: dict[Split, list[Problem]] = {}
        # All examples that were taught so far.
        self.data: list[Example] = []
        # The correct answers of the untaught student.
        self._rehearsed: list[Example] = []
        self._index = HeldOut({})
        self._seeds = Seeds(0)
        self._round, self._over = -1, True
        self._history: list[Round] = []
        self._attempts: list[Attempt] = []
        self._tested: dict[int, list[Attempt]] = {}
        self._best: _BestRound
        self._before: Report
        self._report: Report
        # The round whose student is kept at the end; the last round with a training; and the round of the weights in
        # memory, which may be older, because stored evaluations need no weights.
        self.kept_round = self.trained_round = self._in_memory = 0

    def reset(self, *, seed: int | None = None, options: ResetOptions = None) -> tuple[StudentState, Info]:
        super().reset(seed=seed)
        root = seed if seed is not None else int(self.np_random.integers(2**31))
        self._seeds = Seeds(root)
        # `skills` belong to `task`. Another test task uses all of its skills.
        skills = self.skills if self.test_task is self.task else ()
        self.held_out = {
            Split.VALIDATION: draw_problems(self.task, Split.VALIDATION, self.validation, root, self.skills),
            Split.TEST: draw_problems(self.test_task, Split.TEST, self.test, root, skills),
        }
        images = (m.has_image for problems in self.held_out.values() for p in problems for m in p.messages)
        if any(images) and not getattr(self.student, "reads_images", True):
            raise LessonError("the problems have images, but the student reads text only; use one such as nano-vlm")
        self._index = HeldOut(self.held_out)
        self.data, self._history, self._round, self._over = [], [], 0, False
        self.student.restore()
        self.kept_round = self.trained_round = self._in_memory = 0
        self._collect_rehearsal(root)
        self._attempts = self._evaluate(Split.VALIDATION)
        self._best = _BestRound(0, 0, self._attempts)
        self._before = self._report = report_on(self._attempts, Split.VALIDATION)
        self._tested = {0: self._evaluate(Split.TEST)}
        return self._state(), {"report": self._report, "test": report_on(self._tested[0], Split.TEST)}

    def step(self, action: Lesson) -> tuple[StudentState, float, bool, bool, Info]:
        self._check_running("step")
        self.check(action)  # First, because the comparison with held-out problems is slow for long lessons.
        kept, dropped = self.screen(action)
        if not kept:
            causes = ", ".join(f"{count} x {reason}" for reason, count in dropped.items())
            raise LessonError(f"every example of the lesson was dropped: {causes}; write other examples")
        return self._advance(kept, dropped)

    def skip_round(self) -> tuple[StudentState, float, bool, bool, Info]:
        """Count a round without training. Returns the same values as `step`."""
        self._check_running("skip_round")
        return self._advance((), {})

    def _check_running(self, method: str) -> None:
        if self._over:
            raise gymnasium.error.ResetNeeded(f"the episode is over; call reset() before {method}()")

    def _advance(
        self, examples: Sequence[Example], dropped: Mapping[str, int]
    ) -> tuple[StudentState, float, bool, bool, Info]:
        """Train on checked examples, evaluate, and count the round."""
        data, round_, loss = [*self.data, *examples], self._round + 1, None
        try:
            if examples:
                loss = self._train(data, examples, round_)
        except BaseException:
            if self.student.start != "last":  # With start="last" the student restores its weights.
                self._in_memory = _UNKNOWN  # The state of the episode is unchanged, but the weights may differ.
            raise
        self.data, self._round = data, round_
        before, self._attempts = self._attempts, self._evaluate(Split.VALIDATION)
        if is_better(self._attempts, self._best.attempts):
            self._best = _BestRound(round_, self.trained_round, self._attempts)
        self._report = report_on(self._attempts, Split.VALIDATION)
        self._history.append(Round(count_examples(Lesson(tuple(examples))), self._report))
        # Paired: a problem with an infrastructure failure either time does not count.
        gain = measure_gain(before, self._attempts)
        terminated, truncated = len(data) >= self.budget, round_ >= self.rounds
        info: Info = {"taught": len(examples), "dropped": dict(dropped), "report": self._report, "loss": loss}
        info |= {"compared": gain.count, "weights_sha256": self._weights_sha256()}
        if self.test_every_round:
            info["test"] = report_on(self._test(round_), Split.TEST)
        if terminated or truncated:
            info |= self.finish()
        return self._state(), gain.points / 100, terminated, truncated, info

    def finish(self) -> Info:
        """End the episode: load the kept student and test it. `step` calls it after the last round.

        Returns:
            `test`, `kept_round` and `kept_sha256`, as in the `info` of the last step.
        """
        self._check_running("finish")
        self._over, self.kept_round = True, self._round
        if self.keep == "best":
            self.kept_round, self.trained_round = self._best.round, self._best.trained_round
        return {
            "test": report_on(self._test(self.kept_round), Split.TEST),
            "kept_round": self.kept_round,
            "kept_sha256": self._weights_sha256(),
        }

    def render(self) -> str | None:
        """The report of the student as text, one line per skill."""
        if self.render_mode != "ansi" or self._round < 0:
            return None
        parts = "".join(f"\n  {_line(part)}" for part in self._report.slices)
        return f"round {self._round} of {self.rounds}: {_line(self._report)}{parts}"

    def check(self, lesson: Lesson) -> None:
        """Raise `LessonError` if `step` would reject the lesson. Has no side effects."""
        check_lesson(lesson, self.task.skills())
        size, left = len(lesson.examples), self.budget - len(self.data)
        if size > left:
            raise LessonError(f"the lesson has {size} examples, but the budget has {left} left; shorten the lesson")
        self.student.check(lesson.examples)

    def screen(self, lesson: Lesson) -> tuple[tuple[Example, ...], dict[str, int]]:
        """Return the examples that repeat no held-out problem, and the number of the others by reason.

        Raises:
            LessonError: the lesson is invalid.
        """
        check_lesson(lesson, self.task.skills())
        leaks = self._index.find(lesson.examples)
        kept = tuple(example for example, leak in zip(lesson.examples, leaks, strict=True) if leak is None)
        return kept, dict(Counter(leak.reason for leak in leaks if leak is not None))

    def engine(self) -> Engine:
        """The engine of the current student."""
        self._load_weights()
        return self.student.engine()

    def _train(self, data: Sequence[Example], new: Sequence[Example], round_: int) -> float | None:
        """Train on all data or on the new data, depending on the student. Skip a training that is in the journal."""
        if self.journal.weights_sha256(round_) is not None:
            self.trained_round = round_
            return None
        first, last = 0, len(data)
        if self.student.start == "last":
            self._load_weights()
            first, data = last - len(new), new
        rehearsed = self._rehearsed[self._count_rehearsed(first) : self._count_rehearsed(last)]

        def on_step(step: int, total: int, loss: float) -> None:
            self.listener(Event("train", step, total, round_, {"loss": loss, "examples": len(data)}))

        start = time.perf_counter()
        progress = self.checkpoints.progress if self.checkpoints else None
        curve = self.student.learn([*data, *rehearsed], self._seeds.derive("training", round_), on_step, progress)
        cost = LedgerEntry(f"{round_}/train", self.student.name, seconds=time.perf_counter() - start)
        # The weights are saved before the journal records them. A kill in between repeats the training.
        if self.checkpoints:
            self.checkpoints.save(round_, self.student)
        self.journal.add_training(round_, self.student.weights_sha256(), curve, cost)
        if self.checkpoints:
            self.checkpoints.tidy(round_, *((self._best.trained_round,) if self.keep == "best" else ()))
        self.trained_round = self._in_memory = round_
        return curve[-1][1]

    def _count_rehearsed(self, examples: int) -> int:
        """The maximum number of rehearsed examples beside this number of examples of lessons."""
        return round(examples * self.rehearsal / (1 - self.rehearsal))

    def _collect_rehearsal(self, seed: int) -> None:
        """Ask the untaught student train problems of every skill, and keep its correct answers, from the skills in turn."""
        self._rehearsed, problems = [], list[Problem]()
        if not self.rehearsal or not getattr(self.student, "rehearses", False):
            return
        per_skill = math.ceil(self._count_rehearsed(self.budget) / len(self.skills or self.task.skills()))
        per_skill = min(per_skill, _MAX_REHEARSED)
        while not problems:
            try:
                problems = draw_problems(self.task, Split.TRAIN, per_skill, seed, self.skills)
            except TaskError as error:
                per_skill = error.available if isinstance(error, TooFewProblemsError) else 0
                if not per_skill:
                    self.listener(notice(f"nothing is rehearsed, because the task has no train problems: {error}"))
                    return
        turns: dict[str, list[Example]] = {}
        for attempt in self._ask(self.task, problems, REHEARSAL):
            answer, problem = attempt.completion, attempt.problem
            if attempt.correct and isinstance(answer, Completion) and answer.stop_reason is not StopReason.LENGTH:
                example = Example(problem.messages, answer.text, problem.skill, problem.subskill)
                if self._index.find([example]) == [None]:
                    turns.setdefault(problem.skill, []).append(example)
        self._rehearsed = [e for turn in itertools.zip_longest(*turns.values()) for e in turn if e is not None]

    def _test(self, round_: int) -> list[Attempt]:
        """The test attempts of a round. Each round is tested at most once."""
        if round_ not in self._tested:
            self._tested[round_] = self._evaluate(Split.TEST, round_)
        return self._tested[round_]

    def _evaluate(self, split: Split, round_: int | None = None) -> list[Attempt]:
        """Evaluate the current student. The attempts are stored under `round_`, by default the current round."""
        round_ = self._round if round_ is None else round_
        task = self.test_task if split is Split.TEST else self.task
        attempts = self._ask(task, self.held_out[split], f"{round_}/{split}", str(split))
        report = report_on(attempts, split)
        self.listener(Event(f"evaluated {split}", len(attempts), len(attempts), round_, {"report": report}))
        return attempts

    def _ask(
        self, task: Task, problems: Sequence[Problem], phase: str, worker_task: str = Split.VALIDATION
    ) -> list[Attempt]:
        """Ask the current student the problems of a phase, and score its answers.

        Several tasks are evaluated one after the other, each as in an evaluation of its own.
        """
        hooks, known, attempts = get_hooks(task), self.journal.attempts(phase), list[Attempt]()
        for name, part in divide_problems(problems, hooks.main).items():
            at = len(attempts)
            attempts += evaluate(
                task,
                part,
                self.engine,
                sampling=self._given_sampling or Sampling(max_tokens=hooks.answer_lengths.get(name, hooks.max_tokens)),
                seed=self._seeds.derive("evaluate").integer(),
                phase=phase,
                round_=int(phase.partition("/")[0]),
                known=known[at : at + len(part)],
                keep=lambda attempts, cost: self.journal.add_attempts(phase, attempts, cost),
                workers=None if self.workers is None else replace(self.workers, task=worker_task),
                listener=self.listener,
            )
        return attempts

    def _weights_sha256(self) -> str:
        """The hash of the current weights. They are loaded only if the journal has no hash."""
        noted = self.journal.weights_sha256(self.trained_round)
        if noted is None:
            self._load_weights()
        return noted or self.student.weights_sha256()

    def _load_weights(self) -> None:
        """Load the weights of the last trained round into memory."""
        if self._in_memory != self.trained_round:
            if self.trained_round == 0:
                self.student.restore()
            elif self.checkpoints:
                self.checkpoints.load(self.trained_round, self.student, self.journal.weights_sha256(self.trained_round))
            self._in_memory = self.trained_round

    def _state(self) -> StudentState:
        state = StudentState(
            round=self._round,
            report=self._report,
            attempts=tuple(to_validation_attempt(attempt, self.show_references) for attempt in self._attempts),
            examples=len(self.data),
            budget=self.budget - len(self.data),
            before=self._before,
            history=tuple(self._history),
        )
        return state if self.show_state else hide_results(state)


class _BestRound(NamedTuple):
    """The best round so far: its validation attempts, and the round of the training that produced its weights."""

    round: int
    trained_round: int
    attempts: Sequence[Attempt]


def _line(report: Report) -> str:
    if report.accuracy is None:
        return f"{report.name}: nothing scored, {report.failure_count} failures"
    return f"{report.name}: {100 * report.accuracy:.1f} % [{100 * report.low:.1f}, {100 * report.high:.1f}] of {report.count}"
