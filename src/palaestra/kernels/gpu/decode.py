"""One pass of a decoder over packed tokens, with a static cache.

A token is described by its id, the row of its sequence in the cache and its position. Its key and value are written to the
cache first, then it attends to its row up to its own position. Next tokens of many sequences and whole prompts are the
same computation, without padding.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from palaestra.kernels.decoder import Angles, Block, Decoder, describe
from palaestra.kernels.gpu.kernels import attend, rotate_and_store
from palaestra.kernels.step import DecodeStep, takes_step

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_MAX_GROUP = 16
"""Maximum number of query heads that share keys in the attention kernel."""


def make_packed_decoder(model: PreTrainedModel) -> PackedDecoder | None:
    """The packed decoding step of a model of transformers, or peft's wrapper of one; `None` if there is none for it."""
    decoder = describe(model)
    if decoder is None or not takes_step(decoder) or decoder.heads > _MAX_GROUP * decoder.shared_heads:
        return None
    return PackedDecoder(decoder)


class PackedDecoder(DecodeStep):
    """A decoding step over the rows of a static cache."""

    def __init__(self, decoder: Decoder) -> None:
        super().__init__(decoder, copies=False)
        self.shared_heads, self.width, self.num_layers = decoder.shared_heads, decoder.width, len(decoder.blocks)
        self.outputs = int(decoder.head.weight.shape[0])

    def compute_angles(self, positions: int) -> dict[str | None, Angles]:
        """Cosines and sines by position and kind of layer, `[positions, width]`. The angles of `None` are 0."""
        decoder = self.decoder
        place_P = torch.arange(positions, device=decoder.body.device)
        ones_PW = torch.ones(positions, self.width, dtype=decoder.body.dtype, device=decoder.body.device)
        angles = decoder.compute_angles(place_P)
        return {
            None: (ones_PW, torch.zeros_like(ones_PW)),
            **{kind: (cos_PW.contiguous(), sin_PW.contiguous()) for kind, (cos_PW, sin_PW) in angles.items()},
        }

    def __call__(
        self,
        ids_N: torch.Tensor,
        row_N: torch.Tensor,
        position_N: torch.Tensor,
        last_M: torch.Tensor,
        cache: torch.Tensor,
        angles: dict[str | None, Angles],
        logits_MV: torch.Tensor,
    ) -> None:
        """Write all tokens to the cache, and the logits after the tokens `last_M` to `logits_MV`.

        Arguments:
            cache: keys and values, `[2, layers, rows, heads, positions, width]`.
            angles: from `compute_angles`.
        """
        decoder = self.decoder

        def attend_cache(index: int, block: Block, joint_NK: torch.Tensor) -> torch.Tensor:
            keys, values = cache[0, index], cache[1, index]
            cos_PW, sin_PW = angles[block.rotation]
            query_NHW = rotate_and_store(joint_NK, cos_PW, sin_PW, keys, values, row_N, position_N, decoder.heads)
            return attend(query_NHW, keys, values, row_N, position_N, block.limits)

        hidden = self.run_blocks(ids_N, position_N, attend_cache)
        normed_MD = decoder.final_norm(hidden[last_M])
        torch.mm(normed_MD, decoder.head.weight.t(), out=logits_MV)
        limited_MV = decoder.limit_logits(logits_MV)
        if limited_MV is not logits_MV:
            logits_MV.copy_(limited_MV)
