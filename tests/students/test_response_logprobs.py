"""Log-probs of responses: the packed pass and the padded one agree, gradients included."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny_models import tiny_model

from palaestra.models import registry as models
from palaestra.models.registry import LoadedModel
from palaestra.students.batches import Encoded, ResponseLogProbs, collate

ROWS = [
    Encoded((6, 7, 8), (9, 10, 11, 1)), Encoded((6, 7, 8), (12, 1)), Encoded((20,), (21, 22, 23, 24, 25, 1)),
    Encoded((30, 31, 32, 33, 34), (1,)), Encoded((0, 31), (0, 32, 1)),
]  # fmt: skip
"""The last one has the padding token, whose input embedding has no gradient."""


@pytest.mark.parametrize("family", ["nano", "llama", "qwen2", "llama, yarn"])
def test_both_ways_agree(family: str) -> None:
    model = models.load("nano", device="cpu").weights if family == "nano" else tiny_model(family)
    results = []
    for packed in (True, False):
        logprobs = ResponseLogProbs(model, 0)
        assert logprobs._forward is not None
        if not packed:
            logprobs._forward = None
        model.zero_grad()
        table_BT = logprobs(ROWS)
        assert table_BT.shape == (5, 6)
        (table_BT * torch.linspace(-1, 1, 30).view(5, 6)).sum().backward()
        results.append([table_BT.detach(), *(p.grad.clone() for p in model.parameters())])
    for mine, theirs in zip(*results, strict=True):
        torch.testing.assert_close(mine, theirs, atol=2e-5, rtol=1e-3)
    assert (results[0][0][1, 2:] == 0).all()


@pytest.mark.parametrize("rows", [ROWS, [Encoded((), (9, 10, 1)), *ROWS]], ids=["prompts", "one without a prompt"])
def test_the_loss_is_the_mean_cross_entropy(nano: LoadedModel, rows: list[Encoded]) -> None:
    batch = collate(rows, 0)
    with torch.no_grad():
        wanted = nano.weights(**batch).loss
        assert float(ResponseLogProbs(nano.weights, 0).compute_loss(rows)) == pytest.approx(float(wanted), rel=1e-5)


@pytest.mark.parametrize("family", ["llama, longrope", "phi3, longrope", "mistral, sliding, longrope"])
def test_with_longrope_a_short_row_is_not_rotated_as_a_long_one(family: str) -> None:
    """The log-probs of a row do not depend on its batch."""
    model = tiny_model(family)
    rows = [Encoded((5, 6), (7, 8, 1)), Encoded(tuple(range(2, 30)), tuple(range(30, 40))), Encoded((9,), (10,) * 31)]
    logprobs, alone = ResponseLogProbs(model, 0), []
    for row in rows:
        with torch.no_grad():
            logp_TV = model(input_ids=torch.tensor([row.prompt_ids + row.response_ids])).logits[0, :-1].log_softmax(-1)
        chosen_T = logp_TV[len(row.prompt_ids) - 1 :].gather(-1, torch.tensor(row.response_ids)[:, None])[:, 0]
        alone.append(chosen_T)
    table_BT = logprobs(rows)
    assert table_BT.requires_grad
    for own_T, wanted_T in zip(table_BT, alone, strict=True):
        torch.testing.assert_close(own_T[: len(wanted_T)], wanted_T, atol=1e-4, rtol=0.0)
        assert not own_T[len(wanted_T) :].any()


def test_dropout_is_left_to_the_model() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    shape: dict[str, Any] = {"vocab_size": 61, "n_positions": 32, "n_embd": 24, "n_layer": 2, "n_head": 3}
    assert ResponseLogProbs(GPT2LMHeadModel(GPT2Config(**shape)), 0)._forward is None
    plain = GPT2Config(**shape, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    assert ResponseLogProbs(GPT2LMHeadModel(plain), 0)._forward is not None
