"""Log-probs of the responses of encoded examples, with gradients: the core of supervised learning and of DPO."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy, pad

from palaestra.engines.families import context_length, position_limit, split_by_rotation
from palaestra.engines.sequence_forward import SequenceForward, pad_or_cut
from palaestra.engines.token_logprobs import compute_token_logprobs
from palaestra.learn.batches import IGNORE, Encoded, collate


class ResponseLogProbs:
    """Computes the log-prob of every response token.

    It uses the packed forward pass if the model has one and no dropout, and otherwise pads the batch. Examples with images
    are always padded.

    Arguments:
        model: a causal language model of transformers, or peft's wrapper of one.
        pad_id: the token that fills a padded batch.
    """

    def __init__(self, model: Any, pad_id: int) -> None:
        self.model, self.pad_id = model, pad_id
        self._forward: SequenceForward | None = None
        if not _has_dropout(model) and context_length(model.config) == position_limit(model.config):
            self._forward = SequenceForward(model)

    def __call__(self, rows: Sequence[Encoded]) -> torch.Tensor:
        """The log-probs `[rows, longest response]`, with 0 after the end of a response."""
        forward = self._forward
        if forward is None or forward.fast is None or any(row.images or not row.prompt_ids for row in rows):
            return self._compute_parts(rows)
        width = max(len(row.response_ids) for row in rows)
        outputs = forward(
            [row.prompt_ids for row in rows], [row.response_ids for row in rows], width, hidden=True, logits=False
        )
        if outputs.rows_N is None:  # The packed forward pass differed from the model's own.
            return self._compute_parts(rows)
        assert outputs.hidden_ND is not None
        tokens_N = pad_or_cut([row.response_ids for row in rows], width).flatten().to(self.model.device)
        output_VD = self.model.get_output_embeddings().weight
        logprobs_N = compute_token_logprobs(outputs.hidden_ND, output_VD, tokens_N[outputs.rows_N])
        return outputs.to_table(logprobs_N, len(rows), width)

    def compute_loss(self, rows: Sequence[Encoded]) -> torch.Tensor:
        """The mean cross-entropy of all response tokens of a batch."""
        # Without a prompt, nothing predicts the first token.
        return -self(rows).sum() / sum(len(row.response_ids) - (not row.prompt_ids) for row in rows)

    def _compute_parts(self, rows: Sequence[Encoded]) -> torch.Tensor:
        """The log-probs by the model's own forward pass."""
        parts = split_by_rotation([len(row) for row in rows], self.model.config)
        if len(parts) == 1:
            return self._compute_padded(rows)
        tables = [self._compute_padded([rows[index] for index in part]) for part in parts]
        width = max(table_BW.shape[1] for table_BW in tables)
        table_BW = torch.cat([pad(table_BW, (0, width - table_BW.shape[1])) for table_BW in tables])
        return table_BW[torch.tensor([index for part in parts for index in part]).argsort()]

    def _compute_padded(self, rows: Sequence[Encoded]) -> torch.Tensor:
        batch = collate(rows, self.pad_id, self.model.device)
        labels_BT = batch.pop("labels")[:, 1:]
        logits_BTV = self.model(**batch).logits[:, :-1].float()
        loss_N = cross_entropy(logits_BTV.flatten(0, 1), labels_BT.flatten(), ignore_index=IGNORE, reduction="none")
        table_BT = -loss_N.view(labels_BT.shape)
        # Responses begin after prompts of different lengths.
        width = max(len(row.response_ids) for row in rows)
        first_B1 = torch.tensor([[max(len(row.prompt_ids) - 1, 0)] for row in rows], device=table_BT.device)
        place_BW = first_B1 + torch.arange(width, device=table_BT.device)[None]
        inside_BW = place_BW < table_BT.shape[1]
        return table_BT.gather(1, place_BW.clamp(max=table_BT.shape[1] - 1)) * inside_BW


def _has_dropout(model: Any) -> bool:
    """Whether training draws random zeros outside of adapters, which the packed forward pass does not."""
    if float(getattr(model.config.get_text_config(), "attention_dropout", 0.0) or 0.0) > 0:
        return True
    return any(
        isinstance(module, nn.Dropout) and module.p > 0 and "lora_dropout" not in name
        for name, module in model.named_modules()
    )
