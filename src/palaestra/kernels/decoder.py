"""One description of a decoder for every model family: where its layers are, and the numbers that it computes with.

`describe` makes it from a model of transformers and the row of its family in `_FAMILIES`. The packed training pass and the
decoding steps on CPUs and GPUs read it. They have no code of their own for a family.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.functional import gelu, layer_norm, pad, rms_norm, silu

from palaestra.kernels.cpu import gelu_tanh
from palaestra.kernels.gpu.attention import AttentionLimits
from palaestra.kernels.operations import swiglu
from palaestra.models.families import fast_paths_enabled, sliding_window, unwrap_adapter

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Angles = tuple[torch.Tensor, torch.Tensor]
Project = Callable[..., Any]
"""Computes layers of one input. Its second and third argument are a tensor to which the result is added, and its factor."""
_ACTIVATIONS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": silu, "swish": silu, "gelu": gelu, "gelu_new": gelu_tanh, "gelu_pytorch_tanh": gelu_tanh,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Family:
    """Where the layers of a family are, and the numbers of a model. A layer without a name does not exist.

    The defaults are those of Llama. A mixture of experts in place of an MLP is found by its attribute `experts`.

    Arguments:
        projections: of queries, keys and values, or one layer with all of them.
        up: the layers before the activation; two, or one with both halves if `is_gated`.
        norm_offset: added to the weights of RMS norms.
        interleaves_heads: a joint projection has query, key and value of the first head, then of the next one.
        interleaves_pairs: rotary positions rotate neighboring dimensions, instead of the two halves of a head.
        has_half_angles: angles are given for one half of a head.
        rotates: whether each layer has rotary positions; empty if all have them.
        scale: of the products of queries and keys; 0 means one over the square root of a head's width.
        softcap, logit_softcap: limits of the attention scores and of the logits; 0 or `None` for none.
        parallel: attention and MLP read the same hidden states.
    """

    embeddings: str = "embed_tokens"
    positions: str = ""
    blocks: str = "layers"
    attention_norm: str = "input_layernorm"
    projections: Sequence[str] = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    query_norm: str = ""
    key_norm: str = ""
    sinks: str = ""
    output: str = "self_attn.o_proj"
    attention_end_norm: str = ""
    mlp_norm: str = "post_attention_layernorm"
    up: Sequence[str] = ("mlp.gate_proj", "mlp.up_proj")
    down: str = "mlp.down_proj"
    mlp_end_norm: str = ""
    final_norm: str = "norm"
    is_gated: bool = True
    norm_offset: float = 0.0
    interleaves_heads: bool = False
    interleaves_pairs: bool = False
    has_half_angles: bool = False
    rotates: Sequence[bool] = ()
    scale: float = 0.0
    softcap: float | None = None
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    logit_softcap: float | None = None
    parallel: bool = False


_LLAMA = Family()
_QWEN3 = replace(_LLAMA, query_norm="self_attn.q_norm", key_norm="self_attn.k_norm")
_OLMO2 = replace(
    _QWEN3, attention_norm="", attention_end_norm="post_attention_layernorm", mlp_norm="",
    mlp_end_norm="post_feedforward_layernorm",
)  # fmt: skip
_GEMMA2 = replace(
    _LLAMA, norm_offset=1.0, attention_end_norm="post_attention_layernorm", mlp_norm="pre_feedforward_layernorm",
    mlp_end_norm="post_feedforward_layernorm",
)  # fmt: skip
_GEMMA3 = replace(_GEMMA2, query_norm="self_attn.q_norm", key_norm="self_attn.k_norm")
_GPT_NEOX = Family(
    embeddings="embed_in", projections=["attention.query_key_value"], output="attention.dense", up=["mlp.dense_h_to_4h"],
    down="mlp.dense_4h_to_h", final_norm="final_layer_norm", is_gated=False, interleaves_heads=True,
)  # fmt: skip
_GPT2 = Family(
    embeddings="wte", positions="wpe", blocks="h", attention_norm="ln_1", projections=["attn.c_attn"], output="attn.c_proj",
    mlp_norm="ln_2", up=["mlp.c_fc"], down="mlp.c_proj", final_norm="ln_f", is_gated=False,
)  # fmt: skip
_FAMILIES: Mapping[str, Callable[[Any], Family]] = {
    "llama": lambda c: _LLAMA,
    "mistral": lambda c: _LLAMA,
    "mixtral": lambda c: _LLAMA,
    "qwen2": lambda c: _LLAMA,
    "qwen3": lambda c: _QWEN3,
    "qwen3_moe": lambda c: _QWEN3,
    "olmo2": lambda c: _OLMO2,
    "olmo3": lambda c: _OLMO2,
    "phi3": lambda c: replace(_LLAMA, projections=["self_attn.qkv_proj"], up=["mlp.gate_up_proj"]),
    "smollm3": lambda c: replace(_LLAMA, rotates=c.no_rope_layers),
    "starcoder2": lambda c: replace(_LLAMA, up=["mlp.c_fc"], down="mlp.c_proj", is_gated=False),
    "gpt_oss": lambda c: replace(_LLAMA, sinks="self_attn.sinks", has_half_angles=True),
    "gpt_neox": lambda c: replace(_GPT_NEOX, parallel=c.use_parallel_residual),
    "gpt2": lambda c: replace(_GPT2, scale=0.0 if c.scale_attn_weights else 1.0),
    "gemma2": lambda c: replace(
        _GEMMA2, scale=c.query_pre_attn_scalar**-0.5, softcap=c.attn_logit_softcapping, logit_softcap=c.final_logit_softcapping
    ),
    "gemma3_text": lambda c: replace(
        _GEMMA3, scale=c.query_pre_attn_scalar**-0.5, logit_softcap=c.final_logit_softcapping
    ),
    "granite": lambda c: replace(
        _LLAMA, scale=c.attention_multiplier, embedding_scale=c.embedding_multiplier,
        residual_scale=c.residual_multiplier, logit_scale=1 / c.logits_scaling,
    ),
    "cohere2": lambda c: replace(
        _LLAMA, mlp_norm="", interleaves_pairs=True, rotates=[kind == "sliding_attention" for kind in c.layer_types],
        logit_scale=c.logit_scale, parallel=True,
    ),
}  # fmt: skip
FAMILIES = frozenset(_FAMILIES)
"""Model types with fast paths."""


def describe(model: PreTrainedModel) -> Decoder | None:
    """Describe a causal language model or its body. Returns `None` if no fast path computes it.

    Arguments:
        model: a model of transformers, or peft's wrapper of one.
    """
    inner = unwrap_adapter(model)
    is_known = inner.config.model_type in _FAMILIES and _find_activation(inner.config) is not None
    if not (is_known and fast_paths_enabled() and type(inner).__name__.endswith(("ForCausalLM", "HeadModel", "Model"))):
        return None
    decoder = Decoder(inner)
    # Passes call the layers with products, which may be adapted, and read the weights of all others.
    called = {id(part) for block in decoder.blocks for layer in block.layers for part in layer.modules()}
    adapted = (module for module in inner.modules() if type(module).__module__.startswith("peft."))
    return decoder if all(id(module) in called for module in adapted) else None


def _find_activation(config: Any) -> Callable[[torch.Tensor], torch.Tensor] | None:
    names = (getattr(config, name, None) for name in ("hidden_activation", "hidden_act", "activation_function"))
    return _ACTIVATIONS.get(next(filter(None, names), ""))


def _find(module: Any, name: str) -> Any:
    for part in name.split(".") if name else ():
        module = getattr(module, part)
    return module if name else None


class Norm:
    """An RMS norm or a LayerNorm, with or without a bias, over the last dimension."""

    def __init__(self, module: Any, offset: float) -> None:
        self._weights, self._offset = module._parameters, offset  # An attribute of a module is slow to read.
        self._epsilon = float(getattr(module, "eps", None) or module.variance_epsilon)
        self._is_centered = "LayerNorm" in type(module).__name__

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        weight = self._weights["weight"]
        if self._is_centered:
            return layer_norm(x, weight.shape, weight, self._weights.get("bias"), self._epsilon)
        if self._offset:  # 16-bit weights near 0 would be rounded.
            return rms_norm(x.float(), weight.shape, weight.float() + self._offset, self._epsilon).to(x.dtype)
        return rms_norm(x, weight.shape, weight, self._epsilon)

    def over_heads(self, x_NHW: torch.Tensor) -> torch.Tensor:
        """Normalize each head, or all heads of a token together, as the size of the weights says."""
        return self(x_NHW) if len(self._weights["weight"]) == x_NHW.shape[2] else self(x_NHW.flatten(1)).view_as(x_NHW)


class Block:
    """The layers of a block; `None` or empty for those that a family does not have.

    `rotation` is the key of its angles in `Decoder.compute_angles`, `None` without rotary positions. `window` is the number of
    tokens to which attention reaches, 0 for all.
    """

    def __init__(self, decoder: Decoder, index: int, module: nn.Module) -> None:
        family, config = decoder.family, decoder.config
        find_norm = lambda name: Norm(_find(module, name), family.norm_offset) if name else None  # noqa: E731
        self.attention_norm, self.attention_end_norm = map(
            find_norm, (family.attention_norm, family.attention_end_norm)
        )
        self.mlp_norm, self.mlp_end_norm = map(find_norm, (family.mlp_norm, family.mlp_end_norm))
        self.query_norm, self.key_norm = map(find_norm, (family.query_norm, family.key_norm))
        self.projections = [_find(module, name) for name in family.projections]
        self.output: Any = _find(module, family.output)
        self.sinks_H: torch.Tensor | None = _find(module, family.sinks)
        self.experts: Any = mlp if hasattr(mlp := getattr(module, "mlp", None), "experts") else None
        self.up = [_find(module, name) for name in family.up] if self.experts is None else []
        self.down: Any = _find(module, family.down) if self.experts is None else None
        kinds = getattr(config, "layer_types", None)
        self.window = sliding_window(config) if not kinds or kinds[index] == "sliding_attention" else 0
        self.scale, self.softcap = family.scale or decoder.width**-0.5, family.softcap or 0.0
        if getattr(config, "scale_attn_by_inverse_layer_idx", False):
            self.scale /= index + 1
        self.rotation: str | None = None
        if decoder.rotary is not None and (not family.rotates or family.rotates[index]):
            self.rotation = kinds[index] if kinds and hasattr(decoder.rotary, "layer_types") else ""

    @property
    def limits(self) -> AttentionLimits:
        return AttentionLimits(self.scale, self.window, self.softcap, self.sinks_H)

    @property
    def layers(self) -> list[nn.Module]:
        """The modules with products."""
        return [*self.projections, self.output, *self.up, self.down if self.experts is None else self.experts]


class Products:
    """How a pass computes the layers of a block after its attention: `output`, `up` and `down`.

    Arguments:
        join: makes the function that computes layers of one input, for example `call_layers`.
    """

    def __init__(self, block: Block, join: Callable[[Sequence[Any]], Project]) -> None:
        self.output = join([block.output])
        self.up = join(block.up) if block.up else None
        self.down = (
            call_layers([partial(_mix_experts, block.experts)]) if block.experts is not None else join([block.down])
        )


def call_layers(layers: Sequence[Any]) -> Project:
    """Call the layers themselves, so that their parameters and adapters have gradients."""

    def project(x: torch.Tensor, onto: torch.Tensor | None = None, scale: float = 1.0) -> Any:
        outputs = [layer(x) for layer in layers]
        if onto is not None:
            return torch.add(onto, outputs[0], alpha=scale)
        return outputs if len(outputs) > 1 else outputs[0]

    return project


def _mix_experts(experts: Any, x_ND: torch.Tensor) -> torch.Tensor:
    """Call a mixture of experts of transformers, which groups the tokens by expert."""
    output = experts(x_ND[None])
    mixed_1ND: torch.Tensor = output[0] if isinstance(output, tuple) else output
    return mixed_1ND[0]


class Decoder:
    """The layers and numbers of a model, and its computations around attention.

    Arguments:
        model: a causal language model of transformers of one of `FAMILIES`, or its body.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        config: Any = model.config
        self.model, self.body, self.config = model, model.base_model, config
        self.family = family = _FAMILIES[config.model_type](config)
        self.head: Any = model.get_output_embeddings()
        self.heads = int(config.num_attention_heads)
        self.width = int(getattr(config, "head_dim", None) or config.hidden_size // self.heads)
        shared = None if family.interleaves_heads else getattr(config, "num_key_value_heads", None)
        self.shared_heads = int(shared or self.heads)
        activation = _find_activation(config)
        assert activation is not None
        self._activation, self.uses_silu = activation, family.is_gated and activation is silu
        self.embeddings, self._positions = _find(self.body, family.embeddings), _find(self.body, family.positions)
        self.final_norm = Norm(_find(self.body, family.final_norm), family.norm_offset)
        self.rotary: Any = getattr(self.body, "rotary_emb", None)
        self.blocks = [Block(self, index, module) for index, module in enumerate(_find(self.body, family.blocks))]
        self.order_W = None if self.rotary is None else self._order_dimensions()

    def _order_dimensions(self) -> torch.Tensor | None:
        """The dimensions of a head, ordered so that the first half is rotated with the second; `None` if they are.

        Scores do not depend on the order. Dimensions that are not rotated have the angle 0.
        """
        angles = self._read_angles(torch.zeros(1, dtype=torch.long, device=self.body.device)).values()
        given = max((cos_1R.shape[1] for cos_1R, _ in angles), default=0)
        pairs_2P = torch.arange(given * (1 + self.family.has_half_angles)).view(2, -1)
        self._num_pairs = pairs_2P.shape[1]
        if self.family.interleaves_pairs:
            pairs_2P = pairs_2P.flatten().view(-1, 2).t()
        order_W = torch.cat([pairs_2P, torch.arange(pairs_2P.numel(), self.width).view(2, -1)], 1).flatten()
        return None if order_W.tolist() == list(range(self.width)) else order_W.to(self.body.device)

    def _read_angles(self, positions_N: torch.Tensor) -> dict[str, Angles]:
        like = self.embeddings.weight.new_empty(0)
        kinds = sorted({block.rotation for block in self.blocks if block.rotation is not None})
        angles = {kind: self.rotary(like, positions_N[None], *filter(None, [kind])) for kind in kinds}
        return {kind: (cos_1NR[0], sin_1NR[0]) for kind, (cos_1NR, sin_1NR) in angles.items()}

    def compute_angles(self, positions_N: torch.Tensor) -> dict[str, Angles]:
        """Cosines and sines by kind of layer, `[N, width]`, for heads in the order of `order_W`."""
        angles = self._read_angles(positions_N)
        return {
            kind: (self._spread(cos_NR, 1.0), self._spread(sin_NR, 0.0)) for kind, (cos_NR, sin_NR) in angles.items()
        }

    def _spread(self, angles_NR: torch.Tensor, fill: float) -> torch.Tensor:
        if self.order_W is None and angles_NR.shape[1] == self.width:
            return angles_NR
        half_NR = angles_NR[:, ::2] if self.family.interleaves_pairs else angles_NR[:, : self._num_pairs]
        half_NR = pad(half_NR, (0, self.width // 2 - half_NR.shape[1]), value=fill)
        return torch.cat([half_NR, half_NR], 1)

    def embed(self, ids_N: torch.Tensor, positions_N: torch.Tensor) -> torch.Tensor:
        """The input of the first block."""
        hidden_ND: torch.Tensor = self.embeddings(ids_N)
        if self._positions is not None:
            hidden_ND = hidden_ND + self._positions(positions_N)
        return hidden_ND if self.family.embedding_scale == 1.0 else hidden_ND * self.family.embedding_scale

    def order_rows(self) -> torch.Tensor | None:
        """The rows of the joined projections: all queries, keys and values, rotated ones in the order of `order_W`."""
        rows = torch.arange((self.heads + 2 * self.shared_heads) * self.width).view(-1, self.width)
        if self.family.interleaves_heads:
            rows = rows.view(self.heads, 3, self.width).transpose(0, 1).flatten(0, 1)
        elif self.order_W is None:
            return None
        if self.order_W is not None:
            rows[: -self.shared_heads] = rows[: -self.shared_heads, self.order_W.cpu()]
        return rows.flatten().to(self.body.device)

    def split_heads(self, joint_NK: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Queries `[N, heads, width]`, keys and values `[N, shared heads, width]` from one projection."""
        if self.family.interleaves_heads:
            return joint_NK.view(len(joint_NK), self.heads, 3, self.width).unbind(2)
        heads_NHW = joint_NK.view(len(joint_NK), -1, self.width)
        return torch.split(heads_NHW, [self.heads, self.shared_heads, self.shared_heads], 1)

    def activate(self, gate: torch.Tensor, up: torch.Tensor | None = None) -> torch.Tensor:
        """The activation of an MLP. Without `up`, a gated one gets both halves in `gate`."""
        if not self.family.is_gated:
            return self._activation(gate)
        if up is None:
            gate, up = gate.chunk(2, -1)
        return swiglu(gate, up) if self.uses_silu else self._activation(gate) * up

    def finish_block(
        self, block: Block, hidden: torch.Tensor, normed: torch.Tensor, mixed: torch.Tensor, products: Products
    ) -> torch.Tensor:
        """The output of a block from its input, the normalized input and the result of its attention."""
        source, hidden = hidden, self._add(hidden, products.output, mixed, block.attention_end_norm)
        if not self.family.parallel:
            source = normed = hidden
        inner = normed if block.mlp_norm is None else block.mlp_norm(source)
        if products.up is not None:
            up = products.up(inner)
            inner = self.activate(up) if isinstance(up, torch.Tensor) else self.activate(*up)
        return self._add(hidden, products.down, inner, block.mlp_end_norm)

    def _add(self, hidden: torch.Tensor, project: Project, x: torch.Tensor, end_norm: Norm | None) -> torch.Tensor:
        scale = self.family.residual_scale
        added: torch.Tensor = project(x, hidden, scale) if end_norm is None else hidden + end_norm(project(x)) * scale
        return added

    def limit_logits(self, logits: torch.Tensor) -> torch.Tensor:
        """Scale and cap the products with the output layer."""
        cap = self.family.logit_softcap
        logits = logits if self.family.logit_scale == 1.0 else logits * self.family.logit_scale
        return (logits / cap).tanh() * cap if cap else logits
