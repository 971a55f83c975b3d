"""An untrained `nano-coder` of the smallest size, with a tokenizer that is trained on a part of its corpus."""

from functools import cache
from itertools import islice
from typing import Any

import torch

from palaestra.core.seeding import Seeds
from palaestra.models.embedded import EMBEDDED
from palaestra.models.registry import LoadedModel
from palaestra.rl.optimizers import fork_torch_rng
from palaestra.students.pretraining import build_model, build_tokenizer, list_texts, mix_corpora

ROW = EMBEDDED["nano-coder"]


@cache
def train_tokenizer() -> Any:
    examples = islice(mix_corpora(ROW.corpora, Seeds(0).generator()), 400)
    return build_tokenizer((text for example in examples for text, _ in list_texts(example)), ROW)


def make_small_coder() -> LoadedModel:
    with fork_torch_rng(Seeds(1)):
        weights = build_model(train_tokenizer(), "nano-coder", layers=1, width=32)
    return LoadedModel("small-coder", weights.to(torch.float32).eval(), train_tokenizer())
