"""A version of the weights as bytes: the pieces of a learner's part, their places in its buffer, and its checksum."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import torch

MAX_CHUNK = 1 << 26
"""Maximum number of bytes in one broadcast."""
_ALIGNMENT = 16


class Piece(NamedTuple):
    """A range of the elements of a flattened tensor that a learner sends."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    length: int


def split(buffer: torch.Tensor, length: int = MAX_CHUNK) -> tuple[torch.Tensor, ...]:
    return torch.split(buffer, length)


def find_offsets(layout: Sequence[Piece]) -> tuple[list[int], int]:
    """The place of each piece in the buffer of a part, and the length of the buffer."""
    offsets, end = [], 0
    for piece in layout:
        offsets.append(end)
        size = piece.length * getattr(torch, piece.dtype).itemsize
        end += -(-size // _ALIGNMENT) * _ALIGNMENT
    return offsets, end


def assemble_weights(layouts: Sequence[Sequence[Piece]], buffers: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors of a version from the parts of all learners. A tensor of a single piece uses the memory of its buffer."""
    weights: dict[str, torch.Tensor] = {}
    for layout, buffer in zip(layouts, buffers, strict=True):
        for offset, piece in zip(find_offsets(layout)[0], layout, strict=True):
            dtype = getattr(torch, piece.dtype)
            flat = buffer[offset : offset + piece.length * dtype.itemsize].view(dtype)
            if piece.length == prod(piece.shape):
                weights[piece.name] = flat.view(piece.shape)
                continue
            if piece.name not in weights:
                weights[piece.name] = torch.empty(piece.shape, dtype=dtype)
            weights[piece.name].view(-1)[piece.start : piece.start + piece.length] = flat
    return weights


def compute_checksum(buffer: torch.Tensor) -> int:
    """The sum of all 64-bit words, each times an odd number of its place, modulo 2^64. A change of one word changes it."""
    checksum = 0
    for k, words in enumerate(split(buffer.view(torch.int64), 1 << 18)):
        factors = torch.arange(1, 2 * len(words), 2) + (k << 19)
        checksum += int((words * factors).sum())
    return checksum % (1 << 64)
