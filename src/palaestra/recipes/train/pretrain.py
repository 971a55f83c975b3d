"""`palaestra pretrain`: train an embedded model from scratch, evaluate it, and write its model card."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from palaestra.core.errors import RunError
from palaestra.core.prompts import Prompts
from palaestra.core.records import Attempt, Event, Json, Listener, Problem, Report, Split
from palaestra.core.seeding import Seeds
from palaestra.core.settings import check_ranges, setting
from palaestra.core.statistics import report_on
from palaestra.envs.base import draw_up_to
from palaestra.models.embedded import EMBEDDED
from palaestra.recipes.progress import RunProgress, announce_start, show_progress
from palaestra.recipes.runs import PERCENT, SHARED_KEYS, to_percent
from palaestra.recipes.settings import require, resolve_settings
from palaestra.runs.files import PARTIAL, storage_errors, write_folder, write_json
from palaestra.runs.provenance import record_provenance
from palaestra.tasks.base import Task, get_hooks, make_task

TOKENIZER_EXAMPLES = 20_000
TOKENIZER_EXAMPLES_PER_SKILL = 400
_LAST_LOSSES = 10
"""Number of reported losses whose mean is the loss of the model card."""


@dataclass(frozen=True)
class PretrainSettings:
    """Settings of `pretrain`. The defaults are those of the embedded models."""

    model: Literal["nano", "nano-vlm", "nano-coder"] = setting("nano", panel="Model")
    """What to train: a model for mathematics, for pictures, or for code and tools."""
    steps: int | None = setting(None, low=1)
    """Batches to train on; by default 3200 for nano, 4000 for nano-vlm and 16800 for nano-coder."""
    batch_size: int | None = setting(None, low=1)
    """Examples in a batch; by default 64 for nano and 256 for nano-vlm. For nano-coder tokens, 65536."""
    matrix_learning_rate: float = setting(0.0015, low=0)
    """Learning rate of the weight matrices (Muon)."""
    vector_learning_rate: float = setting(0.0015, low=0)
    """Learning rate of embeddings and norms (AdamW)."""
    layers: int | None = setting(None, low=1, panel="Model")
    """Layers of the model, by default 4, and 6 for nano-coder; for nano-vlm, of the vision encoder and of the language
    model."""
    width: int | None = setting(None, low=1, panel="Model")
    """Width of the model, a multiple of 32; by default 192."""
    problems: int = setting(50, low=1, panel="Task")
    """Maximum test problems per skill for the model card."""
    seed: int = setting(0, low=0, panel="Run")
    """Seed of weights and data."""
    device: str = setting("", panel="Model")
    """Device, for example cuda; by default a GPU if there is one."""
    workers: int = setting(0, low=0, panel="Run")
    """Processes that generate the data of nano-vlm and nano-coder; 0: this process does."""
    compile: bool = setting(False, panel="Model")
    """Compile nano-coder with torch.compile."""
    out: str = setting("nano", panel="Run")
    """Folder for the checkpoint; must not exist yet."""

    def __post_init__(self) -> None:
        check_ranges(self)
        require((self.width or 0) % 32 == 0, f"setting 'width': expected a multiple of 32; got {self.width}")

    def with_defaults(self) -> PretrainSettings:
        """These settings with the defaults of the model filled in."""
        row, names = EMBEDDED[self.model], ("steps", "batch_size", "layers", "width")
        return replace(self, **{name: getattr(row, name) for name in names if getattr(self, name) is None})

    @property
    def sizes(self) -> Json:
        """The sizes of the model."""
        return {"layers": self.layers, "width": self.width}


@dataclass(frozen=True, slots=True)
class Pretrained:
    """A trained model with its tokenizer.

    Arguments:
        trace: percentage of the corpus for each skill that is rare in it.
    """

    weights: Any
    tokenizer: Any
    processor: Any
    trace: Mapping[str, float]
    seconds: float


OnStep = Callable[[int, float], None]


def pretrain(
    settings: PretrainSettings | None = None, *, listener: Listener | None = None, progress: bool = True, **values: Any
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
    from palaestra.rl.optimizers import fork_torch_rng
    from palaestra.tasks.evaluate import evaluate

    out = Path(settings.out)
    if out.exists():
        raise RunError(f"{out} already exists; choose another --out")
    with storage_errors(out, "creating the checkpoint folder"):  # Fail before the training, not after it.
        out.with_name(out.name + PARTIAL).mkdir(parents=True, exist_ok=True)
    device = settings.device or ("cuda" if torch.cuda.is_available() else "cpu")
    listener(announce_start("pretrain", out, model=settings.model, steps=str(settings.steps), device=device))
    listener(Event("tokenizer"))
    tests = draw_tests(settings)  # Before the training, because a task may have too few problems.

    losses: list[float] = []

    def on_step(step: int, loss: float) -> None:
        losses.extend([loss] if loss == loss else [])
        listener(Event("pretrain", step, settings.steps or 0, data={"loss": loss} if loss == loss else {}))

    train = {"nano": _train_nano, "nano-vlm": _train_nano_vlm, "nano-coder": _train_nano_coder}[settings.model]
    seeds = Seeds(settings.seed)
    with fork_torch_rng(seeds.derive("weights")):
        trained = train(settings, seeds, device, on_step)
    model = trained.weights

    # Evaluate the weights that are saved: rounded to bfloat16, computed in float32.
    model.to(torch.bfloat16).to(torch.float32)
    engine = TransformersEngine(model, trained.tokenizer, settings.model, processor=trained.processor)
    attempts: list[Attempt] = []
    for task, problems in tests:
        attempts += evaluate(task, problems, lambda: engine, seed=settings.seed, listener=listener)
        get_hooks(task).close()
    report, loss = report_on(attempts), sum(losses[-_LAST_LOSSES:]) / len(losses[-_LAST_LOSSES:])

    def write(folder: Path) -> None:
        model.to(torch.bfloat16).save_pretrained(folder)
        (trained.processor or trained.tokenizer).save_pretrained(folder)
        (folder / "README.md").write_text(model_card(settings, trained, report, loss, device))
        record_provenance(folder, {})
        after = to_percent(report.accuracy)
        summary = {"recipe": "pretrain", **dict.fromkeys(SHARED_KEYS), "after": after, "unit": PERCENT}
        write_json(
            folder / "summary.json",
            {**summary, "problems": report.count, "seconds": round(trained.seconds, 1), "loss": loss},
        )

    write_folder(out, write)
    return report


def draw_tests(settings: PretrainSettings) -> list[tuple[Task, list[Problem]]]:
    """The tasks of a model's card with the test problems of each skill, as many as it has."""
    tasks = map(make_task, EMBEDDED[settings.model].tasks)
    return [(task, draw_up_to(settings.problems, task, Split.TEST, settings.seed)) for task in tasks]


def _train_nano(settings: PretrainSettings, seeds: Seeds, device: str, on_step: OnStep) -> Pretrained:
    from palaestra.students import pretraining
    from palaestra.students.batches import ResponseLogProbs
    from palaestra.tasks.math.corpus import TRACE, corpus
    from palaestra.tasks.math.task import MathSkills

    # The tokenizer also sees skills that are rare in the corpus, so that their words become tokens.
    task, generator = MathSkills(), seeds.derive("tokenizer").generator()
    texts = list(islice(corpus(generator), TOKENIZER_EXAMPLES))
    for skill in task.skills():
        texts += task.write_examples(skill, "", TOKENIZER_EXAMPLES_PER_SKILL, generator)
    tokenizer = pretraining.build_tokenizer(text for e in texts for text in (e.messages[-1].text, e.response))
    model = pretraining.build_model(tokenizer, **settings.sizes).to(device)
    examples, context = corpus(seeds.derive("corpus").generator()), model.config.max_position_embeddings
    batches = pretraining.text_batches(examples, tokenizer, settings.batch_size or 0, context)
    loss = ResponseLogProbs(model, int(tokenizer.pad_token_id)).compute_loss
    return Pretrained(model, tokenizer, None, TRACE, _train(settings, model, batches, loss, on_step))


def _train_nano_vlm(settings: PretrainSettings, seeds: Seeds, device: str, on_step: OnStep) -> Pretrained:
    from palaestra.students import pretraining
    from palaestra.tasks.vision.corpus import TRACE, corpus, of_skill
    from palaestra.tasks.vision.drafts import TAUGHT

    generator = seeds.derive("tokenizer").generator()
    texts = list(islice(corpus(generator), TOKENIZER_EXAMPLES))
    for skill in TAUGHT:
        texts += [of_skill(generator, skill) for _ in range(TOKENIZER_EXAMPLES_PER_SKILL)]
    tokenizer = pretraining.build_vlm_tokenizer(texts)
    model = pretraining.build_vlm(tokenizer, **settings.sizes).to(device)
    draw = partial(pretraining.draw_pictures, tokenizer, settings.batch_size or 0)
    batches = pretraining.load_batches(draw, seeds, model.device, settings.workers)
    loss = partial(pretraining.compute_padded_loss, model, half=device != "cpu")
    seconds = _train(settings, model, batches, loss, on_step)
    return Pretrained(model, tokenizer, pretraining.build_processor(tokenizer), TRACE, seconds)


def _train_nano_coder(settings: PretrainSettings, seeds: Seeds, device: str, on_step: OnStep) -> Pretrained:
    from palaestra.students import pretraining
    from palaestra.tasks.code import corpus as code
    from palaestra.tasks.code.task import CodeSkills
    from palaestra.tasks.tools import corpus as tools
    from palaestra.tasks.tools.task import ToolsSkills

    row, generator = EMBEDDED["nano-coder"], seeds.derive("tokenizer").generator()
    examples = list(islice(pretraining.mix_corpora(row.corpora, generator), TOKENIZER_EXAMPLES))
    for task in (CodeSkills(), ToolsSkills()):
        for skill in task.skills():
            examples += task.write_examples(skill, "", TOKENIZER_EXAMPLES_PER_SKILL, generator)
    texts = (text for example in examples for text, _ in pretraining.list_texts(example))
    tokenizer = pretraining.build_tokenizer(texts, row)
    model = pretraining.build_model(tokenizer, row.name, **settings.sizes).to(device)
    draw = partial(
        pretraining.draw_conversations, row.corpora, tokenizer, settings.batch_size or row.batch_size, row.context
    )
    batches = pretraining.load_batches(draw, seeds, model.device, settings.workers)
    if settings.compile:
        model.model.compile(dynamic=True)
    loss = partial(pretraining.compute_padded_loss, model, half=device != "cpu")
    seconds = _train(settings, model, batches, loss, on_step)
    return Pretrained(model, tokenizer, None, {**code.TRACE, **tools.TRACE}, seconds)


def _train(settings: PretrainSettings, model: Any, batches: Any, loss: Callable[[Any], Any], on_step: OnStep) -> float:
    """Train a model on the batches. Returns the seconds that it took."""
    from palaestra.students.pretraining import pretrain_model

    start = time.perf_counter()
    pretrain_model(
        model,
        batches,
        loss,
        steps=settings.steps or 0,
        matrix_learning_rate=settings.matrix_learning_rate,
        vector_learning_rate=settings.vector_learning_rate,
        on_step=on_step,
    )
    return time.perf_counter() - start


def model_card(settings: PretrainSettings, trained: Pretrained, report: Report, loss: float, device: str) -> str:
    """The model card: training data, settings, and accuracy by skill."""
    slices = sorted(report.slices, key=lambda part: -(part.accuracy or 0))
    card = Prompts(Path(__file__).parent).render(
        "model_card",
        **asdict(settings) | {"device": device},
        parameters=trained.weights.num_parameters(),
        vocabulary=len(trained.tokenizer),
        context=EMBEDDED[settings.model].context,
        corpora=EMBEDDED[settings.model].corpora,
        seconds=trained.seconds,
        loss=loss,
        report=report,
        slices=slices,
        trace=trained.trace,
    )
    return f"{card}\n"
