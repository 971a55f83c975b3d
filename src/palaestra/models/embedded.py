"""The embedded models: one row per model, with its architecture, its pretraining and its folder of weights.

A model whose folder is in the package is registered under its name. A new row is trained with
`palaestra pretrain --model NAME`, and its checkpoint is copied to `assets/`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

ASSETS = Path(str(files("palaestra"))) / "assets"


@dataclass(frozen=True, slots=True)
class EmbeddedModel:
    """An embedded model.

    Arguments:
        description: what it is, for lists.
        corpora: the fraction of each pretraining corpus, by the reference `module:function`.
        tasks: the tasks of its model card.
        key_value_heads: heads of keys and values; 0 for one per query head.
        vocabulary: maximum number of tokens.
        steps, batch_size: batches of its pretraining, and the examples in each; for `nano-coder`, the tokens.
    """

    name: str
    description: str
    corpora: Mapping[str, float]
    tasks: tuple[str, ...]
    layers: int = 4
    width: int = 192
    key_value_heads: int = 0
    vocabulary: int = 1024
    context: int = 256
    steps: int = 3200
    batch_size: int = 64

    @property
    def folder(self) -> Path:
        return ASSETS / self.name.replace("-", "_")

    @property
    def is_shipped(self) -> bool:
        """Whether its weights are in the package."""
        return (self.folder / "config.json").is_file()


_ROWS = (
    EmbeddedModel(
        "nano", "2.0 M parameters, trained by `palaestra pretrain` on procedural mathematics; included in the package",
        {"palaestra.tasks.math.corpus:corpus": 1.0}, ("math-skills",),
    ),
    EmbeddedModel(
        "nano-vlm", "reads images; trained by `palaestra pretrain --model nano-vlm` on pictures; included in the package",
        {"palaestra.tasks.vision.corpus:corpus": 1.0}, ("vision-skills",), steps=4000, batch_size=256,
    ),
    EmbeddedModel(
        "nano-coder", "writes small programs and calls tools; trained by `palaestra pretrain --model nano-coder`; included in the package",
        {"palaestra.tasks.code.corpus:corpus": 0.55, "palaestra.tasks.tools.corpus:corpus": 0.34,
         "palaestra.research.workspace.corpus:corpus": 0.03, "palaestra.tasks.math.corpus:corpus": 0.08},
        ("code-skills", "tools-skills"), layers=6, key_value_heads=4, vocabulary=3072, context=4096,
        steps=16_800, batch_size=65_536,
    ),
)  # fmt: skip
EMBEDDED: Mapping[str, EmbeddedModel] = {row.name: row for row in _ROWS}
