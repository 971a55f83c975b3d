"""Every model family that `train` accepts agrees with the model's own forward pass on whole sequences."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_models import RARE, ROPES, SEQUENCES, SLOTS, VOCABULARY, tiny_model

from palaestra.core.seeding import Seeds
from palaestra.envs.token import Prompt, TokenVectorEnv
from palaestra.kernels.operations import sample_tokens
from palaestra.kernels.sequences import SequenceStepper
from palaestra.kernels.slots import SlotStepper
from palaestra.models.families import SLOTS as SLOT_TYPES
from palaestra.models.families import takes_slots
from palaestra.models.registry import LoadedModel
from palaestra.rl.collection import collect_responses
from palaestra.rl.grpo import GRPO, GRPOConfig
from palaestra.rl.policies.language_model import LanguageModelCritic, LanguageModelPolicy
from palaestra.rl.rollouts import Rollout, TokenInputs, select_sequences


def families(names: Iterable[str]) -> list[Any]:
    return [pytest.param(name, marks=[pytest.mark.backends] if name in RARE else []) for name in names]


TEMPERATURE = 0.7
CLOSE = {"atol": 2e-4, "rtol": 1e-4}


def own_logits(model: Any, ids: list[int]) -> torch.Tensor:
    """The model's own forward pass on one sequence alone, without cache, mask or padding."""
    logits: torch.Tensor = model(input_ids=torch.tensor([ids])).logits[0].float()
    return logits


def test_every_type_that_shares_a_cache_is_tested() -> None:
    import transformers

    assert {getattr(transformers, f"{prefix}Config").model_type for prefix, _ in SLOTS.values()} == SLOT_TYPES


@pytest.mark.parametrize("family", families([*SLOTS, *SEQUENCES]))
def test_sampled_log_probs_match_the_models_forward(family: str) -> None:
    """Slots of different lengths; some wait, rest and are refilled; prompts are longer than the sliding window."""
    model = tiny_model(family)
    policy = LanguageModelPolicy(model, temperature=TEMPERATURE)
    generator = np.random.default_rng(0)
    new = lambda n: generator.integers(0, VOCABULARY, n).tolist()  # noqa: E731
    sequences = [new(3), new(12), new(1), new(21)]
    sequences[2] = list(sequences[0])
    steps, refills = 11, {4: (0, new(14)), 7: (3, new(2))}
    logged: list[list[tuple[int, int, float, float, float]]] = [[] for _ in sequences]
    finished: list[tuple[list[int], list[tuple[int, int, float, float, float]]]] = []
    fresh, active = np.ones(4, dtype=bool), np.ones(4, dtype=bool)
    policy.begin(4)
    for t in range(steps):
        if t in refills:
            slot, prompt = refills[t]
            finished.append((sequences[slot], logged[slot]))
            sequences[slot], logged[slot], fresh[slot] = prompt, [], True
        active[2] = t < 6
        waiting = np.array([False, t in (2, 4), False, False])
        tokens, length = np.zeros((4, 64), dtype=np.int64), np.array([len(ids) for ids in sequences])
        for slot, ids in enumerate(sequences):
            tokens[slot, : len(ids)] = ids
        uniform = generator.random(4)
        chosen, logprobs, entropies = policy.act(tokens, length, fresh, active, uniform, waiting_S=waiting)
        for slot in np.flatnonzero(active & ~waiting).tolist():
            place = len(sequences[slot])
            logged[slot].append((place, int(chosen[slot]), logprobs[slot], entropies[slot], uniform[slot]))
            sequences[slot].append(int(chosen[slot]))
        fresh[:] = False
    assert isinstance(policy._stepper, SlotStepper if family in SLOTS else SequenceStepper)
    for ids, steps_of_it in [*finished, *zip(sequences, logged, strict=True)]:
        with torch.no_grad():
            logits_TV = own_logits(model, ids)
        places, tokens_T, logprobs_T, entropies_T, uniforms_T = map(list, zip(*steps_of_it, strict=True))
        wanted = sample_tokens(logits_TV[[p - 1 for p in places]], torch.tensor(uniforms_T), TEMPERATURE)
        assert wanted[0].tolist() == tokens_T
        torch.testing.assert_close(torch.tensor(logprobs_T), wanted[1], **CLOSE)
        torch.testing.assert_close(torch.tensor(entropies_T), wanted[2], **CLOSE)


def make_rollout(prompts: list[int], responses: list[int]) -> Rollout:
    """Prompts by their lengths; sequences with prompts of the same length share one.

    They start with the padding token, whose input embedding has no gradient in many families.
    """
    generator = np.random.default_rng(1)
    texts = {n: (0, *generator.integers(0, VOCABULARY, n - 1).tolist()) for n in prompts}
    inputs = TokenInputs(
        [texts[n] for n in prompts], [tuple(generator.integers(0, VOCABULARY, n).tolist()) for n in responses], []
    )
    mask_BT = torch.arange(max(responses))[None] < torch.tensor(responses)[:, None]
    zeros_BT = torch.zeros(mask_BT.shape)
    return Rollout(
        rewards_BT=zeros_BT,
        logprobs_BT=zeros_BT,
        mask_BT=mask_BT,
        terminated_BT=mask_BT & False,
        ended_BT=mask_BT & False,
        inputs=inputs,
    )


@pytest.mark.parametrize("family", families([*SLOTS, *SEQUENCES]))
def test_evaluation_and_gradients_match_the_models_forward(family: str) -> None:
    check_reading(family, [5, 14, 2, 20])


@pytest.mark.parametrize("family", families(SLOTS))
def test_shared_prompts_change_no_result(family: str) -> None:
    check_reading(family, [13, 4, 13, 4])


def check_reading(family: str, prompts: list[int]) -> None:
    model, responses = tiny_model(family), [5, 12, 1, 9]
    rollout = make_rollout(prompts, responses)
    policy = LanguageModelPolicy(model, temperature=TEMPERATURE)
    weights_BT = torch.linspace(-1, 2, 48).view(4, 12)
    model.zero_grad()
    judged = policy.evaluate_actions(rollout, select_sequences(rollout, [0, 1, 2, 3]), entropy=True)
    assert judged.entropy is not None
    (judged.logprobs * weights_BT * rollout.mask_BT).sum().backward()  # type: ignore[no-untyped-call]
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    for sequence, (prompt, response) in enumerate(zip(rollout.inputs.prompts, rollout.inputs.responses, strict=True)):
        logp_TV = (own_logits(model, [*prompt, *response])[len(prompt) - 1 : -1] / TEMPERATURE).log_softmax(-1)
        chosen_T = logp_TV.gather(-1, torch.tensor(response)[:, None])[:, 0]
        entropy_T = -(logp_TV.exp() * logp_TV).sum(-1)
        n = len(response)
        torch.testing.assert_close(judged.logprobs[sequence, :n], chosen_T, **CLOSE)
        torch.testing.assert_close(judged.entropy[sequence, :n], entropy_T, **CLOSE)
        (chosen_T * weights_BT[sequence, :n]).sum().backward()  # type: ignore[no-untyped-call]
    wanted = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    assert gradients.keys() == wanted.keys()
    size = max(float(gradient.abs().max()) for gradient in wanted.values())
    for name, gradient in wanted.items():
        torch.testing.assert_close(gradients[name], gradient, atol=1e-4 * size, rtol=1e-3, msg=f"gradient of {name}")


def test_every_rope_type_of_transformers_is_tested() -> None:
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    assert {arguments["rope_parameters"].get("rope_type") for _, arguments in ROPES.values()} >= set(
        ROPE_INIT_FUNCTIONS
    )


@pytest.mark.parametrize("family", families([*SLOTS, *SEQUENCES, *ROPES]))
def test_a_learning_rate_of_zero_changes_nothing(family: str, nano: LoadedModel, tmp_path: Path) -> None:
    """Sampling, training and the exported model have the same log-probs, up to the last token of the context."""
    model = tiny_model.__wrapped__(family)  # A new one: the weights and the states of the cached one are shared.
    policy = LanguageModelPolicy(model)
    context, generator = min(policy.context, 64), np.random.default_rng(2)
    prompts = [Prompt(tuple(generator.integers(2, VOCABULARY, n).tolist()), "") for n in (context - 2, context - 11)]
    env = TokenVectorEnv(
        prompts,
        lambda response: float(sum(response.token_ids) % 7),
        tokenizer=nano.tokenizer,
        num_envs=3,
        max_tokens=context,
        context=context,
        group_size=2,
    )
    env._is_end[:] = False
    rollout = collect_responses(env, policy, 4, Seeds(0), seed=0)
    assert {len(p) + len(r) for p, r in zip(rollout.inputs.prompts, rollout.inputs.responses, strict=True)} == {context}
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    metrics = GRPO(policy, GRPOConfig(group_size=2, learning_rate=0.0, weight_decay=0.1)).update(rollout, 1)
    assert abs(metrics["approx_kl"]) < 1e-7
    forward = policy.sequence_forward
    ways = {(forward.fast, True), (None, True), (None, not takes_slots(model.config))}
    for fast, share_prompts in ways:
        forward.fast, forward.share_prompts = fast, share_prompts
        difference_BT = (policy.logprobs_BT(rollout) - rollout.logprobs_BT) * rollout.mask_BT
        assert float(difference_BT.abs().max()) < 1e-4
    assert all(torch.equal(parameter, before[name]) for name, parameter in model.named_parameters())
    model.save_pretrained(tmp_path)
    exported = type(model).from_pretrained(tmp_path).eval()
    for sequence, (prompt, response) in enumerate(zip(rollout.inputs.prompts, rollout.inputs.responses, strict=True)):
        with torch.no_grad():
            logp_TV = own_logits(exported, [*prompt, *response])[len(prompt) - 1 : -1].log_softmax(-1)
        chosen_T = logp_TV.gather(-1, torch.tensor(response)[:, None])[:, 0]
        torch.testing.assert_close(rollout.logprobs_BT[sequence, : len(response)], chosen_T, atol=1e-4, rtol=0.0)


@pytest.mark.parametrize("own_critic", [False, True], ids=["head", "separate"])
@pytest.mark.parametrize("family", ["gptj", "gemma2", "bloom", "mamba"])
def test_values_are_read_from_the_models_own_hidden_states(family: str, own_critic: bool) -> None:
    model = tiny_model(family)
    rollout = make_rollout([5, 14, 2], [5, 12, 1])
    critic = LanguageModelCritic(model.base_model, int(model.config.hidden_size)) if own_critic else None
    policy = LanguageModelPolicy(model, critic or "head")
    head = critic.head if critic is not None else policy.value_head
    assert head is not None
    with torch.no_grad():
        head.weight.normal_(generator=torch.Generator().manual_seed(0))
        values_BT, next_BT = policy.values_BT(rollout)
        for sequence, (prompt, response) in enumerate(
            zip(rollout.inputs.prompts, rollout.inputs.responses, strict=True)
        ):
            hidden = model.base_model(input_ids=torch.tensor([[*prompt, *response]])).last_hidden_state[0]
            wanted = head(hidden)[len(prompt) - 1 :, 0]
            torch.testing.assert_close(values_BT[sequence, : len(response)], wanted[:-1], **CLOSE)
            torch.testing.assert_close(next_BT[sequence, : len(response)], wanted[1:], **CLOSE)


def test_a_trained_bias_is_not_lost_by_the_lean_step() -> None:
    """Biases start at 0, where a check at the first step cannot see them."""
    import transformers

    config = transformers.LlamaConfig(**{**SLOTS["llama"][1], "mlp_bias": True, "attention_bias": True})
    model = transformers.LlamaForCausalLM(config).eval()
    stepper = SlotStepper(model, 1)
    stepper.start({0: [5, 6]})
    stepper.step(torch.tensor([3]))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.fill_(0.5)
        stepper.clear()
        stepper.start({0: [5, 6]})
        torch.testing.assert_close(stepper.step(torch.tensor([3]))[0], own_logits(model, [5, 6, 3])[-1], **CLOSE)


def test_longrope_is_trained_up_to_its_original_context() -> None:
    """Beyond it every position is rotated differently: what was said before would have other log-probs."""
    import transformers

    from palaestra.core.errors import ModelError

    rope = {
        "rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 3, "long_factor": [4.0] * 3,
        "original_max_position_embeddings": 16,
    }  # fmt: skip
    model = transformers.Phi3ForCausalLM(
        transformers.Phi3Config(**SLOTS["phi3"][1], rope_parameters=rope, original_max_position_embeddings=16)
    ).eval()
    policy = LanguageModelPolicy(model)
    assert policy.context == 16
    rollout = make_rollout([5, 14], [5, 12])
    with pytest.raises(ModelError, match=r"25 tokens; .*16"):
        policy.logprobs_BT(rollout)
    with pytest.raises(ModelError, match=r"17 tokens; .*16"):
        SlotStepper(model, 1).start({0: [3] * 17})


@pytest.mark.parametrize("kind", ["flash_attention_2", "flex_attention"])
def test_attention_without_a_mask_is_stepped_alone(kind: str) -> None:
    import transformers

    config = transformers.LlamaConfig(**SLOTS["llama"][1])
    assert takes_slots(config)
    config._attn_implementation = kind
    assert not takes_slots(config)


def test_unsupported_adapter_is_refused() -> None:
    pytest.importorskip("peft")
    from palaestra.core.errors import ModelError
    from palaestra.core.seeding import Seeds
    from palaestra.students.supervised import Supervision, add_adapter

    with pytest.raises(ModelError, match=r"adapter .*mamba: .*out_proj") as raised:
        add_adapter(tiny_model.__wrapped__("mamba"), Supervision("lora", rank=4), Seeds(0))
    assert "\n" not in str(raised.value)
