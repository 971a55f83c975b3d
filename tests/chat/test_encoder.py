"""Conversations as token ids: the text that a template adds after an assistant message, and unsupported templates."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from palaestra.chat.encoder import ChatEncoder
from palaestra.chat.rendering import prompt_ids
from palaestra.core.errors import EnvError
from palaestra.core.records import ImagePart, Message, TextPart
from palaestra.models.registry import LoadedModel

START = "{% for m in messages %}"
ASK = "{% if add_generation_prompt %}"
CHATML = (
    START
    + "{{'<|im_start|>'+m['role']+'\n'+m['content']+'<|im_end|>\n'}}{% endfor %}"
    + ASK
    + "{{'<|im_start|>assistant\n'}}{% endif %}"
)
TRIMMED = (
    START
    + "{{'<|'+m['role']+'|>\n\n'+m['content']|trim+'<|end|>'}}{% endfor %}"
    + ASK
    + "{{'<|assistant|>\n\n'}}{% endif %}"
)
ALTERNATING = (
    "{{'<s>'}}"
    + START
    + "{% if (m['role']=='user') != (loop.index0 % 2 == 0) %}{{raise_exception('Conversation roles must alternate')}}"
    "{% endif %}{% if m['role']=='user' %}{{'[INST] '+m['content']+' [/INST]'}}{% else %}{{' '+m['content']+' <|end|>'}}{% endif %}{% endfor %}"
)
DEAF = (
    START
    + "{% if m['role'] != 'tool' %}{{'<|'+m['role']+'|>'+m['content']+'<|end|>'}}{% endif %}{% endfor %}"
    + ASK
    + "{{'<|assistant|>'}}{% endif %}"
)
FORGETFUL = (
    START + "{% set c = m['content'] %}{% if m['role']=='assistant' %}{% set c = c.split('</think>')[-1] %}{% endif %}"
    "{{'<|'+m['role']+'|>'+c+'<|end|>'}}{% endfor %}" + ASK + "{{'<|assistant|>'}}{% endif %}"
)
LAST_ONLY = (
    START
    + "{% if loop.index0 >= messages|length - 2 %}{{'<|'+m['role']+'|>'+m['content']+'<|end|>'}}{% endif %}{% endfor %}"
    + ASK
    + "{{'<|assistant|>'}}{% endif %}"
)
THINKING = (
    START
    + "{{'<|'+m['role']+'|>'+m['content']+'<|end|>'}}{% endfor %}"
    + ASK
    + "{{'<|assistant|><think>\n'}}{% endif %}"
)
GEMMA = (
    "{% if messages[0]['role']=='system' %}{{raise_exception('System role not supported')}}{% endif %}"
    + START
    + "{{'<|'+m['role']+'|>'+m['content']|trim+'<|end|>'}}{% endfor %}"
    + ASK
    + "{{'<|assistant|>'}}{% endif %}"
)
ORDERLESS = (
    START
    + "{% if m['role']=='user' %}{{'[INST] '+m['content']+' [/INST]'}}{% elif m['role']=='assistant' %}{{m['content']+'<|end|>'}}{% endif %}{% endfor %}"
)
MOVING = (
    "{% if messages[0]['role']=='system' %}{% set s=messages[0]['content']+'\n\n' %}{% set rest=messages[1:] %}{% else %}{% set s='' %}"
    "{% set rest=messages %}{% endif %}{% for m in rest %}{% if m['role']=='user' %}{{'[INST] '+(s if loop.last else '')+m['content']+' [/INST]'}}"
    "{% elif m['role']=='assistant' %}{{m['content']+'<|end|>'}}{% endif %}{% endfor %}"
)
MUTE = (
    START
    + "{% if m['role']!='user' %}{{'<|'+m['role']+'|>'+m['content']+'<|end|>'}}{% endif %}{% endfor %}"
    + ASK
    + "{{'<|assistant|>'}}{% endif %}"
)
SHORTENING = (
    START
    + "{{'<|'+m['role']+'|>'+(m['content'] if m['role']!='user' or m['content']|length < 10 else '...')+'<|end|>'}}{% endfor %}"
    + ASK
    + "{{'<|assistant|>'}}{% endif %}"
)

ASKED = [Message("user", "Guess.")]


def tokenizer_with(nano: LoadedModel, template: str | None) -> Any:
    own = copy.deepcopy(nano.tokenizer)
    own.chat_template = template
    return own


@pytest.mark.parametrize("template", ["nano", CHATML, TRIMMED], ids=["nano", "chatml", "trimmed"])
def test_the_ids_are_those_of_the_whole_conversation(nano: LoadedModel, template: str) -> None:
    """Where the model samples the usual ids, growing at the end and encoding the whole come to the same."""
    tokenizer = nano.tokenizer if template == "nano" else tokenizer_with(nano, template)
    encoder = ChatEncoder(tokenizer)
    messages = [Message("system", "Be brief."), Message("user", "Guess a number.")]
    ids = list(encoder.encode_opening(messages))
    for words, reply in (
        ("Answer: 4", [Message("user", "Higher.")]),
        ("é\n2", [Message("tool", "84"), Message("user", "Go on.")]),
        ("", [Message("user", "Say a number.")]),
    ):
        spoken = Message("assistant", words)
        ids += tokenizer.encode(words, add_special_tokens=False)
        ids += encoder.encode_reply(messages, spoken, reply)
        messages += [spoken, *reply]
        assert ids == prompt_ids(tokenizer, messages)


def test_sampled_end_token_is_not_added_again(nano: LoadedModel) -> None:
    end = nano.tokenizer.eos_token_id
    encoder = ChatEncoder(nano.tokenizer)
    spoken, reply = Message("assistant", "4"), [Message("user", "Higher.")]
    cut, whole = (encoder.encode_reply(ASKED, spoken, reply, last) for last in (7, end))
    assert cut == (end, *whole)
    assert nano.tokenizer.decode(whole) == "<|user|>Higher.<|end|><|assistant|>"
    spaced = ChatEncoder(tokenizer_with(nano, ALTERNATING))
    assert nano.tokenizer.decode(spaced.encode_reply(ASKED, spoken, reply, end)) == "[INST] Higher. [/INST]"


def test_a_message_may_end_with_several_tokens(nano: LoadedModel) -> None:
    closed = (
        START
        + "{{'<|'+m['role']+'|>'+m['content']+'<|pad|><|end|>'}}{% endfor %}"
        + ASK
        + "{{'<|assistant|>'}}{% endif %}"
    )
    tokenizer = tokenizer_with(nano, closed)
    encoder, spoken, reply = ChatEncoder(tokenizer), Message("assistant", "4"), [Message("user", "Higher.")]
    for last, missing in (("<|end|>", ""), ("<|pad|>", "<|end|>"), ("4", "<|pad|><|end|>")):
        ids = encoder.encode_reply(ASKED, spoken, reply, tokenizer.convert_tokens_to_ids(last))
        assert tokenizer.decode(ids) == f"{missing}<|user|>Higher.<|pad|><|end|><|assistant|>"


def test_white_space_that_was_sampled_stays_as_it_is(nano: LoadedModel) -> None:
    encoder = ChatEncoder(tokenizer_with(nano, TRIMMED))
    spoken = Message("assistant", "\n 4 \n")
    encoded = nano.tokenizer.decode(encoder.encode_reply(ASKED, spoken, [Message("user", "Higher.")]))
    assert encoded == "<|end|><|user|>\n\nHigher.<|end|><|assistant|>\n\n"
    before = [*ASKED, spoken, Message("user", "Higher.")]
    assert encoder.encode_reply(before, Message("assistant", "6"), [Message("user", "Lower.")])


@pytest.mark.parametrize("template", [ALTERNATING, DEAF], ids=["refuses tools", "leaves tools out"])
def test_a_tool_speaks_as_a_user_where_the_template_knows_none(nano: LoadedModel, template: str) -> None:
    encoder = ChatEncoder(tokenizer_with(nano, template))
    spoken = Message("assistant", "calc: 12*7")
    as_tool, as_user = (encoder.encode_reply(ASKED, spoken, [Message(role, "84")]) for role in ("tool", "user"))
    assert as_tool == as_user
    assert "84" in nano.tokenizer.decode(as_tool)
    assert "tool" in nano.tokenizer.decode(
        ChatEncoder(nano.tokenizer).encode_reply(ASKED, spoken, [Message("tool", "84")])
    )


@pytest.mark.parametrize(
    "template", [GEMMA, ORDERLESS, MOVING], ids=["refuses system", "leaves system out", "moves system along"]
)
def test_system_text_moves_to_the_user_message_if_unsupported(nano: LoadedModel, template: str) -> None:
    tokenizer = tokenizer_with(nano, template)
    encoder = ChatEncoder(tokenizer)
    system, joined = Message("system", "Be brief."), Message("user", "Be brief.\n\nGuess.")
    assert encoder.encode_opening([system, *ASKED]) == encoder.encode_opening([joined])
    assert "Be brief.\n\nGuess." in tokenizer.decode(encoder.encode_opening([system, *ASKED]))
    spoken, reply = Message("assistant", "4"), [Message("user", "Higher.")]
    ids = (
        encoder.encode_opening([system, *ASKED])
        + tuple(tokenizer.encode("4"))
        + encoder.encode_reply([system, *ASKED], spoken, reply)
    )
    assert list(ids) == prompt_ids(tokenizer, [joined, spoken, *reply])
    assert tokenizer.decode(encoder.encode_reply([system, *ASKED], spoken, [system, *reply])).count("Be brief.") == 1
    assert encoder.encode_opening([system]) == encoder.encode_opening([Message("user", "Be brief.")])


def test_supported_system_message_is_unchanged(nano: LoadedModel) -> None:
    encoded = ChatEncoder(nano.tokenizer).encode_opening([Message("system", "Be brief."), *ASKED])
    assert nano.tokenizer.decode(encoded) == "<|system|>Be brief.<|end|><|user|>Guess.<|end|><|assistant|>"


def test_a_template_that_loses_what_a_user_says_is_refused(nano: LoadedModel) -> None:
    with pytest.raises(EnvError, match=r"mine omits .* user"):
        ChatEncoder(tokenizer_with(nano, MUTE), "mine")
    encoder = ChatEncoder(tokenizer_with(nano, SHORTENING))
    long = Message("user", "Guess a number, any number.")
    for lose in (
        lambda: encoder.encode_opening([long]),
        lambda: encoder.encode_reply(ASKED, Message("assistant", "4"), [Message("user", "Higher."), long]),
    ):
        with pytest.raises(EnvError, match=r"'Guess a number, any number.'") as caught:
            lose()
        assert "\n" not in str(caught.value)


LLAMA = (
    "{{'<s>'}}"
    + START
    + "{% if m['role']=='user' %}{{'[INST] '+m['content']+' [/INST]'}}{% else %}{{' '+m['content']+'</s>'}}{% endif %}{% endfor %}"
)
BARE = START + "{{m['role']+': '+m['content']+'\n'}}{% endfor %}" + ASK + "{{'assistant: '}}{% endif %}"


@pytest.mark.parametrize("scheme", ["first", "always", "never"])
def test_a_text_behind_others_is_not_encoded_as_a_beginning(scheme: str) -> None:
    """Tokenizers like SentencePiece put a space before a text; what is appended to a conversation has none there."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    raw = Tokenizer(models.BPE(unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    raw.decoder = decoders.Metaspace(prepend_scheme=scheme)
    corpus = ["[INST] Guess. [/INST] 4 7 Higher. x user: assistant: \n"] * 9
    raw.train_from_iterator(corpus, trainers.BpeTrainer(vocab_size=90, special_tokens=["<unk>", "<s>", "</s>"]))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    spoken, reply = Message("assistant", "4"), [Message("user", "Higher.")]

    tokenizer.chat_template = LLAMA
    encoder, end = ChatEncoder(tokenizer), tokenizer.eos_token_id
    whole = prompt_ids(tokenizer, [*ASKED, spoken, *reply])
    place = whole.index(end) + 1
    assert list(encoder.encode_reply(ASKED, spoken, reply, end)) == whole[place:]
    assert list(encoder.encode_reply(ASKED, spoken, reply, tokenizer.convert_tokens_to_ids("4"))) == whole[place - 1 :]

    tokenizer.chat_template = BARE
    encoder = ChatEncoder(tokenizer)
    encoded = encoder.encode_reply(ASKED, spoken, reply, tokenizer.convert_tokens_to_ids("4"))
    assert tokenizer.convert_ids_to_tokens(encoded[0]) == "\n"
    assert list(encoded) == prompt_ids(tokenizer, [*ASKED, spoken, *reply])[-len(encoded) :]


def test_template_words_are_not_taken_for_an_end_token(nano: LoadedModel) -> None:
    encoder = ChatEncoder(tokenizer_with(nano, BARE))
    spoken, reply = Message("assistant", "4 us"), [Message("user", "Higher.")]
    _, last, *_ = nano.tokenizer.encode("\nuser")
    assert nano.tokenizer.decode(encoder.encode_reply(ASKED, spoken, reply, last)) == "\nuser: Higher.\nassistant: "


@pytest.mark.parametrize("template", [FORGETFUL, LAST_ONLY, THINKING], ids=["reasoning", "last messages", "prefilled"])
def test_templates_that_change_earlier_turns_can_be_used(nano: LoadedModel, template: str) -> None:
    encoder = ChatEncoder(tokenizer_with(nano, template))
    assert not encoder.preserves_prefix
    before, spoken = [*ASKED], Message("assistant", "<think>1 to 8</think>4")
    start = "<think>\n" if template == THINKING else ""
    for _ in range(2):
        encoded = nano.tokenizer.decode(encoder.encode_reply(before, spoken, [Message("user", "Higher.")], 7))
        assert encoded == f"<|end|><|user|>Higher.<|end|><|assistant|>{start}"
        before += [spoken, Message("user", "Higher.")]


def test_a_template_that_keeps_earlier_turns_is_recognised(nano: LoadedModel) -> None:
    templates = [nano.tokenizer.chat_template, CHATML, TRIMMED, ALTERNATING, GEMMA, ORDERLESS]
    assert all(ChatEncoder(tokenizer_with(nano, template)).preserves_prefix for template in templates)


def test_template_that_loses_assistant_message_is_refused(nano: LoadedModel) -> None:
    mute = (
        START + "{% if m['role']!='assistant' %}{{'<|'+m['role']+'|>'+m['content']+'<|end|>'}}{% endif %}{% endfor %}"
    )
    with pytest.raises(EnvError, match=r"mine omits .* assistant") as caught:
        ChatEncoder(tokenizer_with(nano, mute), "mine")
    assert "\n" not in str(caught.value)


def test_a_tools_answers_are_joined_where_roles_must_alternate(nano: LoadedModel) -> None:
    encoder = ChatEncoder(tokenizer_with(nano, ALTERNATING))
    spoken, reply = (
        Message("assistant", "calc"),
        [Message("tool", "84"), Message("tool", "85"), Message("user", "Go on.")],
    )
    joined = [Message("user", "84\n\n85\n\nGo on.")]
    assert encoder.encode_reply(ASKED, spoken, reply) == encoder.encode_reply(ASKED, spoken, joined)


def test_without_a_template_every_message_is_a_line(nano: LoadedModel) -> None:
    encoder = ChatEncoder(tokenizer_with(nano, None))
    ids = encoder.encode_opening(ASKED) + tuple(nano.tokenizer.encode("4"))
    ids += encoder.encode_reply(ASKED, Message("assistant", "4"), [Message("user", "Higher.")])
    assert nano.tokenizer.decode(ids) == "Guess.\n4\nHigher.\n"


def test_what_cannot_be_encoded_is_refused_in_one_line(nano: LoadedModel) -> None:
    encoder = ChatEncoder(nano.tokenizer)
    picture = Message("user", (ImagePart("data:,"), TextPart("What is it?")))
    with pytest.raises(EnvError, match="an image"):
        encoder.encode_opening([picture])
    assert encoder.encode_opening([Message("user", (TextPart("Guess."),))]) == encoder.encode_opening(ASKED)
    with pytest.raises(EnvError, match="one message"):
        encoder.encode_opening([])
    strict = ChatEncoder(tokenizer_with(nano, ALTERNATING), "strict")
    with pytest.raises(EnvError, match=r"strict .*user, user: .*alternate") as caught:
        strict.encode_opening([*ASKED, *ASKED])
    assert "\n" not in str(caught.value)


def test_a_template_that_names_the_day_survives_midnight(nano: LoadedModel) -> None:
    dated = "{{ day }}" + nano.tokenizer.chat_template
    tokenizer = tokenizer_with(nano, dated.replace("{{ day }}", "Monday"))
    encoder = ChatEncoder(tokenizer)
    spoken, reply = Message("assistant", "4"), [Message("user", "Higher.")]
    monday = encoder.encode_reply(ASKED, spoken, reply)
    tokenizer.chat_template = dated.replace("{{ day }}", "Tuesday")
    assert encoder.encode_reply(ASKED, spoken, reply) == monday
    assert encoder.encode_reply([*ASKED, spoken, *reply], spoken, reply) == monday
