"""Supervised fine-tuning, with the loss on the response only.

It is a plain loop and not TRL's trainer for three reasons: it resumes bit-identically, all randomness comes from the
run's seeds, and it has little overhead on small models (`benchmarks/supervised_vs_trl.py`). Adapters are peft's.

Batches consist of examples of similar length. The learning rate falls linearly to zero after a short warm-up.
A killed training is resumed from its `TrainingState`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch
from safetensors.torch import save_file

from palaestra.core.errors import LessonError, MissingExtraError, ModelError, RunError
from palaestra.core.records import Example
from palaestra.core.seeding import Seeds, plan_batches
from palaestra.models.families import position_limit
from palaestra.models.registry import count_parameters
from palaestra.rl.optimizers import MixedAdamW, MuonAdamW, fork_torch_rng
from palaestra.students.batches import Encoded, ResponseLogProbs, encode, split_by_shape

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel, PreTrainedTokenizerBase, ProcessorMixin


Method = Literal["full", "lora"]
_MAX_FULL_PARAMETERS = 20_000_000
"""By default, larger models are trained with an adapter."""


@dataclass(frozen=True, slots=True)
class Supervision:
    """Settings of fine-tuning.

    Arguments:
        method: train all weights (`"full"`) or a LoRA adapter (`"lora"`).
        rank, alpha, dropout: hyperparameters of the adapter; unused with `"full"`.
        optimizer: `"muon"` trains the weight matrices with Muon; only with `"full"`.
        freeze_vision: with `"full"`, do not train the encoder of images.
    """

    method: Method = "full"
    epochs: int = 4
    batch_size: int = 8
    learning_rate: float = 5e-4
    warmup: float = 0.1
    weight_decay: float = 0.0
    clip: float = 1.0
    rank: int = 16
    alpha: int = 32
    dropout: float = 0.0
    optimizer: Literal["adamw", "muon"] = "adamw"
    freeze_vision: bool = True


def supervision_for(
    weights: PreTrainedModel,
    method: Literal["auto", "full", "lora"] = "auto",
    *,
    epochs: int = 4,
    batch_size: int = 0,
    learning_rate: float = 0.0,
    rank: int = 16,
    optimizer: Literal["auto", "adamw", "muon"] = "auto",
    freeze_vision: bool = True,
) -> Supervision:
    """The default supervision for a model: all weights of a small model, an adapter for a large one.

    Arguments:
        method: `"auto"` trains all weights of models of up to 20 million parameters.
        batch_size, learning_rate: 0 means the default of the method and the optimizer.
        optimizer: `"auto"` trains all weights of a model that reads images with Muon.
    """
    if method == "auto":
        method = "full" if sum(p.numel() for p in weights.parameters()) <= _MAX_FULL_PARAMETERS else "lora"
    check_peft(str(weights.config._name_or_path), method)
    if optimizer == "auto":
        reads_images = getattr(weights.config, "vision_config", None) is not None
        optimizer = "muon" if method == "full" and reads_images else "adamw"
    rate = learning_rate or (7e-4 if optimizer == "muon" else {"full": 5e-4, "lora": 2e-4}[method])
    size = batch_size or (16 if optimizer == "muon" else 8)
    return Supervision(
        method, epochs, size, rate, rank=rank, alpha=2 * rank, optimizer=optimizer, freeze_vision=freeze_vision
    )


def check_peft(model: str, method: str) -> None:
    """Raise `MissingExtraError` if the method trains an adapter of a model, and peft is not installed. Loads no weights."""
    if find_spec("peft") is None and trains_adapter(model, method):
        raise MissingExtraError("peft", "lora", f"training a LoRA adapter of {model}")


def trains_adapter(model: str, method: str) -> bool:
    """Whether the method trains an adapter of a model. Loads no weights."""
    return method == "lora" or (method == "auto" and count_parameters(model) > _MAX_FULL_PARAMETERS)


def add_adapter(model: PreTrainedModel, supervision: Supervision, seeds: Seeds) -> PeftModel:
    """Wrap `model` in a new LoRA adapter on all its linear layers, initialised from `seeds`."""
    from peft import LoraConfig, get_peft_model
    from transformers.pytorch_utils import Conv1D

    config = LoraConfig(
        r=supervision.rank,
        lora_alpha=supervision.alpha,
        lora_dropout=supervision.dropout,
        target_modules="all-linear",
        fan_in_fan_out=any(isinstance(module, Conv1D) for module in model.modules()),  # as in GPT-2
        task_type="CAUSAL_LM",
    )
    with fork_torch_rng(seeds.derive("adapter")):
        try:
            return get_peft_model(model, config)
        except ValueError as error:  # peft cannot adapt some layers, such as Mamba's.
            reason = str(error).splitlines()[0]
            raise ModelError(f"cannot add an adapter to a model of type {model.config.model_type}: {reason}") from error


def fine_tune(
    model: PreTrainedModel | PeftModel,
    tokenizer: PreTrainedTokenizerBase,
    examples: Sequence[Example],
    supervision: Supervision,
    seeds: Seeds,
    *,
    processor: ProcessorMixin | None = None,
    on_step: Callable[[int, int, float], None] = lambda step, total, loss: None,
    state: TrainingState | None = None,
    keep_state: Callable[[TrainingState], None] | None = None,
) -> list[tuple[int, float]]:
    """Train the trainable weights of `model` in place; returns the loss by step.

    Arguments:
        seeds: for the order of the examples and for dropout.
        processor: the processor of a model that reads images.
        on_step: called with the step, the number of steps, and the loss.
        state: the state of an interrupted training; the result is the same as without interruption.
        keep_state: called with the state after each step.

    Raises:
        LessonError: an example is too long, or the loss is not finite.
    """
    limit = position_limit(model.config) or 1 << 30
    rows = [encode(example, tokenizer, limit, processor) for example in examples]
    logprobs = ResponseLogProbs(model, padding_id(tokenizer))

    def batch_loss(batch: Sequence[int]) -> torch.Tensor:
        return logprobs.compute_loss([rows[index] for index in batch])

    batches = list(all_batches(rows, supervision, seeds))
    return optimize(model, batches, batch_loss, supervision, seeds, on_step=on_step, state=state, keep_state=keep_state)


def optimize(
    model: PreTrainedModel | PeftModel,
    batches: Sequence[Sequence[int]],
    batch_loss: Callable[[Sequence[int]], torch.Tensor],
    supervision: Supervision,
    seeds: Seeds,
    *,
    on_step: Callable[[int, int, float], None] = lambda step, total, loss: None,
    state: TrainingState | None = None,
    keep_state: Callable[[TrainingState], None] | None = None,
) -> list[tuple[int, float]]:
    """Take one optimizer step for each batch; returns the loss by step. The other arguments are those of `fine_tune`.

    Arguments:
        batches: indices of examples.
        batch_loss: computes the loss of a batch.

    Raises:
        LessonError: the loss is not finite.
        ModelError: a batch does not fit into the memory of a GPU.
    """
    trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
    parameters, rates = list(trainable.values()), (supervision.learning_rate, supervision.weight_decay)
    optimizer = (
        MuonAdamW(trainable.items(), *rates) if supervision.optimizer == "muon" else MixedAdamW(parameters, *rates)
    )
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    curve: list[tuple[int, float]] = []
    done = 0
    if state is not None and state.step:
        model.load_state_dict(state.weights, strict=False)
        # Keep the optimizer's own groups, for bit-identical steps.
        optimizer.load_state_dict({**optimizer.state_dict(), "state": state.moments})
        done, curve = state.step, list(state.curve)

    model.train()
    with closing(optimizer):
        for step in range(done, len(batches)):
            scale = schedule_learning_rate(step, len(batches), supervision.warmup)
            for group in optimizer.param_groups:
                group["lr"] = supervision.learning_rate * scale
            try:
                # Dropout uses torch's global generator.
                with fork_torch_rng(seeds.derive("dropout", step)) if supervision.dropout else nullcontext():
                    loss = batch_loss(batches[step])
                value = float(loss.detach())
                if value != value or value == float("inf"):
                    raise LessonError(f"the training loss is {value} at step {step + 1}; lower the learning rate")
                loss.backward()  # type: ignore[no-untyped-call]
            except torch.OutOfMemoryError as error:
                advice = "lower --batch-size or train an adapter (--method lora)"
                raise ModelError(
                    f"the GPU has no memory for a batch of {len(batches[step])} examples; {advice}"
                ) from error
            torch.nn.utils.clip_grad_norm_(parameters, supervision.clip)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            curve.append((step + 1, value))
            on_step(step + 1, len(batches), value)
            if keep_state is not None:
                weights = {name: p.detach() for name, p in trainable.items()}
                keep_state(TrainingState(step + 1, weights, optimizer.state_dict()["state"], curve))
    model.eval()
    return curve


def padding_id(tokenizer: PreTrainedTokenizerBase) -> int:
    return int(tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id)


def all_batches(rows: Sequence[Encoded], supervision: Supervision, seeds: Seeds) -> Iterator[list[int]]:
    """The row indices of every batch, over all epochs."""
    lengths = [len(row) for row in rows]
    for epoch in range(supervision.epochs):
        for batch in plan_batches(lengths, supervision.batch_size, seeds.derive("order", epoch).generator()):
            yield from split_by_shape(batch, rows)


def schedule_learning_rate(step: int, total: int, warmup: float) -> float:
    """The factor of the learning rate at `step`: linear warm-up, then linear decay to zero."""
    warmup_steps = max(1.0, warmup * total)
    return min((step + 1) / warmup_steps, (total - step) / max(1.0, total - warmup_steps), 1.0)


STATE_FILE = "state.safetensors"


@dataclass(slots=True)
class TrainingState:
    """The state to resume a training from, apart from its data and its seed.

    It contains no random state: every sample depends on the seed and the step or epoch.

    Arguments:
        moments: the optimizer's state, by the index of a parameter.
        curve: the loss by step.
        best: the best weights so far, with early stopping.
        validation: the validation metrics by epoch, with early stopping.
    """

    step: int = 0
    weights: dict[str, torch.Tensor] = field(default_factory=dict)
    moments: dict[int, dict[str, torch.Tensor]] = field(default_factory=dict)
    curve: list[tuple[int, float]] = field(default_factory=list)
    best: dict[str, torch.Tensor] = field(default_factory=dict)
    validation: list[dict[str, float]] = field(default_factory=list)


def write_state(path: Path, state: TrainingState, fingerprint: str) -> None:
    """Write the state of the training with this `fingerprint` to a file."""
    tensors = {f"weights/{name}": tensor for name, tensor in state.weights.items()}
    tensors |= {f"best/{name}": tensor for name, tensor in state.best.items()}
    for index, moments in state.moments.items():
        tensors |= {f"moments/{index}/{name}": torch.as_tensor(moment) for name, moment in moments.items()}
    # Copies, because safetensors rejects tensors that share memory, such as tied weights. Floats survive JSON exactly.
    tensors = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()}
    counters = json.dumps({"step": state.step, "curve": state.curve, "validation": state.validation})
    save_file(tensors, path, {"counters": counters, "fingerprint": fingerprint})


def read_state(path: Path, fingerprint: str) -> TrainingState | None:
    """Read the state of the training with this `fingerprint`; `None` if there is none.

    Raises:
        RunError: the file is damaged.
    """
    from safetensors import safe_open

    if not path.exists():
        return None
    try:
        with safe_open(path, "pt") as file:
            meta = file.metadata()
            if meta["fingerprint"] != fingerprint:
                return None  # It belongs to another training.
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        counters = json.loads(meta["counters"])
    except Exception as error:  # safetensors raises its own class for a damaged file.
        folder = path.parent
        raise RunError(f"the training state in {folder} is damaged: {error}; delete this folder and resume") from error
    curve = [(int(step), float(loss)) for step, loss in counters["curve"]]
    state = TrainingState(int(counters["step"]), curve=curve, validation=counters["validation"])
    for name, tensor in tensors.items():
        kind, rest = name.split("/", 1)
        if kind == "moments":
            index, moment = rest.split("/", 1)
            state.moments.setdefault(int(index), {})[moment] = tensor
        else:
            (state.best if kind == "best" else state.weights)[rest] = tensor
    return state


def fingerprint_training(examples: Sequence[Example], seeds: Seeds, kind: str = "", start: str = "") -> str:
    """A hash that identifies a student's training.

    Arguments:
        kind: how the student learns.
        start: a hash of the initial weights, if they are not the base's.
    """
    digest = hashlib.sha256(repr((seeds.integer(), kind, start)).encode())
    for example in examples:
        digest.update(repr((example.messages, example.response, example.metadata.get("rejected", ""))).encode())
    return digest.hexdigest()
