"""An engine that writes fixed texts as exact tokens."""

from __future__ import annotations

import time

from palaestra.core.records import Completion, Request, StopReason, Usage
from palaestra.models.registry import LoadedModel


class ScriptedEngine:
    """An engine that writes a fixed text as exact tokens, after a while. Several texts take turns."""

    name = "scripted"

    def __init__(self, nano: LoadedModel, *texts: str, seconds: float = 0.0) -> None:
        self.tokenizer, self.seconds, self.context = nano.tokenizer, seconds, 1 << 20
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
