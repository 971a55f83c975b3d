"""`palaestra/Research-v0`: an agent at a shell works on a research task and is rewarded by the score of its submission."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, get_args

from palaestra.core.errors import EnvError, SandboxError
from palaestra.core.prompts import Prompts
from palaestra.core.records import Failure, FailureCause, Json, Message, ToolCall
from palaestra.core.settings import check_integer, check_number
from palaestra.core.text import clean_text
from palaestra.envs.turn.base import Conversation, Reply, TurnEnv, TurnStopReason, to_failure
from palaestra.envs.turn.vector import TurnVectorEnv
from palaestra.research.judge.evaluation import EvaluationSplit, SubmissionJudge, make_judge, sandbox_for
from palaestra.research.tasks.task import (
    Grade,
    InvalidSubmission,
    JudgeResult,
    ResearchTask,
    SubmissionOutcome,
    load_task,
)
from palaestra.research.workspace.commands import (
    BrokenCommandError,
    CommandResult,
    Session,
    documentation,
    load_commands,
    tool_schemas,
)
from palaestra.research.workspace.commands.memory import check_memory
from palaestra.research.workspace.parsing import Action, FormatError, make_parser
from palaestra.research.workspace.templates import check_prompts
from palaestra.research.workspace.workspace import FileChange, FileTracker, MeasuredSolution, Workspace, load_baseline

PROMPTS = Path(__file__).parent / "prompts"
_BROKE_EVALUATOR = InvalidSubmission("the evaluator broke over it", exposed=True)
MAX_CALLS = 16
"""The maximum number of tool calls in one message."""
_OUTCOMES = {
    Grade: SubmissionOutcome.SCORED,
    Failure: SubmissionOutcome.FAILED,
    InvalidSubmission: SubmissionOutcome.INVALID,
    type(None): SubmissionOutcome.MISSING,
}


class ResearchEnv(TurnEnv):
    """A research task as a turn environment.

    `reset` opens a fresh workspace in a sandbox. An action is an assistant message; its command (or tool call) runs,
    and the output is the next message. The reward comes in the step of `submit`, or in the step in which a limit
    submits the current workspace: the improvement over the baseline in units of the metric's `scale`. If a submission
    cannot be judged, the agent sees the reason and continues. An episode that ends without a score has the lowest
    reward of the task, unless something outside the agent failed (`Metric.reward`, `SubmissionOutcome`).

    `info` contains the `action` that was read in a message and the `thought` around it, or the `format_error`; and
    `validated`, the scores of validations in this step. At the end it contains `outcome` (a `SubmissionOutcome`), `score`
    (`None` unless the outcome is `scored`), `scores`, `baseline`, `attempts` (the scores of all validations), `failures` (counts by cause) and `stop_reason`;
    `handed_in` has the submitted files.

    Arguments:
        task: a `ResearchTask`, its name or its folder.
        split: the split that submissions are judged on. `validation` keeps the test split unseen, for training on the
            reward or selecting between episodes.
        sandbox: the kind of sandbox.
        parser: how an action is extracted from a message; see `palaestra.research.workspace.parsing`.
        commands: the names of the agent's commands; all if empty.
        tools: offer the commands as tools (`env.tools`) instead of describing them in the system message.
        strategy: begin with advice on how to approach the task.
        demonstration: an example transcript, shown before the task.
        format_errors: the number of consecutive unreadable messages that end the episode; 0 for no limit.
        format_penalty: subtracted from the reward of an unreadable message.
        validation_reward: reward every validation that improves on all earlier ones, and the rest at the end. The sum
            over an episode is the same.
        prompts: a folder of templates that override the built-in ones.
        memory: a file that keeps notes across episodes.
        max_turns, max_seconds: limits that override the task's.

    Example:
        >>> import gymnasium, palaestra                                                     # doctest: +SKIP
        >>> env = gymnasium.make("palaestra/Research-v0", task="prisoners_dilemma")         # doctest: +SKIP
        >>> observation, info = env.reset(seed=0)                                           # doctest: +SKIP
        >>> observation, reward, terminated, truncated, info = env.step("```\\nsubmit\\n```")  # doctest: +SKIP
    """

    held_out: ClassVar[Json] = {"split": "test"}
    learned_from: ClassVar[Json] = {"split": "validation"}

    def __init__(
        self,
        task: ResearchTask | str | Path = "prisoners_dilemma",
        *,
        split: str = "test",
        sandbox: str = "bubblewrap",
        parser: str = "last_block",
        commands: Sequence[str] = (),
        tools: bool = False,
        strategy: bool = False,
        demonstration: str = "",
        format_errors: int = 3,
        format_penalty: float = 0.0,
        validation_reward: bool = False,
        prompts: str | Path = "",
        memory: str | Path = "",
        max_turns: int = 0,
        max_seconds: float = 0.0,
        render_mode: str | None = None,
    ) -> None:
        self.task = task if isinstance(task, ResearchTask) else load_task(task)
        limits = self.task.limits
        super().__init__(
            max_turns=max_turns or limits.steps, max_seconds=max_seconds or limits.seconds, render_mode=render_mode
        )
        check_integer("format_errors", format_errors, minimum=0)
        check_number("format_penalty", format_penalty, minimum=0)
        if split not in get_args(EvaluationSplit):
            raise EnvError(f"split must be one of {', '.join(get_args(EvaluationSplit))}; got {split!r}")
        self.split: EvaluationSplit = "test" if split == "test" else "validation"
        self.format_errors, self.format_penalty = format_errors, format_penalty
        self.strategy, self.demonstration, self.validation_reward = strategy, demonstration, validation_reward
        self.commands = load_commands(commands)
        self.tools = tool_schemas(self.commands) if tools else []
        self._parser = make_parser("tool_call" if tools else parser)
        self._prompts = Prompts(PROMPTS, Path(prompts) if prompts else None)
        if prompts:
            check_prompts(self._prompts, self.task)
        self._command_docs = "" if tools else documentation(self.commands)
        self._memory = Path(memory) if memory else None
        if self._memory is not None:
            check_memory(self._memory)
        self._sandbox_name = sandbox
        self._workspace: Workspace | None = None
        self._session: Session | None = None
        self._clear()

    def _clear(self) -> None:
        self.attempts: list[float] = []
        self.asked = 0
        self.failures: Counter[str] = Counter()
        self.handed_in: dict[str, bytes] | None = None
        self.outputs: list[str] = []
        self._unreadable = 0
        self._judged: JudgeResult | None = None
        self._earned, self._interrupted = 0.0, False
        self._where: Json = {}
        self._tracker: FileTracker | None = None

    # The episode

    def opening(self, options: Mapping[str, object]) -> Sequence[Message]:
        self.close()
        self._clear()
        judge, baseline = self._judge, self.baseline
        self._workspace = Workspace(self.task, judge.sandbox, judge.data)
        shell, limits = self._workspace.shell, self.task.limits
        self._session = Session(shell, self, list(self.commands), self._memory, limits.command_seconds)
        variables = {
            "workspace": shell.workspace,
            "tools": bool(self.tools),
            "bash": "bash" in self.commands,
            "data": ", ".join(self.task.mounts(judge.data, judging=False)),
            "instructions": self._parser.instructions,
            "command_seconds": f"{limits.command_seconds:g}",
            "demonstration": self.demonstration,
            "baseline_validation": baseline.validation.score,
            "split": self.split,
            "validations": limits.validations,
            "steps": self.max_turns,
            "seconds": f"{self.max_seconds:g}",
            "files": "\n".join(f"- {name}" for name in sorted(self.task.starter_files())),
        }
        shown = {"demonstration": bool(self.demonstration), "task": True, "strategy": self.strategy}
        parts = [self._render(name, **variables) for name, is_shown in shown.items() if is_shown]
        # One message, because many chat templates reject two of the same role in a row.
        user = Message("user", "\n\n".join(part for part in parts if part))
        return [Message("system", self._render("system", **variables)), user]

    def respond(self, message: Message) -> Reply:
        assert self._session is not None
        self.outputs = []
        try:
            action = self._parser(message)
        except (Exception, SystemExit) as error:  # A user-defined parser may raise anything.
            return self._fail(to_failure(error, FailureCause.ENVIRONMENT))
        if isinstance(action, FormatError):
            return self._report_format_error(action)
        if not isinstance(action, Action):
            problem = f"the output parser must return an Action or a FormatError; got {type(action).__name__}"
            return self._fail(Failure(FailureCause.ENVIRONMENT, problem))
        self._unreadable = 0
        earned, validated = self._earned, len(self.attempts)
        action_text = action.text or "\n".join(f"{call.name} {call.arguments}" for call in action.calls)
        info: Json = {"action": clean_text(action_text), "thought": clean_text(action.thought)}
        replies: list[Message] = []
        self._session.timeout = self._patience()
        try:
            if not action.calls:
                replies.append(Message("user", self._render_result(self._session.run(action.text))))
            for place, call in enumerate(action.calls):
                replies.append(self._call(call, place))
        except SandboxError as error:
            cause = FailureCause.ENVIRONMENT if isinstance(error, BrokenCommandError) else FailureCause.SANDBOX
            return self._fail(Failure(cause, str(error)), info)
        except KeyboardInterrupt:
            # The caller can end the episode with `stop`. The shell is not used again, because its command still runs.
            self._over, self._interrupted = False, True
            raise
        if len(self.attempts) > validated:
            info["validated"] = tuple(self.attempts[validated:])
        if isinstance(self._judged, Failure):
            return self._fail(self._judged, info, replies)
        if self._judged is not None:
            stop = TurnStopReason.SUBMITTED if isinstance(self._judged, Grade) else TurnStopReason.ATTEMPTS
            return Reply(tuple(replies), self._earned - earned, stop, info=info | self._figures())
        return Reply(tuple(replies), self._earned - earned, info=info)

    def truncate(self, reason: TurnStopReason) -> Reply:
        """Submit the current workspace, unless the agent gave up or something outside it failed."""
        if reason is TurnStopReason.FAILED:
            return Reply(stop=reason, info=self._figures() | {"outcome": SubmissionOutcome.FAILED})
        earned, replies = self._earned, tuple[Message, ...]()
        if reason is TurnStopReason.GAVE_UP:
            self._earned = self._reward(None)
        else:
            try:
                replies = (Message("user", clean_text(self.submit(last=True).text)),)
            except SandboxError as error:
                return self._fail(Failure(FailureCause.SANDBOX, str(error)))
        if isinstance(self._judged, Failure):
            return self._fail(self._judged)
        return Reply(replies, self._earned - earned, reason, info=self._figures())

    def _fail(self, failure: Failure, info: Mapping[str, object] = {}, replies: Sequence[Message] = ()) -> Reply:
        """End the episode because something outside the agent failed."""
        self._judged = failure
        return Reply(tuple(replies), failure=failure, info={**info, **self._figures()})

    def state(self) -> Json:
        if self._session is None:
            return {}
        if not self._interrupted:
            with suppress(SandboxError):  # Keep the last state of a dead shell.
                self._where = self._session.state()
        turns = {"current_step": self.turn, "remaining_steps": self.max_turns - self.turn}
        return {**self._where, **turns, "validations_left": self._validations_left()}

    def opening_info(self) -> Json:
        return {"baseline": self._reference(self.split), "metric": self.task.metric.name}

    def close(self) -> None:
        super().close()
        workspace, self._workspace, self._session = self._workspace, None, None
        if workspace is not None:
            workspace.close()

    def spend(self, seconds: float) -> None:
        """Set the elapsed seconds of the episode, for one that is resumed."""
        self._started = time.monotonic() - seconds

    def take_file_changes(self) -> tuple[FileChange, ...]:
        """Return the changes of text files in the workspace since the last call; the first call returns none."""
        if self._workspace is None:
            return ()
        if self._tracker is None:
            self._tracker = FileTracker(self._workspace.shell)
        return self._tracker.take_changes()

    def restore_messages(self, start: int, messages: Sequence[Message]) -> Conversation:
        """Replace the conversation from message `start` on, for an episode that is resumed."""
        self._messages[start:] = messages
        return self.conversation()

    # Called by the agent's commands

    def validate(self) -> CommandResult:
        """Evaluate the current workspace on the validation split. Returns the observation for the agent; `ok` is false
        without a score.
        """
        if not self._validations_left():
            return CommandResult(self._render("no_validations", limit=self.task.limits.validations), ok=False)
        _, outcome = self._evaluate("validation")
        counted = isinstance(outcome, Grade) or self._is_caused_by_submission(outcome)
        counted = counted or (isinstance(outcome, InvalidSubmission) and outcome.exposed)
        self.asked += counted
        if isinstance(outcome, Failure):
            self.failures[outcome.cause] += 1
        if not isinstance(outcome, Grade):
            return self._report_miss(outcome, "validated", "validation", counted)
        self.attempts.append(outcome.score)
        best = self.task.metric.best(self.attempts)
        if self.validation_reward:
            self._earned = max(self._earned, self.task.metric.reward(best, self._reference("validation")))
        return self._report_score("validated", outcome, "validation", best=best, left=self._validations_left())

    def submit(self, last: bool = False) -> CommandResult:
        """Submit the current workspace. Returns the observation for the agent; `ok` is false without a score.

        The episode ends if the submission can be judged. It also ends if the submission's code failed after it had seen
        hidden data, because the code could carry them into the next submission.

        Arguments:
            last: the episode ends in any case.
        """
        files, outcome = self._evaluate(self.split)
        if self._is_caused_by_submission(outcome):
            self.failures[FailureCause.SCORER] += 1
            outcome = _BROKE_EVALUATOR
        if isinstance(outcome, InvalidSubmission):
            if outcome.exposed or last:
                self._judged, self._earned = outcome, self._reward(None)
            return self._report_miss(outcome, "submitted", "evaluation")
        self._judged, self.handed_in = outcome, files
        if isinstance(outcome, Failure):
            return self._report_miss(outcome, "submitted", "evaluation")
        self._earned = self._reward(outcome.score)
        return self._report_score("submitted", outcome, self.split)

    def judge_finally(self, files: Mapping[str, bytes], split: EvaluationSplit) -> JudgeResult:
        """Judge a submission outside any episode. If its code broke the evaluator, it cannot be judged."""
        outcome = self._judge.judge(files, split)
        return _BROKE_EVALUATOR if self._is_caused_by_submission(outcome) else outcome

    def _is_caused_by_submission(self, outcome: JudgeResult) -> bool:
        """Whether the submission's answers may have broken the evaluator. An agent could otherwise escape a bad score
        this way.
        """
        failed = isinstance(outcome, Failure) and outcome.cause is FailureCause.SCORER
        return failed and self._judge.exposed

    def _reward(self, score: float | None) -> float:
        """Return the reward of the episode."""
        return self.task.metric.reward(score, self._reference(self.split))

    def _evaluate(self, split: EvaluationSplit) -> tuple[dict[str, bytes] | None, JudgeResult]:
        """Judge a copy of the current workspace; returns its files and the result."""
        assert self._workspace is not None
        files = self._workspace.submission()
        return (None, files) if isinstance(files, InvalidSubmission) else (files, self._judge.judge(files, split))

    def _report_score(self, template: str, grade: Grade, split: EvaluationSplit, **more: object) -> CommandResult:
        metric = self.task.metric
        scored = {"metric": metric.name, "direction": metric.direction.value, "score": grade.score, "split": split}
        return CommandResult(self._render(template, **scored, baseline=self._reference(split), **more))

    def _report_miss(
        self, outcome: InvalidSubmission | Failure, done: str, name: str, counted: bool = False
    ) -> CommandResult:
        """Render the observation of a validation or submission without a score.

        Arguments:
            done: what could not be done with the submission.
            name: what failed.
            counted: whether it counts as a validation.
        """
        variables: Json = {"counted": counted, "left": self._validations_left()}
        if isinstance(outcome, Failure):
            text = self._render("failed", what=name, cause=outcome.cause, reason=outcome.message, **variables)
        else:
            over = outcome.exposed and outcome is self._judged
            text = self._render("unusable", what=done, reason=outcome.reason, over=over, **variables)
        return CommandResult(text, ok=False)

    def _render(self, template: str, **variables: Any) -> str:
        """Render a template with the shared variables and its own."""
        state = variables["state"] if "state" in variables else self.state()
        return self._prompts.bind(**self.template_variables(state)).render(template, **variables)

    def template_variables(self, state: Json) -> Json:
        """Return the variables of every template (`palaestra.research.workspace.templates`) for a workspace state."""
        where = {name: state.get(name, "") for name in ("current_step", "remaining_steps", "open_file", "working_dir")}
        return {"task": self.task, "command_docs": self._command_docs, **where}

    @cached_property
    def baseline(self) -> MeasuredSolution:
        """The baseline's scores, measured now if necessary."""
        return load_baseline(self.task, self._judge.sandbox, self._judge)

    def _reference(self, split: EvaluationSplit) -> float:
        """Return the baseline's score on a split."""
        return (self.baseline.test if split == "test" else self.baseline.validation).score

    @cached_property
    def _judge(self) -> SubmissionJudge:
        return make_judge(self.task, sandbox_for(self.task, self._sandbox_name))

    def _validations_left(self) -> int:
        """Return the number of validations left."""
        return max(0, self.task.limits.validations - self.asked)

    def _report_format_error(self, error: FormatError) -> Reply:
        self._unreadable += 1
        text = clean_text(self._render("format_error", error=error.message, remaining=self.max_turns - self.turn))
        info = {"format_error": clean_text(error.message)}
        reply = Reply((Message("user", text),), 0.0 - self.format_penalty, info=info)
        if not self.format_errors or self._unreadable < self.format_errors:
            return reply
        end = self.truncate(TurnStopReason.FORMAT)
        messages, info = (*reply.messages, *end.messages), {**reply.info, **end.info}
        return replace(end, messages=messages, reward=reply.reward + end.reward, info=info)

    def _call(self, call: ToolCall, place: int) -> Message:
        """Answer one tool call of a message. Model servers require an answer to every call, even if nothing runs."""
        assert self._session is not None
        if self._judged is not None:
            text = "Not run: the task is over."
        elif place >= MAX_CALLS:
            text = f"Not run: a message has at most {MAX_CALLS} calls."
        elif place and self._limit() is TurnStopReason.TIME:
            text = "Not run: the time is over."
        else:
            self._session.timeout = self._patience()
            text = self._render_result(self._session.call(call.name, call.arguments))
        return Message("tool", text, tool_call_id=call.id)

    def _patience(self) -> float:
        """Return the seconds that a command may take: the task's limit, or less if the episode ends earlier."""
        left = self.max_seconds - (time.monotonic() - self._started) if self.max_seconds else math.inf
        return max(1.0, min(self.task.limits.command_seconds, left))

    def _render_result(self, outcome: CommandResult) -> str:
        self.outputs.append(clean_text(outcome.text))
        if self._judged is not None:  # The episode is over: there is no state to show.
            return self.outputs[-1]
        variables = {
            "ok": outcome.ok,
            "note": outcome.note,
            "state": self.state(),
            "remaining": self.max_turns - self.turn,
        }
        if outcome.text.strip():
            return clean_text(self._render("observation", observation=outcome.text.rstrip("\n"), **variables))
        return clean_text(self._render("no_output", observation="", **variables))

    def _figures(self) -> Json:
        """Return the `info` of the last step."""
        grade = self._judged if isinstance(self._judged, Grade) else None
        return {
            "outcome": _OUTCOMES[type(self._judged)],
            "score": None if grade is None else grade.score,
            "scores": {} if grade is None else dict(grade.scores),
            "isolation": str((grade and grade.isolation) or ""),
            "baseline": self._reference(self.split),
            "attempts": tuple(self.attempts),
            "failures": dict(self.failures),
        }


class ResearchVectorEnv(TurnVectorEnv):
    """`ResearchEnv` in slots: many parallel workspaces, of one task or of several.

    Arguments:
        num_envs: the number of slots.
        group_size, autoreset, failures: as for `TurnVectorEnv`; the others as for `ResearchEnv`.
    """

    def __init__(self, num_envs: int = 1, **arguments: Any) -> None:
        super().__init__(ResearchEnv, num_envs, **arguments)
