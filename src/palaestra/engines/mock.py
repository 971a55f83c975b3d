"""An engine that says what a script tells it to: for tests and for trying out an environment."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from palaestra.core.records import Completion, Failure, FailureCause, Usage
from palaestra.engines.base import Answer, Request

Script = Mapping[str, str | Failure] | Callable[[Request, int], str | Failure]


class MockEngine:
    """Answers from a script.

    Arguments:
        script: either the answer to each last message by its text, or a function of the request and
            the index of the completion. An answer may be a `Failure`.

    Example:
        >>> from palaestra.core.records import Message
        >>> engine = MockEngine({"2+2?": "Answer: 4"})
        >>> engine.generate([Request((Message("user", "2+2?"),))])[0][0].text
        'Answer: 4'
    """

    def __init__(self, script: Script, name: str = "mock") -> None:
        self.name, self.script = name, script
        self.requests: list[Request] = []

    def generate(self, requests: Sequence[Request]) -> list[list[Answer]]:
        self.requests += requests
        return [[self._answer(request, k) for k in range(request.sampling.count)] for request in requests]

    def _answer(self, request: Request, index: int) -> Answer:
        asked = request.messages[-1].text
        if callable(self.script):
            said = self.script(request, index)
        elif asked in self.script:
            said = self.script[asked]
        else:
            return Failure(FailureCause.ENGINE, f"the script has no answer to {asked[:60]!r}")
        if isinstance(said, Failure):
            return said
        # Characters stand in for tokens, so that usage and ids are there and add up.
        ids = tuple(map(ord, said))
        prompt = tuple(map(ord, asked))
        return Completion(said, ids, (0.0,) * len(ids), usage=Usage(len(prompt), len(ids)), prompt_ids=prompt)
