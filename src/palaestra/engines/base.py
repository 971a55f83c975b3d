"""The engine protocol, and the registry that opens a model by its name.

A model is named `scheme:model`, and `ENGINES` maps each scheme to its engine class. A name without a scheme is a local model:
a name in the model registry, a folder or a hub id. To add an engine, register a subclass of `BaseEngine` under its scheme:

    class EchoEngine(BaseEngine):
        def __init__(self, name: str) -> None:
            self.name = self.identity = name

        def generate(self, requests):
            return [[Completion(r.messages[-1].text)] * r.sampling.count for r in requests]

    ENGINES.register("echo", EchoEngine, "repeats the last message")
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar, runtime_checkable

from palaestra.chat.rendering import prompt_ids, with_tools
from palaestra.core.errors import EngineError, MissingExtraError, SettingsError
from palaestra.core.records import (
    LOCAL_SCHEME,
    Answer,
    Completion,
    Engine,
    Failure,
    FailureCause,
    Listener,
    Message,
    Request,
    Usage,
    ignore,
)
from palaestra.core.registry import Registry

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerBase

T = TypeVar("T")

ENGINES = Registry("engine", "palaestra.engines")
ENGINES.register(LOCAL_SCHEME, "palaestra.engines.factory:LocalModels", "a transformers model in this process")
ENGINES.register("vllm", "palaestra.engines.vllm:VLLMEngine", "a model in vLLM, in this process: vllm:MODEL")
ENGINES.register("mock", "palaestra.engines.mock:MockEngine", "a fixed answer, for tests: mock:ANSWER")
for _scheme, _description in {
    "openai": "OpenAI: openai:MODEL",
    "azure": "Azure OpenAI: azure:DEPLOYMENT",
    "http": "a server with the OpenAI chat format: http://HOST:PORT/v1#MODEL",
    "https": "a server with the OpenAI chat format: https://HOST/v1#MODEL",
}.items():
    ENGINES.register(_scheme, "palaestra.engines.openai:OpenAIEngine", _description)


def get_scheme(name: str) -> str:
    """Return the scheme of a model name; `LOCAL_SCHEME` if the name has no registered scheme."""
    scheme, colon, _ = name.partition(":")
    return scheme if colon and scheme in ENGINES.names() else LOCAL_SCHEME


def strip_scheme(name: str) -> str:
    """Return a model name without its scheme.

    >>> strip_scheme("vllm:nano"), strip_scheme("nano")
    ('nano', 'nano')
    """
    return name.removeprefix(f"{get_scheme(name)}:")


def apply_engine(name: str, engine: str) -> str:
    """Return the name of a model on `engine`. Names with a scheme, and empty ones, do not change.

    >>> apply_engine("nano", "vllm"), apply_engine("openai:gpt-4o", "vllm"), apply_engine("nano", "transformers")
    ('vllm:nano', 'openai:gpt-4o', 'nano')
    """
    local = name and strip_scheme(name) == name and get_scheme(name) == LOCAL_SCHEME
    return f"{engine}:{name}" if local and engine != LOCAL_SCHEME else name


def check_serves_weights(scheme: str, setting: str) -> None:
    """Raise if an engine cannot load local weights.

    Arguments:
        setting: the setting that names the engine, for the message.

    Raises:
        UnknownNameError: no such engine is registered.
        SettingsError: the engine calls a service or has no weights.
    """
    engine: type[EngineScheme] = ENGINES.get(scheme)
    if not engine.serves_weights:
        choices = " or ".join(name for name in ENGINES.names() if ENGINES.get(name).serves_weights)
        raise SettingsError(f"setting '{setting}': the engine '{scheme}' cannot load local weights; use {choices}")


def is_remote(name: str) -> bool:
    """Whether a service runs the model. Otherwise this process loads the weights."""
    scheme: type[EngineScheme] = ENGINES.get(get_scheme(name))
    return scheme.remote


@dataclass(frozen=True, slots=True)
class Price:
    """US dollars per million prompt tokens and per million completion tokens."""

    prompt: float
    completion: float

    def __post_init__(self) -> None:
        if not all(0 <= value < float("inf") for value in (self.prompt, self.completion)):
            raise SettingsError(f"expected prices in dollars, 0 or more; got {self.prompt} and {self.completion}")

    def cost(self, usage: Usage) -> float:
        return (usage.prompt_tokens * self.prompt + usage.completion_tokens * self.completion) / 1e6


Slot = tuple[int, int]
"""The position of one answer: the index of its request, and the index of the completion within the request."""
EMPTY = Failure(FailureCause.INVALID_REQUEST, "the prompt is empty")
ABORTED = Failure(FailureCause.UNAVAILABLE, "the request was aborted")
OnToken = Callable[[Slot, int, int], None]
OnAnswer = Callable[[Slot, Answer], None]


@runtime_checkable
class RolloutEngine(Engine, Protocol):
    """An engine that samples rollouts with the current weights of a learner."""

    def update_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Copy new weights into the model, by their names in the transformers checkpoint."""
        ...

    def close(self) -> None:
        """Free the model's memory."""
        ...


class EngineScheme:
    """Checks, opens and prices the models of one scheme. `ENGINES` contains subclasses.

    Its module is imported to check settings, so it must not import torch or another heavy package at the top level.
    Every `name` is the full name, with the scheme.
    """

    remote: ClassVar[bool] = True
    """Whether a service runs the models. Calls to a service run in parallel and are recorded one by one."""
    serves_weights: ClassVar[bool] = False
    """Whether the engine loads local checkpoints. Its engines other than transformers' are `WeightsEngine`s."""

    @classmethod
    def check(cls, name: str) -> None:
        """Raise if the model cannot be used, for example because a key is missing. Loads nothing."""

    @classmethod
    def open(cls, name: str, *, device: str = "", listener: Listener = ignore, **options: Any) -> Engine:
        """Open a model; by default, with its name as the only argument. `options` are further arguments of the engine."""
        return cls(name)  # type: ignore[call-arg, return-value]

    @classmethod
    def open_for_rollouts(
        cls, name: str, *, device: str = "", listener: Listener = ignore, **options: Any
    ) -> RolloutEngine:
        """Open a model that samples rollouts for a learner. Its log-probs are those of the sampled distribution.

        Called only if `serves_weights`.
        """
        raise NotImplementedError

    @classmethod
    def list_price(cls, name: str) -> Price | None:
        """Return the published price; `None` if it is unknown. Local models are free."""
        return None if cls.remote else Price(0.0, 0.0)

    @classmethod
    def identify(cls, name: str) -> str:
        """Return the cache identity of a model, for example a hash of its weights; empty means the engine's own."""
        return ""

    @classmethod
    def reads_images(cls, name: str) -> bool | None:
        """Whether the model reads images; `None` if that is unknown."""
        return None


class BaseEngine(EngineScheme):
    """Base class of engines, with defaults for everything but `generate`.

    Attributes:
        name: the model's name.
        identity: identifies the model in cache keys. It is empty for weights in memory, because training changes them
            under the same name.
        reads_schema: whether the engine enforces `Request.schema`.
    """

    name: str
    identity: str = ""
    reads_schema: bool = False

    def generate(self, requests: Sequence[Request]) -> list[list[Answer]]:
        raise NotImplementedError

    def close(self) -> None:
        """Free the resources of the engine. Closing twice is allowed."""


def close_engine(engine: Engine) -> None:
    """Close an engine, if it can be closed."""
    if isinstance(engine, BaseEngine):
        engine.close()


def require_exact(completion: Completion, name: str) -> Completion:
    """Return a completion that a model can be trained on.

    Raises:
        EngineError: the token ids or log-probs are missing.
    """
    if not completion.is_exact:
        raise EngineError(
            f"{name} returned no token ids or log-probs, which training needs; use a local model, or vLLM's server with "
            "OpenAIEngine(..., exact=True)"
        )
    return completion


class CallMonitor:
    """Its methods run before and after every call of a `MonitoredEngine`, in the thread of the call.

    This base class allows every call and records nothing.
    """

    def before(self, slot: Slot) -> bool | Answer:
        """Run before a call for `slot`. Return false to postpone the call; the engine tries again later.

        An answer takes the place of the call.

        Raises:
            BudgetSpentError: no further call may start. The engine finishes the running calls and raises the error.
        """
        return True

    def after(self, slot: Slot, usage: Usage | None, seconds: float, answer: Answer | None) -> None:
        """Run after a call has ended.

        Arguments:
            usage: the billed tokens; `None` if unknown, for example after a broken connection.
            answer: the answer of the slot; `None` if the call failed and is repeated.
        """


@runtime_checkable
class StreamingEngine(Engine, Protocol):
    """An engine that reports tokens as it generates them."""

    def generate_streaming(self, requests: Sequence[Request], on_token: OnToken) -> list[list[Answer]]:
        """Generate as `generate` does and call `on_token(slot, position, token)` for each token.

        If a completion is generated again after an error, its tokens are reported again from position 0.
        """
        ...


@runtime_checkable
class JoiningEngine(Engine, Protocol):
    """An engine that accepts and aborts requests while it generates others."""

    def generate_joining(
        self,
        take: Callable[[int], Sequence[Request]],
        on_token: OnToken,
        on_answer: OnAnswer,
        is_aborted: Callable[[int], bool] = lambda index: False,
    ) -> None:
        """Generate the requests from `take` until it returns none and all have been answered.

        Arguments:
            take: called between steps with the number of completions that may start; returns requests, which are numbered
                in this order.
            on_token: as in `StreamingEngine.generate_streaming`.
            on_answer: called with slot and answer of each completion as soon as it has finished.
            is_aborted: called between steps with the number of a request. The completions of an aborted request leave
                the batch at once; their answer is `ABORTED`.
        """
        ...


@runtime_checkable
class MonitoredEngine(Engine, Protocol):
    """An engine that reports each call as it ends, because calls cost money."""

    def generate_monitored(
        self, requests: Sequence[Request], monitor: CallMonitor, known: Mapping[Slot, Answer] = MappingProxyType({})
    ) -> list[list[Answer]]:
        """Like `generate`, but skip the slots in `known`."""
        ...


@runtime_checkable
class WeightsEngine(RolloutEngine, Protocol):
    """An engine with its own copy of local weights, which can be replaced or adapted while it runs."""

    def load_adapter(self, folder: Path) -> None:
        """Use a LoRA adapter in peft's format from now on. It replaces the previous one."""
        ...

    def unload_adapter(self) -> None:
        """Use the base model from now on."""
        ...


def encode_prompt(
    name: str,
    tokenizer: PreTrainedTokenizerBase,
    request: Request,
    encode_images: Callable[[Sequence[Message]], T] | None = None,
) -> list[int] | T | Failure:
    """Encode the prompt of a request.

    Arguments:
        name: the name of the model, for errors.
        encode_images: encodes a conversation of a model that reads images; `None` encodes it as text.

    Returns:
        The token ids, the result of `encode_images`, or a failure if the request is invalid.
    """
    from palaestra.models.images import ImageError

    try:
        if encode_images is None and any(message.has_image for message in request.messages):
            return Failure(FailureCause.INVALID_REQUEST, f"{name} reads text only; the prompt has an image")
        if request.prompt_ids:
            return list(request.prompt_ids)
        if encode_images is not None:
            return encode_images(with_tools(request.messages, request.tools) if request.tools else request.messages)
        ids = prompt_ids(tokenizer, request.messages, request.tools)
    except MissingExtraError:
        raise
    except ImageError as error:
        return Failure(FailureCause.INVALID_REQUEST, str(error))
    except Exception as error:  # A chat template may raise anything.
        return Failure(FailureCause.INVALID_REQUEST, f"the chat template rejected the prompt: {error}")
    return ids or EMPTY


def context_failure(name: str, tokens: int, context: int) -> Failure:
    """The failure of a prompt that is longer than the model's context."""
    message = f"the prompt has {tokens} tokens; {name} reads at most {context}, including the answer"
    return Failure(FailureCause.CONTEXT_LENGTH, message)
