"""Random agents through the gateway: every sampled id is learned from once, and the training pass agrees with its log-prob."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palaestra.core.seeding import Seeds
from palaestra.engines.transformers import TransformersEngine
from palaestra.models.registry import LoadedModel
from palaestra.rl.agent_loop import make_captured_rollout, to_episodes
from palaestra.rl.policies.language_model import LanguageModelPolicy
from palaestra.rl.turns import TurnEpisode
from palaestra.serving.gateway import CaptureServer, ServerThread

TEMPERATURE = 0.7
TOLERANCE = 1e-3
TEXTS = st.sampled_from(["Higher.", "12*7?", " é\n", "What is 3 + 4?", "1776", "lower lower"])
MOVES = st.tuples(
    st.sampled_from(["continue", "continue", "retry", "edit", "inject", "new"]),
    st.integers(0, 99),  # the earlier conversation
    st.integers(1, 2),  # n
    st.booleans(),  # streamed
    st.sampled_from([None, ["7"], ["e", "."]]),  # stop
    TEXTS,
)


@pytest.fixture(scope="module")
def thread(nano: LoadedModel) -> Iterator[ServerThread]:
    engine = TransformersEngine(nano.weights, nano.tokenizer, "nano", processed_logprobs=True)
    thread = ServerThread(CaptureServer(engine, temperature=TEMPERATURE, max_tokens=6))
    yield thread
    thread.close()


@pytest.fixture(scope="module")
def connection() -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url="http://127.0.0.1", api_key="x", max_retries=0) as connection:
        yield connection


def ask(client: openai.OpenAI, messages: list[Any], n: int, stream: bool, stop: list[str] | None) -> list[Any]:
    """The answers of a call: `(message, prompt ids, token ids)`; a stream returns no prompt ids."""
    options = {"model": "", "messages": messages, "n": n, "stop": stop, "extra_body": {"return_token_ids": True}}
    if not stream:
        reply = client.chat.completions.create(**options)
        return [(choice.message, reply.prompt_token_ids, choice.token_ids) for choice in reply.choices]
    texts, ids = [""] * n, [[]] * n
    for chunk in client.chat.completions.create(**options, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            ids[choice.index] = getattr(choice, "token_ids", None) or ids[choice.index]
    return [({"role": "assistant", "content": text}, None, own) for text, own in zip(texts, ids, strict=True)]


@settings(max_examples=6, deadline=None)
@given(st.lists(MOVES, min_size=2, max_size=7), st.integers(0, 99))
def test_every_sampled_token_is_learned_from_once(
    thread: ServerThread, connection: openai.OpenAI, nano: LoadedModel, moves: list[Any], seed: int
) -> None:
    gateway = thread.server
    assert isinstance(gateway, CaptureServer)
    session = gateway.open_session(Seeds(seed))
    conversations: list[tuple[list[Any], Any]] = []
    sampled: list[list[int]] = []
    client = connection.with_options(base_url=f"{thread.url}/sessions/{session.name}/v1")
    for move, place, n, stream, stop, text in moves:
        messages, answer = conversations[place % len(conversations)] if conversations else ([], None)
        if answer is None or move == "new":
            messages, known = [{"role": "system", "content": "Be short."}, {"role": "user", "content": text}], None
        elif move == "retry":
            known = None
        else:
            own = {"role": "assistant", "content": "Edited by the agent."} if move == "edit" else answer[0]
            injected = [{"role": "assistant", "content": "Let me think."}] if move == "inject" else []
            known = None if move == "edit" else answer
            messages = [*messages, own, {"role": "user", "content": text}, *injected]
        for new in ask(client, messages, n, stream, stop):
            conversations.append((messages, new))
            sampled.append(new[2])
            if known is not None and known[1] and new[1]:
                prefix = known[1] + known[2]
                # Another answer with the same text may be the one that is continued.
                assert new[1][: len(prefix)] == prefix or _is_ambiguous(conversations, known)
    sequences = session.build_sequences()
    learned = [
        [sequence.ids[k] for k in sequence.chosen[start:end]]
        for sequence in sequences
        for start, end in zip([0, *sequence.ends], sequence.ends, strict=False)
    ]
    assert sorted(learned) == sorted(sampled)
    episode = TurnEpisode(0, 0, 0)
    rollout = make_captured_rollout(to_episodes(episode, sequences, 1.0), 1 << 10, 0)
    new_BT = LanguageModelPolicy(nano.weights, temperature=TEMPERATURE).logprobs_BT(rollout)
    drifted = ((new_BT - rollout.logprobs_BT).abs() > TOLERANCE) & rollout.mask_BT
    assert int(drifted.sum()) == 0
    assert int(rollout.mask_BT.sum()) == sum(map(len, sampled))
    assert rollout.returns_B[rollout.valid_B].tolist() == [1.0] * len(sequences)
    assert rollout.stats.returns == [1.0]


def _is_ambiguous(conversations: list[tuple[list[Any], Any]], known: Any) -> bool:
    def read(answer: Any) -> str:
        message = answer[0]
        return str(message["content"] if isinstance(message, dict) else message.content).strip()

    return sum(read(answer) == read(known) for _, answer in conversations) > 1
