"""An engine that writes fixed texts as exact tokens."""

from __future__ import annotations

import time
from dataclasses import replace

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from palaestra.core.records import Completion, Request, StopReason, Usage
from palaestra.models.registry import LoadedModel


class ScriptedEngine:
    """An engine that writes a fixed text as exact tokens, after a while. Several texts take turns."""

    name = "scripted"

    def __init__(self, nano: LoadedModel, *texts: str, seconds: float = 0.0) -> None:
        self.tokenizer, self.weights, self.seconds, self.context = nano.tokenizer, nano.weights, seconds, 1 << 20
        self.texts, self.requests = texts, list[Request]()
        self.ids = self.encode(texts[0])

    def encode(self, text: str) -> tuple[int, ...]:
        return (*self.tokenizer.encode(text, add_special_tokens=False), self.tokenizer.eos_token_id)

    def answer(self, request: Request) -> list[Completion]:
        text = self.texts[len(self.requests) % len(self.texts)]
        self.requests.append(request)
        ids = self.encode(text)
        answer = Completion(
            text, ids, (-0.5,) * len(ids), StopReason.END, Usage(len(request.prompt_ids), len(ids)), request.prompt_ids
        )
        return [answer] * request.sampling.count

    def generate(self, requests: list[Request]) -> list[list[Completion]]:
        time.sleep(self.seconds)
        return list(map(self.answer, requests))


class ForcedEngine(ScriptedEngine):
    """Writes fixed texts with the log-probs that a model gives to their tokens."""

    def answer(self, request: Request) -> list[Completion]:
        (answer, *_) = super().answer(request)
        ids, start = torch.tensor([[*request.prompt_ids, *answer.token_ids]]), len(request.prompt_ids)
        with torch.inference_mode():
            logits_TV = self.weights(ids, logits_to_keep=len(answer.token_ids) + 1).logits[0, :-1]
        logprobs_T = logits_TV.log_softmax(-1).gather(-1, ids[0, start:, None])[:, 0]
        return [replace(answer, logprobs=tuple(logprobs_T.tolist()))] * request.sampling.count


def make_wide_model(nano: LoadedModel) -> LoadedModel:
    """A random model with the tokenizer of `nano`. It reads the prompts of coding agents, of 50,000 tokens, in seconds."""
    config = LlamaConfig(
        vocab_size=len(nano.tokenizer),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=1,
        max_position_embeddings=1 << 17,
        initializer_range=0.5,
    )
    return replace(nano, weights=LlamaForCausalLM(config).eval())
