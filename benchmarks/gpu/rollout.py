"""Tokens a second through `TokenVectorEnv.step` against `generate()` on one GPU, in the same process.

Random weights in bf16 with the shapes of SmolLM2-135M, with and without a LoRA adapter, of GPT-2 with 124 M and of a Qwen2 with
1.5 B parameters, or the real weights of a folder (`--model`); prompts of 32 tokens. Responses have 128 tokens, or 8 to 256
(`mixed`): then `generate()` takes batches that wait for their longest response, and our slots are refilled. Ours returns
log-probs and entropies, `generate()` only tokens.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

from palaestra.core.seeding import Seeds
from palaestra.envs.token import Prompt, TokenVectorEnv
from palaestra.rl.collection import collect_responses
from palaestra.rl.policies.language_model import LanguageModelPolicy

VOCABULARY, PROMPT, LONGEST = 49152, 32, 256
CASES = (
    ("smollm2", 64, 128), ("smollm2", 256, 128), ("smollm2", 1024, 128), ("smollm2", 256, 0), ("qwen2-1.5b", 256, 128),
    ("smollm2 with lora", 256, 128), ("gpt2", 256, 128),
)  # fmt: skip
"""Shape, slots, and tokens of a response; 0 stands for mixed lengths."""


class ScriptedLengths(TokenVectorEnv):
    """Every response ends when its prompt says so."""

    def prompt(self, episode: int) -> Prompt:
        return self._prompts[episode % len(self.items)]

    def _find_stopped(self, slots: np.ndarray) -> list[int]:
        count = self._length - self._prompt_length
        return [int(slot) for slot in slots if count[slot] >= self._slot_prompts[slot].source]  # type: ignore[union-attr]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--shapes", nargs="+", default=[], help="only these shapes")
    parser.add_argument("--model", default="", help="folder of real weights with SmolLM2's vocabulary, at 256 slots")
    options = parser.parse_args()
    cases = [case for case in CASES if case[0] in options.shapes or not options.shapes]
    if options.model:
        cases = [(options.model, 256, 128)]
    transformers.logging.set_verbosity_error()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, transformers {transformers.__version__}")
    figures, tokenizer = {}, make_tokenizer()
    for shape in dict.fromkeys(shape for shape, _, _ in cases):
        model = make_model(shape)
        for _, slots, tokens in (case for case in cases if case[0] == shape):
            label = "real weights" if options.model else shape
            name = f"{label}, {slots} slots, {tokens or 'mixed'} tokens"
            figures[name] = measure(model, tokenizer, slots, tokens, options.repetitions)
            print(name, figures[name], flush=True)
    print(json.dumps({"benchmark": "gpu/rollout", "ratio": min(case["ratio"] for case in figures.values()), **figures}))


def make_model(shape: str) -> Any:
    common: dict[str, Any] = {"vocab_size": VOCABULARY, "eos_token_id": None, "bos_token_id": None}
    if "/" in shape:
        return transformers.AutoModelForCausalLM.from_pretrained(shape, dtype=torch.bfloat16).to("cuda").eval()
    if shape.startswith("smollm2"):
        config: Any = transformers.LlamaConfig(
            hidden_size=576,
            intermediate_size=1536,
            num_hidden_layers=30,
            num_attention_heads=9,
            num_key_value_heads=3,
            max_position_embeddings=2048,
            tie_word_embeddings=True,
            **common,
        )
    elif shape == "gpt2":
        config = transformers.GPT2Config(**common)
    else:
        config = transformers.Qwen2Config(
            hidden_size=1536,
            intermediate_size=8960,
            num_hidden_layers=28,
            num_attention_heads=12,
            num_key_value_heads=2,
            max_position_embeddings=2048,
            tie_word_embeddings=True,
            **common,
        )
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).to("cuda").eval()
    if shape.endswith("lora"):
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(model, LoraConfig(r=16, lora_alpha=32, target_modules="all-linear")).eval()
    return model


def make_tokenizer() -> Any:
    table = {**{f"w{k}": k for k in range(VOCABULARY - 2)}, "<pad>": VOCABULARY - 2, "<eos>": VOCABULARY - 1}
    inner = Tokenizer(models.WordLevel(table, unk_token="<pad>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>", eos_token="<eos>")


def measure(model: Any, tokenizer: Any, slots: int, tokens: int, repetitions: int) -> dict[str, Any]:
    generator = np.random.default_rng(0)
    episodes = slots if tokens else 4 * slots
    lengths = [tokens] * slots if tokens else generator.integers(8, LONGEST + 1, episodes).tolist()
    asked = generator.integers(10, VOCABULARY - 10, (episodes, PROMPT)).tolist()
    prompts = [Prompt(tuple(ids), "", length) for ids, length in zip(asked, lengths, strict=True)]
    kind = TokenVectorEnv if tokens else ScriptedLengths
    limit = tokens or LONGEST
    env = kind(prompts, lambda response: 0.0, tokenizer=tokenizer, num_envs=slots, max_tokens=limit)
    env._is_end[:] = False
    env.stop = () if tokens else ("",)
    policy = LanguageModelPolicy(model, vocabulary=VOCABULARY)

    def step() -> None:
        rollout = collect_responses(env, policy, episodes, Seeds(0), seed=0, first=0)
        assert rollout.num_actions == sum(lengths)

    def generate() -> None:
        with torch.inference_mode():
            for start in range(0, episodes, slots):
                ids_BT = torch.tensor(asked[start : start + slots], device="cuda")
                model.generate(
                    ids_BT,
                    attention_mask=torch.ones_like(ids_BT),
                    do_sample=True,
                    top_k=0,
                    eos_token_id=None,
                    pad_token_id=0,
                    max_new_tokens=max(lengths[start : start + slots]),
                )

    step()
    rates = {"step": [], "generate": []}  # type: dict[str, list[float]]
    for _ in range(repetitions):
        for name, work in (("generate", generate), ("step", step)):
            rates[name].append(sum(lengths) / time_on_gpu(work))
    ours, theirs = (statistics.median(rates[name]) for name in ("step", "generate"))
    return {
        "ratio": round(ours / theirs, 2), "step_tokens_per_second": round(ours),
        "generate_tokens_per_second": round(theirs), "repetitions": repetitions,
    }  # fmt: skip


def time_on_gpu(work: Callable[[], Any]) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
