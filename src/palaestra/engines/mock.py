"""An engine with scripted answers, for tests and for trying out an environment."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from palaestra.core.records import Answer, Completion, Failure, FailureCause, Listener, Request, Usage, ignore
from palaestra.engines.base import BaseEngine

Script = Mapping[str, str | Failure] | Callable[[Request, int], str | Failure]


class MockEngine(BaseEngine):
    """Answers from a script. The name `mock:ANSWER` opens an engine that always returns the same answer.

    Arguments:
        script: the answers by the text of the last message, or a function of the request and the index of the
            completion. An answer may be a `Failure`.

    Example:
        >>> from palaestra.core.records import Message
        >>> engine = MockEngine({"2+2?": "Answer: 4"})
        >>> engine.generate([Request((Message("user", "2+2?"),))])[0][0].text
        'Answer: 4'
    """

    remote = False

    def __init__(self, script: Script, name: str = "mock") -> None:
        self.name, self.script = name, script
        self.requests: list[Request] = []

    @classmethod
    def open(cls, name: str, *, device: str = "", listener: Listener = ignore, **options: Any) -> MockEngine:
        engine = cls(lambda request, index: name.partition(":")[2], name)
        engine.identity = name
        return engine

    def generate(self, requests: Sequence[Request]) -> list[list[Answer]]:
        self.requests += requests
        return [[self._answer(request, k) for k in range(request.sampling.count)] for request in requests]

    def _answer(self, request: Request, index: int) -> Answer:
        question = request.messages[-1].text
        if callable(self.script):
            answer = self.script(request, index)
        elif question in self.script:
            answer = self.script[question]
        else:
            return Failure(FailureCause.ENGINE, f"the script has no answer to {question[:60]!r}")
        if isinstance(answer, Failure):
            return answer
        # Characters stand in for tokens, so that ids and usage are consistent.
        ids, prompt = tuple(map(ord, answer)), tuple(map(ord, question))
        return Completion(answer, ids, (0.0,) * len(ids), usage=Usage(len(prompt), len(ids)), prompt_ids=prompt)
