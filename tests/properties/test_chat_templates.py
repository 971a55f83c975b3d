"""Training under published chat templates: no token drifts, and the loss covers exactly the sampled tokens."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from published_templates import CHANGES_EARLIER_TURNS, ENDS, list_files, load_tokenizer

from palaestra.chat.encoder import ChatEncoder
from palaestra.chat.rendering import find_shared_prefix, to_plain
from palaestra.chat.template import ChatTemplate
from palaestra.chat.tool_formats import is_malformed
from palaestra.core.records import Message, ToolCall
from palaestra.core.seeding import Seeds
from palaestra.envs.turn import Reply, ToolEnv, TurnStopReason, TurnVectorEnv
from palaestra.models.registry import LoadedModel
from palaestra.rl.turns import collect_turns

CONTEXT = 100_000


class Script:
    """A policy that samples given ids, and keeps every context that it was asked to continue."""

    kept = None
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


def add(first: int, second: int) -> int:
    """The sum.

    Arguments:
        first: a number
        second: a number
    """
    return first + second


class Replies(ToolEnv):
    """Answers calls, and gives fixed replies to other messages."""

    def __init__(self, opening: Sequence[Message], replies: Sequence[Sequence[Message]]) -> None:
        super().__init__([add])
        self.first, self.replies = opening, replies

    def opening(self, options: Mapping[str, Any]) -> Sequence[Message]:
        return self.first

    def respond(self, message: Message) -> Reply:
        if self.turn > len(self.replies):
            return Reply(reward=1.0, stop=TurnStopReason.SUBMITTED)
        return super().respond(message)

    def answer(self, message: Message) -> Reply:
        return Reply(self.replies[self.turn - 1])


TOOLS = json.dumps(Replies([], []).tools)


@pytest.fixture(
    scope="module",
    params=[
        *sorted(ENDS),
        *(pytest.param(name, marks=pytest.mark.backends, id=Path(name).stem) for name in ("smollm2", *list_files())),
    ],
)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def tokenizer(nano: LoadedModel, family: str) -> Any:
    return load_tokenizer(nano, family)


@pytest.fixture(scope="module")
def ends(tokenizer: Any, family: str) -> tuple[str, ...]:
    """The tokens with which the model ends a message."""
    return ENDS.get(family) or ChatTemplate(tokenizer).end_tokens or (tokenizer.eos_token,)


@pytest.fixture(scope="module")
def encoder(tokenizer: Any, family: str) -> ChatEncoder:
    return ChatEncoder(tokenizer, family)


@pytest.fixture(scope="module")
def tool_encoder(tokenizer: Any, family: str) -> ChatEncoder:
    return ChatEncoder(tokenizer, family, TOOLS)


@pytest.fixture(scope="module")
def written_calls(tool_encoder: ChatEncoder, ends: tuple[str, ...]) -> list[str]:
    """Messages with calls as the family writes them: one call, two, wrong arguments, an unknown tool."""
    right, wrong = ToolCall("add", '{"first": 1, "second": 2}'), ToolCall("add", '{"first": "x"}')
    unknown = ToolCall("sub", "{}")
    calls = [(right,), (wrong,), (unknown,), (right, unknown)]
    template, question = tool_encoder.template, Message("user", "question")
    if not template.max_calls:
        return [to_plain(Message("assistant", "", message)).text for message in calls]
    texts = []
    for message in calls:
        numbered = tuple(replace(call, id=f"call{k:05d}") for k, call in enumerate(message))[: template.max_calls]
        whole = template.render([question, Message("assistant", "", numbered)], generation_prompt=False)
        texts.append(whole.removeprefix(find_shared_prefix(template.render([question]), whole)).rstrip())
        for end in ends:
            texts[-1] = texts[-1].removesuffix(end)
    return texts


WORDS = st.text("abc 12.é\n<>{}", max_size=20)


@st.composite
def draw_model_message(draw: st.DrawFn, tokenizer: Any, ends: list[int], written_calls: list[str]) -> list[int]:
    """The ids of a message: any ids, or words and calls, whole or broken, with or without reasoning; ended or cut."""
    kind = draw(st.sampled_from(["ids", "words", "calls", "broken calls"]))
    if kind == "ids":
        ids = draw(st.lists(st.integers(0, len(tokenizer) - 1), min_size=1, max_size=12))
    else:
        text = draw(WORDS) + "." if kind == "words" else draw(st.sampled_from(written_calls))
        if kind == "broken calls":
            text = text[: draw(st.integers(1, len(text)))]
        reasoning = f"<think>\n{draw(WORDS)}\n</think>\n\n" if draw(st.booleans()) else ""
        ids = tokenizer.encode(reasoning + text, add_special_tokens=False)
    end = draw(st.sampled_from([*ends, None]))
    return [token for token in ids if token not in ends] + ([] if end is None else [end])


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_sampled_tokens_stay_and_the_loss_covers_exactly_them(
    encoder: ChatEncoder,
    tool_encoder: ChatEncoder,
    tokenizer: Any,
    ends: tuple[str, ...],
    written_calls: list[str],
    data: st.DataObject,
) -> None:
    end_ids = [tokenizer.convert_tokens_to_ids(end) for end in ends]
    messages = draw_model_message(tokenizer, end_ids, written_calls).filter(bool)
    turns = data.draw(st.lists(messages, min_size=2, max_size=4), "turns")
    roles = st.sampled_from([["user"], ["tool"], ["tool", "tool"], ["tool", "user"]])
    replies = [
        [Message(role, data.draw(WORDS.map(str.strip).filter(bool))) for role in data.draw(roles)] for _ in turns[1:]
    ]
    opening = [Message("system", "Be brief.")] * data.draw(st.integers(0, 1)) + [Message("user", "Guess a number.")]
    # A message without an end is cut at the limit, which is the same for all messages.
    limit = max(map(len, turns))
    turns = [turn if turn[-1] in end_ids else (turn * limit)[:limit] for turn in turns]
    policy = Script(turns)
    env = TurnVectorEnv(lambda: Replies(opening, replies), 1, autoreset=False)
    own = tool_encoder if data.draw(st.booleans(), "tools") else encoder
    rollout = collect_turns(env, policy, own, 1, Seeds(0), end_ids=end_ids, max_tokens=limit)  # type: ignore[arg-type]
    env.close()

    assert not policy.rest
    assert len(policy.contexts) == len(turns)
    (episode,) = rollout.get_episodes().records
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
    assert inputs.get_actions(0) == tuple(token for turn in turns for token in turn)
    assert int(rollout.mask_BT.sum()) == len(places)
    assert list(inputs.prompts[0] + inputs.responses[0]) == episode.ids == policy.contexts[-1] + list(turns[-1])

    calls = [call for message in episode.messages for call in message.tool_calls]
    assert episode.calls == len(calls) == len({call.id for call in calls})
    assert episode.malformed_calls == sum(map(is_malformed, calls)) <= episode.failed_calls <= episode.calls
    answered = {message.tool_call_id: message.text for message in episode.messages if message.tool_call_id}
    last = next(message for message in reversed(episode.messages) if message.role == "assistant")
    assert set(answered) == {call.id for call in calls} - {call.id for call in last.tool_calls}
    assert all(answered[call.id].startswith("error: ") for call in calls if is_malformed(call) and call.id in answered)


def test_only_the_text_between_turns_comes_from_the_template(
    encoder: ChatEncoder, tokenizer: Any, family: str, ends: tuple[str, ...]
) -> None:
    """The context ends as the template renders the whole conversation."""
    before = [Message("user", "Guess a number."), Message("assistant", "4"), Message("user", "Higher.")]
    message, reply = Message("assistant", "<think>\nMore.\n</think>\n\n6"), Message("user", "Lower.")
    data = [{"role": m.role, "content": m.text} for m in (*before, message, reply)]
    whole = tokenizer.apply_chat_template(data, add_generation_prompt=True, tokenize=False)
    for end in (*ends, None):
        last = None if end is None else tokenizer.convert_tokens_to_ids(end)
        text = tokenizer.decode(encoder.encode_reply(before, message, [reply], last))
        assert "Lower." in text
        assert whole.endswith(text)
        assert end is None or not text.startswith(end), "the message is ended twice"
    assert family not in ENDS or encoder.preserves_prefix is (family not in CHANGES_EARLIER_TURNS)
