"""The packed pass and the decoding steps of every family compute what transformers computes, gradients included."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from tiny_models import SLOTS, VOCABULARY

from palaestra.kernels.decoder import FAMILIES, describe
from palaestra.kernels.gpu.decode import make_packed_decoder
from palaestra.kernels.gpu.stepper import PackedStepper
from palaestra.kernels.sequence_forward import SequenceForward
from palaestra.kernels.slots import SlotStepper

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
_EVERY_HEAD: dict[str, Any] = {"num_key_value_heads": 4}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama, no groups, tied": ("llama", {**_EVERY_HEAD, "tie_word_embeddings": True}),
    "qwen2, no groups": ("qwen2, sliding", _EVERY_HEAD),
    "qwen3, biases, sliding": ("qwen3", {"attention_bias": True, "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}),
    "qwen3, no groups, tied": ("qwen3", {**_EVERY_HEAD, "tie_word_embeddings": True}),
    "qwen3_moe, one dense block": ("qwen3_moe", {"mlp_only_layers": [0], "norm_topk_prob": True}),
    "gemma2, no groups, untied": ("gemma2", {**_EVERY_HEAD, "tie_word_embeddings": False}),
    "gemma3_text, capped, biases": ("gemma3_text", {"attention_bias": True, "final_logit_softcapping": 2.0}),
    "phi3, partial": ("phi3, sliding", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 2 / 3}}),
    "olmo2, no groups, biases": ("olmo2", {**_EVERY_HEAD, "attention_bias": True}),
    "granite, residual, biases": ("granite", {"residual_multiplier": 0.4, "attention_bias": True, "mlp_bias": True}),
    "gpt_neox, partial": ("gpt_neox", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}}),
    "gpt_neox, one after the other": ("gpt_neox", {"use_parallel_residual": False, "tie_word_embeddings": True}),
    "gpt2, unscaled": ("gpt2", {"scale_attn_weights": False}),
    "cohere2, biases, no groups": ("cohere2", {**_EVERY_HEAD, "attention_bias": True, "logit_scale": 0.3}),
    "smollm3, sliding": ("smollm3", {"use_sliding_window": True, "sliding_window": 8}),
    "gpt_oss, no groups": ("gpt_oss", {**_EVERY_HEAD, "num_experts_per_tok": 3}),
}  # fmt: skip
NAMES = [
    name for name in SLOTS if name.partition(",")[0].partition(" ")[0] in FAMILIES and f"{name}, sliding" not in SLOTS
]
COMMON = ["llama", "qwen3", "gemma3_text", "gpt2", "mixtral, sliding"]
ADAPTED = [name for name in NAMES if name not in COMMON and " " not in name.replace(", sliding", "")]
PROMPTS = [(3, 5, 7, 2), tuple(range(14)), (9,), tuple(range(14)), tuple(range(40, 19, -1))]
RESPONSES = [(4, 1, 1, 8), (7, 6, 5, 4, 3, 2, 1, 9, 8, 11), (5,), (2, 2, 60), (1, 3, 5)]


def make_model(name: str) -> Any:
    """A model with random norms and biases, so that an exchanged weight shows."""
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    base, changes = VARIANTS.get(name, (name, {}))
    prefix, arguments = SLOTS[base]
    config = getattr(transformers, f"{prefix}Config")(**{**arguments, **changes})
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)](config).eval()
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, 1.0 if parameter.dim() == 1 else 0.0, 0.15)
    return model.to(DEVICE)


def adapt(model: Any) -> Any:
    decoder = describe(model)
    assert decoder is not None
    layers = {id(layer) for block in decoder.blocks for layer in block.layers}
    names = [name for name, module in model.named_modules() if id(module) in layers and not hasattr(module, "experts")]
    config = LoraConfig(
        r=3,
        lora_alpha=2,
        target_modules=names,
        init_lora_weights=False,
        fan_in_fan_out=model.config.model_type == "gpt2",
    )
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return get_peft_model(model, config).eval()


def compute_own(model: Any, ids: tuple[int, ...]) -> torch.Tensor:
    """The log-probs after each token, by transformers on one sequence alone."""
    logits_TV: torch.Tensor = model(input_ids=torch.tensor([ids], device=DEVICE)).logits[0]
    return logits_TV.log_softmax(-1)


def check_training(model: Any) -> None:
    forward = SequenceForward(model)
    assert forward.fast is not None
    width = max(map(len, RESPONSES))
    results = []
    for is_fast in (True, False):
        model.zero_grad()
        tables = []
        if is_fast:
            outputs = forward(PROMPTS, RESPONSES, width, True, True)
            assert forward.fast is not None, "it was dropped"
            assert outputs.hidden_ND is not None
            assert outputs.logits_NV is not None
            assert outputs.rows_N is not None
            rows = outputs.rows_N.tolist()
            tokens_N = torch.tensor([RESPONSES[row // width][row % width] for row in rows], device=DEVICE)
            chosen_N = forward.compute_logprobs(outputs.hidden_ND, tokens_N, temperature=0.7)
            tables = [outputs.logits_NV.log_softmax(-1)]
        else:
            own = [compute_own(model, (*a, *b))[len(a) - 1 : -1] for a, b in zip(PROMPTS, RESPONSES, strict=True)]
            tables = [torch.stack([own[row // width][row % width] for row in rows])]
            chosen_N = (tables[0] / 0.7).log_softmax(-1).gather(-1, tokens_N[:, None])[:, 0]
        (chosen_N * torch.linspace(-1, 2, len(chosen_N), device=DEVICE)).sum().backward()  # type: ignore[no-untyped-call]
        gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        results.append((tables[0], chosen_N, gradients))
    (mine, chosen, gradients), (theirs, expected, wanted) = results
    torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(chosen, expected, atol=1e-5, rtol=1e-5)
    assert gradients.keys() == wanted.keys()
    for name, gradient in wanted.items():
        scale = max(1.0, float(gradient.abs().max()))
        torch.testing.assert_close(gradients[name], gradient, atol=1e-5 * scale, rtol=0.0, msg=f"gradient of {name}")


@torch.no_grad()
def check_stepping(model: Any, stepper: Any) -> None:
    """Slots at different positions, beyond the window; one waits, one starts again."""
    sequences = [list(PROMPTS[0]), list(PROMPTS[1]), list(PROMPTS[2])]
    logits_SV = stepper.start(dict(enumerate(sequences)))
    for t in range(14):
        tokens = [(5 * t + 7 * slot) % VOCABULARY for slot in range(3)]
        waiting, starting = [1] if t == 3 else [], [0] if t == 9 else []
        before = logits_SV[waiting].clone()
        logits_SV = stepper.step(torch.tensor(tokens), starting, waiting)
        logits_SV[waiting] = before
        if starting:
            sequences[0] = list(PROMPTS[4])
            logits_SV = stepper.start({0: sequences[0]}, logits_SV)
        for slot in {0, 1, 2} - {*waiting, *starting}:
            sequences[slot].append(tokens[slot])
        if t % 3 == 0 or t == 13:
            for slot, ids in enumerate(sequences):
                own_V = compute_own(model, tuple(ids))[-1]
                torch.testing.assert_close(logits_SV[slot].log_softmax(-1), own_V, atol=1e-5, rtol=1e-5)


def check_steppers(model: Any) -> None:
    if DEVICE == "cpu":
        stepper = SlotStepper(model, 3)
        assert stepper._fast is not None
        check_stepping(model, stepper)
        assert stepper._fast is not None, "it was dropped"
    step = make_packed_decoder(model)
    assert step is not None
    packed = PackedStepper(step, 3)
    assert packed.agrees()
    check_stepping(model, packed)


def test_every_family_is_tested() -> None:
    import transformers

    assert {getattr(transformers, f"{SLOTS[name][0]}Config").model_type for name in NAMES} == FAMILIES


@pytest.mark.parametrize("name", [*NAMES, *VARIANTS])
def test_training_and_stepping_agree_with_transformers(name: str) -> None:
    model = make_model(name)
    check_training(model)
    check_steppers(model)


@pytest.mark.parametrize("name", [*COMMON, *(pytest.param(name, marks=pytest.mark.backends) for name in ADAPTED)])
def test_adapters_of_every_family_agree(name: str) -> None:
    model = adapt(make_model(name))
    check_training(model)
    check_steppers(model)


def test_families_without_a_description_have_no_fast_path() -> None:
    assert describe(make_model("falcon")) is None
    model = make_model("llama")
    model.config.hidden_act = "relu"
    assert describe(model) is None
