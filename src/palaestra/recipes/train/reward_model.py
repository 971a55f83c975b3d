"""`train_reward`: train a reward model on comparisons and evaluate it on held-out comparisons.

The comparisons are split into three parts: for training, for early stopping, and held out for the evaluation before and
after training. No prompt is in two parts.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from palaestra.core.errors import RunError, SettingsError
from palaestra.core.process import HeldInterrupts
from palaestra.core.records import Event, Listener
from palaestra.core.seeding import Seeds
from palaestra.core.settings import check_ranges, setting
from palaestra.recipes.progress import RunProgress, announce_start, show_progress
from palaestra.recipes.runs import PERCENT, SHARED_KEYS, hash_models, to_percent
from palaestra.recipes.settings import require, resolve_settings, set_threads, to_plain
from palaestra.runs.files import write_folder, write_json
from palaestra.runs.provenance import PROVENANCE, extend_provenance, read_provenance
from palaestra.runs.run import check_folder, new_folder

if TYPE_CHECKING:
    from palaestra.rewards.data import ResponseComparison
    from palaestra.rewards.model import RewardModel, RewardTraining
    from palaestra.students.supervised import TrainingState

RECIPE = "reward"
MAX_SMALL_PARAMETERS = 20_000_000
"""Backbones with at most this many parameters have a higher default learning rate."""
_WITHOUT_EFFECT = ("reward_model_path", "resume_checkpoint", "threads", "checkpoint_seconds", "dry_run")
"""Settings that do not change the result."""


@dataclass(frozen=True)
class RewardSettings:
    """Settings of `train_reward`."""

    model_name: str = setting("nano", panel="Model")
    """The backbone: a registered name, a folder or a hub id."""
    datasets_path: str = setting("", panel="Task")
    """The comparisons: FILE, FOLDER or hf:NAME. In Python also rows or a dataset."""
    reward_model_path: str = setting("", panel="Run")
    """Folder for the reward model; by default a new one below runs/."""
    held_out_path: str = setting("", panel="Task")
    """Held-out comparisons; by default a fraction of the data."""
    test_size: float = setting(0.2, panel="Task")
    """Fraction of the comparisons that is held out."""
    validation_size: float = setting(0.1, panel="Task")
    """Fraction of the rest for early stopping; unused without patience."""
    batch_size: int = setting(32, low=1)
    """Comparisons in a batch."""
    epochs: int = setting(3, low=1)
    """Maximum passes over the comparisons."""
    warmup_steps: int = setting(500, low=0)
    """Warm-up steps; at most a tenth of all steps."""
    weight_decay: float = setting(0.01, low=0)
    """Weight decay of the matrices."""
    learning_rate: float = setting(0.0, low=0)
    """Peak learning rate; 0 means 5e-4 up to 20 M parameters and 1e-5 above."""
    centre: float = setting(0.0, low=0)
    """Weight of the squared sum of scores, which keeps scores near zero."""
    patience: int = setting(2, low=0)
    """Epochs without a better validation loss before training stops; 0 never stops."""
    max_length: int = setting(0, low=0)
    """Maximum tokens of prompt and response; 0 means the backbone's limit."""
    device: str = setting("", panel="Model")
    """Device, for example cuda; by default a GPU if there is one."""
    threads: int = setting(0, low=0, panel="Model")
    """CPU threads; 0 keeps torch's default."""
    checkpoint_seconds: float = setting(120.0, low=0, panel="Run")
    """Seconds between two saves of the training state."""
    seed: int = setting(42, low=0, panel="Run")
    """Seed of the split, the head and the training."""
    dry_run: bool = setting(False, panel="Run")
    """Train on two batches and save nothing."""
    resume_checkpoint: str = setting("", panel="Run")
    """Training to resume; by default the one of an interrupted call with the same settings."""

    def __post_init__(self) -> None:
        check_ranges(self)
        for name in ("test_size", "validation_size"):
            value = getattr(self, name)
            require(0 < value < 1, f"setting '{name}': expected a fraction between 0 and 1; got {value}")


def train_reward(
    model_name: str = "",
    datasets_path: Any = "",
    reward_model_path: str | Path = "",
    *,
    settings: RewardSettings | None = None,
    listener: Listener | None = None,
    progress: bool = True,
    **values: Any,
) -> RewardModel:
    """Train a reward model on comparisons, measure it, and save it as a transformers checkpoint.

    Arguments:
        model_name, datasets_path, reward_model_path: see `RewardSettings`; its other fields are keywords too. The data
            may also be rows or a `datasets.Dataset`.
        settings: all settings, instead of keywords.
        listener: receives the progress events, instead of the display on stderr.
        progress: whether to display the progress; `PALAESTRA_PROGRESS=0` also turns the display off.

    Returns:
        The model, with `folder` (where it was saved), `report` (on the held-out comparisons after training) and
        `metrics` (before and after, counts, curves and settings: the contents of `reward_metrics.json`).

    A killed training is resumed by the same call.

    Example:
        >>> from palaestra import train_reward                                            # doctest: +SKIP
        >>> model = train_reward("nano", "comparisons.jsonl", "models/reward_model")      # doctest: +SKIP
        >>> model.report.accuracy, model.score(["a moving film ."])                       # doctest: +SKIP
    """
    named = {"model_name": model_name, "datasets_path": datasets_path, "reward_model_path": reward_model_path}
    values = {name: value for name, value in named.items() if value != ""} | values
    # Accept paths and torch devices as well as their names. `None` means the default.
    values = {
        name: str(value) if isinstance(value, os.PathLike) or name == "device" else value
        for name, value in values.items()
        if value is not None
    }
    settings = resolve_settings(RewardSettings, settings, values)
    with show_progress(listener, progress, RunProgress) as listener:
        return _train(settings, listener)


def _train(settings: RewardSettings, listener: Listener) -> RewardModel:
    from palaestra.models import registry as models
    from palaestra.rewards.model import make_reward_model, train_reward_model
    from palaestra.students.supervised import STATE_FILE, read_state, write_state

    started = time.perf_counter()
    models.check(settings.model_name)
    models.check_device(settings.device)
    out = _folder(settings)
    set_threads(settings.threads)
    seeds = Seeds(settings.seed)
    listener(announce_start("train-reward", out or "none", model=settings.model_name, data=settings.datasets_path))
    listener(Event("read"))
    train, validation, held_out, identical = _split(settings, seeds)
    if out is not None:
        check_folder(out)
    listener(Event("load"))
    model = make_reward_model(settings.model_name, seeds, device=settings.device, max_length=settings.max_length)
    training = _training(settings, model)
    fingerprint = _fingerprint(settings, train, validation)
    progress = out.with_name(out.name + ".training") if out is not None else None
    earlier = _find_training(settings, progress)
    state = None if earlier is None else read_state(earlier / STATE_FILE, fingerprint)
    if state is None and settings.resume_checkpoint and not settings.dry_run:
        raise RunError(f"the training in {earlier} had other settings or other data; use the same ones to resume it")
    record = read_provenance(earlier) if earlier is not None and state is not None else None
    provenance = extend_provenance(record or None, hash_models(settings.model_name))

    listener(Event("evaluate before", 0, len(held_out)))
    before = model.evaluate(held_out)
    listener(Event("evaluate before", len(held_out), len(held_out), data={"accuracy": before.accuracy}))
    last = time.monotonic()
    epoch = 1 + (len(state.validation) if state is not None else 0)

    def on_step(step: int, total: int, loss: float) -> None:
        listener(Event("train", step, total, epoch, {"loss": loss, "examples": len(train)}))

    def on_epoch(number: int, report: Any) -> None:
        nonlocal epoch
        metrics = {"ranking_loss": report.ranking_loss, "accuracy": report.accuracy}
        listener(Event("validate", report.count, report.count, number, metrics))
        epoch = number + 1

    def write_progress(state: TrainingState) -> Callable[[Path], None]:
        def write(folder: Path) -> None:
            write_state(folder / STATE_FILE, state, fingerprint)
            write_json(folder / PROVENANCE, provenance)

        return write

    def write_model(folder: Path) -> None:
        model.save(folder)
        write_json(folder / PROVENANCE, provenance)

    def keep(state: TrainingState) -> None:
        nonlocal last
        if progress is not None and (held.pending or time.monotonic() - last >= settings.checkpoint_seconds):
            write_folder(progress, write_progress(state))
            last = time.monotonic()
        held.release()

    try:
        with HeldInterrupts() as held:
            history = train_reward_model(
                model,
                train,
                validation,
                training,
                seeds,
                on_step=on_step,
                on_epoch=on_epoch,
                state=state,
                keep_state=keep if progress is not None else None,
            )
    except KeyboardInterrupt as error:
        if out is not None:
            error.add_note(f"the same command, with --reward-model-path {out}")
        raise
    listener(Event("evaluate after", 0, len(held_out)))
    after = model.evaluate(held_out)
    listener(Event("evaluate after", len(held_out), len(held_out), data={"accuracy": after.accuracy}))
    model.report = after
    model.metrics = {
        "recipe": RECIPE,
        "settings": to_plain(settings) | {"learning_rate": training.learning_rate},
        "counts": {
            "train": len(train),
            "validation": len(validation),
            "held_out": len(held_out),
            "identical_left_out": identical,
        },
        **dict.fromkeys(SHARED_KEYS),
        "before": to_percent(before.accuracy),
        "after": to_percent(after.accuracy),
        "gain": to_percent(after.accuracy - before.accuracy),
        "unit": PERCENT,
        "report_before": asdict(before),
        "report_after": asdict(after),
        "steps": len(history.curve),
        "best_epoch": history.best_epoch,
        "stopped_early": history.stopped_early,
        "validation": history.validation,
        "curve": history.curve,
        "seconds": round(time.perf_counter() - started, 1),
    }
    if out is not None:
        write_folder(out, write_model)
        model.folder = out
        assert progress is not None
        shutil.rmtree(progress, ignore_errors=True)
    return model


def _folder(settings: RewardSettings) -> Path | None:
    """The folder for the model. Raises if it contains anything else."""
    from palaestra.rewards.model import METRICS

    if not settings.datasets_path:
        raise SettingsError("setting 'datasets_path': expected a file, a folder or a hub id; got none")
    if settings.dry_run:
        return None
    out = Path(settings.reward_model_path).expanduser() if settings.reward_model_path else new_folder(RECIPE)
    if out.exists() and not (out / METRICS).exists() and not (out.is_dir() and not any(out.iterdir())):
        raise RunError(f"{out} already exists and is not a reward model; choose another reward_model_path")
    return out


def _split(
    settings: RewardSettings, seeds: Seeds
) -> tuple[list[ResponseComparison], list[ResponseComparison], list[ResponseComparison], int]:
    """The comparisons for training, early stopping and evaluation, and the number of those with identical responses."""
    from palaestra.rewards.data import read_comparisons, split_comparisons

    def read(path: str) -> tuple[list[ResponseComparison], int]:
        comparisons = read_comparisons(path)
        decidable = [comparison for comparison in comparisons if comparison.decidable]
        if not decidable:
            raise SettingsError(
                f"{path}: expected two different responses per row; they are equal in all {len(comparisons)} rows"
            )
        return decidable, len(comparisons) - len(decidable)

    train, identical = read(settings.datasets_path)
    if settings.held_out_path:
        held_out, more = read(settings.held_out_path)
        identical += more
    else:
        train, held_out = split_comparisons(train, settings.test_size, seeds.derive("held-out"))
    validation: list[ResponseComparison] = []
    if settings.patience:
        train, validation = split_comparisons(train, settings.validation_size, seeds.derive("validation"))
    if settings.dry_run:
        few = 2 * settings.batch_size
        train, validation, held_out = train[:few], validation[:few], held_out[:few]
    return train, validation, held_out, identical


def _training(settings: RewardSettings, model: RewardModel) -> RewardTraining:
    from palaestra.rewards.model import RewardTraining

    small = sum(p.numel() for p in model.weights.parameters()) <= MAX_SMALL_PARAMETERS
    rate = settings.learning_rate or (5e-4 if small else 1e-5)
    names = ("batch_size", "warmup_steps", "weight_decay", "centre", "patience")
    same = {name: getattr(settings, name) for name in names}
    return RewardTraining(epochs=1 if settings.dry_run else settings.epochs, learning_rate=rate, **same)


def _find_training(settings: RewardSettings, progress: Path | None) -> Path | None:
    """The folder of the training to resume: `resume_checkpoint`, or that of an interrupted call with the same path."""
    from palaestra.students.supervised import STATE_FILE

    if settings.dry_run or not settings.resume_checkpoint:
        return progress
    requested = Path(settings.resume_checkpoint).expanduser()
    beside = requested.with_name(requested.name + ".training")
    for folder in (requested, beside):
        if (folder / STATE_FILE).exists():
            return folder
    raise RunError(f"expected a training to resume in {requested} or {beside}; found none")


def _fingerprint(settings: RewardSettings, *parts: Sequence[ResponseComparison]) -> str:
    import json

    plain = {name: value for name, value in to_plain(settings).items() if name not in _WITHOUT_EFFECT}
    digest = hashlib.sha256(json.dumps(plain, sort_keys=True).encode())
    for part in parts:
        for comparison in part:
            digest.update(repr((comparison.prompt, comparison.responses, comparison.best)).encode())
        digest.update(b"/")
    return digest.hexdigest()
