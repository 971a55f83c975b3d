"""Decide from a model's configuration how to decode with it. Nothing is loaded.

Families in `SLOTS` share one key-value cache between sequences of different lengths (`slots.SlotStepper`). Families
in `PADDED` support batches that are padded on the left. Each is tested against the model's own forward pass. Any other
family decodes one sequence at a time, without padding (`sequences.SequenceStepper`).

The fast paths implement the families of `kernels.decoder`. Every other model uses its own forward pass in transformers. On
first use a fast path is compared with the model's own forward pass and dropped if they differ. The environment
variable `PALAESTRA_FAST_PATHS=0` turns all of them off.
"""

from __future__ import annotations

import copy
import inspect
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from palaestra.core.errors import ModelError
from palaestra.core.records import Values

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

_BLOCKS = 2
"""Number of blocks of a short copy."""
ATOL = RTOL = 1e-3
"""Maximum difference between a fast path and the model's own forward pass."""
SLOTS = frozenset(
    {
        "codegen", "cohere", "cohere2", "deepseek_v3", "falcon", "gemma", "gemma2", "gemma3_text", "glm4", "gpt2",
        "gpt_bigcode", "gpt_neox", "gpt_oss", "gptj", "granite", "llama", "mistral", "mixtral", "nemotron", "olmo",
        "olmo2", "olmo3", "opt", "phi", "phi3", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "smollm3", "stablelm",
        "starcoder2",
    }
)  # fmt: skip
"""Model types that respect given position ids and four-dimensional attention masks."""
PADDED = SLOTS | {"bloom", "gpt_neo", "llama4_text", "mpt"}
"""Model types that compute the same logits with padding on the left, with and without a cache."""


def check_causal(config: PretrainedConfig, name: str = "", *, trainable: bool = False) -> None:
    """Raise a `ModelError` if the model is not a decoder-only causal language model, or cannot be trained (`trainable`)."""
    kind = str(config.model_type)
    label = f"the model '{name}'" if name else "the model"
    if getattr(config, "is_encoder_decoder", False):
        raise ModelError(f"{label} ({kind}) is an encoder-decoder; expected a decoder-only causal language model")
    # GPT-NeoX has the option and ignores it. XLM has another one, and XLNet predicts tokens in any order.
    is_decoder = getattr(config, "is_decoder", getattr(config, "causal", kind != "xlnet"))
    if is_decoder is False and not kind.startswith("gpt_neox"):
        raise ModelError(f"{label} ({kind}) is bidirectional; expected a decoder-only causal language model")
    if trainable and kind == "rwkv":
        reason = "it changes its weights in place in evaluation mode, which has no gradient"
        raise ModelError(f"{label} ({kind}) cannot be trained here: {reason}")


def forward_parameters(model: PreTrainedModel) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of a model's forward pass. Peft's wrapper hides them, so they are read from the model inside it."""
    inner = unwrap_adapter(model)
    return inspect.signature(inner.forward).parameters


def takes_slots(config: PretrainedConfig) -> bool:
    """Whether sequences of different lengths can share one key-value cache."""
    text = config.get_text_config()
    supported = text.model_type in SLOTS and not getattr(text, "alibi", False)
    # FlashAttention and others do not support a four-dimensional mask.
    return supported and (getattr(text, "_attn_implementation", None) or "eager") in ("eager", "sdpa")


def takes_padding(config: PretrainedConfig) -> bool:
    """Whether batches may be padded on the left."""
    return config.get_text_config().model_type in PADDED


def position_limit(config: PretrainedConfig) -> int:
    """Return the maximum number of positions; 0 if there is no limit."""
    text = config.get_text_config()
    names = ("max_position_embeddings", "max_seq_len", "context_length")
    return next((int(value) for name in names if (value := getattr(text, name, None)) and value > 0), 0)


def context_length(config: PretrainedConfig) -> int:
    """Return the maximum length of a sequence that grows token by token; 0 if there is no limit.

    LongRoPE and dynamic NTK change the rotation of all positions once a sequence is longer than the original context. The
    log-probs of earlier tokens would change, so the limit is the original context. With dynamic NTK that is the limit of
    positions in the configuration.
    """
    longest, original = position_limit(config), original_context(config)
    return min(longest, original) if longest and original else longest or original


def check_length(tokens: int, context: int, kind: str = "a sequence") -> None:
    """Raise a `ModelError` if a prompt or a sequence has more tokens than a model reads."""
    if tokens > context:
        raise ModelError(f"{kind} has {tokens} tokens; the model reads at most {context}")


def original_context(config: PretrainedConfig) -> int:
    """Return the length up to which LongRoPE uses its short factors; 0 for other models."""
    name = "original_max_position_embeddings"
    lengths = (
        entry.get(name) or getattr(config.get_text_config(), name, 0) for entry in _find_rope(config, "longrope")
    )
    return int(next(lengths, 0) or 0)


def has_dynamic_rope(config: PretrainedConfig) -> bool:
    """Whether a model has dynamic NTK, whose rotation depends on the length of a sequence beyond the context."""
    return bool(_find_rope(config, "dynamic"))


def _find_rope(config: PretrainedConfig, kind: str) -> list[Values]:
    """Return the parameters of rotary embeddings of a kind. Some models have several, by the type of a layer."""
    text = config.get_text_config()
    rope = getattr(text, "rope_parameters", None) or getattr(text, "rope_scaling", None) or {}
    entries = [rope, *(value for value in rope.values() if isinstance(value, Mapping))]
    return [entry for entry in entries if entry.get("rope_type", entry.get("type")) == kind]


def split_by_rotation(lengths: Sequence[int], config: PretrainedConfig) -> list[list[int]]:
    """Split a batch so that each part has one rotation: with LongRoPE, the longest sequence decides it for the whole batch."""
    original = original_context(config)
    beyond = [original > 0 and length > original for length in lengths]
    parts = ([index for index, is_beyond in enumerate(beyond) if is_beyond == side] for side in (False, True))
    return [part for part in parts if part]


def sliding_window(config: PretrainedConfig) -> int:
    """Return the size of the sliding attention window; 0 if every layer attends to the whole sequence."""
    text = config.get_text_config()
    window = int(getattr(text, "sliding_window", None) or 0)
    kinds = getattr(text, "layer_types", None)
    if not window or (kinds and "sliding_attention" not in kinds):
        return 0
    longest = context_length(config)
    return 0 if longest and window >= longest else window


def unwrap_adapter(model: PreTrainedModel) -> PreTrainedModel:
    """The model of transformers behind peft's wrapper, with the wrapped layers; another model as it is."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def fast_paths_enabled() -> bool:
    """Return false if `PALAESTRA_FAST_PATHS=0` is set."""
    return os.environ.get("PALAESTRA_FAST_PATHS", "1") != "0"


def make_short_copy(model: PreTrainedModel) -> PreTrainedModel:
    """Copy the first blocks of a model of a family with fast paths, in float32 and in evaluation mode.

    In 16-bit dtypes rounding grows from layer to layer: with the real weights of SmolLM2 the logits of two correct
    implementations differ by a quarter of their range after some tokens. The first blocks in float32 show whether both
    compute the same.

    Arguments:
        model: a causal language model of transformers, its body, or peft's wrapper of either.
    """
    import torch
    from torch import nn

    body = unwrap_adapter(model).base_model
    name = "layers" if hasattr(body, "layers") else "h"
    blocks = getattr(body, name)
    setattr(body, name, nn.ModuleList(blocks[:_BLOCKS]))
    try:
        with torch.no_grad():
            short = copy.deepcopy(model).float().eval()
    finally:
        setattr(body, name, blocks)
    config = short.config
    config.num_hidden_layers = min(_BLOCKS, len(blocks))
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:_BLOCKS]
    return short
