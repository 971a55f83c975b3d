"""Models in which peft has wrapped some layers."""

from __future__ import annotations

from typing import Any

PROJECTIONS = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
"""The linear layers of a Llama block."""


def unwrap_adapter(model: Any) -> Any:
    """The model of transformers behind peft's wrapper, with the wrapped layers; another model as it is."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def adapts_projections_only(model: Any) -> bool:
    """Whether an adapter has wrapped no layers but `PROJECTIONS`."""
    wrapped = [name for name, module in model.named_modules() if type(module).__module__.startswith("peft.")]
    return all(name.rpartition(".")[2] in PROJECTIONS for name in wrapped)
