"""`palaestra/Research-v0`: an agent at a shell works on a research task, and is rewarded by the score of what it hands in."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, get_args

from palaestra.core.checks import check_integer, check_number
from palaestra.core.errors import EnvError, SandboxError
from palaestra.core.prompts import Prompts
from palaestra.core.records import Failure, FailureCause, Message, ToolCall
from palaestra.core.text import clean_text
from palaestra.envs.turn.base import TurnEnv, failed
from palaestra.envs.turn.records import Conversation, Reply, StopReason
from palaestra.envs.turn.vector import TurnVectorEnv
from palaestra.research.judge.baseline import Measured, baseline_of
from palaestra.research.judge.evaluation import EvaluationSplit, Judge
from palaestra.research.judge.sandboxing import sandbox_for
from palaestra.research.tasks.records import Grade, Unusable
from palaestra.research.tasks.records import Outcome as Judged
from palaestra.research.tasks.task import ResearchTask, load_task
from palaestra.research.workspace.commands import (
    BrokenCommandError,
    Outcome,
    Session,
    documentation,
    load_commands,
    tool_schemas,
)
from palaestra.research.workspace.commands.memory import check_memory
from palaestra.research.workspace.parsing import Action, FormatError, make_parser
from palaestra.research.workspace.templates import check_prompts
from palaestra.research.workspace.workspace import Workspace

PROMPTS = Path(__file__).parent / "prompts"
EMPTY_HANDED = (StopReason.FAILED, StopReason.GAVE_UP)
"""Ends at which nothing is handed in: there is to be no score."""
MOST_CALLS = 16
"""Calls of tools that one message may have."""


class ResearchEnv(TurnEnv):
    """A research task as a turn environment.

    `reset` opens a fresh workspace in a sandbox. An action is an assistant's message; its command (or call of a tool)
    runs, and what it printed is the next message. The reward comes in the step of `submit`, or in the step in which a
    limit hands in what is there: how far the score is ahead of the baseline's, in units of the metric's `scale`. A
    submission that cannot be judged is no score: the agent is told why, and goes on.

    `info` holds the `action` that was read in a message and the `thought` around it, or the `format_error`; and
    `validated`, the scores of validations of this step. At the end `info` holds `score` (`None` without a submission), `scores`, `baseline`, `attempts` (the scores of all
    validations), `failures` (what broke around validations, by cause) and `stop_reason`; `handed_in` has the files.

    Arguments:
        task: a `ResearchTask`, the name of one, or the folder of one.
        split: what a submission is judged on. `validation` keeps the test split out of it, for whoever learns from the
            reward, or chooses between episodes by it.
        sandbox: the kind of sandbox.
        parser: how an action is found in a message; see `palaestra.research.workspace.parsing`.
        commands: the names of the commands that the agent has; all if empty.
        tools: offer the commands as tools (`env.tools`) instead of describing them in the system message.
        strategy: begin with advice on how to go about it.
        demonstration: a text that shows how others worked, told before the task.
        format_errors: so many messages in a row that cannot be read end the episode; 0 means never.
        format_penalty: taken from the reward of a message that cannot be read.
        validation_reward: pay for every validation that is better than all before, and at the end the rest: the sum over
            an episode that hands in is the same.
        prompts: a folder of templates that come before ours.
        memory: a file in which notes outlive the episode.
        max_turns, max_seconds: other limits than the task's.

    Example:
        >>> import gymnasium, palaestra                                                     # doctest: +SKIP
        >>> env = gymnasium.make("palaestra/Research-v0", task="prisoners_dilemma")         # doctest: +SKIP
        >>> observation, info = env.reset(seed=0)                                           # doctest: +SKIP
        >>> observation, reward, terminated, truncated, info = env.step("```\\nsubmit\\n```")  # doctest: +SKIP
    """

    held_out: ClassVar[Mapping[str, Any]] = {"split": "test"}
    learned_from: ClassVar[Mapping[str, Any]] = {"split": "validation"}

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
            raise EnvError(f"split is one of {', '.join(get_args(EvaluationSplit))}; got {split!r}")
        self.split: EvaluationSplit = "test" if split == "test" else "validation"
        self.format_errors, self.format_penalty = format_errors, format_penalty
        self.strategy, self.demonstration, self.validation_reward = strategy, demonstration, validation_reward
        self.commands = load_commands(commands)
        self.tools = tool_schemas(self.commands) if tools else []
        self._parser = make_parser("tool_call" if tools else parser)
        self._prompts = Prompts(PROMPTS, Path(prompts) if prompts else None)
        check_prompts(self._prompts, self.task)
        self._command_docs = "" if tools else documentation(self.commands)
        self._memory = Path(memory) if memory else None
        if self._memory is not None:
            check_memory(self._memory)
        self._sandbox_name = sandbox
        self._ready: tuple[Judge, Measured] | None = None
        self._workspace: Workspace | None = None
        self._session: Session | None = None
        self._clear()

    def _clear(self) -> None:
        self.attempts: list[float] = []
        self.asked = 0
        self.failures: Counter[str] = Counter()
        self.handed_in: dict[str, bytes] | None = None
        self._unreadable = 0
        self._judged: Judged | None = None
        self._earned, self._interrupted = 0.0, False
        self._where: dict[str, Any] = {}

    # The episode

    def opening(self, options: Mapping[str, Any]) -> Sequence[Message]:
        self.close()
        self._clear()
        judge, baseline = self._judge()
        self._workspace = Workspace(self.task, judge.sandbox, judge.data)
        self._session = Session(
            self._workspace.shell, self, commands=list(self.commands), memory=self._memory,
            timeout=self.task.limits.command_seconds,
        )  # fmt: skip
        shared = {"workspace": self._workspace.shell.workspace}
        system = self._render(
            "system", **shared, tools=bool(self.tools), data=", ".join(self.task.shown(judge.data, judging=False)),
            instructions=self._parser.instructions, command_seconds=f"{self.task.limits.command_seconds:g}", bash="bash" in self.commands,
        )  # fmt: skip
        told = [
            self._render("demonstration", demonstration=self.demonstration) if self.demonstration else "",
            self._render(
                "task", **shared, baseline_validation=baseline.validation.score, split=self.split,
                validations=self.task.limits.validations, steps=self.max_turns, seconds=f"{self.max_seconds:g}",
                files="\n".join(f"- {name}" for name in sorted(self.task.starter_files())),
            ),
            self._render("strategy", **shared, steps=self.max_turns) if self.strategy else "",
        ]  # fmt: skip
        # One message: many chat templates refuse two of the same role in a row.
        return [Message("system", system), Message("user", "\n\n".join(part for part in told if part))]

    def respond(self, message: Message) -> Reply:
        assert self._session is not None
        try:
            found = self._parser(message)
        except Exception as error:  # A parser of the user's: it may raise anything.
            return Reply(failure=failed(error, FailureCause.ENVIRONMENT), info=self._figures())
        if isinstance(found, FormatError):
            return self._unread(found)
        if not isinstance(found, Action):
            said = f"the output parser gave {type(found).__name__}; expected an Action or a FormatError"
            return Reply(failure=Failure(FailureCause.ENVIRONMENT, said), info=self._figures())
        self._unreadable = 0
        earned, validated = self._earned, len(self.attempts)
        action = found.text or "\n".join(f"{call.name} {call.arguments}" for call in found.calls)
        info: dict[str, Any] = {"action": clean_text(action), "thought": clean_text(found.thought)}
        replies: list[Message] = []
        self._session.timeout = self._patience()
        try:
            if not found.calls:
                replies.append(Message("user", self._shown(self._session.run(found.text))))
            for place, call in enumerate(found.calls):
                replies.append(self._called(call, place))
        except SandboxError as error:
            cause = FailureCause.ENVIRONMENT if isinstance(error, BrokenCommandError) else FailureCause.SANDBOX
            return Reply(failure=Failure(cause, str(error)), info=info | self._figures())
        except KeyboardInterrupt:
            # Whoever catches it can end the episode with `stop`; the shell is not asked again, for its command still runs.
            self._over, self._interrupted = False, True
            raise
        if len(self.attempts) > validated:
            info["validated"] = tuple(self.attempts[validated:])
        if isinstance(self._judged, Failure):
            return Reply(tuple(replies), failure=self._judged, info=info | self._figures())
        if self._judged is not None:
            stop = StopReason.SUBMITTED if isinstance(self._judged, Grade) else StopReason.ATTEMPTS
            return Reply(tuple(replies), self._earned - earned, stop, info=info | self._figures())
        return Reply(tuple(replies), self._earned - earned, info=info)

    def cut(self, reason: StopReason) -> Reply:
        """Hand in what is there, where it can be judged, and where there may be a score at all."""
        if reason in EMPTY_HANDED:
            return Reply(stop=reason, info=self._figures())
        earned = self._earned
        try:
            said = self.submit()
        except SandboxError as error:
            return Reply(failure=Failure(FailureCause.SANDBOX, str(error)), info=self._figures())
        if isinstance(self._judged, Failure):
            return Reply(failure=self._judged, info=self._figures())
        return Reply((Message("user", clean_text(said.text)),), self._earned - earned, reason, info=self._figures())

    def state(self) -> Mapping[str, Any]:
        if self._session is None:
            return {}
        if not self._interrupted:
            with suppress(SandboxError):  # A shell that is gone is where it was.
                self._where = self._session.state()
        return {
            **self._where, "current_step": self.turn, "remaining_steps": self.max_turns - self.turn,
            "validations_left": self._left(),
        }  # fmt: skip

    def opening_info(self) -> Mapping[str, Any]:
        return {"baseline": self._reference(self.split), "metric": self.task.metric.name}

    def close(self) -> None:
        workspace, self._workspace, self._session = self._workspace, None, None
        if workspace is not None:
            workspace.close()

    def spend(self, seconds: float) -> None:
        """Take so many seconds of the episode as gone, whatever the clock says; for one that goes on after a break."""
        self._started = time.monotonic() - seconds

    def restore_messages(self, start: int, messages: Sequence[Message]) -> Conversation:
        """Replace the conversation from message `start` on; for an episode that is resumed after a kill."""
        self._messages[start:] = messages
        return self.conversation()

    # What the commands of the agent call

    def validate(self) -> Outcome:
        """Score what is there on the validation split; what the agent is told, which is not `ok` where there is no score."""
        if not self._left():
            return self._missed("no_validations", limit=self.task.limits.validations)
        files = self._files()
        outcome = files if isinstance(files, Unusable) else self.judge(files, "validation")
        counted = self._counted(outcome)
        if isinstance(outcome, Unusable):
            return self._missed("unusable", reason=outcome.reason, what="validated", over=False, **counted)
        if isinstance(outcome, Failure):
            self.failures[outcome.cause] += 1
            return self._missed("failed", what="validation", cause=outcome.cause, reason=outcome.message, **counted)
        metric, baseline = self.task.metric, self._reference("validation")
        self.attempts.append(outcome.score)
        best = metric.best(self.attempts)
        assert best is not None
        if self.validation_reward:
            self._earned = max(self._earned, metric.gain(best, baseline))
        told = self._render(
            "validated", metric=metric.name, score=outcome.score, baseline=baseline, best=best,
            direction=metric.direction.value, left=self._left(),
        )  # fmt: skip
        return Outcome(told)

    def submit(self) -> Outcome:
        """Hand in what is there; what the agent is told, which is not `ok` where there is no score.

        The episode is over if it can be judged, and also where its code failed with hidden data before it: there are more
        ways to carry them away than words, and it would hand in again.
        """
        files = self._files()
        outcome = files if isinstance(files, Unusable) else self.judge(files, self.split)
        if isinstance(outcome, Failure) and outcome.cause is FailureCause.SCORER and self._judge()[0].exposed:
            self.failures[outcome.cause] += 1
            # No failure of the episode: who can break an evaluator would be rid of a bad score.
            outcome = Unusable("the evaluator broke over it", exposed=True)
        if isinstance(outcome, Unusable):
            self._judged = outcome if outcome.exposed else None
            return self._missed(
                "unusable", reason=outcome.reason, what="handed in", over=outcome.exposed, counted=False,
                left=self._left(),
            )  # fmt: skip
        self._judged, self.handed_in = outcome, None if isinstance(files, Unusable) else files
        if isinstance(outcome, Failure):
            return self._missed(
                "failed", what="evaluation", cause=outcome.cause, reason=outcome.message, counted=False, left=self._left(),
            )  # fmt: skip
        metric, baseline = self.task.metric, self._reference(self.split)
        self._earned = metric.gain(outcome.score, baseline)
        told = self._render(
            "submitted", metric=metric.name, score=outcome.score, baseline=baseline, split=self.split,
            direction=metric.direction.value,
        )  # fmt: skip
        return Outcome(told)

    def _missed(self, template: str, **variables: Any) -> Outcome:
        """What the agent is told of a validation or submission that gave no score."""
        return Outcome(self._render(template, **variables), ok=False)

    def _render(self, template: str, **variables: Any) -> str:
        """A template with what all of them may use, and its own variables."""
        state = variables["state"] if "state" in variables else self.state()
        return self._prompts.given(**self.shared_variables(state)).render(template, **variables)

    def shared_variables(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """What every template may use (`palaestra.research.workspace.templates`), where the agent stands so."""
        where = {name: state.get(name, "") for name in ("current_step", "remaining_steps", "open_file", "working_dir")}
        return {"task": self.task, "command_docs": self._command_docs, **where}

    @property
    def baseline(self) -> Measured:
        """The baseline's scores, measured now if they never were."""
        return self._judge()[1]

    def judge(self, files: Mapping[str, bytes], split: EvaluationSplit) -> Judged:
        """What a submission is worth, outside any episode; see `Judge.judge`."""
        return self._judge()[0].judge(files, split)

    def _files(self) -> dict[str, bytes] | Unusable:
        assert self._workspace is not None
        return self._workspace.submission()

    def _reference(self, split: EvaluationSplit) -> float:
        """The baseline's score on a split."""
        baseline = self._judge()[1]
        return (baseline.test if split == "test" else baseline.validation).score

    def _judge(self) -> tuple[Judge, Measured]:
        if self._ready is None:
            sandbox = sandbox_for(self.task, self._sandbox_name)
            judge = self.task.judge(sandbox)
            self._ready = judge, baseline_of(self.task, sandbox, judge)
        return self._ready

    def _left(self) -> int:
        """Validations that are left."""
        return max(0, self.task.limits.validations - self.asked)

    def _counted(self, outcome: Judged) -> dict[str, Any]:
        """Count what could have told something of hidden data; what the templates say of it.

        An evaluator that broke may have done so by what a submission answered.
        """
        broke = isinstance(outcome, Failure) and outcome.cause is FailureCause.SCORER and self._judge()[0].exposed
        counted = broke or isinstance(outcome, Grade) or (isinstance(outcome, Unusable) and outcome.exposed)
        self.asked += counted
        return {"counted": counted, "left": self._left()}

    def _unread(self, error: FormatError) -> Reply:
        self._unreadable += 1
        text = clean_text(self._render("format_error", error=error.message, remaining=self.max_turns - self.turn))
        info = {"format_error": clean_text(error.message)}
        reply = Reply((Message("user", text),), 0.0 - self.format_penalty, info=info)
        if not self.format_errors or self._unreadable < self.format_errors:
            return reply
        end = self.cut(StopReason.FORMAT)
        return Reply(
            (*reply.messages, *end.messages), reply.reward + end.reward, end.stop, end.failure,
            {**reply.info, **end.info},
        )  # fmt: skip

    def _called(self, call: ToolCall, place: int) -> Message:
        """The answer to one of a message's calls; each gets one, as servers of models want it, also where nothing is run."""
        assert self._session is not None
        why = ""
        if self._judged is not None:
            why = "the task is over"
        elif place >= MOST_CALLS:
            why = f"a message has at most {MOST_CALLS} calls"
        elif place and self._limit() is StopReason.TIME:
            why = "the time is over"
        if why:
            return Message("tool", f"Not run: {why}.", tool_call_id=call.id)
        self._session.timeout = self._patience()
        return Message("tool", self._shown(self._session.call(call.name, call.arguments)), tool_call_id=call.id)

    def _patience(self) -> float:
        """Seconds that a command may take: the task's limit, and no longer than the episode has."""
        left = self.max_seconds - (time.monotonic() - self._started) if self.max_seconds else math.inf
        return max(1.0, min(self.task.limits.command_seconds, left))

    def _shown(self, outcome: Outcome) -> str:
        if self._judged is not None:  # It is over: nothing is left, and nothing open.
            return clean_text(outcome.text)
        shared = {"note": outcome.note, "state": self.state(), "remaining": self.max_turns - self.turn}
        if not outcome.text.strip():
            return clean_text(self._render("no_output", observation="", ok=outcome.ok, **shared))
        return clean_text(self._render("observation", observation=outcome.text.rstrip("\n"), **shared))

    def _figures(self) -> dict[str, Any]:
        """What the `info` of the last step says."""
        graded = self._judged if isinstance(self._judged, Grade) else None
        return {
            "score": None if graded is None else graded.score,
            "scores": {} if graded is None else dict(graded.scores),
            "isolation": "" if graded is None or graded.isolation is None else str(graded.isolation),
            "baseline": self._reference(self.split),
            "attempts": tuple(self.attempts),
            "failures": dict(self.failures),
        }


class ResearchVectorEnv(TurnVectorEnv):
    """`ResearchEnv` in slots: many workspaces side by side, of one task or of several.

    Arguments:
        num_envs: how many slots.
        group_size, autoreset, failures: as of `TurnVectorEnv`; the rest as of `ResearchEnv`.
    """

    def __init__(
        self,
        num_envs: int = 1,
        *,
        group_size: int = 1,
        autoreset: bool = True,
        failures: str = "raise",
        **arguments: Any,
    ) -> None:
        super().__init__(
            partial(ResearchEnv, **arguments), num_envs, group_size=group_size, autoreset=autoreset, failures=failures
        )
