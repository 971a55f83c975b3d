"""The log-prob of one token at each position, without a table of log-probs, on the device of the hidden states."""

from __future__ import annotations

import torch

from palaestra.engines.cpu.kernels import token_logprobs_N
from palaestra.engines.gpu.training import recompute_token_logprobs


def compute_token_logprobs(
    hidden_ND: torch.Tensor, output_VD: torch.Tensor, tokens_N: torch.Tensor, temperature: float = 1.0
) -> torch.Tensor:
    """Output layer, softmax and selection of one token in one operation, with gradients.

    A CPU keeps one table of `[positions, vocabulary]` for the backward pass. A GPU keeps none and computes the logits again.
    """
    compute = recompute_token_logprobs if hidden_ND.is_cuda else token_logprobs_N
    return compute(hidden_ND, output_VD, tokens_N, temperature)
