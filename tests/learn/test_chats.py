"""Conversations as ids: what a template adds behind an assistant's words, and templates under which that is no text."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from palaestra.core.errors import EnvError
from palaestra.core.records import ImagePart, Message, TextPart
from palaestra.engines.chat import prompt_ids
from palaestra.engines.shelf import Model
from palaestra.learn.chats import ChatEncoder

START = "{% for m in messages %}"
ASK = "{% if add_generation_prompt %}"
CHATML = START + "{{'<|im_start|>'+m['role']+'\n'+m['content']+'<|im_end|>\n'}}{% endfor %}" + ASK + "{{'<|im_start|>assistant\n'}}{% endif %}"  # fmt: skip
TRIMMED = START + "{{'<|'+m['role']+'|>\n\n'+m['content']|trim+'<|end|>'}}{% endfor %}" + ASK + "{{'<|assistant|>\n\n'}}{% endif %}"  # fmt: skip
ALTERNATING = (
    "{{'<s>'}}" + START + "{% if (m['role']=='user') != (loop.index0 % 2 == 0) %}{{raise_exception('Conversation roles must alternate')}}"
    "{% endif %}{% if m['role']=='user' %}{{'[INST] '+m['content']+' [/INST]'}}{% else %}{{' '+m['content']+' <|end|>'}}{% endif %}{% endfor %}"
)  # fmt: skip
DEAF = START + "{% if m['role'] != 'tool' %}{{'<|'+m['role']+'|>'+m['content']+'<|end|>'}}{% endif %}{% endfor %}" + ASK + "{{'<|assistant|>'}}{% endif %}"  # fmt: skip
FORGETFUL = (
    START + "{% set c = m['content'] %}{% if m['role']=='assistant' %}{% set c = c.split('</think>')[-1] %}{% endif %}"
    "{{'<|'+m['role']+'|>'+c+'<|end|>'}}{% endfor %}" + ASK + "{{'<|assistant|>'}}{% endif %}"
)  # fmt: skip
LAST_ONLY = START + "{% if loop.index0 >= messages|length - 2 %}{{'<|'+m['role']+'|>'+m['content']+'<|end|>'}}{% endif %}{% endfor %}" + ASK + "{{'<|assistant|>'}}{% endif %}"  # fmt: skip
THINKING = START + "{{'<|'+m['role']+'|>'+m['content']+'<|end|>'}}{% endfor %}" + ASK + "{{'<|assistant|><think>\n'}}{% endif %}"  # fmt: skip

ASKED = [Message("user", "Guess.")]


def tokenizer_with(nano: Model, template: str | None) -> Any:
    own = copy.deepcopy(nano.tokenizer)
    own.chat_template = template
    return own


@pytest.mark.parametrize("template", ["nano", CHATML, TRIMMED], ids=["nano", "chatml", "trimmed"])
def test_the_ids_are_those_of_the_whole_conversation(nano: Model, template: str) -> None:
    """Where the model samples the usual ids, growing at the end and encoding the whole come to the same."""
    tokenizer = nano.tokenizer if template == "nano" else tokenizer_with(nano, template)
    encoder = ChatEncoder(tokenizer)
    messages = [Message("system", "Be brief."), Message("user", "Guess a number.")]
    ids = list(encoder.opening(messages))
    for words, reply in (
        ("Answer: 4", [Message("user", "Higher.")]),
        ("é\n2", [Message("tool", "84"), Message("user", "Go on.")]),
        ("", [Message("user", "Say a number.")]),
    ):
        said = Message("assistant", words)
        ids += tokenizer.encode(words, add_special_tokens=False)
        ids += encoder.answer(messages, said, reply)
        messages += [said, *reply]
        assert ids == prompt_ids(tokenizer, messages)


def test_a_message_that_the_model_ended_itself_is_not_ended_twice(nano: Model) -> None:
    end = nano.tokenizer.eos_token_id
    encoder = ChatEncoder(nano.tokenizer)
    said, reply = Message("assistant", "4"), [Message("user", "Higher.")]
    cut, whole = (encoder.answer(ASKED, said, reply, last) for last in (7, end))
    assert cut == (end, *whole)
    assert nano.tokenizer.decode(whole) == "<|user|>Higher.<|end|><|assistant|>"
    spaced = ChatEncoder(tokenizer_with(nano, ALTERNATING))
    assert nano.tokenizer.decode(spaced.answer(ASKED, said, reply, end)) == "[INST] Higher. [/INST]"


def test_white_space_that_was_sampled_stays_as_it_is(nano: Model) -> None:
    encoder = ChatEncoder(tokenizer_with(nano, TRIMMED))
    said = Message("assistant", "\n 4 \n")
    found = nano.tokenizer.decode(encoder.answer(ASKED, said, [Message("user", "Higher.")]))
    assert found == "<|end|><|user|>\n\nHigher.<|end|><|assistant|>\n\n"
    before = [*ASKED, said, Message("user", "Higher.")]
    assert encoder.answer(before, Message("assistant", "6"), [Message("user", "Lower.")])


@pytest.mark.parametrize("template", [ALTERNATING, DEAF], ids=["refuses tools", "leaves tools out"])
def test_a_tool_speaks_as_a_user_where_the_template_knows_none(nano: Model, template: str) -> None:
    encoder = ChatEncoder(tokenizer_with(nano, template))
    said = Message("assistant", "calc: 12*7")
    as_tool, as_user = (encoder.answer(ASKED, said, [Message(role, "84")]) for role in ("tool", "user"))
    assert as_tool == as_user
    assert "84" in nano.tokenizer.decode(as_tool)
    assert "tool" in nano.tokenizer.decode(ChatEncoder(nano.tokenizer).answer(ASKED, said, [Message("tool", "84")]))


@pytest.mark.parametrize("template", [FORGETFUL, LAST_ONLY, THINKING], ids=["reasoning", "last messages", "prefilled"])
def test_a_template_that_changes_earlier_turns_is_refused_before_anything_is_sampled(
    nano: Model, template: str
) -> None:
    with pytest.raises(EnvError, match="the chat template of mine changes earlier turns") as caught:
        ChatEncoder(tokenizer_with(nano, template), "mine")
    assert "\n" not in str(caught.value)
    assert "It begins to differ here" in str(caught.value)


def test_without_a_template_every_message_is_a_line(nano: Model) -> None:
    encoder = ChatEncoder(tokenizer_with(nano, None))
    ids = encoder.opening(ASKED) + tuple(nano.tokenizer.encode("4"))
    ids += encoder.answer(ASKED, Message("assistant", "4"), [Message("user", "Higher.")])
    assert nano.tokenizer.decode(ids) == "Guess.\n4\nHigher.\n"


def test_what_cannot_be_encoded_is_refused_in_one_line(nano: Model) -> None:
    encoder = ChatEncoder(nano.tokenizer)
    picture = Message("user", (ImagePart("data:,"), TextPart("What is it?")))
    with pytest.raises(EnvError, match="a message of the user holds an image"):
        encoder.opening([picture])
    assert encoder.opening([Message("user", (TextPart("Guess."),))]) == encoder.opening(ASKED)
    with pytest.raises(EnvError, match="at least one message"):
        encoder.opening([])
    strict = ChatEncoder(tokenizer_with(nano, ALTERNATING), "strict")
    with pytest.raises(
        EnvError, match=r"the chat template of strict refuses messages of user, user: .*alternate"
    ) as caught:
        strict.opening([*ASKED, *ASKED])
    assert "\n" not in str(caught.value)


def test_a_template_that_names_the_day_survives_midnight(nano: Model) -> None:
    dated = "{{ day }}" + nano.tokenizer.chat_template
    tokenizer = tokenizer_with(nano, dated.replace("{{ day }}", "Monday"))
    encoder = ChatEncoder(tokenizer)
    said, reply = Message("assistant", "4"), [Message("user", "Higher.")]
    monday = encoder.answer(ASKED, said, reply)
    tokenizer.chat_template = dated.replace("{{ day }}", "Tuesday")
    assert encoder.answer(ASKED, said, reply) == monday
    assert encoder.answer([*ASKED, said, *reply], said, reply) == monday
