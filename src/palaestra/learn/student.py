"""Students: models that predict, learn, save and restore."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors.torch import load_file, save_file

from palaestra.core.errors import LessonError, RunError
from palaestra.core.records import Example
from palaestra.core.seeding import Seeds
from palaestra.engines.base import Engine
from palaestra.engines.shelf import Model
from palaestra.engines.transformers import TransformersEngine
from palaestra.learn.batches import encode
from palaestra.learn.supervised import Supervision, TrainingState, add_adapter, fine_tune
from palaestra.runs.files import write_folder

OnStep = Callable[[int, int, float], None]


class Student(Protocol):
    """A model that predicts, learns, saves and restores."""

    name: str

    def engine(self) -> Engine:
        """The engine that asks the student as it is now."""
        ...

    def restore(self) -> None:
        """Forget everything that was learned."""
        ...

    def check(self, examples: Sequence[Example]) -> None:
        """Raise `LessonError` for examples that this student cannot be trained on."""
        ...

    def learn(
        self, examples: Sequence[Example], seeds: Seeds, on_step: OnStep, progress: Path | None
    ) -> list[tuple[int, float]]:
        """Learn `examples` from the base; returns the curve of the loss.

        `progress` names a folder for the state of a long training, from which it goes on after a kill.
        """
        ...

    def save(self, folder: Path) -> None: ...

    def load(self, folder: Path) -> None: ...

    def weights_sha256(self) -> str:
        """A hash of what was learned: equal hashes, equal students."""
        ...


class SupervisedStudent:
    """A student that learns by supervised fine-tuning, from its base on all data each time.

    The base weights stay in memory: restoring them costs a copy, and a LoRA adapter is dropped.

    Arguments:
        model: as loaded from the shelf.
        supervision: how it is trained.
        keep_every: seconds between two writes of a training's state, where a folder for it is given.
    """

    def __init__(
        self,
        model: Model,
        supervision: Supervision = Supervision(),
        *,
        batch_size: int = 128,
        keep_every: float = 120.0,
    ) -> None:
        self.name, self.tokenizer, self.supervision = model.name, model.tokenizer, supervision
        self.processor = model.processor
        self.batch_size, self.keep_every = batch_size, keep_every
        self._model: Any = model.weights
        self._adapted: Any = None
        if supervision.method == "full":
            # Small updates would be rounded away in 16 bits.
            self._model.float()
            self._base = {name: p.detach().clone() for name, p in self._model.named_parameters()}
        self._engine = TransformersEngine(self._model, self.tokenizer, self.name, batch_size, self.processor)

    def engine(self) -> Engine:
        return self._engine

    def restore(self) -> None:
        if self.supervision.method == "full":
            with torch.no_grad():
                for name, parameter in self._model.named_parameters():
                    parameter.copy_(self._base[name])
        elif self._adapted is not None:
            self._model = self._adapted.unload()
            self._adapted = None
            self._engine = TransformersEngine(self._model, self.tokenizer, self.name, self.batch_size, self.processor)

    def check(self, examples: Sequence[Example]) -> None:
        if not examples:
            raise LessonError("a lesson needs at least one example; got none")
        for example in examples:
            if not example.messages or not example.response.strip():
                raise LessonError("every example needs a question and a response that is not empty")
            encode(example, self.tokenizer, self._engine.context, self.processor)

    def learn(
        self,
        examples: Sequence[Example],
        seeds: Seeds,
        on_step: OnStep = lambda step, total, loss: None,
        progress: Path | None = None,
    ) -> list[tuple[int, float]]:
        self._prepare(seeds)
        state = self._load_progress(progress, examples, seeds) if progress is not None else None
        last = time.monotonic()

        def keep(state: TrainingState) -> None:
            nonlocal last
            assert progress is not None
            if time.monotonic() - last >= self.keep_every:
                write_folder(progress, lambda folder: self._write_progress(folder, state, examples, seeds))
                last = time.monotonic()

        return fine_tune(
            self._trained,
            self.tokenizer,
            examples,
            self.supervision,
            seeds,
            processor=self.processor,
            on_step=on_step,
            state=state,
            keep_state=keep if progress is not None else None,
        )

    def save(self, folder: Path) -> None:
        """Write what was learned: all weights in transformers' format, or the adapter in peft's."""
        self._trained.save_pretrained(folder)
        (self.processor or self.tokenizer).save_pretrained(folder)

    def load(self, folder: Path) -> None:
        files = sorted(folder.glob("*.safetensors"))
        if not files:
            raise RunError(f"the run folder is damaged: the checkpoint {folder} holds no weights")
        weights: dict[str, torch.Tensor] = {}
        for file in files:
            try:
                weights |= load_file(file)
            except Exception as error:  # safetensors raises a class of its own for a damaged file.
                raise RunError(f"the run folder is damaged: {file}: {error}") from error
        self._prepare(Seeds(0))
        try:
            if self._adapted is not None:
                from peft import set_peft_model_state_dict

                strangers = set_peft_model_state_dict(self._adapted, weights).unexpected_keys
            else:
                strangers = self._load_whole(weights)
        except RuntimeError as error:  # The shapes do not fit.
            raise RunError(f"the checkpoint {folder} belongs to another model than {self.name}") from error
        if strangers:
            raise RunError(f"the checkpoint {folder} belongs to another model than {self.name}")

    def _load_whole(self, weights: dict[str, torch.Tensor]) -> list[str]:
        """Take over the weights of a checkpoint; returns the names among them that the model does not have."""
        strangers = self._model.load_state_dict(weights, strict=False).unexpected_keys
        if strangers:
            # Some architectures are written under other names than they have in memory; transformers translates.
            loaded, found = type(self._model).from_pretrained(
                None, config=self._model.config, state_dict=weights, dtype=self._model.dtype, output_loading_info=True
            )
            strangers = sorted(found["unexpected_keys"] | found["missing_keys"])
            self._model.load_state_dict(loaded.state_dict())
        return list(strangers)

    def weights_sha256(self) -> str:
        digest = hashlib.sha256()
        for name, tensor in sorted(self._learned().items()):
            digest.update(name.encode())
            digest.update(tensor.contiguous().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    @property
    def _trained(self) -> Any:
        return self._adapted if self._adapted is not None else self._model

    def _prepare(self, seeds: Seeds) -> None:
        self.restore()
        if self.supervision.method == "lora":
            self._adapted = add_adapter(self._model, self.supervision, seeds)
            self._engine = TransformersEngine(self._adapted, self.tokenizer, self.name, self.batch_size, self.processor)

    def _learned(self) -> dict[str, torch.Tensor]:
        """All weights of a student that is trained whole; of an adapted one the adapter's alone."""
        full = self.supervision.method == "full"
        wanted = self._trained.named_parameters() if full or self._adapted is not None else ()
        return {name: p.detach().cpu().contiguous() for name, p in wanted if full or p.requires_grad}

    def _write_progress(self, folder: Path, state: TrainingState, examples: Sequence[Example], seeds: Seeds) -> None:
        tensors = {f"weights/{name}": tensor.cpu().contiguous() for name, tensor in state.weights.items()}
        for index, moments in state.moments.items():
            tensors |= {f"moments/{index}/{name}": torch.as_tensor(m).cpu().contiguous() for name, m in moments.items()}
        tensors["curve"] = torch.tensor(state.curve, dtype=torch.float64)
        save_file(tensors, folder / "state.safetensors", {"step": str(state.step), "of": _fingerprint(examples, seeds)})

    def _load_progress(self, folder: Path, examples: Sequence[Example], seeds: Seeds) -> TrainingState | None:
        from safetensors import safe_open

        if not (folder / "state.safetensors").exists():
            return None
        try:
            with safe_open(folder / "state.safetensors", "pt") as file:
                meta = file.metadata()
                if meta["of"] != _fingerprint(examples, seeds):
                    return None  # Left over from another round.
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except Exception as error:
            raise RunError(f"the run folder is damaged: {folder}: {error}; delete it and resume") from error
        moments: dict[int, dict[str, torch.Tensor]] = {}
        for name, tensor in tensors.items():
            if name.startswith("moments/"):
                _, index, moment = name.split("/")
                moments.setdefault(int(index), {})[moment] = tensor
        return TrainingState(
            step=int(meta["step"]),
            weights={n.removeprefix("weights/"): t for n, t in tensors.items() if n.startswith("weights/")},
            moments=moments,
            curve=[(int(step), float(loss)) for step, loss in tensors["curve"].tolist()],
        )


def _fingerprint(examples: Sequence[Example], seeds: Seeds) -> str:
    digest = hashlib.sha256(str(seeds.integer()).encode())
    for example in examples:
        digest.update(repr((example.messages, example.response)).encode())
    return digest.hexdigest()
