"""Save and load the state of a training in progress."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors.torch import save_file

from palaestra.core.errors import RunError
from palaestra.core.records import Example
from palaestra.core.seeding import Seeds
from palaestra.runs.files import write_folder

FILE = "state.safetensors"


@dataclass(slots=True)
class TrainingState:
    """The state to resume a training from, apart from its examples and its seed."""

    step: int = 0
    weights: dict[str, torch.Tensor] = field(default_factory=dict)
    moments: dict[int, dict[str, torch.Tensor]] = field(default_factory=dict)
    curve: list[tuple[int, float]] = field(default_factory=list)


def save_state(folder: Path, state: TrainingState, fingerprint: str) -> None:
    """Save the state of the training with this `fingerprint`. An older state is replaced."""
    tensors = {f"weights/{name}": tensor.cpu().contiguous() for name, tensor in state.weights.items()}
    for index, moments in state.moments.items():
        tensors |= {f"moments/{index}/{name}": torch.as_tensor(m).cpu().contiguous() for name, m in moments.items()}
    tensors["curve"] = torch.tensor(state.curve, dtype=torch.float64)
    # safetensors rejects tensors that share memory, as those of a flat optimizer do.
    tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    meta = {"step": str(state.step), "fingerprint": fingerprint}
    write_folder(folder, lambda target: save_file(tensors, target / FILE, meta))


def load_state(folder: Path, fingerprint: str) -> TrainingState | None:
    """Load the state of the training with this `fingerprint`; `None` if there is none.

    Raises:
        RunError: the file is damaged.
    """
    from safetensors import safe_open

    if not (folder / FILE).exists():
        return None
    try:
        with safe_open(folder / FILE, "pt") as file:
            meta = file.metadata()
            if meta["fingerprint"] != fingerprint:
                return None  # Left over from another round.
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except Exception as error:
        raise RunError(f"the run folder is damaged: {folder}: {error}; delete it and resume") from error
    moments: dict[int, dict[str, torch.Tensor]] = {}
    for name, tensor in tensors.items():
        if name.startswith("moments/"):
            _, index, moment = name.split("/", 2)
            moments.setdefault(int(index), {})[moment] = tensor
    return TrainingState(
        step=int(meta["step"]),
        weights={n.removeprefix("weights/"): t for n, t in tensors.items() if n.startswith("weights/")},
        moments=moments,
        curve=[(int(step), float(loss)) for step, loss in tensors["curve"].tolist()],
    )


def fingerprint_training(examples: Sequence[Example], seeds: Seeds, kind: str = "", start: str = "") -> str:
    """A hash that identifies a training.

    Arguments:
        kind: how the student learns.
        start: a hash of the initial weights, if they are not the base's.
    """
    digest = hashlib.sha256(repr((seeds.integer(), kind, start)).encode())
    for example in examples:
        digest.update(repr((example.messages, example.response, example.metadata.get("rejected", ""))).encode())
    return digest.hexdigest()
