"""Text completions of a session with the official `openai` client: one text that grows is one sequence."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from captured_tokens import list_answers, measure_drift

from palaestra.core.seeding import Seeds
from palaestra.engines.transformers import TransformersEngine
from palaestra.envs.turn.games import GuessEnv
from palaestra.envs.turn.player import TurnEpisodePlayer
from palaestra.models.registry import LoadedModel
from palaestra.serving.capture import CaptureSession
from palaestra.serving.gateway import CaptureServer, ServerThread

OPTIONS: dict[str, Any] = {"model": "nano", "extra_body": {"return_token_ids": True}}


@pytest.fixture(scope="module")
def thread(nano: LoadedModel) -> Iterator[ServerThread]:
    engine = TransformersEngine(nano.weights, nano.tokenizer, "nano", processed_logprobs=True)
    thread = ServerThread(CaptureServer(engine, "nano", max_tokens=8, api_key="secret"))
    yield thread
    thread.close()


def connect(thread: ServerThread, session: CaptureSession) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{thread.url}/sessions/{session.name}/v1", api_key="secret", max_retries=0)


def check_tokens(nano: LoadedModel, session: CaptureSession, sampled: list[list[int]]) -> None:
    """Every sampled token is learned from once, with the log-prob of a forward pass."""
    assert list_answers(session) == sorted(sampled)
    assert measure_drift(nano.weights, session) < 1e-5


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("kind", ["text", "ids"])
def test_a_growing_text_is_one_sequence(thread: ServerThread, nano: LoadedModel, kind: str, stream: bool) -> None:
    player = TurnEpisodePlayer(GuessEnv(attempts=4), seed=0)
    session = thread.server.open_session(Seeds(4), player)
    tokenizer, prompt, sampled = nano.tokenizer, "", list[list[int]]()
    ids: list[int] = []
    with connect(thread, session) as client:
        messages = player.observe()["messages"]
        while not player.is_over:
            added = f"\nQ: {messages[-1]['content']}\nA:"
            prompt += added
            ids += tokenizer.encode(added)
            given = prompt if kind == "text" else ids
            answer: Any = client.completions.create(prompt=given, max_tokens=3, stream=stream, **OPTIONS)
            choices = [chunk.choices[0] for chunk in answer] if stream else answer.choices
            sampled.append(choices[-1].token_ids)
            # What the model sampled is part of the text: also the token that ends it.
            prompt += tokenizer.decode(sampled[-1])
            ids += sampled[-1]
            messages = player.step("".join(choice.text for choice in choices))["messages"]
    check_tokens(nano, session, sampled)
    (sequence,) = session.build_sequences()
    assert len(sequence.ends) == len(player.rewards) > 1
    assert tokenizer.decode(sequence.ids) == prompt
    assert [message.role for message in sequence.messages[:4]] == ["user", "assistant"] * 2


def test_prompts_of_a_call_and_edited_texts_are_branches(thread: ServerThread, nano: LoadedModel) -> None:
    session = thread.server.open_session(Seeds(5))
    with connect(thread, session) as client:
        first = client.completions.create(prompt=["3 + 4 =", "Guess:"], n=2, max_tokens=3, logprobs=0, **OPTIONS)
        assert [choice.index for choice in first.choices] == [0, 1, 2, 3]
        for choice, call in zip(first.choices, session.calls, strict=True):
            assert choice.logprobs.token_logprobs == list(call.completion.logprobs)
            assert call.messages[0].text == ("3 + 4 =" if choice.index < 2 else "Guess:")
        text = "3 + 4 =" + nano.tokenizer.decode(first.choices[1].token_ids)
        again = [client.completions.create(prompt=text + " or", max_tokens=3, **OPTIONS) for _ in range(2)]
        edited = client.completions.create(prompt="3 + 4 = seven", **OPTIONS)
    sampled = [choice.token_ids for answer in (first, *again, edited) for choice in answer.choices]
    check_tokens(nano, session, sampled)
    assert sorted(len(sequence.ends) for sequence in session.build_sequences()) == [1, 1, 1, 1, 1, 2]
    assert len(sampled[-1]) <= 8


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"echo": True}, "echo: the prompt is not repeated; join it and the answer"),
        ({"suffix": "7"}, "suffix: text is not inserted; describe"),
        ({"best_of": 2}, "best_of: all completions are returned; use n"),
        ({"logit_bias": {"1": 5}}, "use temperature, top_p or top_k"),
        ({"temperature": 0}, "a greedy answer is not a sample"),
        ({"prompt": [5, 10**6]}, "token ids from 0"),
        ({"prompt": ["3", ""]}, "the prompt is empty"),
        ({"prompt": ["3", "4"], "stream": True}, "expected one prompt for a stream"),
    ],
)
def test_unsupported_completions_are_refused(thread: ServerThread, given: dict[str, Any], reason: str) -> None:
    session = thread.server.open_session()
    with connect(thread, session) as client, pytest.raises(openai.BadRequestError, match=reason):
        client.completions.create(**{"model": "", "prompt": "3 + 4 =", **given})
    assert session.calls == []


def test_a_text_that_does_not_fit_is_marked(thread: ServerThread) -> None:
    session = thread.server.open_session()
    with connect(thread, session) as client, pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="", prompt="12 " * 5000)
    assert caught.value.code == "context_length_exceeded"
    assert session.context_exceeded
