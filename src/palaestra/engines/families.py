"""What a model's configuration says about how it can be stepped; nothing is loaded to find out.

Families in `SLOTS` share one key-value cache between sequences of different lengths (`slots.SlotStepper`). Families
in `PADDED` take batches that are padded on the left. Each of them is tested against the model's own forward pass. Every
other family is stepped one sequence at a time, without padding (`sequences.SequenceStepper`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from palaestra.core.errors import ModelError

SLOTS = frozenset(
    {
        "codegen", "cohere", "cohere2", "deepseek_v3", "falcon", "gemma", "gemma2", "gemma3_text", "glm4", "gpt2",
        "gpt_bigcode", "gpt_neox", "gpt_oss", "gptj", "granite", "llama", "mistral", "mixtral", "nemotron", "olmo",
        "olmo2", "olmo3", "opt", "phi", "phi3", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "smollm3", "stablelm",
        "starcoder2",
    }
)  # fmt: skip
"""Model types that follow the position ids and the four-dimensional attention mask that they are given."""
PADDED = SLOTS | {"bloom", "gpt_neo", "llama4_text", "mpt"}
"""Model types that give the same logits for a sequence with padding on its left, also with their own cache."""
UNTRAINABLE: Mapping[str, str] = {
    "rwkv": "it changes its weights in place in evaluation mode, which has no gradient",
}


def check_causal(config: Any, name: str = "") -> None:
    """Raise a `ModelError` of one line if a model of this configuration does not write from left to right."""
    kind = str(config.model_type)
    told = f"the model '{name}'" if name else "the model"
    if getattr(config, "is_encoder_decoder", False):
        raise ModelError(f"{told} ({kind}) is an encoder-decoder; expected a decoder-only causal language model")
    # GPT-NeoX's configuration has the switch and does not use it.
    if getattr(config, "is_decoder", True) is False and not kind.startswith("gpt_neox"):
        raise ModelError(f"{told} ({kind}) reads in both directions; expected a decoder-only causal language model")


def check_trainable(config: Any, name: str = "") -> None:
    """Raise a `ModelError` of one line if no policy can be made of a model of this configuration."""
    check_causal(config, name)
    reason = UNTRAINABLE.get(str(config.model_type))
    if reason is not None:
        told = f"the model '{name}'" if name else "the model"
        raise ModelError(f"{told} ({config.model_type}) cannot be trained here: {reason}")


def takes_slots(config: Any) -> bool:
    """Whether sequences of different lengths can share one key-value cache."""
    text = config.get_text_config()
    known = text.model_type in SLOTS and not getattr(text, "alibi", False)
    # Other attention functions, such as FlashAttention, take no four-dimensional mask.
    return known and (getattr(text, "_attn_implementation", None) or "eager") in ("eager", "sdpa")


def takes_padding(config: Any) -> bool:
    """Whether batches may be padded on the left."""
    return config.get_text_config().model_type in PADDED


def position_limit(config: Any) -> int:
    """The most positions that the model has; 0 if there is no limit."""
    text = config.get_text_config()
    names = ("max_position_embeddings", "max_seq_len", "context_length")
    return next((int(value) for name in names if (value := getattr(text, name, None))), 0)


def context_length(config: Any) -> int:
    """The most tokens of a sequence that grows token by token; 0 if there is no limit.

    A model with LongRoPE rotates all positions differently once a sequence is longer than its original context. The
    log-probs of what it wrote before would change then, so its limit is the original context.
    """
    longest, original = position_limit(config), original_context(config)
    return min(longest, original) if longest and original else longest or original


def original_context(config: Any) -> int:
    """The length up to which a model with LongRoPE uses its short factors; 0 for every other model."""
    text = config.get_text_config()
    rope = getattr(text, "rope_parameters", None) or getattr(text, "rope_scaling", None) or {}
    for one in [rope, *(value for value in rope.values() if isinstance(value, Mapping))]:
        if one.get("rope_type", one.get("type")) == "longrope":
            found = one.get("original_max_position_embeddings") or getattr(text, "original_max_position_embeddings", 0)
            return int(found or 0)
    return 0


def sliding_window(config: Any) -> int:
    """How many positions the layers with a sliding window see; 0 if every layer sees all that can be in a sequence."""
    text = config.get_text_config()
    window = int(getattr(text, "sliding_window", None) or 0)
    kinds = getattr(text, "layer_types", None)
    if not window or (kinds and "sliding_attention" not in kinds):
        return 0
    longest = context_length(config)
    return 0 if longest and window >= longest else window
