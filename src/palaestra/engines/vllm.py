"""Completions from vLLM in this process.

All requests of a call are one batch: vLLM schedules them continuously and computes shared prefixes once. Prompts are
built by our own chat template code, so that the token ids are those of every other engine. The log-probabilities are
those of the model's own distribution, before temperature, top-k and top-p.

vLLM runs in this process (`VLLM_ENABLE_V1_MULTIPROCESSING=0`): new weights are copied from the learner without touching
the disk, and nothing is left running after `close`.
"""

from __future__ import annotations

import copy
import os
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from palaestra.core.errors import EngineError, MissingExtraError, ModelError, SettingsError
from palaestra.core.records import (
    Answer,
    Completion,
    Failure,
    FailureCause,
    Json,
    Listener,
    Message,
    Request,
    StopReason,
    Usage,
    ignore,
)
from palaestra.core.seeding import Seeds
from palaestra.engines.base import ABORTED, BaseEngine, OnAnswer, OnToken, context_failure, encode_prompt, strip_scheme
from palaestra.engines.factory import LocalModels
from palaestra.models.families import has_dynamic_rope, original_context
from palaestra.models.registry import export_merged

if TYPE_CHECKING:
    import torch

    from palaestra.executors.broadcast import SharedWeights

_DEFAULTS = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_CPU_KVCACHE_SPACE": "4",  # GiB, of the CPU build
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # the learner's threads share the cores
    "VLLM_NO_USAGE_STATS": "1",
}
"""Environment variables of vLLM that are set unless the user has set them."""
_LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""The values that vLLM accepts for the largest rank of adapters."""


class VLLMEngine(BaseEngine):
    """Generates with vLLM. `vllm:MODEL` opens a name of the model registry, a folder or a hub id.

    Arguments:
        model: a folder with a checkpoint, or a name on the Hugging Face hub.
        name: the name in ledgers and messages; the model by default.
        max_lora_rank: the largest rank of adapters to load; 0 turns adapters off. vLLM reserves memory for the next
            rank that it supports.
        plain: send the plain text instead of applying the chat template.
        options: further arguments of `vllm.LLM`, for example `dtype`, `max_model_len`, `gpu_memory_utilization`,
            `tensor_parallel_size`, `enforce_eager`.

    Raises:
        MissingExtraError: vLLM is not installed.
        ModelError: vLLM cannot load the model, for example because of insufficient memory.
        SettingsError: one of several learners asks for more than its device.
    """

    remote = False
    serves_weights = True
    reads_schema = True

    @classmethod
    def check(cls, name: str) -> None:
        if find_spec("vllm") is None:
            raise MissingExtraError("vllm", "vllm", "the vLLM engine")
        LocalModels.check(strip_scheme(name))

    @classmethod
    def open(cls, name: str, *, device: str = "", listener: Listener = ignore, **options: Any) -> VLLMEngine:
        with export_merged(strip_scheme(name), listener) as model:
            return cls(model, name, **{**_device_defaults(), **options})

    @classmethod
    def open_for_rollouts(
        cls, name: str, *, device: str = "", listener: Listener = ignore, **options: Any
    ) -> VLLMEngine:
        """Open a model beside its learner. `options` are arguments of `vllm.LLM`.

        Raises:
            ModelError: the model has dynamic NTK.
        """
        from transformers import AutoConfig

        defaults: Json = {**_device_defaults(), "logprobs_mode": "processed_logprobs"}
        if _has_gpu():
            defaults["gpu_memory_utilization"] = 0.3  # The learner needs the rest.
        with export_merged(strip_scheme(name), listener) as model:
            config = AutoConfig.from_pretrained(model)
            # vLLM chooses one rotation for sequences of any length; the learner's depends on the length.
            if has_dynamic_rope(config):
                raise ModelError(
                    f"the model '{name}' has dynamic NTK, which vLLM and transformers compute differently; train it without "
                    "--engine vllm"
                )
            if original := original_context(config):
                defaults["max_model_len"] = original
            return cls(model, name, **{**defaults, **options})

    @classmethod
    def identify(cls, name: str) -> str:
        # Other kernels round differently, so the answers are stored separately from those of transformers.
        return f"vllm:{LocalModels.identify(strip_scheme(name))}"

    @classmethod
    def reads_images(cls, name: str) -> bool | None:
        return LocalModels.reads_images(strip_scheme(name))

    def __init__(
        self, model: str, name: str = "", *, max_lora_rank: int = 0, plain: bool = False, **options: Any
    ) -> None:
        if find_spec("vllm") is None:
            raise MissingExtraError("vllm", "vllm", "the vLLM engine")
        for variable, value in _DEFAULTS.items():
            os.environ.setdefault(variable, value)
        options.setdefault("use_tqdm_on_load", False)
        # Otherwise grammars allow any whitespace, and a weak model fills its answer with it.
        options.setdefault("structured_outputs_config", {"backend": "xgrammar", "disable_any_whitespace": True})
        if not _has_gpu():
            # vLLM's CPU build cannot sample with a seed from a prompt that it reads in parts.
            options.setdefault("enable_chunked_prefill", False)
        if max_lora_rank:
            rank = next((rank for rank in _LORA_RANKS if rank >= max_lora_rank), max_lora_rank)
            options = {"enable_lora": True, "max_lora_rank": rank, **options}
        self.name = name or model
        self._colocated = _is_learner()
        if self._colocated:
            if (size := options.get("tensor_parallel_size", 1)) > 1:
                raise SettingsError(
                    f"option 'tensor_parallel_size': each learner has its own engine on one device; expected 1, got {size}"
                )
            # vLLM then uses the device of this process and groups of this process alone.
            options["distributed_executor_backend"] = "external_launcher"
        if "weight_transfer_config" in options:
            register_transfer()
        with _keep_random_state():
            from vllm import LLM

            try:
                self._llm: Any = LLM(model, seed=0, enable_prefix_caching=True, **options)
            except Exception as error:  # vLLM may raise anything.
                raise ModelError(f"vLLM cannot load '{model}': {_first_line(error)}") from error
        self.tokenizer: Any = self._llm.get_tokenizer()
        if plain:
            self.tokenizer = copy.deepcopy(self.tokenizer)
            self.tokenizer.chat_template = None
        config = self._llm.llm_engine.vllm_config.model_config
        self.context: int = config.max_model_len
        self.processor: Any = _load_processor(model) if config.is_multimodal_model else None
        ends = config.try_get_generation_config().get("eos_token_id")
        self._end_ids = {*(ends if isinstance(ends, list) else [ends]), self.tokenizer.eos_token_id} - {None}
        self._adapter: Any = None
        self._adapters = 0

    def generate(self, requests: Sequence[Request]) -> list[list[Answer]]:
        if self._llm is None:
            raise EngineError(f"the vLLM engine of {self.name} is closed; open another")
        answers: list[list[Answer]] = [[] for _ in requests]
        batch = []
        for index, request in enumerate(requests):
            prompt = self._make_input(request)
            if isinstance(prompt, Failure):
                answers[index] = [prompt] * request.sampling.count
            else:
                batch.append((index, *prompt))
        for index, completions in self._generate_batch(batch):
            answers[index] = completions
        return answers

    def generate_joining(
        self,
        take: Callable[[int], Sequence[Request]],
        on_token: OnToken,
        on_answer: OnAnswer,
        is_aborted: Callable[[int], bool] = lambda index: False,
    ) -> None:
        """See `JoiningEngine`. vLLM schedules the requests itself, so all that arrive may start."""
        if self._llm is None:
            raise EngineError(f"the vLLM engine of {self.name} is closed; open another")
        engine, numbers = self._llm.llm_engine, count()
        running: dict[int, dict[int, int]] = {}  # The tokens so far of the unfinished completions of each request.
        try:
            while True:
                for request in take(sys.maxsize):
                    index, parts = next(numbers), range(request.sampling.count)
                    failure = self._start(str(index), request)
                    if failure is None:
                        running[index] = dict.fromkeys(parts, 0)
                    else:
                        for part in parts:
                            on_answer((index, part), failure)
                for index in [index for index in running if is_aborted(index)]:
                    engine.abort_request([str(index)])
                    for part in running.pop(index):
                        on_answer((index, part), ABORTED)
                if not running:
                    return
                for output in engine.step():
                    index = int(output.request_id)
                    for choice in output.outputs:
                        counts, slot = running[index], (index, choice.index)
                        for position in range(counts[choice.index], len(choice.token_ids)):
                            on_token(slot, position, choice.token_ids[position])
                        counts[choice.index] = len(choice.token_ids)
                        if choice.finish_reason is not None:
                            del counts[choice.index]
                            on_answer(slot, self._to_completion(tuple(output.prompt_token_ids), choice))
                    if not running[index]:
                        del running[index]
        except BaseException:
            self._abort_requests()
            raise

    def _start(self, name: str, request: Request) -> Failure | None:
        """Add a request to vLLM's queue. Returns a failure if it is invalid."""
        prompt = self._make_input(request)
        if isinstance(prompt, Failure):
            return prompt
        try:
            self._llm.llm_engine.add_request(name, *prompt, lora_request=self._adapter)
        except Exception as error:  # vLLM may raise anything.
            return self._to_failure(error)
        return None

    def load_adapter(self, folder: Path) -> None:
        """Use a LoRA adapter in peft's format from now on. It replaces the previous one.

        Every call uses a new id, because vLLM caches adapters by id and would keep the old weights.

        Raises:
            ModelError: the engine was opened without adapters, or the adapter cannot be loaded.
        """
        from vllm.lora.request import LoRARequest

        if self._llm.llm_engine.vllm_config.lora_config is None:
            raise ModelError(f"the vLLM engine of {self.name} was opened without adapters; set max_lora_rank")
        self._adapters += 1
        adapter = LoRARequest(f"adapter-{self._adapters}", self._adapters, str(folder))
        try:
            self._llm.llm_engine.add_lora(adapter)
        except Exception as error:
            raise ModelError(f"vLLM cannot load the adapter '{folder}': {_first_line(error)}") from error
        self.unload_adapter()
        self._adapter = adapter

    def unload_adapter(self) -> None:
        """Use the base model from now on."""
        if self._adapter is not None:
            self._llm.llm_engine.remove_lora(self._adapter.lora_int_id)
            self._adapter = None

    def prompt_tokens(self, request: Request) -> int:
        """Count the tokens of a request's prompt; 0 if the prompt is invalid, for which `generate` returns a failure."""
        prompt = self._encode_prompt(request)
        if isinstance(prompt, Failure):
            return 0
        return len(prompt["prompt_token_ids"] if "prompt" not in prompt else self.tokenizer.encode(prompt["prompt"]))

    def update_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Copy new weights into the model, by their names in the transformers checkpoint.

        Cached prefixes were computed with the old weights and are dropped.
        """
        if self._llm.llm_engine.vllm_config.parallel_config.world_size > 1:
            weights = list(weights)  # Sent to other processes.
        self._llm.collective_rpc("reload_weights", kwargs={"weights_iterator": iter(weights)})
        self._llm.reset_prefix_cache()

    def receive_weights(self, shared: SharedWeights) -> None:
        """Let vLLM's own workers receive the weights that the learners broadcast.

        The engine must be opened with `weight_transfer_config={"backend": "palaestra"}`.
        """
        self._llm.start_weight_update()
        self._llm.update_weights({"update_info": shared.describe()})
        self._llm.finish_weight_update(str(shared.version))
        self._llm.reset_prefix_cache()

    def close(self) -> None:
        """Free the model's memory and end vLLM's processes. Closing twice is allowed."""
        if self._llm is not None:
            engine = self._llm.llm_engine
            if self._colocated:
                # The core's shutdown would destroy the learner's process group. Newer versions call it in a finalizer.
                if (finalizer := getattr(engine.engine_core, "_finalizer", None)) is not None:
                    finalizer.detach()
                engine.model_executor.shutdown()
            else:
                engine.engine_core.shutdown()
            self._llm = None

    def _make_input(self, request: Request) -> tuple[Json, Any] | Failure:
        """Return the prompt and the `SamplingParams` of a request, or a failure if vLLM does not accept them."""
        from vllm.exceptions import VLLMValidationError

        prompt = self._encode_prompt(request)
        if isinstance(prompt, Failure):
            return prompt
        if (length := len(prompt.get("prompt_token_ids", ()))) >= self.context:
            return context_failure(self.name, length, self.context)
        try:
            return prompt, self._make_parameters(request)
        except (ValueError, VLLMValidationError) as error:  # For example a temperature of 3.
            return self._to_failure(error)

    def _encode_prompt(self, request: Request) -> Json | Failure:
        reads_images = self.processor is not None and any(message.has_image for message in request.messages)
        prompt = encode_prompt(self.name, self.tokenizer, request, self._encode_images if reads_images else None)
        return {"prompt_token_ids": prompt} if isinstance(prompt, list) else prompt

    def _encode_images(self, messages: Sequence[Message]) -> Json:
        from palaestra.models.images import load_images, render_prompt

        text, _ = render_prompt(self.processor, messages)
        return {"prompt": text, "multi_modal_data": {"image": load_images(messages)}}

    def _make_parameters(self, request: Request) -> Any:
        """Return vLLM's `SamplingParams` of a request. Raises vLLM's errors for values that it does not accept."""
        from vllm.sampling_params import SamplingParams, StructuredOutputsParams

        sampling = request.sampling
        return SamplingParams(
            n=sampling.count,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            max_tokens=sampling.max_tokens,
            stop=list(sampling.stop),
            stop_token_ids=sorted(self._end_ids),
            seed=Seeds(request.seed).derive("vllm").integer() >> 8 if sampling.temperature > 0 else None,
            logprobs=0,
            flat_logprobs=True,  # Lists of numbers instead of a dictionary per token.
            structured_outputs=StructuredOutputsParams(json=request.schema) if request.schema else None,
        )

    def _generate_batch(self, batch: list[tuple[int, Json, Any]]) -> Iterator[tuple[int, list[Answer]]]:
        """Generate one batch. If vLLM rejects it, generate its halves, so that an invalid request fails alone."""
        if not batch:
            return
        indices, prompts, parameters = zip(*batch, strict=True)
        try:
            outputs = self._llm.generate(list(prompts), list(parameters), use_tqdm=False, lora_request=self._adapter)
        except Exception as error:  # vLLM may raise anything.
            failure = self._to_failure(error)
            self._abort_requests()
            if failure.cause is FailureCause.INVALID_REQUEST and len(batch) > 1:
                half = len(batch) // 2
                yield from self._generate_batch(batch[:half])
                yield from self._generate_batch(batch[half:])
            else:
                for index, parameter in zip(indices, parameters, strict=True):
                    yield index, [failure] * parameter.n
            return
        for index, output in zip(indices, outputs, strict=True):
            ids = tuple(output.prompt_token_ids)
            yield index, [self._to_completion(ids, choice) for choice in output.outputs]

    def _to_failure(self, error: Exception) -> Failure:
        from vllm.exceptions import VLLMValidationError

        invalid = isinstance(error, ValueError | VLLMValidationError)
        return Failure(FailureCause.INVALID_REQUEST if invalid else FailureCause.ENGINE, f"vLLM: {_first_line(error)}")

    def _abort_requests(self) -> None:
        """Remove the requests of a failed batch. The next call would wait for them."""
        engine = self._llm.llm_engine
        with suppress(Exception):  # A dead engine has no requests.
            engine.abort_request(list(engine.output_processor.request_states), internal=True)

    def _to_completion(self, prompt: tuple[int, ...], choice: Any) -> Completion:
        ids = tuple(choice.token_ids)
        if choice.finish_reason == "length":
            reason = StopReason.LENGTH
        else:
            reason = StopReason.STOP if isinstance(choice.stop_reason, str) else StopReason.END
        return Completion(
            text=choice.text,
            token_ids=ids,
            logprobs=tuple(choice.logprobs.logprobs),  # Only that of the sampled token is requested.
            stop_reason=reason,
            usage=Usage(len(prompt), len(ids)),
            prompt_ids=prompt,
        )


def register_transfer() -> None:
    """Register the backend `palaestra` of vLLM's weight transfer. vLLM calls this in each of its processes."""
    with suppress(ImportError, ValueError):  # An older vLLM, or registered before.
        from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

        module, kind = "palaestra.engines.vllm_transfer", "BroadcastTransferEngine"
        WeightTransferEngineFactory.register_engine("palaestra", module, kind)


def _load_processor(model: str) -> Any:
    from transformers import AutoProcessor

    return AutoProcessor.from_pretrained(model, use_fast=False, trust_remote_code=False)


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}".removesuffix(": ")


def _device_defaults() -> Json:
    # Compilation takes minutes on a CPU, where small models run.
    return {} if _has_gpu() else {"dtype": "float32", "enforce_eager": True}


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def _is_learner() -> bool:
    """Whether this process is one of several that train one model."""
    import torch.distributed as dist

    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


@contextmanager
def _keep_random_state() -> Iterator[None]:
    """Restore the global generators, which vLLM seeds when it starts."""
    import numpy as np
    import torch

    states = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
        torch.set_rng_state(states[2])
