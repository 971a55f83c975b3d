"""Research conversations rendered with many kinds of chat templates."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torchrl.envs import TransformedEnv
from torchrl.envs.llm.libs.mlgym import TemplateTransform as TorchRLs
from torchrl_tasks import SUBMIT, block, last, play, read_entry, roles

from palaestra.core.errors import EnvError, UnknownNameError
from palaestra.core.records import Message
from palaestra.integrations.torchrl import TemplateTransform
from palaestra.models.registry import LoadedModel

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAMA = (
    "<|begin_of_text|>{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{{ m.content }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
ALTERNATING = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
)
WITHOUT_SYSTEM = (
    "{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]"
    "{% elif m.role == 'assistant' %}{{ m.content }}</s>{% endif %}{% endfor %}"
)
WITH_SYSTEM = (
    "{% if messages[0].role != 'system' %}{{ raise_exception('no system') }}{% endif %}"
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}<|over|>{% endfor %}"
)
IN_PARTS = (
    "{% for m in messages %}<{{ m.role }}>{% for part in m.content %}{{ part.text }}{% endfor %}<|over|>{% endfor %}"
)
IN_PARTS_WITHOUT_SYSTEM = (
    "{% for m in messages if m.role != 'system' %}<{{ m.role }}>{{ m.content[0]['text'] + '<|over|>' }}{% endfor %}"
)
CHAT = [Message("system", "Be brief."), Message("user", "Why?")]


@pytest.fixture
def with_template(nano: LoadedModel) -> Callable[[str | None], Any]:
    """A tokenizer that has this chat template."""

    def build(template: str | None) -> Any:
        tokenizer = copy.deepcopy(nano.tokenizer)
        tokenizer.chat_template = template
        return tokenizer

    return build


@pytest.mark.parametrize(
    ("template", "ending"), [("nano", "<|end|>"), (CHATML, "<|im_end|>"), (LLAMA, "<|eot_id|>"), (None, "<|end|>")]
)
def test_any_chat_template_renders_prompts_and_cuts_responses(
    make: Callable[..., TransformedEnv],
    nano: LoadedModel,
    with_template: Callable[..., Any],
    template: str | None,
    ending: str,
) -> None:
    tokenizer = nano.tokenizer if template == "nano" else with_template(template)
    env = make(tokenizer=tokenizer)
    start = env.reset()
    (step,) = play(env, f"{block('echo hello')}{ending}\nuser: {SUBMIT}")
    prompt, grown = read_entry(start, ("text", "prompt")), read_entry(step, ("text", "prompt"))
    history = [
        {"role": role, "content": content}
        for role, content in zip(roles(step), step["history", "prompt"][0].content, strict=True)
    ]
    assert [message["role"] for message in history] == ["system", "user", "assistant", "user"]
    assert history[2]["content"] == block("echo hello")
    assert last(step).startswith("hello\n")
    if template is None:
        assert grown == "".join(f"{message['content']}\n" for message in history)
    else:
        assert grown == tokenizer.apply_chat_template(history, tokenize=False, add_generation_prompt=True)
    assert grown.startswith(prompt + block("echo hello"))


@pytest.mark.parametrize(
    ("template", "text", "ending"),
    [
        (ALTERNATING, "<user>Be brief.\n\nWhy?", ""),
        (WITHOUT_SYSTEM, "[INST] Be brief.\n\nWhy? [/INST]", "</s>"),
        (WITH_SYSTEM, "<system>Be brief.<|over|><user>Why?<|over|>", "<|over|>"),
        (IN_PARTS, "<system>Be brief.<|over|><user>Why?<|over|>", "<|over|>"),
        (IN_PARTS_WITHOUT_SYSTEM, "<user>Be brief.\n\nWhy?<|over|>", "<|over|>"),
    ],
)
def test_a_template_gets_messages_in_a_form_it_renders(
    with_template: Callable[..., Any], template: str, text: str, ending: str
) -> None:
    transform = TemplateTransform(tokenizer=with_template(template))
    assert transform.render(CHAT) == text
    assert transform.endings == tuple(filter(None, (ending, "<|end|>")))


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        (
            "{% for m in messages if m.role == 'assistant' %}{{ m.content }}{% endfor %}",
            "user message",
        ),
        (
            "{% for m in messages if m.role != 'assistant' %}{{ m.content }}{% endfor %}",
            "assistant message",
        ),
        ("{{ messages[-1].content }}", "assistant message"),
        ("{{ raise_exception('never') }}", "rejects messages"),
    ],
)
def test_a_template_that_drops_messages_is_rejected(
    make: Callable[..., TransformedEnv], with_template: Callable[..., Any], template: str, reason: str
) -> None:
    with pytest.raises(EnvError, match=reason):
        make(tokenizer=with_template(template))


def test_a_rejected_conversation_is_an_env_error(with_template: Callable[..., Any]) -> None:
    template = "{% for m in messages %}{{ m.content or raise_exception('empty') }}{% endfor %}"
    with pytest.raises(EnvError, match="user: empty"):
        TemplateTransform(tokenizer=with_template(template)).render([Message("user", "")])


def test_a_rejected_final_assistant_message_has_the_eos_ending(with_template: Callable[..., Any]) -> None:
    template = "{% if messages[-1].role != 'user' %}{{ raise_exception('ask') }}{% endif %}" + CHATML
    assert TemplateTransform(tokenizer=with_template(template)).endings == ("<|end|>",)


def test_a_dropped_system_message_joins_the_first_prompt(
    make: Callable[..., TransformedEnv], with_template: Callable[..., Any]
) -> None:
    env = make(tokenizer=with_template(WITHOUT_SYSTEM))
    opening = "[INST] Give a command in a fenced block.\n\nThe task low, 4 messages [/INST]"
    assert read_entry(env.reset(), ("text", "prompt")) == opening
    (step,) = play(env, f"{block('echo hello')}</s>[INST] {SUBMIT}")
    assert read_entry(step, ("text", "prompt")).startswith(f"{opening}{block('echo hello')}</s>[INST] hello\n")


def test_the_tokenizers_template_is_never_replaced(with_template: Callable[..., Any]) -> None:
    tokenizer = with_template(LLAMA)
    tokenizer.name_or_path = "some/llama-qwen"
    assert TemplateTransform(tokenizer=tokenizer).endings == ("<|eot_id|>", "<|end|>")


SEED = ["in_keys", "out_keys", "in_keys_inv", "out_keys_inv", "tokenizer", "chat_template_name", "continue_final_message",
        "tokenize", "return_tensors", "return_dict", "padding", "truncation"]  # fmt: skip


def test_it_takes_the_arguments_of_torchrls(make: Callable[..., TransformedEnv], nano: LoadedModel) -> None:
    theirs = inspect.signature(TorchRLs.__init__).parameters.values()
    ours = inspect.signature(TemplateTransform.__init__).parameters.values()
    assert [(parameter.name, parameter.default) for parameter in ours] == [
        (parameter.name, parameter.default) for parameter in theirs
    ]
    assert [parameter.name for parameter in ours][1:] == SEED
    with pytest.raises(EnvError, match=r"tokenizer=.*NoneType"):
        TemplateTransform(nano.tokenizer)
    with pytest.raises(EnvError, match=r"return_tensors.*'pt'"):
        TemplateTransform(tokenizer=nano.tokenizer, return_tensors="np")
    with pytest.raises(UnknownNameError, match="chatml_format"):
        TemplateTransform(tokenizer=nano.tokenizer, chat_template_name="chatml")


def test_keys_and_a_template_of_torchrl_can_be_chosen(make: Callable[..., TransformedEnv], nano: LoadedModel) -> None:
    env = make()
    own = TemplateTransform(
        out_keys=["asked"],
        in_keys_inv=["asked", "responses"],
        tokenizer=nano.tokenizer,
        chat_template_name="chatml_format",
    )
    env.append_transform(own)
    tensordict = env.reset()
    assert read_entry(tensordict, "asked").startswith("<|im_start|>system\nGive a command")
    assert read_entry(tensordict, "asked").endswith("<|im_start|>assistant\n")
    tensordict["responses"] = [block("echo hi") + "<|im_end|>never"]
    assert read_entry(env.step(tensordict)["next"], "observation").startswith("hi")


@pytest.mark.parametrize("whole", [False, True])
def test_a_prompt_may_be_token_ids(make: Callable[..., TransformedEnv], nano: LoadedModel, whole: bool) -> None:
    env = make(num_envs=2)
    env.append_transform(
        TemplateTransform(
            out_keys=["ids"],
            tokenizer=nano.tokenizer,
            tokenize=True,
            return_dict=whole,
            padding=True,
            continue_final_message=True,
        )
    )
    tensordict = env.reset()
    ids = tensordict["ids", "input_ids"] if whole else tensordict["ids"]
    assert ids.dtype == torch.int64
    text = nano.tokenizer.decode(ids[0])
    assert "The task low" in text
    assert not text.rstrip().endswith("<|assistant|>")
    responses = nano.tokenizer([block("echo 4 > answer.txt")] * 2, return_tensors="pt", add_special_tokens=False)
    tensordict["text", "response"] = responses["input_ids"]
    assert "failure" in env.step(tensordict)["next"]
