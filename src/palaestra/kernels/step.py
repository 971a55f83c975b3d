"""The decoding step: one pass over packed tokens, with the weights of a decoder laid out for it.

It is the model's own computation with a third of the calls, which dominate a step at small batch sizes. The projections of
the same input are one matrix product, and residuals are added within the products. `CacheStep` is the step of
`slots.SlotStepper` on CPUs, `gpu.decode.PackedDecoder` that of `gpu.stepper.PackedStepper`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from transformers.pytorch_utils import Conv1D

from palaestra.kernels.decoder import Angles, Block, Decoder, Products, describe
from palaestra.kernels.gpu.attention import attend
from palaestra.kernels.operations import rotate
from palaestra.models.families import context_length

if TYPE_CHECKING:
    from transformers import Cache, PreTrainedModel

_MAX_PARAMETERS = 200_000_000
"""Larger models spend their time in matrix products, so a second copy of their weights is not worth the memory."""


def takes_step(decoder: Decoder) -> bool:
    """Whether `DecodeStep` computes all layers of a causal language model as they are, or as peft has wrapped them."""
    layers = (layer for block in decoder.blocks for layer in block.layers if layer is not block.experts)
    return type(decoder.head) is torch.nn.Linear and all(map(_takes_adapter, layers))


def _takes_adapter(layer: Any) -> bool:
    base = getattr(layer, "base_layer", layer)
    if type(base) not in (torch.nn.Linear, Conv1D):
        return False
    if base is layer:
        return True
    from peft.tuners.lora import Linear

    if type(layer) is not Linear or layer.lora_variant or any(layer.lora_bias.values()):
        return False
    return len(layer.active_adapters) <= 1


class DecodeStep:
    """The blocks of a decoder over tokens of any sequences.

    Arguments:
        decoder: a decoder for which `takes_step` is true.
        copies: copy all weights, laid out for products with few rows. Otherwise only the projections of the same input are
            copied into one matrix. Call `refresh` after they change.
    """

    def __init__(self, decoder: Decoder, copies: bool) -> None:
        self.decoder = decoder
        self._projections: list[JointProjection] = []
        rows_K = decoder.order_rows()

        def join(layers: Sequence[Any], rows_K: torch.Tensor | None = None) -> JointProjection:
            self._projections.append(JointProjection(layers, copies, rows_K))
            return self._projections[-1]

        self._blocks = [(block, join(block.projections, rows_K), Products(block, join)) for block in decoder.blocks]
        self.head = join([decoder.head])

    def refresh(self) -> None:
        """Copy the weights again."""
        for projection in self._projections:
            projection.refresh()

    def run_blocks(
        self, ids_N: torch.Tensor, positions_N: torch.Tensor, attend: Callable[[int, Block, torch.Tensor], torch.Tensor]
    ) -> torch.Tensor:
        """The input of the final norm.

        Arguments:
            attend: the attention of a block, from its index and its normalized queries, keys and values in one tensor.
        """
        decoder = self.decoder
        hidden = decoder.embed(ids_N, positions_N)
        for index, (block, joint, products) in enumerate(self._blocks):
            normed = hidden if block.attention_norm is None else block.attention_norm(hidden)
            joint_NK = joint(normed)
            if block.query_norm is not None and block.key_norm is not None:
                heads_NHW, start, end = (
                    joint_NK.view(len(ids_N), -1, decoder.width),
                    decoder.heads,
                    -decoder.shared_heads,
                )
                query, key = (
                    block.query_norm.over_heads(heads_NHW[:, :start]),
                    block.key_norm.over_heads(heads_NHW[:, start:end]),
                )
                joint_NK = torch.cat([query, key, heads_NHW[:, end:]], 1)
            hidden = decoder.finish_block(block, hidden, normed, attend(index, block, joint_NK), products)
        return hidden


class CacheStep(DecodeStep):
    """Feeds one token to every row of a batch: writes its key and value to the cache and returns the logits."""

    def __init__(self, decoder: Decoder) -> None:
        super().__init__(decoder, copies=True)
        self._angles: Mapping[str, Angles] = {}
        self._room = 0
        # Prompts are written to the cache by the model itself, with the dimensions of a head in its own order.
        self._restored_W = None if decoder.order_W is None else decoder.order_W.argsort()

    def __call__(
        self, ids_R: torch.Tensor, positions_R: torch.Tensor, masks: Mapping[int, torch.Tensor | None], cache: Cache
    ) -> torch.Tensor:
        """Compute the logits.

        Arguments:
            masks: the positions to which each row attends, `[rows, 1, 1, positions]`, by window.
        """
        decoder, rows = self.decoder, len(ids_R)
        heads, shared, width = decoder.heads, decoder.shared_heads, decoder.width
        if cache.room != self._room:
            self._room = cache.room
            # Beyond the context some rotations differ for all positions.
            places = torch.arange(min(cache.room, context_length(decoder.model.config) or cache.room))
            self._angles = decoder.compute_angles(places)
        angles = {kind: (cos[positions_R], sin[positions_R]) for kind, (cos, sin) in self._angles.items()}

        def attend_cache(index: int, block: Block, joint_RK: torch.Tensor) -> torch.Tensor:
            heads_RHW = joint_RK.view(rows, -1, width)
            moved_RHW = heads_RHW[:, : heads + shared]  # Slices are several times as fast as `split`.
            if block.rotation is not None:
                moved_RHW = rotate(moved_RHW, *angles[block.rotation])
            if self._restored_W is not None:
                moved_RHW = moved_RHW[..., self._restored_W]
            keys, values = cache.layers[index].write(moved_RHW[:, heads:], heads_RHW[:, heads + shared :])
            # Query heads that share keys are computed as one head with several queries.
            query_RKGW = moved_RHW[:, :heads].reshape(rows, shared, -1, width)
            sinks = None if block.sinks_H is None else block.sinks_H.view(shared, -1)
            mixed = attend(query_RKGW, keys, values, masks[block.window], block.scale, block.softcap, sinks)
            return mixed.reshape(rows, -1)

        hidden = self.run_blocks(ids_R, positions_R, attend_cache)
        return decoder.limit_logits(self.head(decoder.final_norm(hidden)))


def make_cache_step(model: PreTrainedModel) -> CacheStep | None:
    """The decoding step of a causal language model on a CPU, or `None` if there is none for it."""
    if model.device.type != "cpu" or model.dtype != torch.float32:
        return None
    if sum(parameter.numel() for parameter in model.parameters()) > _MAX_PARAMETERS:
        return None
    decoder = describe(model)
    return CacheStep(decoder) if decoder is not None and takes_step(decoder) else None


class JointProjection:
    """The product of an input with the weights of several layers, whose outputs follow each other.

    An adapter of rank R adds a product with its `[R, D]` matrix and one with its `[K, R]` matrix, in the dtype of the weights.

    Arguments:
        layers: layers that `takes_step` accepts. The weights of several layers are copied; call `refresh` after they change.
            The copies keep their place in memory, which captured graphs refer to.
        rows_K: the order of the outputs.
    """

    def __init__(self, layers: Sequence[Any], copies: bool, rows_K: torch.Tensor | None = None) -> None:
        self._layers, self._rows_K = layers, rows_K
        self._copies = copies
        self._is_view = len(layers) == 1 and rows_K is None
        self._weights = self._read()

    @torch.no_grad()
    def refresh(self) -> None:
        """Copy the weights again."""
        new = self._read()
        for place, (old, tensor) in enumerate(zip(self._weights, new, strict=True)):
            if old is None or tensor is None or (self._is_view and place < 2):
                self._weights[place] = tensor
            else:
                old.copy_(tensor)

    def __call__(
        self, inputs_ND: torch.Tensor, onto_NK: torch.Tensor | None = None, scale: float = 1.0
    ) -> torch.Tensor:
        """Project the inputs. The result is scaled and added to `onto_NK` if it is given."""
        weight_DK, bias_K, down_DR, up_RK = self._weights
        if onto_NK is not None:
            outputs_NK = torch.addmm(onto_NK, inputs_ND, weight_DK, alpha=scale)
            if bias_K is not None:
                outputs_NK = torch.add(outputs_NK, bias_K, alpha=scale)
        elif bias_K is not None:
            outputs_NK = torch.addmm(bias_K, inputs_ND, weight_DK)
        else:
            outputs_NK = inputs_ND @ weight_DK
        if down_DR is not None:
            outputs_NK = torch.addmm(outputs_NK, inputs_ND @ down_DR, up_RK, alpha=scale)
        return outputs_NK

    @torch.no_grad()
    def _read(self) -> list[Any]:
        """The weights and biases of all layers, and their adapters; a layer without an adapter adds nothing."""
        weights, biases, down, up = [], [], [], []
        for layer in self._layers:
            plain = getattr(layer, "base_layer", layer)
            weight_DK = plain.weight.detach() if isinstance(plain, Conv1D) else plain.weight.detach().t()
            weights.append(weight_DK)
            biases.append(plain.bias)
            down_DR, up_RK = weight_DK[:, :0], weight_DK[:0]
            for name in getattr(layer, "lora_A", {}):
                used = name in layer.active_adapters and not (layer.merged or layer.disable_adapters)
                scale = layer.scaling[name] if used else 0.0
                down_DR = torch.cat([down_DR, layer.lora_A[name].weight.t().to(weight_DK.dtype)], 1)
                up_RK = torch.cat([up_RK, (layer.lora_B[name].weight.t() * scale).to(weight_DK.dtype)])
            down.append(down_DR)
            up.append(up_RK)
        has_adapter = any(matrix.shape[1] for matrix in down)
        joint = [
            weights[0] if len(weights) == 1 else torch.cat([weight.t() for weight in weights]).t(),
            None if biases[0] is None else biases[0].detach() if len(biases) == 1 else torch.cat(biases),
            torch.cat(down, 1) if has_adapter else None,
            torch.block_diag(*up) if has_adapter else None,  # type: ignore[no-untyped-call]
        ]
        if self._rows_K is not None:
            joint = [x if x is None or place == 2 else x[..., self._rows_K] for place, x in enumerate(joint)]
        return [x if x is None or not self._copies else x.contiguous() for x in joint]
