"""The CPU fast paths agree with the model's own forward pass, gradients included, and can be turned off."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from palaestra.kernels.cpu import gelu_tanh, select_matmul_kernels
from palaestra.kernels.operations import CHUNK, compute_token_logprobs
from palaestra.kernels.sequence_forward import SequenceForward
from palaestra.kernels.slots import SlotStepper
from palaestra.rl.policies.language_model import LanguageModelCritic, LanguageModelPolicy
from palaestra.rl.rollouts import Rollout, TokenInputs, select_sequences

VOCABULARY = 61


def gpt2() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCABULARY, n_positions=64, n_embd=24, n_layer=3, n_head=3, bos_token_id=0, eos_token_id=1
        )
    )


def llama(**changes: Any) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=24,
        intermediate_size=40,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=64,
        bos_token_id=0,
        eos_token_id=1,
        **changes,
    )
    return LlamaForCausalLM(config)


def qwen2() -> Any:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=24,
        intermediate_size=40,
        num_hidden_layers=2,
        num_attention_heads=3,
        num_key_value_heads=3,
        max_position_embeddings=64,
        bos_token_id=0,
        eos_token_id=1,
    )
    return Qwen2ForCausalLM(config)


SHAPES = {
    "gpt2": gpt2,
    "llama": llama,
    "llama with biases": lambda: llama(attention_bias=True, mlp_bias=True),
    "qwen2": qwen2,
}


@pytest.fixture(scope="module", params=SHAPES, ids=str)
def model(request: pytest.FixtureRequest) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        built = SHAPES[request.param]()
        with torch.no_grad():  # Larger weights than at the start of training: a mistake must show.
            for parameter in built.parameters():
                parameter.copy_(parameter * 3 + 0.02 * torch.randn_like(parameter))
    return built.eval()


sequence_shapes = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9)), min_size=1, max_size=7)
prompts_of = st.lists(st.integers(1, 12), min_size=4, max_size=4)


def make_inputs(sequences: list[tuple[int, int]], prompts: list[int]) -> TokenInputs:
    """Sequences of a prompt and a length; sequences with the same prompt share it."""
    texts = [tuple((7 * k + 3 * t) % VOCABULARY for t in range(n)) for k, n in enumerate(prompts)]
    responses = [tuple((11 * k + 5 * t + 2) % VOCABULARY for t in range(n)) for k, (_, n) in enumerate(sequences)]
    return TokenInputs([texts[prompt] for prompt, _ in sequences], responses, [])


@settings(max_examples=30, deadline=None)
@given(sequence_shapes, prompts_of, st.booleans())
def test_the_fast_forward_agrees_with_the_models_own(
    model: Any, sequences: list[tuple[int, int]], prompts: list[int], include_end: bool
) -> None:
    inputs, width = make_inputs(sequences, prompts), max(n for _, n in sequences) + include_end
    forward = SequenceForward(model)
    with torch.no_grad():
        fast = forward(inputs.prompts, inputs.responses, width, True, True, include_end)
        own = forward.own_forward(inputs.prompts, inputs.responses, width, True)
    assert forward.fast is not None
    assert fast.rows_N is not None
    # Exactly the positions after the prompt and after each token but the last, which `include_end` adds.
    wanted = [k * width + t for k, (_, n) in enumerate(sequences) for t in range(n + include_end)]
    assert sorted(fast.rows_N.tolist()) == wanted
    for mine, theirs in ((fast.hidden_ND, own.hidden_ND), (fast.logits_NV, own.logits_NV)):
        assert mine is not None
        assert theirs is not None
        torch.testing.assert_close(mine, theirs[fast.rows_N], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("critic", ["head", "separate"])
@pytest.mark.parametrize("shape", ["gpt2", "llama"])
def test_gradients_equal_those_of_transformers(shape: str, critic: str) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model, other = SHAPES[shape](), SHAPES[shape]()
    sequences = [(0, 5), (0, 3), (1, 1), (2, 8), (0, 5)]
    inputs = make_inputs(sequences, [6, 1, 9, 4])
    mask_BT = torch.arange(8)[None] < torch.tensor([n for _, n in sequences])[:, None]
    rollout = Rollout(
        rewards_BT=torch.zeros(5, 8),
        logprobs_BT=torch.zeros(5, 8),
        mask_BT=mask_BT,
        terminated_BT=mask_BT & False,
        ended_BT=mask_BT & False,
        inputs=inputs,
    )
    separate: Any = "head" if critic == "head" else LanguageModelCritic(other.base_model, 24)
    policy = LanguageModelPolicy(model, separate, temperature=0.7)
    weights_BT = torch.linspace(-1, 2, 40).view(5, 8) * mask_BT
    computed = []
    for fast in (True, False):
        if not fast:
            policy.sequence_forward.fast = None
            if critic == "separate":
                separate.sequence_forward.fast = None
        policy.zero_grad()
        evaluation = policy.evaluate_actions(rollout, select_sequences(rollout, [3, 0, 1, 4, 2]))
        assert evaluation.values is not None
        order = weights_BT[[3, 0, 1, 4, 2]]
        loss = (evaluation.logprobs * order).sum() + (evaluation.values * order).pow(2).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        computed.append([p.grad.clone() for p in policy.parameters() if p.grad is not None])
        values = policy.values_BT(rollout)
        computed[-1] += [values[0] * mask_BT, values[1] * mask_BT]
    assert len(computed[0]) == len(computed[1])
    for mine, theirs in zip(*computed, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-3)


def test_fast_paths_are_dropped_if_they_differ() -> None:
    from transformers import GPT2LMHeadModel

    class Other(GPT2LMHeadModel):  # type: ignore[misc]
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            kwargs["position_ids"] = kwargs["position_ids"] + 1
            return super().forward(*args, **kwargs)

    Other.__name__ = "GPT2LMHeadModel"
    model = Other(gpt2().config).eval()
    policy = LanguageModelPolicy(model)
    inputs = make_inputs([(0, 3), (1, 4)], [2, 3, 4, 5])
    mask_BT = torch.arange(4)[None] < torch.tensor([3, 4])[:, None]
    rollout = Rollout(
        rewards_BT=torch.zeros(2, 4),
        logprobs_BT=torch.zeros(2, 4),
        mask_BT=mask_BT,
        terminated_BT=mask_BT & False,
        ended_BT=mask_BT & False,
        inputs=inputs,
    )
    found_BT = policy.logprobs_BT(rollout)
    ids = torch.tensor([[*inputs.prompts[1], *inputs.responses[1]]])
    with torch.no_grad():
        logits = model(input_ids=ids, position_ids=torch.arange(ids.shape[1])[None]).logits[0]
    wanted = logits.log_softmax(-1)[2:-1].gather(-1, ids[0, 3:, None])[:, 0]
    torch.testing.assert_close(found_BT[1], wanted, atol=1e-5, rtol=1e-5)
    assert policy.sequence_forward.fast is None


@pytest.mark.parametrize("architecture", ["gpt2", "llama"])
def test_one_switch_turns_all_fast_paths_off(architecture: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(2)
        model = SHAPES[architecture]().eval()
    sequences = [(0, 5), (0, 3), (1, 1), (2, 8)]
    inputs = make_inputs(sequences, [6, 1, 9, 4])
    mask_BT = torch.arange(8)[None] < torch.tensor([n for _, n in sequences])[:, None]
    rollout = Rollout(
        rewards_BT=torch.zeros(4, 8),
        logprobs_BT=torch.zeros(4, 8),
        mask_BT=mask_BT,
        terminated_BT=mask_BT & False,
        ended_BT=mask_BT & False,
        inputs=inputs,
    )
    results = []
    for switch in ("0", "1"):
        monkeypatch.setenv("PALAESTRA_FAST_PATHS", switch)
        policy = LanguageModelPolicy(model, LanguageModelCritic(model.base_model, 24))
        assert isinstance(policy.critic, LanguageModelCritic)
        calls: list[Any] = []
        hook = model.register_forward_hook(lambda *_, calls=calls: calls.append(1))
        logprobs_BT = policy.logprobs_BT(rollout)
        calls.clear()  # On first use the model's own forward pass runs beside the fast one.
        assert torch.equal(policy.logprobs_BT(rollout), logprobs_BT)
        stepper = SlotStepper(model, 2)
        stepper.start({0: [5, 6, 7], 1: [8]})
        fast = [policy.sequence_forward.fast, policy.critic.sequence_forward.fast, stepper._fast]
        activations = [type(m).__name__ for m in model.modules() if "GELU" in type(m).__name__]
        if switch == "0":
            assert fast == [None] * 3
            assert set(activations) <= {"NewGELUActivation"}
            assert len(calls) == 2  # the log-probs and the prompts
            with select_matmul_kernels(small=True):
                assert torch.backends.mkldnn.enabled
        else:
            assert None not in fast
            assert set(activations) <= {"GELU"}
            assert len(calls) == 1  # the prompts
        hook.remove()
        values = [values_BT * mask_BT for values_BT in policy.values_BT(rollout)]
        results.append([logprobs_BT, *values, stepper.step(torch.tensor([3, 4]))])
    for own, fast_result in zip(*results, strict=True):
        torch.testing.assert_close(own, fast_result, atol=1e-5, rtol=1e-4)


def test_overlapping_contexts_restore_the_kernels() -> None:
    first, second = select_matmul_kernels(small=True), select_matmul_kernels(small=True)
    before = torch.backends.mkldnn.enabled
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert not torch.backends.mkldnn.enabled
    second.__exit__(None, None, None)
    assert torch.backends.mkldnn.enabled == before


def test_the_activation_and_its_slope_are_torchs() -> None:
    x = torch.linspace(-12, 12, 301, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(gelu_tanh(x), torch.nn.functional.gelu(x, approximate="tanh"))
    assert torch.autograd.gradcheck(gelu_tanh, (x,))
    with torch.no_grad():
        torch.testing.assert_close(gelu_tanh(x), torch.nn.functional.gelu(x, approximate="tanh"))


@pytest.mark.parametrize("count", [3, CHUNK + 5])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_token_log_probs_are_those_of_a_softmax(count: int, temperature: float) -> None:
    generator = torch.Generator().manual_seed(0)
    hidden_ND = torch.randn(count, 5, generator=generator, dtype=torch.float64, requires_grad=True)
    output_VD = torch.randn(7, 5, generator=generator, dtype=torch.float64, requires_grad=True)
    chosen_N = torch.randint(0, 7, (count,), generator=generator)
    weights_N = torch.randn(count, generator=generator, dtype=torch.float64)

    def reference(hidden: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
        logp_NV = (hidden @ output.t() / temperature).log_softmax(-1)
        return logp_NV.gather(-1, chosen_N[:, None])[:, 0]

    mine = compute_token_logprobs(hidden_ND, output_VD, chosen_N, temperature)
    torch.testing.assert_close(mine, reference(hidden_ND, output_VD))
    with torch.no_grad():
        torch.testing.assert_close(compute_token_logprobs(hidden_ND, output_VD, chosen_N, temperature), mine)
    pairs = (
        torch.autograd.grad((f * weights_N).sum(), (hidden_ND, output_VD), retain_graph=True)
        for f in (mine, mine, reference(hidden_ND, output_VD))
    )
    first, again, wanted = pairs
    for a, b, c in zip(first, again, wanted, strict=True):
        torch.testing.assert_close(a, c)
        torch.testing.assert_close(b, c)
