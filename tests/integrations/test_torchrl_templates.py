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
from torchrl_tasks import SUBMIT, block, last, play, roles, told

from palaestra.core.errors import EnvError, UnknownNameError
from palaestra.engines.models import LoadedModel
from palaestra.integrations.torchrl import TemplateTransform
from palaestra.integrations.torchrl.chat_template import Renderer

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
CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}]


@pytest.fixture
def with_template(nano: LoadedModel) -> Callable[[str | None], Any]:
    """A tokenizer that has this chat template."""

    def made(template: str | None) -> Any:
        tokenizer = copy.deepcopy(nano.tokenizer)
        tokenizer.chat_template = template
        return tokenizer

    return made


@pytest.mark.parametrize(
    ("template", "ending"), [("nano", "<|end|>"), (CHATML, "<|im_end|>"), (LLAMA, "<|eot_id|>"), (None, "<|end|>")]
)
def test_any_chat_template_gives_the_prompt_and_cuts_the_response(
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
    prompt, grown = told(start, ("text", "prompt")), told(step, ("text", "prompt"))
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
def test_a_template_gets_a_conversation_in_the_form_that_leaves_nothing_out(
    with_template: Callable[..., Any], template: str, text: str, ending: str
) -> None:
    render = Renderer(with_template(template))
    assert render(CHAT) == text
    assert render.ending == ending


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        (
            "{% for m in messages if m.role == 'assistant' %}{{ m.content }}{% endfor %}",
            "drops the user message",
        ),
        (
            "{% for m in messages if m.role != 'assistant' %}{{ m.content }}{% endfor %}",
            "drops the assistant message",
        ),
        ("{{ messages[-1].content }}", "drops the assistant message"),
        ("{{ raise_exception('never') }}", "rejects messages with the roles system, user, assistant, user: never"),
    ],
)
def test_a_template_that_leaves_out_what_somebody_says_is_refused_at_once(
    make: Callable[..., TransformedEnv], with_template: Callable[..., Any], template: str, reason: str
) -> None:
    with pytest.raises(EnvError, match=f"the chat template {reason}; set the tokenizer's `chat_template`"):
        make(tokenizer=with_template(template))


def test_a_conversation_that_a_template_refuses_later_is_an_error_of_ours(with_template: Callable[..., Any]) -> None:
    render = Renderer(
        with_template("{% for m in messages %}{{ m.content or raise_exception('nothing said') }}{% endfor %}")
    )
    with pytest.raises(EnvError, match="rejects messages with the roles user: nothing said"):
        render([{"role": "user", "content": ""}])


def test_a_template_that_takes_no_assistant_at_the_end_has_the_ending_of_the_tokenizer(
    with_template: Callable[..., Any],
) -> None:
    template = "{% if messages[-1].role != 'user' %}{{ raise_exception('ask') }}{% endif %}" + CHATML
    assert TemplateTransform(tokenizer=with_template(template)).endings == ("<|end|>",)


def test_the_system_message_is_in_the_prompt_of_an_environment_whose_template_leaves_it_out(
    make: Callable[..., TransformedEnv], with_template: Callable[..., Any]
) -> None:
    env = make(tokenizer=with_template(WITHOUT_SYSTEM))
    opening = "[INST] Give a command in a fenced block.\n\nThe task low, 4 messages [/INST]"
    assert told(env.reset(), ("text", "prompt")) == opening
    (step,) = play(env, f"{block('echo hello')}</s>[INST] {SUBMIT}")
    assert told(step, ("text", "prompt")).startswith(f"{opening}{block('echo hello')}</s>[INST] hello\n")


def test_a_template_of_ones_own_name_is_never_replaced_by_torchrls(with_template: Callable[..., Any]) -> None:
    tokenizer = with_template(LLAMA)
    tokenizer.name_or_path = "some/llama-qwen"
    assert TemplateTransform(tokenizer=tokenizer).endings == ("<|eot_id|>", "<|end|>")


SEED = ["in_keys", "out_keys", "in_keys_inv", "out_keys_inv", "tokenizer", "chat_template_name", "continue_final_message",
        "tokenize", "return_tensors", "return_dict", "padding", "truncation"]  # fmt: skip


def test_it_takes_the_arguments_of_torchrls(make: Callable[..., TransformedEnv], nano: LoadedModel) -> None:
    theirs = inspect.signature(TorchRLs.__init__).parameters.values()
    ours = inspect.signature(TemplateTransform.__init__).parameters.values()
    assert [(one.name, one.default) for one in ours] == [(one.name, one.default) for one in theirs]
    assert [one.name for one in ours][1:] == SEED
    with pytest.raises(EnvError, match="expected a transformers tokenizer as tokenizer=; got NoneType"):
        TemplateTransform(nano.tokenizer)
    with pytest.raises(EnvError, match="return_tensors must be 'pt'"):
        TemplateTransform(tokenizer=nano.tokenizer, return_tensors="np")
    with pytest.raises(UnknownNameError, match="chatml_format"):
        TemplateTransform(tokenizer=nano.tokenizer, chat_template_name="chatml")


def test_keys_and_a_template_of_torchrl_can_be_chosen(make: Callable[..., TransformedEnv], nano: LoadedModel) -> None:
    env = make()
    own = TemplateTransform(
        out_keys=["asked"], in_keys_inv=["asked", "said"], tokenizer=nano.tokenizer, chat_template_name="chatml_format"
    )
    env.append_transform(own)
    tensordict = env.reset()
    assert told(tensordict, "asked").startswith("<|im_start|>system\nGive a command")
    assert told(tensordict, "asked").endswith("<|im_start|>assistant\n")
    tensordict["said"] = [block("echo hi") + "<|im_end|>never"]
    assert told(env.step(tensordict)["next"], "observation").startswith("hi")


@pytest.mark.parametrize("whole", [False, True])
def test_a_prompt_may_be_token_ids(make: Callable[..., TransformedEnv], nano: LoadedModel, whole: bool) -> None:
    env = make(num_envs=2)
    env.append_transform(
        TemplateTransform(
            out_keys=["ids"], tokenizer=nano.tokenizer, tokenize=True, return_dict=whole, padding=True,
            continue_final_message=True,
        )
    )  # fmt: skip
    tensordict = env.reset()
    ids = tensordict["ids", "input_ids"] if whole else tensordict["ids"]
    assert ids.dtype == torch.int64
    text = nano.tokenizer.decode(ids[0])
    assert "The task low" in text
    assert not text.rstrip().endswith("<|assistant|>")
    said = nano.tokenizer([block("echo 4 > answer.txt")] * 2, return_tensors="pt", add_special_tokens=False)
    tensordict["text", "response"] = said["input_ids"]
    assert "failure" in env.step(tensordict)["next"]
