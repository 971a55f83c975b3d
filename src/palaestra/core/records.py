"""Records that all rooms share: problems, answers, trajectories, requests to a model, and progress events."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from numbers import Real
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

from palaestra.core.errors import SettingsError
from palaestra.core.settings import check_ranges, setting, short_repr
from palaestra.core.text import clean_fields

Json: TypeAlias = dict[str, Any]
Values: TypeAlias = Mapping[str, Any]
"""Plain values by name."""
Role = Literal["system", "user", "assistant", "tool"]
LOCAL_SCHEME = "transformers"
"""The scheme of models in this process. A model name without a scheme has this one."""
NOTICE = "notice"
"""The phase of an event with a message for the user. The text is in `data["text"]`."""


class Split(StrEnum):
    """A split of a task's problems. The splits are disjoint by construction."""

    TRAIN = "train"
    """Problems that lessons may be written from."""
    VALIDATION = "validation"
    """Problems whose attempts the teacher sees and is rewarded for."""
    TEST = "test"
    """Problems for the final result. The teacher never sees them."""


class StopReason(StrEnum):
    """Why a completion ended."""

    END = "end"
    """The model emitted its end-of-turn token."""
    STOP = "stop"
    """A stop string of the request appeared."""
    LENGTH = "length"
    """The request's token limit, or the model's context, was reached."""


class FailureCause(StrEnum):
    """The cause of a failure outside the model, as opposed to a wrong answer."""

    CONTEXT_LENGTH = "context_length"
    """The prompt is too long for the model's context."""
    INVALID_REQUEST = "invalid_request"
    """The engine does not support the request, for example an image for a text model."""
    ENGINE = "engine"
    """The engine raised an error."""
    REFUSED = "refused"
    """The model or a content filter declined to answer."""
    UNAVAILABLE = "unavailable"
    """A service could not be reached, or kept failing until the time limit."""
    MALFORMED = "malformed"
    """The answer does not follow the schema, or is too large."""
    SCORER = "scorer"
    """The scorer raised an error."""
    SANDBOX = "sandbox"
    """The sandbox failed, or the machine lacked resources for it."""
    ENVIRONMENT = "environment"
    """The environment raised an error or returned a non-finite reward."""
    WORKER = "worker"
    """The worker process died several times."""
    AGENT = "agent"
    """The agent's program crashed, did not end in time, or never called the model."""


@dataclass(frozen=True, slots=True)
class TextPart:
    """Text inside a message of several parts."""

    text: str
    type: Literal["text"] = "text"

    def __post_init__(self) -> None:
        clean_fields(self, "text")


@dataclass(frozen=True, slots=True)
class ImagePart:
    """An image inside a message: a path, or a `data:` or `https:` URL."""

    url: str
    type: Literal["image"] = "image"

    def __post_init__(self) -> None:
        clean_fields(self, "url")


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call of an assistant message.

    Arguments:
        arguments: the exact text that the model wrote; it may be invalid JSON.
        id: the tool message refers to it; unique within a conversation.
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
        tool_calls: the tool calls of an assistant message.
        tool_call_id: the call that a tool message answers; empty if it answers none.
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
    """A problem of a task.

    Arguments:
        id: unique within the task; the same problem has the same id in every run.
        messages: the conversation that the model continues.
        reference: the expected answer; only the scorer reads it.
        skill: the skill that the problem tests, for slices and lessons.
        subskill: a finer division of the skill.
    """

    id: str
    messages: tuple[Message, ...]
    reference: str
    skill: str = ""
    subskill: str = ""
    metadata: Values = field(default_factory=dict)

    def __post_init__(self) -> None:
        clean_fields(self, "id", "reference", "skill", "subskill", "metadata")


@dataclass(frozen=True, slots=True)
class Usage:
    """Numbers of prompt and completion tokens."""

    prompt_tokens: int = 0
    completion_tokens: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(self.prompt_tokens + other.prompt_tokens, self.completion_tokens + other.completion_tokens)


@dataclass(frozen=True, slots=True)
class Completion:
    """The completion of an engine.

    Arguments:
        text: the decoded response, without the end-of-turn token, up to a stop string.
        token_ids: the exact ids that were sampled, including the end-of-turn token.
        logprobs: one per token, under the model's own distribution (temperature 1, no top-p or top-k).
        prompt_ids: the exact ids of the prompt.
        tool_calls: the model's tool calls.
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

    @property
    def is_exact(self) -> bool:
        """Whether the ids of prompt and answer and the log-probs are known. Most services return only the text."""
        return bool(self.prompt_ids and self.token_ids) and len(self.logprobs) == len(self.token_ids)


@dataclass(frozen=True, slots=True)
class Failure:
    """Something outside the model failed. A failure has a cause and no value."""

    cause: FailureCause
    message: str

    def __post_init__(self) -> None:
        if not isinstance(self.message, str):
            raise TypeError(f"the message of a failure must be a text; got {short_repr(self.message)}")
        if type(self.cause) is not FailureCause:
            object.__setattr__(self, "cause", FailureCause(self.cause))
        clean_fields(self, "message")


@dataclass(frozen=True, slots=True)
class Score:
    """A value from 0 (wrong) to 1 (right) with its evidence."""

    value: float
    evidence: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.value, Real) or not 0.0 <= self.value <= 1.0:
            raise ValueError(f"a score must be a number between 0 and 1; got {short_repr(self.value)}")
        if not isinstance(self.evidence, Mapping) or not all(
            isinstance(text, str) for entry in self.evidence.items() for text in entry
        ):
            raise TypeError(f"the evidence of a score must map texts to texts; got {short_repr(self.evidence)}")
        if type(self.value) is not float:  # A bool or a NumPy number.
            object.__setattr__(self, "value", float(self.value))
        clean_fields(self, "evidence")


@dataclass(frozen=True, slots=True)
class Attempt:
    """A problem, the model's completion, and its score. `sample` is the index among several answers to one problem."""

    problem: Problem
    completion: Completion | None
    outcome: Score | Failure
    sample: int = 0

    @property
    def correct(self) -> bool | None:
        """Whether the answer was right; `None` if the attempt failed."""
        return self.outcome.value >= 1.0 if isinstance(self.outcome, Score) else None


@dataclass(frozen=True, slots=True)
class Example:
    """A training example: a conversation and the response to learn.

    Arguments:
        reference: the final answer, separate from the response; empty if there is none.
        metadata: further data as in `Problem.metadata`, for example `tests` of a program or the `scene` of an image.
    """

    messages: tuple[Message, ...]
    response: str
    skill: str = ""
    subskill: str = ""
    reference: str = ""
    metadata: Values = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        clean_fields(self, "response", "skill", "subskill", "reference", "metadata")


@dataclass(frozen=True, slots=True)
class Decision:
    """The reason for a teacher's choice in a lesson."""

    skill: str
    action: str
    reason: str
    allocation: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        clean_fields(self, "skill", "action", "reason", "allocation")


@dataclass(frozen=True, slots=True)
class Lesson:
    """The examples of one action at the lesson scale, with the teacher's decisions."""

    examples: tuple[Example, ...]
    decisions: tuple[Decision, ...] = ()


@dataclass(frozen=True, slots=True)
class Majority:
    """The majority baseline for questions with few possible answers: always give the most common one.

    Arguments:
        answer: the most common answer; empty if the questions have different sets of answers. Then each set has its own.
        count: number of the `total` problems that it solves.
    """

    answer: str
    count: int
    total: int


@dataclass(frozen=True, slots=True)
class Report:
    """Accuracy with its interval, over `count` scored attempts; failures are counted separately.

    Arguments:
        accuracy: from 0 to 1; `None` if nothing was scored.
        low, high: the 95 % Wilson interval of `accuracy`, corrected for several answers to one problem.
        failures: number of attempts without a score, by cause.
        slices: the reports of each skill, with slices by subskill.
        majority: the baseline of the same problems, if all of them have a closed set of answers.
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
        """Return the slice called `name`; raises `KeyError` if there is none."""
        for part in self.slices:
            if part.name == name:
                return part
        raise KeyError(f"no slice '{name}' in report '{self.name}'")

    @property
    def failure_count(self) -> int:
        return sum(self.failures.values())


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive tokens of a trajectory.

    Arguments:
        token_ids: exactly as sampled or given; never decoded and encoded again.
        chosen: per token, whether the model sampled it, so that it belongs in the loss.
        logprobs: per token, under the model that sampled it; 0.0 where `chosen` is false.
        advantages, entropies, reference_logprobs: per token, what the learner computed for the update; the entropy is that
            of the policy's distribution, and the reference is the model of the KL penalty. Empty if not known.
        alternatives: per token, the ids that the policy gave the highest probabilities, with their log-probs; empty if not
            known.
    """

    token_ids: tuple[int, ...]
    chosen: tuple[bool, ...]
    logprobs: tuple[float, ...]
    advantages: tuple[float, ...] = ()
    entropies: tuple[float, ...] = ()
    reference_logprobs: tuple[float, ...] = ()
    alternatives: tuple[tuple[tuple[int, float], ...], ...] = ()

    def __post_init__(self) -> None:
        if not len(self.token_ids) == len(self.chosen) == len(self.logprobs):
            raise ValueError(
                f"a segment needs one `chosen` and one log-prob per token; got {len(self.token_ids)} "
                f"tokens, {len(self.chosen)} marks and {len(self.logprobs)} log-probs"
            )
        for name in ("advantages", "entropies", "reference_logprobs", "alternatives"):
            if len(getattr(self, name)) not in (0, len(self.token_ids)):
                raise ValueError(
                    f"a segment of {len(self.token_ids)} tokens needs as many {name}, or none; got {len(getattr(self, name))}"
                )


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One episode at any scale.

    At the token and turn scale `segments` contain the tokens; at the lesson scale `rewards` and `infos` describe each round.
    """

    environment: str
    seed: int
    rewards: tuple[float, ...] = ()
    segments: tuple[Segment, ...] = ()
    terminated: bool = False
    truncated: bool = False
    infos: tuple[Values, ...] = ()

    def __post_init__(self) -> None:
        clean_fields(self, "environment", "infos")

    @property
    def total_reward(self) -> float:
        return float(sum(self.rewards))


Answer = Completion | Failure


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling parameters."""

    max_tokens: int = setting(64, low=1)
    """Maximum number of tokens per completion."""
    temperature: float = setting(0.0, low=0)
    """0 means greedy decoding; 1 samples from the model's own distribution."""
    top_p: float = setting(1.0, above=0, high=1)
    """Sample from the smallest set of tokens with this total probability."""
    top_k: int = setting(0, low=0)
    """Sample from this many of the most likely tokens; 0 means all."""
    stop: tuple[str, ...] = setting(())
    """Strings that end a completion; they are not part of its text."""
    count: int = setting(1, low=1)
    """Number of completions per prompt."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if not all(self.stop):
            raise SettingsError(f"setting 'stop': expected non-empty strings; got {self.stop!r}")


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt with its sampling parameters and seed.

    The same request produces the same tokens in any batch.

    Arguments:
        schema: JSON text of the JSON schema for the answer; empty for none. Engines without `reads_schema` ignore it.
        tools: JSON text of the tools that the model may call, a list in OpenAI's format; empty for none. Calls are in
            the completion's `tool_calls` if a service parses them, otherwise in its text.
        prompt_ids: exact token ids to continue, instead of `messages`. Only local engines accept them.
    """

    messages: tuple[Message, ...]
    sampling: Sampling = Sampling()
    seed: int = 0
    schema: str = ""
    tools: str = ""
    prompt_ids: tuple[int, ...] = ()


@runtime_checkable
class Engine(Protocol):
    """Generates completions. `BaseEngine` adds the optional attributes."""

    name: str

    def generate(self, requests: Sequence[Request]) -> list[list[Answer]]:
        """Answer every request in order, with `sampling.count` completions or failures each."""
        ...


def reads_schema(engine: Engine) -> bool:
    """Whether an engine enforces `Request.schema`."""
    return bool(getattr(engine, "reads_schema", False))


@dataclass(frozen=True, slots=True)
class Event:
    """A step of progress.

    Arguments:
        phase: the current activity, for example `"train"` or `"evaluate validation"`.
        done, total: the progress; `total` is 0 if unknown.
        round: the round of the run; 0 is before the first.
        data: values to display, for example `{"loss": 0.31}`.
    """

    phase: str
    done: int = 0
    total: int = 0
    round: int = 0
    data: Values = field(default_factory=dict)


def notice(text: str) -> Event:
    """Make an event with a message for the user.

    >>> notice("stopping after this iteration").data["text"]
    'stopping after this iteration'
    """
    return Event(NOTICE, data={"text": text})


Listener = Callable[[Event], None]


def ignore(event: Event) -> None:
    """A listener that does nothing."""
