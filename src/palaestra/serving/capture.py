"""Record the model calls of an agent with their exact token ids, and join calls that continue each other.

A call whose messages begin with those of an earlier call and its answer continues that call: the ids of the earlier call
stay as they are, and only the text after them is encoded. A call that continues no other starts a new sequence, for
example because the agent edited its history or because a second agent has a conversation of its own. If two calls continue
the same one (retries, parallel calls, `n` above 1), the second starts a sequence with a copy of the shared context. Each
sampled token is in the loss of exactly one sequence.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from palaestra.chat.encoder import ChatEncoder
from palaestra.chat.rendering import to_chat_message
from palaestra.chat.structured import instruct
from palaestra.chat.tool_formats import is_malformed
from palaestra.core.records import Completion, Json, Message, Sampling, StopReason
from palaestra.core.seeding import Seeds

_MessageKey = tuple[object, ...]


class EpisodePlayer(Protocol):
    """The environment of a session, for an agent that is another program."""

    def observe(self) -> Json:
        """Return the current state of the episode as JSON values."""
        ...

    def step(self, action: str | Json) -> Json:
        """Send the agent's message to the environment and return its reply as JSON values.

        Raises:
            EnvError: the action is invalid, or the episode is over.
        """
        ...

    @property
    def is_over(self) -> bool:
        """Whether the episode has ended."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class CapturedCall:
    """One completion of a call.

    Arguments:
        parent: the call that this one continues; `None` if it continues none.
        messages: the conversation of the request.
        message: the answer, as the agent received it (`decode_answer`).
        version: the number of updates of the weights.
        number: the number of earlier completions of the same prompt in the session.
        sampling: the parameters that the answer was sampled with.
    """

    parent: CapturedCall | None
    messages: tuple[Message, ...]
    message: Message
    completion: Completion
    version: int
    number: int
    sampling: Sampling

    @property
    def prompt_ids(self) -> tuple[int, ...]:
        return self.completion.prompt_ids


@dataclass(slots=True)
class CapturedSequence:
    """Calls that continue each other, as one sequence of tokens.

    Arguments:
        opening: number of messages before the first answer in the loss.
        messages: the conversation with the last answer.
        ids: all tokens in order.
        chosen: the positions in `ids` that this sequence learns from; `logprobs` has one value for each.
        ends: the number of entries of `chosen` at the end of each answer; `versions` and `samplings` have one value for
            each answer.
        cut_messages: answers that reached a token limit.
        calls: number of tool calls.
    """

    opening: int
    messages: tuple[Message, ...] = ()
    ids: list[int] = field(default_factory=list)
    chosen: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    samplings: list[Json] = field(default_factory=list)
    cut_messages: int = 0
    calls: int = 0

    def append(self, call: CapturedCall) -> None:
        """Append a call that continues the last one."""
        assert call.prompt_ids[: len(self.ids)] == tuple(self.ids), "a call must keep the ids that it continues"
        self.ids = [*call.prompt_ids, *call.completion.token_ids]
        self.chosen += range(len(call.prompt_ids), len(self.ids))
        self.logprobs += call.completion.logprobs
        self.ends.append(len(self.chosen))
        self.versions.append(call.version)
        self.samplings.append({name: getattr(call.sampling, name) for name in ("temperature", "top_p", "top_k")})
        self.messages = (*call.messages, call.message)
        self.cut_messages += call.completion.stop_reason is StopReason.LENGTH
        self.calls += len(call.message.tool_calls)


class CaptureSession:
    """The calls of one episode.

    Arguments:
        seeds: for sampling. The sample of a call depends on its prompt and on the number of earlier calls with the same
            prompt, not on the order of parallel calls.
        player: the environment that the agent plays; `None` if the agent has its own.

    Example:
        >>> session = CaptureSession("a")
        >>> session.build_sequences()
        []
    """

    def __init__(self, name: str, seeds: Seeds = Seeds(0), player: EpisodePlayer | None = None) -> None:
        self.name, self.seeds, self.player = name, seeds, player
        self.calls: list[CapturedCall] = []
        self.context_exceeded = False
        """Whether a call was rejected because its conversation does not fit into the model's context."""
        self.responses: dict[str, list[Json]] = {}
        """The messages up to each answer to a call of the Responses API, by its id."""
        self._latest: dict[tuple[str, tuple[_MessageKey, ...]], CapturedCall] = {}
        self._texts: list[tuple[str, CapturedCall]] = []
        """The text completions, each with its prompt and all that was sampled."""
        self._prompts: Counter[tuple[int, ...]] = Counter()

    def encode(
        self, encoder: ChatEncoder, messages: Sequence[Message], schema: str = ""
    ) -> tuple[CapturedCall | None, tuple[int, ...]]:
        """Encode a request. Returns the call that it continues, and its prompt.

        Arguments:
            schema: the JSON schema of the answer, which the prompt describes after the last message.

        Raises:
            EnvError: the chat template rejects or omits a message, or one has an image.
        """
        prompt = instruct(messages, schema) if schema else messages
        keys = tuple(map(_to_key, messages))
        for end in range(len(keys), 0, -1):
            parent = self._latest.get((encoder.tools, keys[:end])) if messages[end - 1].role == "assistant" else None
            if parent is not None:
                sampled = parent.completion.token_ids
                last = sampled[-1] if sampled else None
                reply = encoder.encode_reply(parent.messages, parent.message, prompt[end:], last)
                return parent, (*parent.prompt_ids, *sampled, *reply)
        return None, encoder.encode_opening(prompt)

    def encode_text(
        self, encoder: ChatEncoder, prompt: str | list[int]
    ) -> tuple[CapturedCall | None, tuple[Message, ...], tuple[int, ...]]:
        """Encode the prompt of a text completion. Returns the call that it continues, its messages, and its ids.

        It continues the longest earlier completion whose prompt and sampled tokens it begins with, as text or as ids.
        The texts between the answers are messages of the user.
        """
        start, parent, ids = 0, None, list[int]()
        for text, call in reversed(self._texts):
            own = [*call.prompt_ids, *call.completion.token_ids]
            whole = text if isinstance(prompt, str) else own
            if len(whole) > start and prompt[: len(whole)] == whole:
                start, parent, ids = len(whole), call, own
        rest = prompt[start:]
        if isinstance(rest, str):
            ids += encoder.tokenizer.encode(rest) if parent is None else encoder.encode_after(rest)
        else:
            ids, rest = [*ids, *rest], str(encoder.tokenizer.decode(rest))
        before = () if parent is None else (*parent.messages, parent.message)
        return parent, (*before, Message("user", rest)) if rest else before, tuple(ids)

    def draw_seed(self, prompt_ids: tuple[int, ...], count: int, seed: int | None = None) -> tuple[int, int]:
        """Return the number of earlier completions of a prompt, and the seed of the next `count`.

        Arguments:
            seed: the seed of the request. It is combined with that of the session, so that episodes differ.
        """
        number = self._prompts[prompt_ids]
        self._prompts[prompt_ids] += count
        return number, self.seeds.derive("call", str(seed), number, *prompt_ids).integer()

    def record_text(self, prompt: str, call: CapturedCall) -> None:
        """Record a text completion. `prompt` ends with all that was sampled."""
        self.calls.append(call)
        self._texts.append((prompt, call))

    def record(self, tools: str, call: CapturedCall) -> None:
        """Record a call that was encoded with these tools."""
        self.calls.append(call)
        self._latest[tools, tuple(map(_to_key, (*call.messages, call.message)))] = call

    def build_sequences(self) -> list[CapturedSequence]:
        """Join the calls to sequences. Their order does not depend on the order of parallel calls."""
        sequences: list[CapturedSequence] = []
        tips: dict[int, CapturedSequence] = {}
        for call in sorted(self.calls, key=lambda call: (len(call.prompt_ids), call.prompt_ids, call.number)):
            sequence = tips.pop(id(call.parent), None) if call.parent is not None else None
            if sequence is None:
                sequence = CapturedSequence(len(call.messages))
                sequences.append(sequence)
            sequence.append(call)
            tips[id(call)] = sequence
        return sequences

    def to_plain(self) -> Json:
        """The session as JSON values."""
        return {"session": self.name, "sequences": [_to_plain(sequence) for sequence in self.build_sequences()]}


def decode_answer(
    encoder: ChatEncoder, messages: Sequence[Message], completion: Completion, start: tuple[int, ...] = ()
) -> Message:
    """Return the message that the agent receives. A tool call that cannot be read stays text.

    Arguments:
        start: the ids at the end of the prompt that begin the message.
    """
    own = completion.token_ids[:-1] if completion.stop_reason is StopReason.END else completion.token_ids
    message = encoder.decode_message((*start, *own), sum(len(message.tool_calls) for message in messages))
    stopped = completion.stop_reason is StopReason.STOP and not message.tool_calls
    if stopped or any(map(is_malformed, message.tool_calls)):
        return Message("assistant", str(encoder.tokenizer.decode(start, skip_special_tokens=True)) + completion.text)
    return message


def _to_key(message: Message) -> _MessageKey:
    """What identifies a message. White space around the text and in the arguments of calls is ignored.

    Agents often strip the text of an answer and serialize the arguments again before they send them back.

    >>> _to_key(Message("user", " a ")) == _to_key(Message("user", "a"))
    True
    """
    calls = tuple((call.name, _normalize_json(call.arguments), call.id) for call in message.tool_calls)
    content = message.content.strip() if isinstance(message.content, str) else message.content
    return message.role, content, calls, message.tool_call_id


def _normalize_json(text: str) -> str:
    try:
        return json.dumps(json.loads(text), sort_keys=True)
    except ValueError:
        return text.strip()


def _to_plain(sequence: CapturedSequence) -> Json:
    learned = set(sequence.chosen)
    return {
        "token_ids": sequence.ids,
        "mask": [position in learned for position in range(len(sequence.ids))],
        "logprobs": sequence.logprobs,
        "versions": sequence.versions,
        "sampling": sequence.samplings,
        "messages": list(map(to_chat_message, sequence.messages)),
    }
