"""`palaestra pretrain`: train `nano` or `nano-vlm` from scratch, evaluate it, and write its model card."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from palaestra.core.errors import RunError
from palaestra.core.prompts import Prompts
from palaestra.core.records import Event, Listener, Report, Split, Values
from palaestra.core.seeding import Seeds
from palaestra.core.settings import check_ranges, setting
from palaestra.core.statistics import report_on
from palaestra.recipes.progress import RunProgress, announce_start, show_progress
from palaestra.recipes.runs import PERCENT, SHARED_KEYS, to_percent
from palaestra.recipes.settings import require, resolve_settings
from palaestra.runs.files import PARTIAL, storage_errors, write_folder, write_json
from palaestra.runs.provenance import record_provenance

if TYPE_CHECKING:
    from palaestra.tasks.base import Task

TOKENIZER_EXAMPLES = 20_000
TOKENIZER_EXAMPLES_PER_SKILL = 400

DEFAULTS: Mapping[str, Values] = {
    "nano": {"steps": 3200, "batch_size": 64},
    "nano-vlm": {"steps": 4000, "batch_size": 256},
}
"""The settings with which the embedded models were trained; the other defaults are the same for both."""


@dataclass(frozen=True)
class PretrainSettings:
    """Settings of `pretrain`. The defaults are those of the embedded models."""

    model: Literal["nano", "nano-vlm"] = setting(
        "nano", "What to train: a language model or a vision-language model.", panel="Model"
    )
    steps: int | None = setting(None, "Batches to train on; by default 3200 for nano and 4000 for nano-vlm.", low=1)
    batch_size: int | None = setting(None, "Examples in a batch; by default 64 for nano and 256 for nano-vlm.", low=1)
    matrix_learning_rate: float = setting(0.0015, "Learning rate of the weight matrices (Muon).", low=0)
    vector_learning_rate: float = setting(0.0015, "Learning rate of embeddings and norms (AdamW).", low=0)
    layers: int = setting(
        4, "Layers of the model; for nano-vlm, of the vision encoder and of the language model.", low=1, panel="Model"
    )
    width: int = setting(192, "Width of the model; a multiple of 32.", low=1, panel="Model")
    problems: int = setting(50, "Test problems per skill for the model card.", low=1, panel="Task")
    seed: int = setting(0, "Seed of weights and data.", low=0, panel="Run")
    device: str = setting("", "Device, for example cuda; by default a GPU if there is one.", panel="Model")
    workers: int = setting(
        0, "Processes that render images for nano-vlm; 0 renders in this process.", low=0, panel="Run"
    )
    out: str = setting("nano", "Folder for the checkpoint; must not exist yet.", panel="Run")

    def __post_init__(self) -> None:
        check_ranges(self)
        require(self.width % 32 == 0, f"setting 'width': expected a multiple of 32; got {self.width}")

    def with_defaults(self) -> PretrainSettings:
        """These settings with the defaults of the model filled in."""
        return replace(self, **{name: v for name, v in DEFAULTS[self.model].items() if getattr(self, name) is None})


@dataclass(frozen=True, slots=True)
class Pretrained:
    """A trained model with its tokenizer and its task."""

    weights: Any
    tokenizer: Any
    processor: Any
    task: Task
    trace: Mapping[str, float]
    seconds: float


OnStep = Callable[[int, float], None]


def pretrain(
    settings: PretrainSettings | None = None,
    *,
    listener: Listener | None = None,
    progress: bool = True,
    **values: Any,
) -> Report:
    """Train, evaluate and save an embedded model. Returns its accuracy on the test split, by skill.

    The result is a checkpoint folder, not a run. It cannot be resumed.

    Arguments:
        settings: all settings, or pass single ones as keywords.
        listener: receives the progress events, instead of the display on stderr.
        progress: whether to display the progress; `PALAESTRA_PROGRESS=0` also turns the display off.
    """
    settings = resolve_settings(PretrainSettings, settings, values).with_defaults()
    with show_progress(listener, progress, RunProgress) as listener:
        return _pretrain(settings, listener)


def _pretrain(settings: PretrainSettings, listener: Listener) -> Report:
    import torch

    from palaestra.engines.transformers import TransformersEngine
    from palaestra.tasks.evaluate import evaluate

    out = Path(settings.out)
    if out.exists():
        raise RunError(f"{out} already exists; choose another --out")
    with storage_errors(out, "creating the checkpoint folder"):  # Fail before the training, not after it.
        out.with_name(out.name + PARTIAL).mkdir(parents=True, exist_ok=True)
    device = settings.device or ("cuda" if torch.cuda.is_available() else "cpu")
    listener(announce_start("pretrain", out, model=settings.model, steps=str(settings.steps), device=device))
    listener(Event("tokenizer"))

    steps, batch_size = settings.steps, settings.batch_size
    assert steps is not None and batch_size is not None  # noqa: PT018

    def on_step(step: int, loss: float) -> None:
        listener(Event("pretrain", step, steps, data={"loss": loss} if loss == loss else {}))

    train = {"nano": _train_nano, "nano-vlm": _train_nano_vlm}[settings.model]
    trained = train(settings, steps, batch_size, Seeds(settings.seed), device, on_step)
    model = trained.weights

    # Evaluate the weights that are saved: rounded to bfloat16, computed in float32.
    model.to(torch.bfloat16).to(torch.float32)
    engine = TransformersEngine(model, trained.tokenizer, settings.model, processor=trained.processor)
    problems = trained.task.problems(Split.TEST, settings.problems, settings.seed)
    report = report_on(evaluate(trained.task, problems, lambda: engine, seed=settings.seed, listener=listener))

    def write(folder: Path) -> None:
        model.to(torch.bfloat16).save_pretrained(folder)
        (trained.processor or trained.tokenizer).save_pretrained(folder)
        (folder / "README.md").write_text(model_card(settings, trained, report, model.num_parameters(), device))
        record_provenance(folder, {})
        after = to_percent(report.accuracy)
        summary = {"recipe": "pretrain", **dict.fromkeys(SHARED_KEYS), "after": after, "unit": PERCENT}
        write_json(folder / "summary.json", {**summary, "problems": report.count, "seconds": round(trained.seconds, 1)})

    write_folder(out, write)
    return report


def _train_nano(
    settings: PretrainSettings, steps: int, batch_size: int, seeds: Seeds, device: str, on_step: OnStep
) -> Pretrained:
    from palaestra.rl.optimizers import fork_torch_rng
    from palaestra.students.batches import ResponseLogProbs
    from palaestra.students.pretraining import build_model, build_tokenizer, pretrain_model, text_batches
    from palaestra.tasks.math.corpus import TRACE, corpus
    from palaestra.tasks.math.task import MathSkills

    # The tokenizer also sees skills that are rare in the corpus, so that their words become tokens.
    task, generator = MathSkills(), seeds.derive("tokenizer").generator()
    texts = list(islice(corpus(generator), TOKENIZER_EXAMPLES))
    for skill in task.skills():
        texts += task.write_examples(skill, "", TOKENIZER_EXAMPLES_PER_SKILL, generator)
    tokenizer = build_tokenizer(texts)
    with fork_torch_rng(seeds.derive("weights")):
        model = build_model(tokenizer, settings.layers, settings.width)
    model.to(device)
    start = time.perf_counter()
    examples = corpus(seeds.derive("corpus").generator())
    batches = text_batches(examples, tokenizer, batch_size, model.config.max_position_embeddings)
    pretrain_model(
        model,
        batches,
        ResponseLogProbs(model, int(tokenizer.pad_token_id)).compute_loss,
        steps=steps,
        matrix_learning_rate=settings.matrix_learning_rate,
        vector_learning_rate=settings.vector_learning_rate,
        on_step=on_step,
    )
    return Pretrained(model, tokenizer, None, task, TRACE, time.perf_counter() - start)


def _train_nano_vlm(
    settings: PretrainSettings, steps: int, batch_size: int, seeds: Seeds, device: str, on_step: OnStep
) -> Pretrained:
    import torch

    from palaestra.rl.optimizers import fork_torch_rng
    from palaestra.students.pretraining import (
        build_processor,
        build_vlm,
        build_vlm_tokenizer,
        picture_batches,
        picture_loss,
        pretrain_model,
    )
    from palaestra.tasks.vision.corpus import TAUGHT, TRACE, corpus, of_skill
    from palaestra.tasks.vision.task import VisionSkills

    generator = seeds.derive("tokenizer").generator()
    texts = list(islice(corpus(generator), TOKENIZER_EXAMPLES))
    for skill in TAUGHT:
        texts += [of_skill(generator, skill) for _ in range(TOKENIZER_EXAMPLES_PER_SKILL)]
    tokenizer = build_vlm_tokenizer(texts)
    with fork_torch_rng(seeds.derive("weights")):
        model = build_vlm(tokenizer, settings.layers, settings.width)
    model.to(device)
    start = time.perf_counter()
    batches = picture_batches(tokenizer, batch_size, seeds, torch.device(device), settings.workers)
    pretrain_model(
        model,
        batches,
        partial(picture_loss, model, half=device != "cpu"),
        steps=steps,
        matrix_learning_rate=settings.matrix_learning_rate,
        vector_learning_rate=settings.vector_learning_rate,
        on_step=on_step,
    )
    seconds = time.perf_counter() - start
    return Pretrained(model, tokenizer, build_processor(tokenizer), VisionSkills(), TRACE, seconds)


def model_card(settings: PretrainSettings, trained: Pretrained, report: Report, parameters: int, device: str) -> str:
    """The model card: training data, settings, and accuracy by skill."""
    slices = sorted(report.slices, key=lambda part: -(part.accuracy or 0))
    card = Prompts(Path(__file__).parent).render(
        "model_card",
        **asdict(settings) | {"device": device},
        parameters=parameters,
        seconds=trained.seconds,
        report=report,
        slices=slices,
        trace=trained.trace,
    )
    return f"{card}\n"
