"""The records of what happened: plain, frozen, and the same at every time-scale.

They hold data and no behaviour beyond what follows from it. `None` never stands for "went wrong":
that is what a `Failure` is for, and a `Failure` is never counted as a score of zero.

Text in them can always be encoded as UTF-8: lone surrogates are replaced when a record is made (`palaestra.core.text`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from numbers import Real
from typing import Any, Literal

from palaestra.core.checks import short_repr
from palaestra.core.text import clean_fields

Role = Literal["system", "user", "assistant", "tool"]


class Split(StrEnum):
    """Which part of a task's problems is meant. The three are disjoint by construction."""

    TRAIN = "train"
    """What lessons may be written from."""
    VALIDATION = "validation"
    """What a teacher sees the student's attempts on, and is rewarded by."""
    TEST = "test"
    """What the result is measured on. No teacher ever sees it."""


class StopReason(StrEnum):
    """Why a completion ended."""

    END = "end"
    """The model emitted its end-of-turn token."""
    STOP = "stop"
    """A stop string of the request appeared."""
    LENGTH = "length"
    """The request's token limit, or the model's context, was reached."""


class FailureCause(StrEnum):
    """What went wrong around the model, as opposed to what the model got wrong."""

    CONTEXT_LENGTH = "context_length"
    """The prompt leaves no room in the model's context."""
    INVALID_REQUEST = "invalid_request"
    """The request cannot be asked of this engine, for example an image of a text model."""
    ENGINE = "engine"
    """The engine broke while answering."""
    REFUSED = "refused"
    """The model, or a filter around it, declined to answer."""
    UNAVAILABLE = "unavailable"
    """A service could not be reached, or kept failing for longer than it is waited for."""
    MALFORMED = "malformed"
    """What came back is not what was asked for: not of the schema, or larger than is accepted."""
    SCORER = "scorer"
    """The scorer broke while judging."""
    SANDBOX = "sandbox"
    """The place where a program was to run broke, or the machine had no room for it."""
    ENVIRONMENT = "environment"
    """The environment raised an error of its own, or gave a reward that is no finite number."""


@dataclass(frozen=True, slots=True)
class TextPart:
    """Text inside a message of several parts."""

    text: str
    type: Literal["text"] = "text"

    def __post_init__(self) -> None:
        clean_fields(self, "text")


@dataclass(frozen=True, slots=True)
class ImagePart:
    """An image inside a message: a path, or a `data:` or `https:` address."""

    url: str
    type: Literal["image"] = "image"

    def __post_init__(self) -> None:
        clean_fields(self, "url")


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool, as an assistant's message asks for it.

    Arguments:
        arguments: JSON text, exactly as the model wrote it; it may be no JSON at all.
        id: what the answer names; unique within a conversation.
    """

    name: str
    arguments: str = "{}"
    id: str = ""

    def __post_init__(self) -> None:
        clean_fields(self, "name", "arguments", "id")


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation, as in the OpenAI chat format.

    Arguments:
        tool_calls: what an assistant's message asks for beside its text.
        tool_call_id: which call a tool's message answers; empty where it answers none by number.
    """

    role: Role
    content: str | tuple[TextPart | ImagePart, ...]
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""

    def __post_init__(self) -> None:
        clean_fields(self, "content", "tool_call_id")

    @property
    def text(self) -> str:
        """The text of the message without its images."""
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content if isinstance(part, TextPart))

    @property
    def has_image(self) -> bool:
        return not isinstance(self.content, str) and any(isinstance(part, ImagePart) for part in self.content)


@dataclass(frozen=True, slots=True)
class Problem:
    """What is asked.

    Arguments:
        id: unique within the task, and stable: the same problem has the same id in every run.
        messages: the conversation that the model is to continue.
        reference: the expected answer; only the scorer reads it.
        skill: what the problem exercises, for slices and lessons.
        subskill: a finer division within the skill.
    """

    id: str
    messages: tuple[Message, ...]
    reference: str
    skill: str = ""
    subskill: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        clean_fields(self, "id", "reference", "skill", "subskill", "metadata")


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens that went in and came out."""

    prompt_tokens: int = 0
    completion_tokens: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
        )


@dataclass(frozen=True, slots=True)
class Completion:
    """What an engine returned.

    Arguments:
        text: the decoded response, without the end-of-turn token and from before any stop string.
        token_ids: exactly the ids that were sampled, the end-of-turn token included.
        logprobs: of each of `token_ids` under the model's own distribution (temperature 1, nothing
            filtered out).
        prompt_ids: exactly the ids that the model was given.
        tool_calls: what it called of the tools that it was offered.
    """

    text: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    stop_reason: StopReason = StopReason.END
    usage: Usage = Usage()
    prompt_ids: tuple[int, ...] = ()
    tool_calls: tuple[ToolCall, ...] = ()

    def __post_init__(self) -> None:
        clean_fields(self, "text")


@dataclass(frozen=True, slots=True)
class Failure:
    """Something around the model broke. It has a cause, and no value."""

    cause: FailureCause
    message: str

    def __post_init__(self) -> None:
        if not isinstance(self.message, str):
            raise TypeError(f"the message of a failure is a text; got {short_repr(self.message)}")
        if type(self.cause) is not FailureCause:
            object.__setattr__(self, "cause", FailureCause(self.cause))
        clean_fields(self, "message")


@dataclass(frozen=True, slots=True)
class Score:
    """A value from 0 (wrong) to 1 (right), with what it rests on."""

    value: float
    evidence: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.value, Real) or not 0.0 <= self.value <= 1.0:
            raise ValueError(f"a score is a number between 0 and 1; got {short_repr(self.value)}")
        if not isinstance(self.evidence, Mapping) or not all(
            isinstance(text, str) for entry in self.evidence.items() for text in entry
        ):
            raise TypeError(f"the evidence of a score is a mapping of texts to texts; got {short_repr(self.evidence)}")
        if type(self.value) is not float:  # A truth value or a number of NumPy.
            object.__setattr__(self, "value", float(self.value))
        clean_fields(self, "evidence")


@dataclass(frozen=True, slots=True)
class Attempt:
    """A problem, what the model answered, and how that was judged; `sample` counts the answers to one problem."""

    problem: Problem
    completion: Completion | None
    outcome: Score | Failure
    sample: int = 0

    @property
    def correct(self) -> bool | None:
        """Whether the answer was right; `None` where the attempt failed and nothing is known."""
        return self.outcome.value >= 1.0 if isinstance(self.outcome, Score) else None


@dataclass(frozen=True, slots=True)
class Example:
    """One training datum: a conversation, and the response to be learned.

    Arguments:
        reference: the final answer, given apart from the response; empty where nobody gave one.
        metadata: what else its problem would have: `tests` of a program, the `scene` of a picture.
    """

    messages: tuple[Message, ...]
    response: str
    skill: str = ""
    subskill: str = ""
    reference: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        clean_fields(self, "response", "skill", "subskill", "reference", "metadata")


@dataclass(frozen=True, slots=True)
class Decision:
    """Why a teacher put a part of a lesson where it did."""

    skill: str
    action: str
    reason: str
    allocation: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        clean_fields(self, "skill", "action", "reason", "allocation")


@dataclass(frozen=True, slots=True)
class Lesson:
    """The examples of one action at the lesson scale, and the teacher's reasons."""

    examples: tuple[Example, ...]
    decisions: tuple[Decision, ...] = ()


@dataclass(frozen=True, slots=True)
class Majority:
    """What always giving the most common answer would score: a baseline for questions with few possible answers.

    Arguments:
        answer: that answer; empty where the questions do not all have the same possible answers. Then each kind of
            question is given its own most common one.
        count: how many of `total` problems have it as their reference.
    """

    answer: str
    count: int
    total: int


@dataclass(frozen=True, slots=True)
class Report:
    """Accuracy with its interval, over `count` scored attempts; failures are counted apart.

    Arguments:
        accuracy: from 0 to 1; `None` where nothing was scored.
        low, high: the 95 % interval of `accuracy` (Wilson; several answers to one problem are no independent ones).
        failures: attempts without a score, by cause.
        slices: the same for each skill, and below that for each subskill.
        majority: the baseline of the same problems, where all of them have a closed set of answers.
    """

    name: str
    accuracy: float | None
    low: float
    high: float
    count: int
    correct: int
    failures: Mapping[str, int] = field(default_factory=dict)
    slices: tuple[Report, ...] = ()
    majority: Majority | None = None

    def slice(self, name: str) -> Report:
        """The slice called `name`; raises `KeyError` if there is none."""
        for part in self.slices:
            if part.name == name:
                return part
        raise KeyError(f"no slice '{name}' in report '{self.name}'")

    @property
    def failure_count(self) -> int:
        return sum(self.failures.values())


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of a trajectory's tokens.

    Arguments:
        token_ids: exactly as sampled or given; never decoded and encoded again.
        chosen: per token, whether the model chose it (and so whether it belongs in a loss).
        logprobs: per token, under the model that chose it; 0.0 where `chosen` is false.
    """

    token_ids: tuple[int, ...]
    chosen: tuple[bool, ...]
    logprobs: tuple[float, ...]

    def __post_init__(self) -> None:
        if not len(self.token_ids) == len(self.chosen) == len(self.logprobs):
            raise ValueError(
                f"a segment needs one `chosen` and one log-prob a token; got {len(self.token_ids)} "
                f"tokens, {len(self.chosen)} marks and {len(self.logprobs)} log-probs"
            )


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One episode at any scale, written once.

    At the token and turn scale `segments` hold the tokens; at the lesson scale `rewards` and
    `infos` say what each round brought.
    """

    environment: str
    seed: int
    rewards: tuple[float, ...] = ()
    segments: tuple[Segment, ...] = ()
    terminated: bool = False
    truncated: bool = False
    infos: tuple[Mapping[str, Any], ...] = ()

    def __post_init__(self) -> None:
        clean_fields(self, "environment", "infos")

    @property
    def total_reward(self) -> float:
        return float(sum(self.rewards))
