"""Students: models that predict, learn, save and restore."""

from __future__ import annotations

import hashlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

import torch
from safetensors.torch import load_file

from palaestra.core.errors import LessonError, RunError, SettingsError
from palaestra.core.interrupts import HeldInterrupts
from palaestra.core.records import Completion, Example, Failure, Score
from palaestra.core.seeding import Seeds
from palaestra.engines.base import Engine
from palaestra.engines.models import LoadedModel
from palaestra.engines.transformers import TransformersEngine
from palaestra.learn.batches import encode
from palaestra.learn.progress import TrainingState, fingerprint_of, load_state, save_state
from palaestra.learn.supervised import Supervision, add_adapter, fine_tune

OnStep = Callable[[int, int, float], None]
Keep = Callable[[TrainingState], None]
Start = Literal["base", "last"]
"""Where a training starts: at the base, on all data so far, or where the last round ended, on the new data."""
Scorer = Callable[[Example, Completion], Score | Failure | None]
"""Judges an answer to the question of an example; `None` where nothing says what is right."""


class Student(Protocol):
    """A model that predicts, learns, saves and restores.

    It may also have

    - `start`: `"base"` (what is meant where it is missing) or `"last"`. With `"last"` it is given only the examples
      that are new, and goes on from the weights that it has; whoever calls sees to it that those are the last
      round's, by `load` where need be. If such a training breaks off, it has the weights that it had before.
    - `metrics`: what its last training counted beside the loss, by name.
    """

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
        """Learn `examples`; returns the curve of the loss.

        `progress` names a folder for the state of a long training, from which it goes on after a kill.
        """
        ...

    def save(self, folder: Path) -> None: ...

    def load(self, folder: Path) -> None: ...

    def weights_sha256(self) -> str:
        """A hash of what was learned: equal hashes, equal students."""
        ...


class ModelStudent(ABC):
    """A student that is a language model, trained whole or by an adapter; how it learns is its subclass's.

    The base weights stay in memory: restoring them costs a copy, and a LoRA adapter is dropped.

    Arguments:
        model: as loaded by `palaestra.engines.models.load`.
        supervision: what is trained, and how fast.
        settings: what else this way of learning needs to know, an object of the class's `Settings`.
        start: see `Student`.
        batch_size: answers that are generated side by side.
        keep_every: seconds between two writes of a training's state, where a folder for it is given.
    """

    Settings: ClassVar[type[Any] | None] = None
    """The dataclass of what this way of learning needs to know; must do without arguments."""

    def __init__(
        self,
        model: LoadedModel,
        supervision: Supervision = Supervision(),
        settings: Any = None,
        *,
        start: Start = "base",
        batch_size: int = 128,
        keep_every: float = 120.0,
    ) -> None:
        if start not in ("base", "last"):
            raise SettingsError(f"a training starts at 'base' or at 'last'; got {start!r}")
        self.name, self.tokenizer, self.supervision = model.name, model.tokenizer, supervision
        self.settings: Any = self.Settings() if settings is None and self.Settings is not None else settings
        self.processor, self.start = model.processor, start
        self.batch_size, self.keep_every = batch_size, keep_every
        self.metrics: dict[str, float] = {}
        self._model: Any = model.weights
        self._adapted: Any = None
        if supervision.method == "full":
            # Small updates would be rounded away in 16 bits.
            self._model.float()
            self._base = {name: p.detach().clone() for name, p in self._model.named_parameters()}
        self._engine = self._ask(self._model)

    @abstractmethod
    def _train(
        self, examples: Sequence[Example], seeds: Seeds, on_step: OnStep, state: TrainingState | None, keep: Keep | None
    ) -> list[tuple[int, float]]:
        """Change the trainable weights of `self._trained`; returns the curve of the loss.

        Arguments:
            state: where this training stood when it was killed.
            keep: is offered the state after each step.
        """

    def engine(self) -> Engine:
        return self._engine

    def restore(self) -> None:
        if self.supervision.method == "full":
            self._put_back(self._base)
        elif self._adapted is not None:
            self._model = self._adapted.unload()
            self._adapted = None
            self._engine = self._ask(self._model)

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
        if self.start == "base":
            self.restore()
        before = {name: p.clone() for name, p in self._learned().items()} if self.start == "last" else {}
        mark = fingerprint_of(examples, seeds, type(self).__name__, self.weights_sha256() if before else "")
        if self.supervision.method == "lora" and self._adapted is None:
            self._adapt(seeds)
        self.metrics = {}
        try:
            if progress is None:
                return self._train(examples, seeds, on_step, None, None)
            with HeldInterrupts() as held:
                return self._train(
                    examples, seeds, on_step, load_state(progress, mark), self._keeper(progress, mark, held)
                )
        except BaseException:
            if self.start == "last":
                self._put_back(before) if before else self.restore()
            raise

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
        self.restore()
        if self.supervision.method == "lora":
            self._adapt(Seeds(0))
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

    def weights_sha256(self) -> str:
        digest = hashlib.sha256()
        for name, tensor in sorted(self._learned().items()):
            digest.update(name.encode())
            digest.update(tensor.contiguous().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    @property
    def _trained(self) -> Any:
        return self._adapted if self._adapted is not None else self._model

    def _ask(self, model: Any) -> TransformersEngine:
        return TransformersEngine(model, self.tokenizer, self.name, self.batch_size, self.processor)

    def _adapt(self, seeds: Seeds) -> None:
        self._adapted = add_adapter(self._model, self.supervision, seeds)
        self._engine = self._ask(self._adapted)

    def _learned(self) -> dict[str, torch.Tensor]:
        """All weights of a student that is trained whole; of an adapted one the adapter's alone."""
        full = self.supervision.method == "full"
        wanted = self._trained.named_parameters() if full or self._adapted is not None else ()
        return {name: p.detach().cpu().contiguous() for name, p in wanted if full or p.requires_grad}

    @torch.no_grad()
    def _put_back(self, weights: dict[str, torch.Tensor]) -> None:
        for name, parameter in self._trained.named_parameters():
            if name in weights:
                parameter.copy_(weights[name])

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

    def _keeper(self, folder: Path, mark: str, held: HeldInterrupts) -> Keep:
        """Write the state every so often, and before an interrupt ends the training."""
        last = time.monotonic()

        def keep(state: TrainingState) -> None:
            nonlocal last
            if held.pending or time.monotonic() - last >= self.keep_every:
                save_state(folder, state, mark)
                last = time.monotonic()
            held.release()

        return keep


class SupervisedStudent(ModelStudent):
    """A student that learns by supervised fine-tuning."""

    def _train(
        self, examples: Sequence[Example], seeds: Seeds, on_step: OnStep, state: TrainingState | None, keep: Keep | None
    ) -> list[tuple[int, float]]:
        return fine_tune(
            self._trained,
            self.tokenizer,
            examples,
            self.supervision,
            seeds,
            processor=self.processor,
            on_step=on_step,
            state=state,
            keep_state=keep,
        )
