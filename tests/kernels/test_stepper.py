"""The decoding step for GPUs. It runs on whatever device there is; without a GPU, in plain torch and without graphs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from palaestra.core.errors import ModelError
from palaestra.kernels.decoder import describe
from palaestra.kernels.gpu.decode import make_packed_decoder
from palaestra.kernels.gpu.stepper import PackedStepper
from palaestra.kernels.operations import sample_tokens
from palaestra.kernels.packed import PackedForward
from palaestra.kernels.sequence_forward import SequenceForward
from palaestra.kernels.slots import SlotStepper

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
VOCABULARY = 120
SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3,
    "num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 200,
}  # fmt: skip


@pytest.fixture(params=["llama", "qwen2"])
def model(request: pytest.FixtureRequest) -> Any:
    torch.manual_seed(0)
    if request.param == "llama":
        return LlamaForCausalLM(LlamaConfig(**SHAPE)).to(DEVICE).eval()
    qwen2 = Qwen2ForCausalLM(Qwen2Config(**SHAPE)).to(DEVICE).eval()
    for name, parameter in qwen2.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter)
    return qwen2


def make_stepper(model: Any, slots: int) -> PackedStepper:
    step = make_packed_decoder(model)
    assert step is not None
    return PackedStepper(step, slots)


def compute_full(model: Any, ids: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=torch.tensor([ids], device=DEVICE)).logits[0, -1]  # type: ignore[no-any-return]


def test_every_slot_has_the_logits_of_one_full_pass(model: Any) -> None:
    """Slots start, go on, wait, rest and start again; the cache grows. Against transformers, one sequence at a time."""
    generator = np.random.default_rng(0)
    draw = lambda: generator.integers(0, VOCABULARY, generator.integers(1, 80)).tolist()  # noqa: E731
    stepper = make_stepper(model, 5)
    sequences = {slot: draw() for slot in range(5)}
    sequences[3] = list(sequences[1])  # A shared prompt.
    logits_SV = stepper.start(sequences)
    resting: set[int] = set()
    for _ in range(40):
        for slot, ids in sequences.items():
            if slot not in resting:
                assert torch.allclose(logits_SV[slot], compute_full(model, ids), atol=1e-4)
        starting = [slot for slot in range(5) if slot in resting or generator.random() < 0.1]
        others = [slot for slot in range(5) if slot not in starting]
        waiting = [slot for slot in others if generator.random() < 0.1]
        tokens = generator.integers(0, VOCABULARY, 5)
        kept = logits_SV[waiting].clone()
        logits_SV = stepper.step(torch.from_numpy(tokens), starting, waiting)
        logits_SV[waiting] = kept
        for slot in set(others) - set(waiting):
            sequences[slot].append(int(tokens[slot]))
        if starting:
            sequences |= {slot: draw() for slot in starting}
            logits_SV = stepper.start({slot: sequences[slot] for slot in starting}, logits_SV)
        resting = {slot for slot in range(5) if generator.random() < 0.1}
        stepper.rest(sorted(resting))
        sequences |= {slot: draw() for slot, ids in sequences.items() if len(ids) > 190}
    assert stepper._room > 64, "the cache has grown"


def test_new_weights_are_read_by_clear(model: Any) -> None:
    stepper = make_stepper(model, 1)
    stepper.start({0: [5, 6]})
    stepper.step(torch.tensor([3]))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.1)
    stepper.clear()
    stepper.start({0: [5, 6]})
    assert torch.allclose(stepper.step(torch.tensor([3]))[0], compute_full(model, [5, 6, 3]), atol=1e-4)


@pytest.mark.parametrize("layers", ["all-linear", ["q_proj", "v_proj", "up_proj"]])
def test_lora_adapters_are_added_and_read_again(model: Any, layers: Any) -> None:
    """Against peft: with random adapters, after an update of them, and with the adapter turned off."""
    adapted = get_peft_model(model, LoraConfig(r=4, lora_alpha=12, target_modules=layers)).eval()
    stepper = make_stepper(adapted, 2)
    assert stepper.agrees()
    for _ in range(2):
        for name, parameter in adapted.named_parameters():
            if "lora_" in name:
                torch.nn.init.normal_(parameter, std=0.3)
        stepper.clear()
        stepper.start({0: [5, 6], 1: [7]})
        assert torch.allclose(stepper.step(torch.tensor([3, 4]))[0], compute_full(adapted, [5, 6, 3]), atol=1e-4)
    with adapted.disable_adapter():
        stepper.clear()
        stepper.start({0: [5, 6]})
        assert torch.allclose(stepper.step(torch.tensor([3, 4]))[0], compute_full(adapted, [5, 6, 3]), atol=1e-4)


@pytest.mark.parametrize(
    "options", [{"use_dora": True}, {"target_modules": ["q_proj", "lm_head"]}, {"modules_to_save": ["lm_head"]}]
)
def test_other_adapters_are_left_to_the_model(model: Any, options: dict[str, Any]) -> None:
    assert make_packed_decoder(get_peft_model(model, LoraConfig(**{"target_modules": ["q_proj"], **options}))) is None


def test_samples_are_those_of_the_logits_and_are_fed_ahead(model: Any) -> None:
    """Slot 1 goes on with another token than the sampled one, slot 2 starts again, slot 3 waits."""
    generator = np.random.default_rng(0)
    stepper = make_stepper(model, 5)
    sequences = {slot: [slot + 1, 7] for slot in range(5)}
    logits_SV = stepper.start(sequences)
    for changed in (False, True, False):
        for temperature, vocabulary in ((1.0, VOCABULARY), (0.5, 100)):
            before_SV, uniform_S = logits_SV[:, :vocabulary].float().clone(), generator.random(5)
            sampled = stepper.sample(uniform_S, temperature, vocabulary)
            expected = sample_tokens(before_SV, torch.from_numpy(uniform_S).to(DEVICE), temperature)
            for own, values in zip(sampled, expected, strict=True):
                assert np.allclose(own, values.cpu().numpy(), atol=1e-5)
            tokens = sampled[0].copy()
            tokens[1] += changed and tokens[1] < VOCABULARY - 1
            logits_SV = stepper.step(torch.from_numpy(tokens), [2], [3])
            for slot in (0, 1, 4):
                sequences[slot].append(int(tokens[slot]))
            sequences[2] = [9, len(sequences[0])]
            logits_SV = stepper.start({2: sequences[2]}, logits_SV)
            for slot in (0, 1, 2, 4):
                assert torch.allclose(logits_SV[slot], compute_full(model, sequences[slot]), atol=1e-4)


def test_agrees_is_false_for_a_changed_architecture(model: Any) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(5)
    assert make_stepper(model, 2).agrees()
    model.model.layers[1].mlp.act_fn = torch.nn.GELU()
    assert not make_stepper(model, 2).agrees()


def test_half_models_are_compared_by_a_float32_copy(model: Any) -> None:
    half = model.to(torch.bfloat16)
    with torch.no_grad():
        for parameter in half.parameters():
            parameter.mul_(20)  # Rounding errors grow, as with the weights of a trained model.
    before = {name: tensor.clone() for name, tensor in half.state_dict().items()}
    assert make_stepper(half, 2).agrees()
    forward = SequenceForward(half)
    decoder = describe(half)
    assert decoder is not None
    forward.fast = PackedForward(decoder)  # A CPU does not use it in bfloat16.
    assert forward._fast_agrees([(1, 2, 3), (1, 2, 3)], [(4, 5), (6, 7, 8)], 3)
    assert len(half.model.layers) == half.config.num_hidden_layers == 3
    assert half.dtype == torch.bfloat16
    assert all(torch.equal(tensor, before[name]) for name, tensor in half.state_dict().items())
    half.model.layers[1].mlp.act_fn = torch.nn.Identity()
    assert not make_stepper(half, 2).agrees()
    assert not forward._fast_agrees([(1, 2, 3)], [(4, 5)], 2)


def test_sequences_beyond_the_context_are_rejected(model: Any) -> None:
    stepper = make_stepper(model, 2)
    with pytest.raises(ModelError, match=r"201 tokens; .*200"):
        stepper.start({0: [1] * 201})
    stepper.start({0: [1] * 200, 1: [1]})
    with pytest.raises(ModelError, match=r"201 tokens; .*200"):
        stepper.step(torch.tensor([1, 1]))


def test_other_activations_have_their_own_forward() -> None:
    assert make_packed_decoder(LlamaForCausalLM(LlamaConfig(**SHAPE))) is not None
    assert make_packed_decoder(LlamaForCausalLM(LlamaConfig(**SHAPE, hidden_act="relu"))) is None


@pytest.mark.parametrize("family", ["gpt2", "gemma2", "qwen3", "phi3", "mistral with a window", "lora"])
def test_static_steps_have_the_logits_of_one_full_pass(family: str) -> None:
    """Slots wait, rest, start again and are cleared; the cache grows. A GPU captures these steps."""
    model = make_other(family)
    generator = np.random.default_rng(0)
    draw = lambda: generator.integers(0, VOCABULARY, generator.integers(1, 30)).tolist()  # noqa: E731
    stepper = SlotStepper(model, 4, fast=False)
    stepper.is_static = True
    for _ in range(2):
        sequences = {slot: draw() for slot in range(4)}
        sequences[3] = list(sequences[1])  # A shared prompt.
        logits_SV = stepper.start(sequences)
        for t in range(50):
            active = [slot for slot in range(4) if slot != 2 or t < 20 or t >= 30]
            if t % 7 == 0:
                for slot in active:
                    assert torch.allclose(logits_SV[slot], compute_full(model, sequences[slot]), atol=1e-3)
            tokens, waiting = generator.integers(0, VOCABULARY, 4), [0] if t in (5, 6) else []
            if t == 20:
                stepper.rest([2])
            starting = [2] if t == 29 else []
            kept = logits_SV[waiting].clone()
            logits_SV = stepper.step(torch.from_numpy(tokens), starting, waiting)
            logits_SV[waiting] = kept
            for slot in active:
                if slot not in (*waiting, *starting):
                    sequences[slot].append(int(tokens[slot]))
            if starting:
                sequences[2] = draw()
                logits_SV = stepper.start({2: sequences[2]}, logits_SV)
        assert stepper.is_static, "it was dropped"
        assert stepper._graph is not None
        assert stepper._cache.room > 64, "the cache has grown"
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(0.9)
        stepper.clear()


def make_other(family: str) -> Any:
    import transformers

    if family == "lora":
        from peft import LoraConfig, get_peft_model

        model: Any = LlamaForCausalLM(LlamaConfig(**SHAPE))
        model = get_peft_model(model, LoraConfig(r=3, target_modules="all-linear", init_lora_weights=False))
        return model.to(DEVICE).eval()
    if family == "gpt2":
        config: Any = transformers.GPT2Config(vocab_size=VOCABULARY, n_positions=200, n_embd=48, n_layer=3, n_head=6)
        return transformers.GPT2LMHeadModel(config).to(DEVICE).eval()
    name = {"gemma2": "Gemma2", "qwen3": "Qwen3", "phi3": "Phi3", "mistral with a window": "Mistral"}[family]
    more = {"sliding_window": 9} if family in ("gemma2", "mistral with a window") else {}
    config = getattr(transformers, f"{name}Config")(**SHAPE, head_dim=8, pad_token_id=0, **more)
    return getattr(transformers, f"{name}ForCausalLM")(config).to(DEVICE).eval()
