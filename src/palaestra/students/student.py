"""Students: models that predict, learn, save and restore."""

from __future__ import annotations

import hashlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from safetensors.torch import load_file

from palaestra.core.errors import LessonError, RunError, SettingsError
from palaestra.core.process import HeldInterrupts, quiet_libraries
from palaestra.core.records import Completion, Engine, Example, Failure, Score
from palaestra.core.seeding import Seeds
from palaestra.engines.base import WeightsEngine
from palaestra.engines.transformers import TransformersEngine
from palaestra.envs.lesson.student import OnStep, Start
from palaestra.models.registry import LoadedModel
from palaestra.runs.files import write_folder
from palaestra.students.batches import Encoded, encode
from palaestra.students.llama_factory import LlamaFactory, TrainingRow
from palaestra.students.supervised import (
    STATE_FILE,
    Supervision,
    TrainingState,
    add_adapter,
    fine_tune,
    fingerprint_training,
    read_state,
    supervision_for,
    write_state,
)

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel

    from palaestra.envs.token import TokenVectorEnv

Keep = Callable[[TrainingState], None]
Scorer = Callable[[Example, Completion], Score | Failure | None]
"""Scores an answer to the question of an example; `None` if the example cannot be scored."""


class ModelStudent(ABC):
    """A student that is a language model. Subclasses define how it learns.

    Either all weights are trained, or a LoRA adapter. The base weights stay in memory, so `restore` only copies them or
    drops the adapter.

    Arguments:
        model: as loaded by `palaestra.models.registry.load`.
        supervision: which weights are trained, and how; by default `supervision_for` the model.
        settings: further settings of the subclass, an object of its `Settings`.
        start: see `Student`.
        score: scores answers, for students that learn from their own.
        environment: makes a token environment, for example `palaestra.envs.token.TokenVectorEnv`.
        batch_size: number of answers that are generated in one batch.
        keep_every: seconds between two saves of the training state.
        trainer: trains the adapter instead of the built-in loop; `None` for the built-in loop.
        predictor: generates the predictions; it has the base weights of `model`, and receives the new weights after each
            change. `None` generates with transformers. Samples during the training are always transformers'.
    """

    Settings: ClassVar[type[Any] | None] = None
    """The dataclass of the subclass's settings; all fields have defaults."""
    _make_rows: Callable[..., tuple[list[TrainingRow], dict[str, object]]] | None = None
    """Makes the data for an external trainer and keys of its settings; `None` if external training is not supported."""

    def __init__(
        self,
        model: LoadedModel,
        supervision: Supervision | None = None,
        settings: Any = None,
        *,
        start: Start = "base",
        score: Scorer | None = None,
        environment: Callable[..., TokenVectorEnv] | None = None,
        batch_size: int = 128,
        keep_every: float = 120.0,
        trainer: LlamaFactory | None = None,
        predictor: WeightsEngine | None = None,
    ) -> None:
        supervision = supervision or supervision_for(model.weights)
        if trainer is not None and (self._make_rows is None or supervision.method != "lora"):
            kind = f"{type(self).__name__}, method '{supervision.method}'"
            raise SettingsError(f"LLaMA-Factory trains only adapters of 'supervised' or 'preference'; got {kind}")
        self.name, self.tokenizer, self.supervision = model.name, model.tokenizer, supervision
        self.settings: Any = self.Settings() if settings is None and self.Settings is not None else settings
        self.processor, self.start = model.processor, start
        self.score, self.environment = score, environment
        self.batch_size, self.keep_every, self.trainer = batch_size, keep_every, trainer
        self.metrics: dict[str, float] = {}
        self._model: PreTrainedModel = model.weights
        self._adapted: PeftModel | None = None
        if supervision.method == "full":
            # Updates in 16 bits would be lost to rounding.
            self._model.float()
            if supervision.freeze_vision and model.processor is not None:
                self._model.get_encoder(modality="image").requires_grad_(False)
            self._base = {name: p.detach().clone() for name, p in self._model.named_parameters()}
        self._engine = self._make_engine(self._model)
        self._predictor, self._predictor_is_current = predictor, True
        self._prepare()

    def _prepare(self) -> None:  # noqa: B027
        """Check what the student needs in order to learn. Subclasses may override it."""

    @abstractmethod
    def _train(
        self, examples: Sequence[Example], seeds: Seeds, on_step: OnStep, state: TrainingState | None, keep: Keep | None
    ) -> list[tuple[int, float]]:
        """Train the trainable weights of `self._trained`; returns the loss by step.

        Arguments:
            state: the state of an interrupted training.
            keep: called with the state after each step.
        """

    @property
    def reads_images(self) -> bool:
        return self.processor is not None

    def engine(self) -> Engine:
        if self._predictor is None:
            return self._engine
        if not self._predictor_is_current:
            self._hand_over(self._predictor)
            self._predictor_is_current = True
        return self._predictor

    def _hand_over(self, predictor: WeightsEngine) -> None:
        """Give the current weights to the engine that predicts."""
        if self.supervision.method == "full":
            predictor.update_weights(self._model.state_dict().items())
        elif self._adapted is None:
            predictor.unload_adapter()
        else:
            with TemporaryDirectory() as folder:
                self._adapted.save_pretrained(folder)
                predictor.load_adapter(Path(folder))

    def restore(self) -> None:
        self._predictor_is_current = False
        if self.supervision.method == "full":
            self._copy_weights(self._base)
        elif self._adapted is not None:
            self._model = self._adapted.unload()
            self._adapted = None
            self._engine = self._make_engine(self._model)

    def check(self, examples: Sequence[Example]) -> None:
        if not examples:
            raise LessonError("expected at least one example; got none")
        for example in examples:
            if not example.messages or not example.response.strip():
                raise LessonError("expected a question and a non-empty response in every example")
            encode(example, self.tokenizer, self._engine.context, self.processor)

    def learn(
        self,
        examples: Sequence[Example],
        seeds: Seeds,
        on_step: OnStep = lambda step, total, loss: None,
        progress: Path | None = None,
    ) -> list[tuple[int, float]]:
        self._predictor_is_current = False
        if self.start == "base":
            self.restore()
        before = {name: p.clone() for name, p in self._trainable_weights().items()} if self.start == "last" else {}
        start = self.weights_sha256() if before else ""
        fingerprint = fingerprint_training(examples, seeds, type(self).__name__, start)
        if self.supervision.method == "lora" and self._adapted is None:
            self._adapt(seeds)
        self.metrics = {}
        try:
            if self.trainer is not None:
                return self._train_outside(self.trainer, examples, seeds, on_step, progress)
            if progress is None:
                return self._train(examples, seeds, on_step, None, None)
            with HeldInterrupts() as held:
                state, keep = (
                    read_state(progress / STATE_FILE, fingerprint),
                    self._make_keep(progress, fingerprint, held),
                )
                return self._train(examples, seeds, on_step, state, keep)
        except BaseException:
            if self.start == "last":
                self._copy_weights(before) if before else self.restore()
            raise

    @quiet_libraries()
    def save(self, folder: Path) -> None:
        """Save all weights in transformers' format, or the adapter in peft's."""
        self._trained.save_pretrained(folder)
        (self.processor or self.tokenizer).save_pretrained(folder)

    def load(self, folder: Path) -> None:
        weights: dict[str, torch.Tensor] = {}
        for file in sorted(folder.glob("*.safetensors")):
            try:
                weights |= load_file(file)
            except Exception as error:  # safetensors raises its own class for a damaged file.
                raise RunError(f"the run folder is damaged: {file}: {error}") from error
        if not weights:
            raise RunError(f"the run folder is damaged: the checkpoint {folder} has no weights")
        self.restore()  # The predictor is out of date as well.
        if self.supervision.method == "lora":
            self._adapt(Seeds(0))
        try:
            if self._adapted is not None:
                from peft import set_peft_model_state_dict

                unexpected = set_peft_model_state_dict(self._adapted, weights).unexpected_keys
            else:
                unexpected = self._load_whole(weights)
        except RuntimeError:  # The shapes differ.
            unexpected = list(weights)
        if unexpected:
            raise RunError(f"the checkpoint {folder} does not belong to the model {self.name}")

    def weights_sha256(self) -> str:
        digest = hashlib.sha256()
        for name, tensor in sorted(self._trainable_weights().items()):
            digest.update(name.encode())
            digest.update(tensor.contiguous().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    def _decode_row(self, encoded: Encoded) -> TrainingRow:
        if encoded.images:
            raise LessonError("the trainer llama-factory accepts text only, and an example has an image")
        rows = (encoded.prompt_ids, encoded.response_ids)
        return TrainingRow(*(self.tokenizer.decode(ids, clean_up_tokenization_spaces=False) for ids in rows))

    def _train_outside(
        self, trainer: LlamaFactory, examples: Sequence[Example], seeds: Seeds, on_step: OnStep, progress: Path | None
    ) -> list[tuple[int, float]]:
        """Train the adapter in a process of LLaMA-Factory, then load it."""
        assert self._make_rows is not None
        assert self._adapted is not None
        rows, values = self._make_rows(examples, seeds)
        supervision = self.supervision
        with TemporaryDirectory() as temporary:
            folder = (progress or Path(temporary)) / "llama_factory"
            base, last = Path(temporary) / "base", Path(temporary) / "last"
            targets = self._adapted.peft_config["default"].target_modules
            self._adapted.save_pretrained(last)
            self.restore()
            self._model.save_pretrained(base)
            self.tokenizer.save_pretrained(base)
            if self.start == "last":
                values["adapter_name_or_path"] = str(last)
            values |= {
                "num_train_epochs": supervision.epochs,
                "per_device_train_batch_size": supervision.batch_size,
                "learning_rate": supervision.learning_rate,
                "lora_rank": supervision.rank,
                "lora_alpha": supervision.alpha,
                "lora_target": ",".join(sorted(targets)),
                "warmup_ratio": supervision.warmup,
                "lr_scheduler_type": "linear",
                "cutoff_len": self._engine.context,
                "seed": seeds.derive("llama-factory").integer() % 2**31,
            }
            trained = last  # A training that fails leaves the student as it was.
            try:
                losses, trained = trainer.train(base, rows, folder, values, on_step)
            finally:
                self.load(trained)
        return losses

    @property
    def _trained(self) -> PreTrainedModel | PeftModel:
        return self._adapted if self._adapted is not None else self._model

    def _make_engine(self, model: PreTrainedModel | PeftModel) -> TransformersEngine:
        return TransformersEngine(model, self.tokenizer, self.name, self.batch_size, self.processor)

    def _adapt(self, seeds: Seeds) -> None:
        self._adapted = add_adapter(self._model, self.supervision, seeds)
        self._engine = self._make_engine(self._adapted)

    def _trainable_weights(self) -> dict[str, torch.Tensor]:
        """All weights, or those of the adapter."""
        full = self.supervision.method == "full"
        parameters = self._trained.named_parameters() if full or self._adapted is not None else ()
        return {name: p.detach().cpu().contiguous() for name, p in parameters if full or p.requires_grad}

    @torch.no_grad()
    def _copy_weights(self, weights: dict[str, torch.Tensor]) -> None:
        for name, parameter in self._trained.named_parameters():
            if name in weights:
                parameter.copy_(weights[name])

    @quiet_libraries()
    def _load_whole(self, weights: dict[str, torch.Tensor]) -> list[str]:
        """Load the weights of a checkpoint; returns the names that the model does not have."""
        unexpected = self._model.load_state_dict(weights, strict=False).unexpected_keys
        if unexpected:
            # Some architectures are saved under other names; transformers translates them.
            loaded, info = type(self._model).from_pretrained(
                None, config=self._model.config, state_dict=weights, dtype=self._model.dtype, output_loading_info=True
            )
            unexpected = sorted(info["unexpected_keys"] | info["missing_keys"])
            self._model.load_state_dict(loaded.state_dict())
        return list(unexpected)

    def _make_keep(self, folder: Path, fingerprint: str, held: HeldInterrupts) -> Keep:
        """A callback that saves the state every `keep_every` seconds, and before an interrupt ends the training."""
        last = time.monotonic()

        def keep(state: TrainingState) -> None:
            nonlocal last
            if held.pending or time.monotonic() - last >= self.keep_every:
                write_folder(folder, lambda target: write_state(target / STATE_FILE, state, fingerprint))
                last = time.monotonic()
            held.release()

        return keep


class SupervisedStudent(ModelStudent):
    """A student that learns by supervised fine-tuning."""

    rehearses = True

    def _train(
        self, examples: Sequence[Example], seeds: Seeds, on_step: OnStep, state: TrainingState | None, keep: Keep | None
    ) -> list[tuple[int, float]]:
        model, tokenizer, processor, supervision = self._trained, self.tokenizer, self.processor, self.supervision
        resume: Any = {"on_step": on_step, "state": state, "keep_state": keep}
        return fine_tune(model, tokenizer, examples, supervision, seeds, processor=processor, **resume)

    def _make_rows(self, examples: Sequence[Example], seeds: Seeds) -> tuple[list[TrainingRow], dict[str, object]]:
        limit = self._engine.context
        return [self._decode_row(encode(example, self.tokenizer, limit, self.processor)) for example in examples], {}
