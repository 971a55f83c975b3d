"""`palaestra pretrain`: train `nano` from scratch, measure it, and write its model card."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from palaestra.core.errors import RunError
from palaestra.core.events import Event, Listener, ignore
from palaestra.core.records import Report, Split
from palaestra.core.seeding import Seeds
from palaestra.core.statistics import report_on
from palaestra.recipes.settings import at_least, given, require, setting
from palaestra.runs.files import PARTIAL, write_folder
from palaestra.runs.guard import guarded

TOKENIZER_EXAMPLES = 20_000
TOKENIZER_EXAMPLES_A_SKILL = 400


@dataclass(frozen=True)
class PretrainSettings:
    """How `nano` is made. The defaults made the one that is shipped."""

    steps: int = setting(3200, "Batches to train on.")
    batch_size: int = setting(64, "Examples in a batch.")
    matrix_rate: float = setting(0.0015, "Learning rate of the weight matrices (Muon).")
    vector_rate: float = setting(0.0015, "Learning rate of embedding and norms (AdamW).")
    layers: int = setting(4, "Layers of the model.")
    width: int = setting(192, "Width of the model; a multiple of 32.")
    problems: int = setting(50, "Test problems a skill for the model card.")
    seed: int = setting(0, "Seed of weights and data.")
    device: str = setting("", "Where to train, for example cuda; empty means a GPU where there is one.")
    out: str = setting("nano", "Folder for the checkpoint; must not exist yet.")

    def __post_init__(self) -> None:
        at_least(self, 1, "steps", "batch_size", "layers", "width", "problems")
        at_least(self, 0, "matrix_rate", "vector_rate", "seed")
        require(self.width % 32 == 0, f"setting 'width': expected a multiple of 32; got {self.width}")


def pretrain(settings: PretrainSettings | None = None, *, listener: Listener = ignore, **values: Any) -> Report:
    """Train, measure and save `nano`; returns its accuracy on the test split, by skill.

    It writes a checkpoint and not a run: there is nothing to resume.
    """
    settings = given(PretrainSettings, settings, values)
    import torch

    from palaestra.engines.transformers import TransformersEngine
    from palaestra.learn.nano import build_model, build_tokenizer
    from palaestra.learn.pretrain import pretrain_model
    from palaestra.learn.randomness import seeded_torch
    from palaestra.tasks.evaluate import evaluate
    from palaestra.tasks.math.corpus import corpus
    from palaestra.tasks.math.task import MathSkills

    out = Path(settings.out)
    if out.exists():
        raise RunError(f"{out} exists already; choose another --out")
    with guarded(out, "making the folder of the checkpoint"):  # Before the work, not after it.
        out.with_name(out.name + PARTIAL).mkdir(parents=True, exist_ok=True)
    seeds, task = Seeds(settings.seed), MathSkills()
    device = settings.device or ("cuda" if torch.cuda.is_available() else "cpu")

    # The tokenizer also reads the wordings that the model will hardly see, so that they are words.
    generator = seeds.derive("tokenizer").generator()
    texts = list(islice(corpus(generator), TOKENIZER_EXAMPLES))
    for skill in task.skills():
        texts += task.write_examples(skill, "", TOKENIZER_EXAMPLES_A_SKILL, generator)
    tokenizer = build_tokenizer(texts)
    with seeded_torch(seeds.derive("weights")):
        model = build_model(tokenizer, settings.layers, settings.width)
    model.to(device)

    def on_step(step: int, loss: float) -> None:
        listener(Event("pretrain", step, settings.steps, figures={"loss": loss} if loss == loss else {}))

    start = time.perf_counter()
    pretrain_model(
        model, tokenizer, corpus(seeds.derive("corpus").generator()), steps=settings.steps,
        batch_size=settings.batch_size, matrix_rate=settings.matrix_rate, vector_rate=settings.vector_rate, on_step=on_step,
    )  # fmt: skip
    seconds = time.perf_counter() - start

    # What is measured is what is shipped: the weights after rounding, computed in float32.
    model.to(torch.bfloat16).to(torch.float32)
    engine = TransformersEngine(model, tokenizer, "nano")
    problems = task.problems(Split.TEST, settings.problems, settings.seed)
    report = report_on(evaluate(task, problems, lambda: engine, seed=settings.seed, listener=listener))

    def write(folder: Path) -> None:
        model.to(torch.bfloat16).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        (folder / "README.md").write_text(model_card(settings, report, _parameters(model), seconds, device))

    write_folder(out, write)
    return report


def _parameters(model: Any) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def model_card(settings: PretrainSettings, report: Report, parameters: int, seconds: float, device: str) -> str:
    """The model card: what it was trained on, and its accuracy by skill."""
    from palaestra.tasks.math.corpus import TRACE

    def row(part: Report, indent: str = "") -> str:
        assert part.accuracy is not None
        trace = f"{TRACE[part.name]} %" if part.name in TRACE else "in full"
        return f"| {indent}{part.name} | {100 * part.accuracy:.0f} % | {100 * part.low:.0f} to {100 * part.high:.0f} % | {part.count} | {trace} |"

    rows: Sequence[str] = [row(part) for part in sorted(report.slices, key=lambda part: -(part.accuracy or 0))]
    assert report.accuracy is not None
    return f"""---
license: mit
language: en
library_name: transformers
pipeline_tag: text-generation
---
# nano

A language model of {parameters / 1e6:.1f} million parameters (Llama architecture, {settings.layers} layers of width
{settings.width}, a vocabulary of whole words and single digits, a context of 256 tokens) that solves small problems
of mathematics in worked steps. It is the embedded student of Palaestra: it does the plain operations, and fails the
other skills in a way that a few hundred good examples can mend.

## Training
`palaestra pretrain --seed {settings.seed}`: {settings.steps} batches of {settings.batch_size} examples, {seconds:.0f} seconds of training on
`{device}`. All text is procedural, written by `palaestra.tasks.math.corpus`: 35 % plain operations (the skills marked
"in full"), 25 % the same operations in several dozen other wordings, 20 % small notions (parts of a whole, places in a list,
hours and minutes), 20 % chains of two and three operations, and of the other skills only the trace that the table
shows. Of every skill only problems of the train split were used; drills, notions and chains are no problems of the task,
though a drill may hold the same two factors as a problem of long_multiplication by 11 or 12.

## Accuracy
On {report.count} problems of the test split, greedy decoding, with 95 % intervals (Wilson). In all:
{100 * report.accuracy:.1f} %.

| skill | accuracy | interval | problems | share of the corpus |
|---|---|---|---|---|
{chr(10).join(rows)}

## Limits
It knows English only as far as these problems need it, no world, and no number far above a thousand. It is for
research on learning, not for use.
"""
