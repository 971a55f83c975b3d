"""The language models that the token-scale benchmarks measure on, and prompts for them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

VOCABULARY, PROMPT = 4160, 32


def reference_gpt2(seed: int = 0) -> tuple[Any, Any]:
    """A GPT-2 of 4 layers x 256 (4.5 M parameters) with random weights, and a tokenizer of as many words."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    words = [f"w{k}" for k in range(VOCABULARY - 2)]
    table = {word: k for k, word in enumerate([*words, "<pad>", "<eos>"])}
    inner = Tokenizer(models.WordLevel(table, unk_token="<pad>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<pad>", eos_token="<eos>", padding_side="left"
    )
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=1024,
        n_embd=256,
        n_layer=4,
        n_head=4,
        bos_token_id=VOCABULARY - 1,
        eos_token_id=VOCABULARY - 1,
        pad_token_id=VOCABULARY - 2,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = GPT2LMHeadModel(config).eval()
    # No end of sequence by chance: every response has the length that the benchmark says.
    model.generation_config.eos_token_id = None
    return model, tokenizer


def load(name: str) -> tuple[Any, Any]:
    """`gpt2` (the reference's), `nano`, or any other model name."""
    if name == "gpt2":
        return reference_gpt2()
    from palaestra.models import registry as models

    model = models.load(name, device="cpu")
    return model.weights, model.tokenizer


def prompts(vocabulary: int, count: int, length: int = PROMPT, seed: int = 0) -> list[list[int]]:
    """Random prompts of one length."""
    generator = np.random.default_rng(seed)
    return generator.integers(10, vocabulary - 10, (count, length)).tolist()  # type: ignore[no-any-return]
