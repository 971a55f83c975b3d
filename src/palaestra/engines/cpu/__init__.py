"""Fast paths for language models on a CPU.

- `decode`: one decoding step with a key-value cache, for sampling.
- `kernels`: operations of the decoding step and of `engines.packed_forward`, and the choice of matrix kernels.

The fast paths implement the Llama and GPT-2 architectures. Every other model uses its own forward pass in transformers.
On first use a fast path is compared with the model's own forward pass and dropped if they differ. The environment
variable `PALAESTRA_FAST_PATHS=0` turns all of them off.
"""

from __future__ import annotations

import os
from typing import Any, Literal

from palaestra.engines.families import sliding_window

LLAMA = {f"{name}{part}" for name in ("Llama", "Mistral", "Qwen2") for part in ("ForCausalLM", "Model")}
GPT2 = {"GPT2LMHeadModel", "GPT2Model"}
ATOL = RTOL = 1e-3
"""Maximum difference between a fast path and the model's own forward pass."""


def fast_paths_enabled() -> bool:
    """Return false if `PALAESTRA_FAST_PATHS=0` is set."""
    return os.environ.get("PALAESTRA_FAST_PATHS", "1") != "0"


def find_architecture(model: Any) -> Literal["llama", "gpt2"] | None:
    """The architecture that the fast paths implement for a causal language model or its body; `None` for all others."""
    if not fast_paths_enabled():
        return None
    config, name = model.config, type(model).__name__
    if name in LLAMA and config.hidden_act in ("silu", "swish") and not sliding_window(config):
        return "llama"
    standard_attention = not (
        getattr(config, "scale_attn_by_inverse_layer_idx", False) or getattr(config, "add_cross_attention", False)
    )
    if name in GPT2 and config.activation_function == "gelu_new" and standard_attention:
        return "gpt2"
    return None
