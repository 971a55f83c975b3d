"""The embedded models: one row per model, with its architecture, its pretraining and its folder of weights.

A model whose folder is in the package is registered under its name. A new row of `embedded.yaml` is trained with
`palaestra pretrain --model NAME`, and its checkpoint is copied to `assets/`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from palaestra.core.tables import load_table

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
    tasks: Sequence[str]
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


EMBEDDED: Mapping[str, EmbeddedModel] = {
    name: EmbeddedModel(name, **row) for name, row in load_table(__file__, "embedded").items()
}
