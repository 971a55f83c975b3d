"""Training under published chat templates: no token drifts, and the loss covers exactly the sampled tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from published_templates import CHANGES_EARLIER_TURNS, ENDS, load_tokenizer

from palaestra.core.records import Message
from palaestra.core.seeding import Seeds
from palaestra.engines.chat_encoder import ChatEncoder
from palaestra.engines.models import LoadedModel
from palaestra.envs.turn import Reply, TurnEnv, TurnStopReason, TurnVectorEnv
from palaestra.learn.turns import collect_turns

CONTEXT = 100_000


class Script:
    """A policy that samples given ids, and keeps every context that it was asked to continue."""

    has_cache = False  # So that every message starts from the whole context, and every choice counts.
    context = CONTEXT

    def __init__(self, turns: Sequence[Sequence[int]]) -> None:
        self.rest = [token for turn in turns for token in turn]
        self.contexts: list[list[int]] = []

    def begin(self, slots: int) -> None:
        assert slots == 1

    def act(self, tokens: Any, length: Any, fresh: Any, active: Any, uniform: Any, **options: Any) -> Any:
        if fresh[0]:
            self.contexts.append(tokens[0, : length[0]].tolist())
        return np.array([self.rest.pop(0)]), -uniform, uniform


class Replies(TurnEnv):
    """Gives fixed replies."""

    def __init__(self, opening: Sequence[Message], replies: Sequence[Sequence[Message]]) -> None:
        super().__init__()
        self.first, self.replies = opening, replies

    def opening(self, options: Mapping[str, Any]) -> Sequence[Message]:
        return self.first

    def respond(self, message: Message) -> Reply:
        if self.turn > len(self.replies):
            return Reply(reward=1.0, stop=TurnStopReason.SUBMITTED)
        return Reply(self.replies[self.turn - 1])


@pytest.fixture(scope="module", params=sorted(ENDS))
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def tokenizer(nano: LoadedModel, family: str) -> Any:
    return load_tokenizer(nano, family)


@pytest.fixture(scope="module")
def encoder(tokenizer: Any, family: str) -> ChatEncoder:
    return ChatEncoder(tokenizer, family)


WORDS = st.text("abc 12.é\n<>{}", max_size=20)


@st.composite
def messages_of_the_model(draw: st.DrawFn, tokenizer: Any, family: str) -> list[int]:
    """The ids of a message: with reasoning or without, or any ids; ended or cut."""
    ends = [tokenizer.convert_tokens_to_ids(end) for end in ENDS[family]]
    if draw(st.integers(0, 3)) == 0:
        ids = draw(st.lists(st.integers(0, len(tokenizer) - 1), min_size=1, max_size=12))
    else:
        reasoning = f"<think>\n{draw(WORDS)}\n</think>\n\n" if draw(st.booleans()) else ""
        ids = tokenizer.encode(reasoning + draw(WORDS) + ".", add_special_tokens=False)
    end = draw(st.sampled_from([*ends, None]))
    return [token for token in ids if token not in ends] + ([] if end is None else [end])


@settings(max_examples=12, deadline=None)
@given(st.data())
def test_sampled_tokens_stay_and_the_loss_covers_exactly_them(
    encoder: ChatEncoder, tokenizer: Any, family: str, data: st.DataObject
) -> None:
    turns = data.draw(st.lists(messages_of_the_model(tokenizer, family).filter(bool), min_size=2, max_size=4), "turns")
    roles = st.sampled_from([["user"], ["tool"], ["tool", "tool"], ["tool", "user"]])
    replies = [
        [Message(role, data.draw(WORDS.map(str.strip).filter(bool))) for role in data.draw(roles)] for _ in turns[1:]
    ]
    opening = [Message("system", "Be brief.")] * data.draw(st.integers(0, 1)) + [Message("user", "Guess a number.")]
    ends = [tokenizer.convert_tokens_to_ids(end) for end in ENDS[family]]
    # A message without an end is cut at the limit, which is the same for all messages.
    limit = max(map(len, turns))
    turns = [turn if turn[-1] in ends else (turn * limit)[:limit] for turn in turns]
    policy = Script(turns)
    env = TurnVectorEnv(lambda: Replies(opening, replies), 1, autoreset=False)
    rollout = collect_turns(env, policy, encoder, 1, Seeds(0), end_ids=ends, max_tokens=limit)  # type: ignore[arg-type]
    env.close()

    assert not policy.rest
    assert len(policy.contexts) == len(turns)
    (episode,) = rollout.records
    for turn, sampled in enumerate(turns):
        seen = policy.contexts[turn] + list(sampled)
        after = policy.contexts[turn + 1] if turn + 1 < len(turns) else [*episode.ids]
        drift = sum(a != b for a, b in zip(seen, after, strict=False)) + max(0, len(seen) - len(after))
        assert drift == 0
    places = [
        len(context) + k for context, sampled in zip(policy.contexts, turns, strict=True) for k in range(len(sampled))
    ]
    inputs = rollout.inputs
    assert (inputs.chosen[0] + len(inputs.prompts[0])).tolist() == places
    assert inputs.decisions(0) == tuple(token for turn in turns for token in turn)
    assert int(rollout.mask_BT.sum()) == len(places)
    assert list(inputs.prompts[0] + inputs.responses[0]) == episode.ids == policy.contexts[-1] + list(turns[-1])


def test_only_the_text_between_turns_comes_from_the_template(encoder: ChatEncoder, tokenizer: Any, family: str) -> None:
    """The context ends as the template renders the whole conversation."""
    before = [Message("user", "Guess a number."), Message("assistant", "4"), Message("user", "Higher.")]
    message, reply = Message("assistant", "<think>\nMore.\n</think>\n\n6"), Message("user", "Lower.")
    data = [{"role": m.role, "content": m.text} for m in (*before, message, reply)]
    whole = tokenizer.apply_chat_template(data, add_generation_prompt=True, tokenize=False)
    for end in (*ENDS[family], None):
        last = None if end is None else tokenizer.convert_tokens_to_ids(end)
        text = tokenizer.decode(encoder.encode_reply(before, message, [reply], last))
        assert "Lower." in text
        assert whole.endswith(text)
        assert end is None or not text.startswith(end), "the message is ended twice"
    assert encoder.preserves_prefix is (family not in CHANGES_EARLIER_TURNS)
