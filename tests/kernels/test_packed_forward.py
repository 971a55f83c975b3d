"""The packed forward pass for GPUs and its operations. They run on whatever device there is; without a GPU, in plain torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention, silu
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from palaestra.core.errors import ModelError
from palaestra.kernels.decoder import describe
from palaestra.kernels.gpu.attention import AttentionLimits, SegmentLengths, attend_packed, attend_padded
from palaestra.kernels.operations import gather_rows, recompute_token_logprobs, rotate, swiglu
from palaestra.kernels.packed import PackedForward
from palaestra.kernels.sequence_forward import SequenceForward

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
VOCABULARY = 61
SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3,
    "num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 64, "bos_token_id": 0, "eos_token_id": 1,
}  # fmt: skip


def make_model(name: str) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        if name == "gpt2":
            config = GPT2Config(
                vocab_size=VOCABULARY, n_positions=64, n_embd=48, n_layer=3, n_head=3, bos_token_id=0, eos_token_id=1
            )
            model: Any = GPT2LMHeadModel(config)
        else:
            model = (
                LlamaForCausalLM(LlamaConfig(**SHAPE)) if name != "qwen2" else Qwen2ForCausalLM(Qwen2Config(**SHAPE))
            )
        if name == "lora":
            from peft import LoraConfig, get_peft_model

            model = get_peft_model(model, LoraConfig(r=3, target_modules="all-linear", task_type="CAUSAL_LM"))
        with torch.no_grad():  # Larger weights than at the start of training: a mistake must show.
            for parameter in model.parameters():
                parameter.copy_(parameter * 3 + 0.02 * torch.randn_like(parameter))
    return model.to(DEVICE).eval()


@pytest.fixture(scope="module", params=["llama", "qwen2", "gpt2", "lora"])
def model(request: pytest.FixtureRequest) -> Any:
    return make_model(request.param)


def make_sequences(shapes: list[tuple[int, int]], prompts: list[int]) -> tuple[list[Any], list[Any]]:
    """Sequences of a prompt and a length; sequences with the same prompt share it."""
    texts = [tuple((7 * k + 3 * t) % VOCABULARY for t in range(n)) for k, n in enumerate(prompts)]
    responses = [tuple((11 * k + 5 * t + 2) % VOCABULARY for t in range(n)) for k, (_, n) in enumerate(shapes)]
    return [texts[prompt] for prompt, _ in shapes], responses


@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9)), min_size=1, max_size=7),
    st.lists(st.integers(1, 12), min_size=4, max_size=4),
    st.booleans(),
)
def test_packed_forward_gives_the_outputs_of_transformers(
    model: Any, shapes: list[tuple[int, int]], lengths: list[int], include_end: bool
) -> None:
    prompts, responses = make_sequences(shapes, lengths)
    width = max(n for _, n in shapes) + include_end
    forward = SequenceForward(model)
    with torch.no_grad():
        packed = forward(prompts, responses, width, True, True, include_end)
        own = forward.own_forward(prompts, responses, width, True)
    assert forward.fast is not None, "it was dropped"
    assert packed.rows_N is not None
    for mine, theirs in ((packed.hidden_ND, own.hidden_ND), (packed.logits_NV, own.logits_NV)):
        assert mine is not None
        assert theirs is not None
        torch.testing.assert_close(mine, theirs[packed.rows_N], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("recompute", [False, True])
def test_gradients_are_those_of_transformers(model: Any, recompute: bool) -> None:
    prompts, responses = make_sequences([(0, 5), (0, 3), (1, 1), (2, 8), (0, 5)], [6, 1, 9, 4])
    results, rows_N = [], torch.empty(0)
    for packed in (True, False):
        forward = SequenceForward(model, recompute=recompute and packed)
        assert forward.fast is not None
        if not packed:
            forward.fast = None
        model.zero_grad()
        outputs = forward(prompts, responses, 8, True, True)
        assert outputs.logits_NV is not None
        logits_NV = outputs.logits_NV
        if packed:
            assert outputs.rows_N is not None
            rows_N = outputs.rows_N
        else:
            logits_NV = logits_NV[rows_N]
        weights_NV = torch.linspace(-1, 2, logits_NV.numel(), device=DEVICE).view(logits_NV.shape)
        (logits_NV.log_softmax(-1) * weights_NV).sum().backward()
        results.append({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})
    assert results[0].keys() == results[1].keys()
    for name, mine in results[0].items():
        scale = float(results[1][name].abs().max())
        torch.testing.assert_close(mine, results[1][name], atol=2e-4 * max(scale, 1.0), rtol=1e-3, msg=name)


@pytest.mark.parametrize("name", ["llama", "gpt2", "lora"])
def test_half_models_are_compared_by_a_short_copy(name: str) -> None:
    """Adapters and GPT-2 in bfloat16, the default on a GPU. A CPU does not use the packed pass in this dtype."""
    model = make_model(name).to(torch.bfloat16)
    forward, decoder = SequenceForward(model), describe(model)
    assert decoder is not None
    inner = model.get_base_model() if name == "lora" else model
    forward.fast = PackedForward(decoder)
    prompts, responses = make_sequences([(0, 2), (0, 3), (1, 1)], [3, 1, 4, 4])
    assert forward._fast_agrees(prompts, responses, 3)
    assert (inner.config.num_hidden_layers, model.dtype) == (3, torch.bfloat16)
    # The packed pass does not call this module as a whole, so it does not see the hook.
    mlp = inner.base_model.get_submodule("h.0.mlp" if name == "gpt2" else "layers.0.mlp")
    mlp.register_forward_hook(lambda _, __, output: 2 * output)
    assert not forward._fast_agrees(prompts, responses, 3)


def test_unsupported_adapters_have_no_fast_forward() -> None:
    from peft import LoraConfig, get_peft_model

    model = LlamaForCausalLM(LlamaConfig(**SHAPE))
    adapted: Any = get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj", "embed_tokens"]))
    assert SequenceForward(adapted).fast is None


def test_other_families_are_checkpointed_by_transformers() -> None:
    """Phi has no packed forward pass. Its gradients with checkpoints are those without."""
    from transformers import PhiConfig, PhiForCausalLM

    with torch.random.fork_rng():
        torch.manual_seed(0)
        model: Any = PhiForCausalLM(PhiConfig(**SHAPE)).to(DEVICE).eval()
    prompts, responses = make_sequences([(0, 5), (0, 3), (1, 2)], [6, 1, 9, 4])
    results, calls = [], []
    model.model.layers[0].self_attn.register_forward_hook(lambda *_: calls.append(1))
    for recompute in (False, True):
        model.zero_grad()
        forward = SequenceForward(model, recompute)
        assert forward.fast is None
        forward.share_prompts = False
        outputs = forward(prompts, responses, 5, True, True)
        assert outputs.logits_NV is not None
        outputs.logits_NV.square().sum().backward()
        results.append([p.grad.clone() for p in model.parameters()])
    assert len(calls) == 3  # once without checkpoints, and again in the backward pass with them
    for mine, theirs in zip(*results, strict=True):
        torch.testing.assert_close(mine, theirs)


def test_a_model_with_dropout_is_not_checkpointed() -> None:
    from transformers import OPTConfig, OPTForCausalLM

    config = OPTConfig(
        vocab_size=61, hidden_size=16, ffn_dim=16, num_hidden_layers=1, num_attention_heads=2, dropout=0.1
    )
    with pytest.raises(ModelError, match="dropout"):
        SequenceForward(OPTForCausalLM(config), recompute=True)


@pytest.mark.parametrize("window", [0, 4])
@pytest.mark.parametrize("softcap", [0.0, 1.5])
@pytest.mark.parametrize("has_sinks", [False, True])
def test_padded_attention_is_that_of_each_sequence(window: int, softcap: float, has_sinks: bool) -> None:
    queries, keys = [3, 1, 7, 2], [3, 5, 9, 2]
    generator = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(sum(lengths), heads, 16, generator=generator).requires_grad_()
        for lengths, heads in ((queries, 4), (keys, 2), (keys, 2))
    )
    sinks_H = torch.randn(4, generator=generator).requires_grad_()
    segments = SegmentLengths.make(queries, keys, torch.device("cpu"))
    limits = AttentionLimits(0.3, window, softcap, sinks_H if has_sinks else None)
    results = [attend(q, k, v, segments, limits) for attend in (attend_packed, attend_padded)]
    torch.testing.assert_close(*results, atol=1e-5, rtol=1e-5)
    inputs = (q, k, v, sinks_H) if has_sinks else (q, k, v)
    weights = torch.randn(results[0].shape, generator=generator)
    mine, theirs = (torch.autograd.grad((mixed * weights).sum(), inputs) for mixed in results)
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_packed_attention_is_causal_attention_of_each_sequence(dtype: torch.dtype) -> None:
    if DEVICE == "cpu" and dtype != torch.float32:
        pytest.skip("bfloat16 attention is for GPUs")
    queries, keys, heads, shared, width = [3, 1, 7, 2], [3, 5, 9, 2], 4, 2, 16
    generator = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(sum(lengths), h, width, generator=generator).to(DEVICE, dtype).requires_grad_()
        for lengths, h in ((queries, heads), (keys, shared), (keys, shared))
    )
    mixed = attend_packed(q, k, v, SegmentLengths.make(queries, keys, torch.device(DEVICE)), AttentionLimits(0.3))
    expected = []
    for a, b, c in zip(*(torch.split(x.float(), n) for x, n in ((q, queries), (k, keys), (v, keys))), strict=True):
        mask = torch.ones(len(a), len(b), dtype=torch.bool, device=DEVICE).tril(len(b) - len(a))
        expected.append(
            scaled_dot_product_attention(
                a.transpose(0, 1),
                b.repeat_interleave(2, 1).transpose(0, 1),
                c.repeat_interleave(2, 1).transpose(0, 1),
                attn_mask=mask,
                scale=0.3,
            ).transpose(0, 1)
        )
    wanted = torch.cat(expected)
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(mixed.float(), wanted, atol=tolerance, rtol=tolerance)
    weights = torch.randn(mixed.shape, generator=generator).to(DEVICE)
    mine = torch.autograd.grad((mixed.float() * weights).sum(), (q, k, v))
    theirs = torch.autograd.grad((wanted * weights).sum(), (q, k, v))
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a.float(), b.float(), atol=10 * tolerance, rtol=10 * tolerance)


def test_gathered_rows_sum_their_gradients() -> None:
    x = torch.randn(5, 3, device=DEVICE, requires_grad=True)
    rows = torch.tensor([4, 0, 0, 2, 0], device=DEVICE)
    weights = torch.randn(5, 3, device=DEVICE)
    [mine] = torch.autograd.grad((gather_rows(x, rows) * weights).sum(), x)
    [theirs] = torch.autograd.grad((x[rows] * weights).sum(), x)
    torch.testing.assert_close(mine, theirs)


def test_rotation_and_swiglu_have_the_gradients_of_torch() -> None:
    generator = torch.Generator().manual_seed(0)
    x, gate, up = (
        torch.randn(shape, generator=generator).to(DEVICE).requires_grad_() for shape in ((9, 3, 24), (9, 37), (9, 37))
    )
    cos, sin = (torch.randn(9, 24, generator=generator).to(DEVICE) for _ in range(2))
    swapped = torch.cat([-x[..., 12:], x[..., :12]], -1)
    pairs = (
        (rotate(x, cos, sin), x * cos[:, None] + swapped * sin[:, None], [x]),
        (swiglu(gate, up), silu(gate) * up, [gate, up]),
    )
    for mine, theirs, inputs in pairs:
        torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-5)
        weights = torch.randn(mine.shape, generator=generator).to(DEVICE)
        for a, b in zip(*(torch.autograd.grad((y * weights).sum(), inputs) for y in (mine, theirs)), strict=True):
            torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_token_log_probs_are_those_of_a_softmax(temperature: float, monkeypatch: pytest.MonkeyPatch) -> None:
    count, vocabulary = 23, 5001
    monkeypatch.setattr("palaestra.kernels.operations.MAX_LOGITS", 7 * vocabulary)  # in four parts
    generator = torch.Generator().manual_seed(0)
    hidden, output = (torch.randn(n, 16, generator=generator).to(DEVICE).requires_grad_() for n in (count, vocabulary))
    tokens = torch.randint(0, vocabulary, (count,), generator=generator).to(DEVICE)
    weights = torch.randn(count, generator=generator).to(DEVICE)
    mine = recompute_token_logprobs(hidden, output, tokens, temperature)
    logprobs = (hidden @ output.t() / temperature).log_softmax(-1)
    theirs = logprobs.gather(-1, tokens[:, None])[:, 0]
    torch.testing.assert_close(mine, theirs, atol=1e-4, rtol=1e-4)
    for a, b in zip(*(torch.autograd.grad((y * weights).sum(), (hidden, output)) for y in (mine, theirs)), strict=True):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-3)
