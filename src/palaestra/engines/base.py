"""The engine protocol: batched completions, exact ids, a failure per item and never of the batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol, runtime_checkable

from palaestra.core.errors import SettingsError
from palaestra.core.records import Completion, Failure, Message, Usage
from palaestra.core.registry import Registry

ENGINES = Registry("engine", "palaestra.engines")
ENGINES.register(
    "transformers", "palaestra.engines.transformers:TransformersEngine", "a transformers model in this process"
)
ENGINES.register("mock", "palaestra.engines.mock:MockEngine", "scripted answers, for tests")
ENGINES.register(
    "openai",
    "palaestra.engines.openai:OpenAIEngine",
    "OpenAI, Azure OpenAI, or any server that speaks their chat format",
)


@dataclass(frozen=True, slots=True)
class Sampling:
    """How completions are drawn.

    Arguments:
        max_tokens: the most tokens of a completion.
        temperature: 0 takes the most likely token; 1 samples from the model's own distribution.
        top_p: keep the smallest set of tokens that has this probability.
        top_k: keep this many tokens; 0 keeps all.
        stop: strings that end a completion; they are not part of its text.
        count: how many completions of the same prompt.
    """

    max_tokens: int = 64
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    stop: tuple[str, ...] = ()
    count: int = 1

    def __post_init__(self) -> None:
        for name, good, wanted in (
            ("max_tokens", self.max_tokens >= 1, "at least 1"),
            ("temperature", self.temperature >= 0, "at least 0"),
            ("top_p", 0 < self.top_p <= 1, "above 0 and at most 1"),
            ("top_k", self.top_k >= 0, "at least 0"),
            ("count", self.count >= 1, "at least 1"),
            ("stop", all(self.stop), "strings that are not empty"),
        ):
            if not good:
                raise SettingsError(f"sampling needs {name} {wanted}; got {getattr(self, name)!r}")


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt, how to answer it, and the seed that its random choices belong to.

    The same request gives the same tokens whatever else is in the batch.

    Arguments:
        schema: the JSON schema, as JSON text, that the answer is to follow; empty for none. An engine that
            can hold its model to one says so by an attribute `reads_schema`; the others ignore it.
        tools: what the model may call, as JSON text: a list in OpenAI's format; empty for none. Calls are in the
            completion's `tool_calls` where a service reads them, and else in its text, as the model wrote them.
        prompt_ids: the exact token ids to continue, instead of `messages`; of engines that run the model here.
    """

    messages: tuple[Message, ...]
    sampling: Sampling = Sampling()
    seed: int = 0
    schema: str = ""
    tools: str = ""
    prompt_ids: tuple[int, ...] = ()


Answer = Completion | Failure
Slot = tuple[int, int]
"""The place of one answer: the index of its request, and which of the request's completions it is."""


@runtime_checkable
class Engine(Protocol):
    """Generates completions."""

    name: str

    def generate(self, requests: Sequence[Request]) -> list[list[Answer]]:
        """Answer every request, in order, with `sampling.count` completions or failures each."""
        ...


class Watch(Protocol):
    """Is told of every call of a `WatchedEngine`, in the thread that makes it."""

    def before(self, slot: Slot) -> bool:
        """A call for `slot` is about to be made; false means: not now, ask again a little later.

        Raises:
            BudgetSpentError: not at all. The engine starts no further call, lets those that are under way
                end, and raises the error then.
        """
        ...

    def after(self, slot: Slot, usage: Usage | None, seconds: float, answer: Answer | None) -> None:
        """The call has ended.

        Arguments:
            usage: what it was billed for; `None` where that is not known, as of a connection that broke.
            answer: what the slot gets; `None` where the call brought nothing and another one follows.
        """
        ...


@runtime_checkable
class StreamingEngine(Engine, Protocol):
    """An engine that reports tokens as it generates them."""

    def generate_streaming(
        self, requests: Sequence[Request], on_token: Callable[[Slot, int, int], None]
    ) -> list[list[Answer]]:
        """Generate as `generate` does and call `on_token(slot, position, token)` for each token.

        If a batch is generated again after an error, its tokens are reported again from position 0.
        """
        ...


@runtime_checkable
class WatchedEngine(Engine, Protocol):
    """An engine whose calls cost money: it reports each of them as it ends, not the batch when it is over."""

    def generate_watched(
        self, requests: Sequence[Request], watch: Watch, known: Mapping[Slot, Answer] = MappingProxyType({})
    ) -> list[list[Answer]]:
        """As `generate`; what is `known` is not asked."""
        ...
