"""Save and load the state of a training in progress."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors.torch import save_file

from palaestra.core.errors import RunError
from palaestra.core.records import Example
from palaestra.core.seeding import Seeds

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
        raise RunError(
            f"the training state in {path.parent} is damaged: {error}; delete this folder and resume"
        ) from error
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
