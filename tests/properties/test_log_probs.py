"""The log-prob of a token is the same in the rollout and in training.

For GPT-2 and Llama architectures (with grouped heads) and any batch size, prompt lengths, response lengths, refills and
order of slots: before any gradient step every ratio new/old is 1.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from palaestra.core.seeding import Seeds
from palaestra.envs.token import Prompt, TokenVectorEnv
from palaestra.kernels.slots import SlotStepper
from palaestra.models.registry import LoadedModel
from palaestra.rl.collection import collect_responses
from palaestra.rl.policies.language_model import LanguageModelPolicy
from palaestra.rl.rollouts import Rollout

VOCABULARY = 97
TOLERANCE = 1e-4


def gpt2() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=VOCABULARY, n_positions=96, n_embd=32, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=1
    )
    return GPT2LMHeadModel(config)


def llama() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=96,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=1,
    )
    return LlamaForCausalLM(config)


@pytest.fixture(scope="module", params=[gpt2, llama], ids=["gpt2", "llama"])
def model(request: pytest.FixtureRequest) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = request.param()
        with torch.no_grad():  # Larger weights than at the start of training: a mistake must show.
            for parameter in network.parameters():
                parameter.mul_(3.0)
    return network.eval()


class Scripted(TokenVectorEnv):
    """Responses end at lengths that the test chose."""

    def __init__(self, lengths: list[int], prompts: list[list[int]], tokenizer: Any, slots: int) -> None:
        given = [Prompt(tuple(ids), "", n) for ids, n in zip(prompts, lengths, strict=True)]
        super().__init__(
            given, lambda r: 0.0, tokenizer=tokenizer, num_envs=slots, max_tokens=max(lengths), stop=("x",)
        )
        self._is_end[:] = False
        self.vocabulary = VOCABULARY

    def prompt(self, episode: int) -> Prompt:
        return self._prompts[episode % len(self.items)]

    def _find_stopped(self, slots: np.ndarray) -> list[int]:
        count = self._length - self._prompt_length
        return [int(s) for s in slots if count[s] >= self._slot_prompts[s].source]  # type: ignore[union-attr]


def worst_ratio(policy: LanguageModelPolicy, rollout: Rollout) -> float:
    """By the fast path, if the model has one, and by the model's own forward pass."""
    fast, ratios = policy.sequence_forward.fast, []
    for policy.sequence_forward.fast in (fast, None):
        new_BT = policy.logprobs_BT(rollout)
        ratios.append(float((((new_BT - rollout.logprobs_BT) * rollout.mask_BT).exp() - 1).abs().max()))
    policy.sequence_forward.fast = fast
    return max(ratios)


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_the_ratio_is_one_before_the_first_gradient_step(model: Any, nano: LoadedModel, data: st.DataObject) -> None:
    slots = data.draw(st.integers(1, 7), "slots")
    episodes = data.draw(st.integers(1, 15), "episodes")
    generator = np.random.default_rng(data.draw(st.integers(0, 10**6), "seed"))
    prompts = [generator.integers(2, VOCABULARY, generator.integers(1, 20)).tolist() for _ in range(episodes)]
    lengths = generator.integers(1, 30, episodes).tolist()
    temperature = data.draw(st.sampled_from([1.0, 0.7, 1.6]), "temperature")
    env = Scripted(lengths, prompts, nano.tokenizer, slots)
    policy = LanguageModelPolicy(
        model, temperature=temperature, vocabulary=VOCABULARY, microbatch_size=data.draw(st.integers(1, 5))
    )
    rollout = collect_responses(env, policy, episodes, Seeds(1), seed=0)
    assert sorted(rollout.stats.lengths) == sorted(lengths)
    assert worst_ratio(policy, rollout) < TOLERANCE


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10**6))
def test_stepping_gives_the_logits_of_one_full_pass(model: Any, seed: int) -> None:
    """Against transformers itself: no cache, no padding, one sequence at a time."""
    generator = np.random.default_rng(seed)
    slots = int(generator.integers(1, 6))
    stepper = SlotStepper(model, slots)
    sequences = [generator.integers(0, VOCABULARY, generator.integers(1, 12)).tolist() for _ in range(slots)]
    logits_SV = stepper.start(dict(enumerate(sequences)))
    for _ in range(12):
        with torch.no_grad():
            for slot, ids in enumerate(sequences):
                full_V = model(input_ids=torch.tensor([ids])).logits[0, -1]
                assert torch.allclose(logits_SV[slot], full_V, atol=1e-4)
        tokens = generator.integers(0, VOCABULARY, slots)
        fresh = [s for s in range(slots) if generator.random() < 0.2]
        going = [s for s in range(slots) if s not in fresh]
        logits_SV = stepper.step(torch.from_numpy(tokens), fresh) if going else torch.zeros_like(logits_SV)
        for slot in going:
            sequences[slot].append(int(tokens[slot]))
        if fresh:
            for slot in fresh:
                sequences[slot] = generator.integers(0, VOCABULARY, generator.integers(1, 12)).tolist()
            logits_SV = stepper.start({s: sequences[s] for s in fresh}, logits_SV)


def test_slots_that_rest_and_start_again_keep_their_logits(model: Any) -> None:
    """Resting slots leave the batch. When they start again, the rows are no longer in the order of the slots."""
    stepper = SlotStepper(model, 4)
    sequences = [[5, 6, 7], [8], [9, 10], [11, 12]]
    stepper.start(dict(enumerate(sequences)))
    stepper.rest([1, 2])
    stepper.step(torch.tensor([3, 3, 3, 4]))
    sequences = [[5, 6, 7, 3], [20, 21], [22], [11, 12, 4]]
    stepper.start({1: sequences[1], 2: sequences[2]})
    logits_SV = stepper.step(torch.tensor([30, 31, 32, 33]))
    with torch.no_grad():
        for slot, ids in enumerate(sequences):
            full_V = model(input_ids=torch.tensor([[*ids, 30 + slot]])).logits[0, -1]
            assert torch.allclose(logits_SV[slot], full_V, atol=1e-4)


def test_an_episode_says_the_same_in_any_company(model: Any, nano: LoadedModel) -> None:
    """The choices of an episode belong to its number: slots, order and neighbours change nothing."""
    generator = np.random.default_rng(5)
    prompts = [generator.integers(2, VOCABULARY, n).tolist() for n in (3, 9, 5, 14, 4, 8)]
    responses = []
    for slots in (1, 2, 6):
        env = Scripted([7, 3, 12, 5, 9, 4], prompts, nano.tokenizer, slots)
        policy = LanguageModelPolicy(model, vocabulary=VOCABULARY)
        responses.append(collect_responses(env, policy, 6, Seeds(3), seed=0).inputs.responses)
    assert responses[0] == responses[1] == responses[2]


def test_ratio_is_one_with_an_adapter_and_off_is_the_reference(model: Any, nano: LoadedModel) -> None:
    pytest.importorskip("peft")
    import copy

    from palaestra.rl.policies.language_model import ReferencePolicy, apply_kl_penalty
    from palaestra.students.supervised import Supervision, add_adapter

    plain = LanguageModelPolicy(copy.deepcopy(model), vocabulary=VOCABULARY)
    adapted = add_adapter(copy.deepcopy(model), Supervision("lora", rank=4), Seeds(0))
    policy = LanguageModelPolicy(adapted, vocabulary=VOCABULARY)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.05, generator=torch.Generator().manual_seed(1))
    env = Scripted([6, 11, 3], [[5, 6], [7, 8, 9], [4]], nano.tokenizer, 2)
    rollout = collect_responses(env, policy, 3, Seeds(2), seed=0)
    assert worst_ratio(policy, rollout) < TOLERANCE
    off_BT, base_BT = ReferencePolicy(policy).logprobs_BT(rollout), plain.logprobs_BT(rollout)
    assert torch.allclose(off_BT, base_BT, atol=1e-5)
    assert not torch.allclose(off_BT, rollout.logprobs_BT, atol=1e-3)
    before = rollout.rewards_BT.clone()
    divergence = apply_kl_penalty(rollout, off_BT, 0.5)
    expected = (rollout.logprobs_BT - off_BT) * rollout.mask_BT
    assert torch.allclose(rollout.rewards_BT, before - 0.5 * expected)
    assert abs(divergence - float(expected.sum(-1).mean())) < 1e-5


def test_dropout_stays_off_while_learning(model: Any, nano: LoadedModel) -> None:
    """GPT-2's configuration has dropout; the first update must still find every ratio at 1."""
    import copy

    from palaestra.rl.grpo import GRPO, GRPOConfig
    from palaestra.rl.ppo import PPO, PPOConfig

    env = Scripted([6, 11, 3, 8], [[5, 6], [5, 6], [4], [4]], nano.tokenizer, 4)
    for kind in ("ppo", "grpo"):
        policy = LanguageModelPolicy(copy.deepcopy(model).train(), "head", vocabulary=VOCABULARY)
        rollout = collect_responses(env, policy, 4, Seeds(2), seed=0)
        rollout.rewards_BT[:, 0] = torch.tensor([1.0, 0.0, 0.5, 0.2])
        rollout.get_episodes().group_B = torch.tensor([0, 0, 1, 1])
        algorithm: Any = PPO(policy, PPOConfig(n_epochs=1, batch_size=4))
        if kind == "grpo":
            algorithm = GRPO(policy, GRPOConfig(group_size=2))
        metrics = algorithm.update(rollout, 1)
        assert abs(metrics["approx_kl"]) < 1e-6
        assert metrics["clip_fraction"] == 0


def test_the_divergence_of_a_policy_from_itself_is_zero(model: Any, nano: LoadedModel) -> None:
    from palaestra.rl.policies.language_model import ReferencePolicy, apply_kl_penalty

    policy = LanguageModelPolicy(model, vocabulary=VOCABULARY)
    env = Scripted([6, 11, 3], [[5, 6], [7, 8, 9], [4]], nano.tokenizer, 3)
    rollout = collect_responses(env, policy, 3, Seeds(2), seed=0)
    assert abs(apply_kl_penalty(rollout, ReferencePolicy(policy).logprobs_BT(rollout), 1.0)) < 1e-4


def test_values_follow_the_states_with_a_head_or_a_critic(model: Any, nano: LoadedModel) -> None:
    """The value of a decision is that of the state before it; its next value, of the state after it."""
    import copy

    from palaestra.rl.policies.language_model import LanguageModelCritic

    env = Scripted([6, 2, 9], [[5, 6], [7, 8, 9], [4]], nano.tokenizer, 3)
    critic = LanguageModelCritic(copy.deepcopy(model).base_model, 32)
    for policy in (
        LanguageModelPolicy(model, "head", vocabulary=VOCABULARY), LanguageModelPolicy(model, critic, vocabulary=VOCABULARY),
    ):  # fmt: skip
        head = policy.value_head if policy.value_head is not None else critic.head
        with torch.no_grad():
            head.weight.normal_(generator=torch.Generator().manual_seed(0))
        rollout = collect_responses(env, policy, 3, Seeds(2), seed=0)
        values_BT, next_BT = policy.values_BT(rollout)
        for sequence in range(3):
            prompt, response = rollout.inputs.prompts[sequence], rollout.inputs.responses[sequence]
            with torch.no_grad():
                hidden = model.base_model(input_ids=torch.tensor([prompt + response])).last_hidden_state[0]
                expected = head(hidden)[:, 0][len(prompt) - 1 :]
            n = len(response)
            assert torch.allclose(values_BT[sequence, :n], expected[:-1], atol=1e-4)
            assert torch.allclose(next_BT[sequence, :n], expected[1:], atol=1e-4)


def test_only_known_architectures_take_the_fast_step(model: Any) -> None:
    stepper = SlotStepper(model, 2)
    stepper.start({0: [5, 6, 7], 1: [8]})
    stepper.step(torch.tensor([3, 4]))
    assert stepper._fast is not None

    class Stranger(type(model)):  # type: ignore[misc]
        """Has the name of a known architecture and computes something else."""

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            output = super().forward(*args, **kwargs)
            output.logits = output.logits * 0.5
            return output

    import copy

    stranger = copy.deepcopy(model)
    stranger.__class__ = Stranger
    Stranger.__name__ = type(model).__name__
    stepper = SlotStepper(stranger, 2)
    stepper.start({0: [5, 6, 7], 1: [8]})
    logits = stepper.step(torch.tensor([3, 4]))
    assert stepper._fast is None
    with torch.no_grad():
        assert torch.allclose(logits[1], 0.5 * model(input_ids=torch.tensor([[8, 4]])).logits[0, -1], atol=1e-4)


def test_the_fast_step_follows_the_weights(model: Any) -> None:
    import copy

    changed = copy.deepcopy(model)
    stepper = SlotStepper(changed, 1)
    stepper.start({0: [5, 6]})
    stepper.step(torch.tensor([3]))
    with torch.no_grad():
        for parameter in changed.parameters():
            parameter.mul_(1.1)
    stepper.clear()
    stepper.start({0: [5, 6]})
    logits = stepper.step(torch.tensor([3]))[0]
    with torch.no_grad():
        assert torch.allclose(logits, changed(input_ids=torch.tensor([[5, 6, 3]])).logits[0, -1], atol=1e-4)
