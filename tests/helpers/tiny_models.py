"""Tiny random models of the families that `train` accepts, made from their configurations."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

VOCABULARY = 61
WINDOW = 8
"""Of the models with sliding windows; prompts in the tests are longer."""
_IDS = {"vocab_size": VOCABULARY, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 0}
_GPT = {"n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, **_IDS}
_LLAMA = {
    "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, **_IDS,
}  # fmt: skip
_NO_GROUPS = {name: value for name, value in _LLAMA.items() if name != "num_key_value_heads"}
_FALCON = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 64, **_IDS}
_MIXED = ["sliding_attention", "full_attention"]
_SLIDING = {"sliding_window": WINDOW}
_MAMBA = {"hidden_size": 24, "num_hidden_layers": 2, "state_size": 4, **_IDS}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}

SLOTS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2", _GPT),
    "gpt2 scaled by layer": ("GPT2", {**_GPT, "scale_attn_by_inverse_layer_idx": True}),
    "gpt_neox": ("GPTNeoX", {**_NO_GROUPS, "hidden_size": 32}),
    "gptj": ("GPTJ", {**_GPT, "rotary_dim": 4}),
    "codegen": ("CodeGen", {**_GPT, "n_ctx": 64, "rotary_dim": 4}),
    "opt": ("OPT", {**_NO_GROUPS, "ffn_dim": 40, "word_embed_proj_dim": 24}),
    "falcon": ("Falcon", _FALCON),
    "falcon, new architecture": ("Falcon", {**_FALCON, "num_kv_heads": 2, "new_decoder_architecture": True}),
    "llama": ("Llama", _LLAMA),
    "llama with biases": ("Llama", {**_LLAMA, "attention_bias": True, "mlp_bias": True}),
    "mistral": ("Mistral", {**_LLAMA, "sliding_window": None}),
    "mistral, sliding": ("Mistral", {**_LLAMA, **_SLIDING}),
    "mixtral, sliding": ("Mixtral", {**_LLAMA, **_SLIDING, "num_local_experts": 4}),
    "qwen2": ("Qwen2", _LLAMA),
    "qwen2, sliding": ("Qwen2", {**_LLAMA, **_SLIDING, "use_sliding_window": True, "max_window_layers": 1}),
    "qwen2_moe": ("Qwen2Moe", {**_LLAMA, **_EXPERTS, "shared_expert_intermediate_size": 16}),
    "qwen3": ("Qwen3", {**_LLAMA, "head_dim": 8}),
    "qwen3_moe": ("Qwen3Moe", {**_LLAMA, **_EXPERTS, "head_dim": 8}),
    "gemma": ("Gemma", {**_LLAMA, "head_dim": 8}),
    "gemma2": (
        "Gemma2",
        {**_LLAMA, **_SLIDING, "head_dim": 8, "final_logit_softcapping": 3.0, "attn_logit_softcapping": 2.0},
    ),
    "gemma3_text": ("Gemma3Text", {**_LLAMA, **_SLIDING, "head_dim": 8, "layer_types": _MIXED}),
    "phi": ("Phi", {**_LLAMA, "hidden_size": 64}),
    "phi3": ("Phi3", _LLAMA),
    "phi3, sliding": ("Phi3", {**_LLAMA, **_SLIDING}),
    "cohere": ("Cohere", {**_LLAMA, "logit_scale": 0.5}),
    "cohere2": ("Cohere2", {**_LLAMA, **_SLIDING, "layer_types": _MIXED}),
    "starcoder2": ("Starcoder2", {**_LLAMA, "sliding_window": None}),
    "starcoder2, sliding": ("Starcoder2", {**_LLAMA, **_SLIDING}),
    "gpt_bigcode": ("GPTBigCode", {**_GPT, "multi_query": True}),
    "smollm3": ("SmolLM3", {**_LLAMA, "no_rope_layer_interval": 2}),
    "olmo": ("Olmo", _LLAMA),
    "olmo2": ("Olmo2", _LLAMA),
    "olmo3": ("Olmo3", {**_LLAMA, **_SLIDING, "layer_types": _MIXED}),
    "granite": ("Granite", {**_LLAMA, "logits_scaling": 2.0, "attention_multiplier": 0.3, "embedding_multiplier": 2.0}),
    "stablelm": ("StableLm", _LLAMA),
    "glm4": ("Glm4", {**_LLAMA, "head_dim": 8}),
    "gpt_oss": (
        "GptOss",
        {**_LLAMA, **_SLIDING, "head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2, "layer_types": _MIXED},
    ),
    "nemotron": ("Nemotron", {**_LLAMA, "head_dim": 8}),
    "deepseek_v3": (
        "DeepseekV3",
        {
            **_LLAMA, "num_key_value_heads": 4, "q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4,
            "qk_nope_head_dim": 4, "v_head_dim": 8, "n_routed_experts": 4, "n_group": 1, "topk_group": 1,
            "num_experts_per_tok": 2, "moe_intermediate_size": 16, "first_k_dense_replace": 1,
        },
    ),
}  # fmt: skip
"""Configuration prefix and arguments, of families that share one cache."""

SEQUENCES: dict[str, tuple[str, dict[str, Any]]] = {
    "falcon with alibi": ("Falcon", {**_FALCON, "alibi": True, "multi_query": False, "parallel_attn": False}),
    "bloom": ("Bloom", {"hidden_size": 32, "n_layer": 2, "n_head": 4, **_IDS}),
    "mpt": ("Mpt", {"d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 64, **_IDS}),
    "gpt_neo": (
        "GPTNeo",
        {
            "hidden_size": 24, "num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]],
            "window_size": WINDOW, "max_position_embeddings": 64, **_IDS,
        },
    ),
    "llama4_text": (
        "Llama4Text",
        {
            **_LLAMA, "head_dim": 8, "attention_chunk_size": WINDOW, "num_local_experts": 4, "intermediate_size_mlp": 40,
            "no_rope_layers": [1, 0],
        },
    ),
    "mamba": ("Mamba", _MAMBA),
    "mamba2": ("Mamba2", {**_MAMBA, "num_heads": 6, "head_dim": 8, "n_groups": 1, "chunk_size": 4}),
    "jamba": (
        "Jamba",
        {
            **_LLAMA, "num_experts": 2, "attn_layer_period": 2, "attn_layer_offset": 1, "mamba_d_state": 4, "mamba_dt_rank": 4,
            "use_mamba_kernels": False,
        },
    ),
    "zamba2": (
        "Zamba2",
        {
            **_LLAMA, "layers_block_type": ["mamba", "hybrid"], "mamba_d_state": 4, "mamba_headdim": 12, "mamba_ngroups": 1,
            "n_mamba_heads": 4, "use_mamba_kernels": False, "hybrid_layer_ids": [1], "num_mem_blocks": 1, "chunk_size": 4,
        },
    ),
    "falcon_h1": (
        "FalconH1",
        {
            **_LLAMA, "mamba_d_ssm": 24, "mamba_n_heads": 4, "mamba_d_head": 6, "mamba_n_groups": 1, "mamba_d_state": 4,
            "mamba_chunk_size": 4,
        },
    ),
    "qwen3_next": (
        "Qwen3Next",
        {
            **_LLAMA, **_EXPERTS, "head_dim": 8, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
            "linear_num_key_heads": 2, "linear_num_value_heads": 2, "layer_types": ["linear_attention", "full_attention"],
            "shared_expert_intermediate_size": 16,
        },
    ),
    "recurrent_gemma": (
        "RecurrentGemma",
        {**_LLAMA, "attention_window_size": WINDOW, "block_types": ["recurrent", "attention"], "lru_width": 24},
    ),
    "openai-gpt": ("OpenAIGPT", _GPT),
}  # fmt: skip
"""Of families that are stepped one sequence at a time: ALiBi, state-space and hybrid models, and some without a cache."""

_TWICE = {"original_max_position_embeddings": 32, "factor": 2.0}
_DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}
_LONGROPE = {
    "rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0, 1.5, 2.0], "long_factor": [4.0, 5.0, 6.0], **_TWICE,
}  # fmt: skip
_PLAIN = {"rope_type": "default", "rope_theta": 1e4}


def _rope(prefix: str, rope: dict[str, Any], **more: Any) -> tuple[str, dict[str, Any]]:
    return prefix, {**_LLAMA, **more, "rope_parameters": rope}


ROPES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama, linear": _rope("Llama", {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}),
    "llama, dynamic": _rope("Llama", _DYNAMIC),
    "llama, yarn": _rope("Llama", {"rope_type": "yarn", "rope_theta": 1e4, **_TWICE}),
    "llama, longrope": _rope("Llama", _LONGROPE),
    "llama, llama3": _rope(
        "Llama", {"rope_type": "llama3", "rope_theta": 1e4, **_TWICE, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    ),
    "llama, proportional": _rope(
        "Llama", {"rope_type": "proportional", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
    ),
    "gpt_neox, partial, dynamic": _rope("GPTNeoX", {**_DYNAMIC, "partial_rotary_factor": 0.5}, hidden_size=32),
    "mistral, sliding, dynamic": _rope("Mistral", _DYNAMIC, **_SLIDING),
    "mistral, sliding, longrope": _rope("Mistral", _LONGROPE, **_SLIDING),
    "phi3, longrope": _rope("Phi3", _LONGROPE, original_max_position_embeddings=32),
    "gemma3_text, dynamic by layer": _rope(
        "Gemma3Text", {"full_attention": _DYNAMIC, "sliding_attention": _PLAIN}, **_SLIDING, head_dim=8, layer_types=_MIXED
    ),
}  # fmt: skip
"""Of scaled rotary positions: all types of transformers, partial ones, with sliding windows, and by layer."""

RARE = {
    "codegen", "deepseek_v3", "falcon, new architecture", "glm4", "gpt2 scaled by layer", "llama4_text", "nemotron", "olmo",
    "openai-gpt", "phi", "qwen2_moe", "recurrent_gemma", "stablelm", "zamba2",
}  # fmt: skip
"""Families whose tests run with the backends' only, to save time."""


@cache
def tiny_model(family: str) -> Any:
    """A model with larger weights than at the start of training, so that a mistake shows."""
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    prefix, arguments = {**SLOTS, **SEQUENCES, **ROPES}[family]
    config = getattr(transformers, f"{prefix}Config")(**arguments)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)](config).eval()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if not name.endswith(("A_log", ".D")) and ".dt" not in name:  # State spaces would explode.
                    parameter.copy_(parameter * 3 + 0.02 * torch.randn_like(parameter))
    return model
