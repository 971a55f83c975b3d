"""A short float32 copy of a model, on which two ways to compute it can be compared.

In 16-bit dtypes rounding grows from layer to layer: with the real weights of SmolLM2 the logits of two correct
implementations differ by a quarter of their range after some tokens. The first blocks in float32 show whether both compute
the same.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from palaestra.engines.adapters import unwrap_adapter

BLOCKS = 2
"""Number of blocks of the copy."""


def make_short_copy(model: Any) -> Any:
    """Copy the first blocks of a model of the Llama or GPT-2 architecture, in float32 and in evaluation mode.

    Arguments:
        model: a causal language model of transformers, its body, or peft's wrapper of either.
    """
    body = unwrap_adapter(model).base_model
    name = "layers" if hasattr(body, "layers") else "h"
    blocks = getattr(body, name)
    setattr(body, name, nn.ModuleList(blocks[:BLOCKS]))
    try:
        with torch.no_grad():
            short = copy.deepcopy(model).float().eval()
    finally:
        setattr(body, name, blocks)
    config = short.config
    config.num_hidden_layers = min(BLOCKS, len(blocks))
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:BLOCKS]
    return short
