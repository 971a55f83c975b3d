"""At the turn scale the token ids in the loss are the sampled ids.

They are never encoded again and contain no text of a tool or user. Before any gradient step every ratio new/old is 1, over
several turns, padding, refills and answers of any length.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from dialogue_env import DialogueEnv
from hypothesis import given, settings
from hypothesis import strategies as st

from palaestra.chat.encoder import ChatEncoder
from palaestra.core.seeding import Seeds
from palaestra.envs.turn import TurnVectorEnv
from palaestra.models.registry import LoadedModel
from palaestra.rl.policies.language_model import LanguageModelCritic, LanguageModelPolicy
from palaestra.rl.rollouts import Rollout
from palaestra.rl.turns import collect_turns

TOLERANCE = 1e-4
CONTEXT = 160


class Dice:
    """A policy that chooses by its random number alone, so that a test knows what it must have chosen."""

    has_cache, kept = True, None

    def __init__(self, vocabulary: int, context: int, end: int, ending: float) -> None:
        self.vocabulary, self.context, self.end, self.ending = vocabulary, context, end, ending

    def begin(self, slots: int) -> None:
        self.read = np.zeros(slots, dtype=int)

    def choice(self, uniform: float) -> int:
        return self.end if uniform < self.ending else int(uniform * self.vocabulary)

    def act(
        self,
        tokens: Any,
        length: Any,
        fresh: Any,
        active: Any,
        uniform: Any,
        mask_SV: Any = None,
        waiting_S: Any = None,
    ) -> Any:
        for slot in np.flatnonzero(active & ~waiting_S):
            assert fresh[slot] or length[slot] == self.read[slot] + 1, "a slot reads its tokens one by one"
            self.read[slot] = length[slot]
        return np.array([self.choice(u) for u in uniform]), -uniform, uniform / 2


def sample_message(dice: Dice, number: int, turn: int, seeds: Seeds, most: int) -> tuple[list[int], list[float]]:
    """What the dice say in a turn, if there is room."""
    uniforms = seeds.derive("message", number, turn).generator().random(most).tolist()
    chosen: list[int] = []
    for uniform in uniforms:
        chosen.append(dice.choice(uniform))
        if chosen[-1] == dice.end:
            break
    return chosen, [-u for u in uniforms[: len(chosen)]]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_what_is_learned_from_is_what_was_sampled_turn_by_turn(nano: LoadedModel, data: st.DataObject) -> None:
    tokenizer = nano.tokenizer
    end = int(tokenizer.eos_token_id)
    slots, group = data.draw(st.integers(1, 5), "slots"), data.draw(st.sampled_from([1, 2, 3]), "group")
    episodes, first = group * data.draw(st.integers(1, 4), "groups"), group * data.draw(st.integers(0, 5), "first")
    most = data.draw(st.integers(1, 9), "tokens of a message")
    context = data.draw(st.sampled_from([24, 60, 400]), "context")
    failing = data.draw(st.sampled_from([0.0, 0.2]), "failing")
    dice = Dice(len(tokenizer), context, end, data.draw(st.sampled_from([0.05, 0.3]), "ending"))
    env = TurnVectorEnv(lambda: DialogueEnv(failing=failing), slots, autoreset=False)
    seeds = Seeds(data.draw(st.integers(0, 99), "seed"))
    rollout = collect_turns(
        env,
        dice,
        ChatEncoder(tokenizer),
        episodes,
        seeds,
        end_ids=[end],
        max_tokens=most,
        group_size=group,
        first=first,  # type: ignore[arg-type]
    )
    env.close()
    assert [episode.number for episode in rollout.get_episodes().records] == list(range(first, first + episodes))
    for sequence, episode in enumerate(rollout.get_episodes().records):
        assert episode.group == episode.number // group == int(rollout.get_episodes().group_B[sequence])  # type: ignore[index]
        head = episode.messages[: episode.opening]
        alone = DialogueEnv(failing=failing)
        assert alone.reset(seed=episode.seed)[0].messages == head
        if episode.stop_reason == "context" and not episode.turns:
            assert "the model reads" in episode.failure
            continue
        replies = [message for message in episode.messages if message.role == "assistant"]
        assert len(replies) == episode.turns
        text = "".join(f"<|{m.role}|>{m.text}<|end|>" for m in head) + "<|assistant|>"
        ids: list[int] = list(tokenizer.encode(text, add_special_tokens=False))
        assert tuple(ids) == rollout.inputs.prompts[sequence]
        chosen: list[int] = []
        logprobs: list[float] = []
        rewards = np.zeros(rollout.rewards_BT.shape[1])
        places: list[int] = []
        position = episode.opening
        for turn in range(episode.turns):
            own, own_logprobs = sample_message(dice, episode.number, turn, seeds, most)
            room = context - len(ids)
            own, own_logprobs = own[:room], own_logprobs[:room]
            places += range(len(ids), len(ids) + len(own))
            ids += own
            chosen += own
            logprobs += own_logprobs
            rewards[len(chosen) - 1] = episode.rewards[turn]
            ended = own[-1] == end
            assert replies[turn].text == tokenizer.decode(own[:-1] if ended else own, skip_special_tokens=True)
            replay = alone.step(replies[turn])
            position += 1
            if turn < episode.turns - 1:
                assert replay[1] == pytest.approx(episode.rewards[turn])
                answers = []
                while episode.messages[position].role != "assistant":
                    answers.append(episode.messages[position])
                    position += 1
                given_text = "".join(f"<|{m.role}|>{m.text}<|end|>" for m in answers) + "<|assistant|>"
                ids += tokenizer.encode(("" if ended else "<|end|>") + given_text, add_special_tokens=False)
        inputs = rollout.inputs
        assert inputs.prompts[sequence] + inputs.responses[sequence] == tuple(ids)
        assert (inputs.chosen[sequence] + len(inputs.prompts[sequence])).tolist() == places
        assert inputs.get_actions(sequence) == tuple(chosen)
        n = len(chosen)
        assert rollout.mask_BT[sequence].tolist() == [True] * n + [False] * (len(rewards) - n)
        assert np.allclose(rollout.logprobs_BT[sequence, :n], logprobs)
        assert np.allclose(rollout.rewards_BT[sequence], rewards)
        # The record of the store says the same.
        record = episode.to_trajectory("Dialogue-v0")
        assert [i for s in record.segments for i in s.token_ids] == ids
        marks = [mark for s in record.segments for mark in s.chosen]
        assert np.flatnonzero(marks).tolist() == places
        kept = [p for s in record.segments for p, own in zip(s.logprobs, s.chosen, strict=True) if own]
        assert np.allclose(kept, logprobs) and record.total_reward == pytest.approx(float(rewards.sum()))  # noqa: PT018
        assert len(ids) <= context
        assert bool(rollout.valid_B[sequence]) is not bool(episode.failure)  # type: ignore[index]
        assert episode.terminated is (episode.stop_reason == "submitted")
        assert bool(rollout.terminated_BT[sequence, n - 1]), "a limit ends the task: no value follows"
        if episode.stop_reason == "context":
            assert replay[2:4] == (False, False)
            assert episode.rewards[-1] == pytest.approx(replay[1] - 10.0), "what the limit hands in is paid as well"


def gpt2(vocabulary: int) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(vocab_size=vocabulary, n_positions=CONTEXT, n_embd=32, n_layer=2, n_head=4))


def llama(vocabulary: int) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocabulary,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=CONTEXT,
            tie_word_embeddings=True,
        )
    )


@pytest.fixture(scope="module", params=[gpt2, llama], ids=["gpt2", "llama"])
def model(request: pytest.FixtureRequest, nano: LoadedModel) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = request.param(len(nano.tokenizer))
        with torch.no_grad():  # Larger weights than at the start of training: a mistake must show.
            for parameter in network.parameters():
                parameter.mul_(3.0)
    return network.eval()


def collect_dialogues(
    policy: LanguageModelPolicy, nano: LoadedModel, episodes: int, seed: int, **given: Any
) -> Rollout:
    """Episodes of `DialogueEnv` by a policy; a message ends at any token with a low id, so that lengths differ."""
    options = SimpleNamespace(**{"slots": 3, "words": 6, "most": 12, "group": 1, **given})
    env = TurnVectorEnv(lambda: DialogueEnv(words=options.words), options.slots, autoreset=False)
    try:
        return collect_turns(
            env,
            policy,
            ChatEncoder(nano.tokenizer),
            episodes,
            Seeds(seed),
            end_ids=range(60),
            max_tokens=options.most,
            group_size=options.group,
        )
    finally:
        env.close()


def whole_pass(model: Any, rollout: Rollout, sequence: int, temperature: float = 1.0) -> torch.Tensor:
    """The log-probs of a sequence's actions by one pass of transformers: no cache, no padding, one sequence."""
    inputs = rollout.inputs
    ids = torch.tensor(inputs.prompts[sequence] + inputs.responses[sequence])
    with torch.no_grad():
        logprobs = (model(input_ids=ids[None]).logits[0] / temperature).log_softmax(-1)
    places = torch.from_numpy(inputs.chosen[sequence]) + len(inputs.prompts[sequence])
    sampled: torch.Tensor = logprobs[places - 1, ids[places]]
    return sampled


@settings(max_examples=12, deadline=None)
@given(st.data())
def test_the_ratio_is_one_before_the_first_gradient_step(model: Any, nano: LoadedModel, data: st.DataObject) -> None:
    temperature = data.draw(st.sampled_from([1.0, 0.7, 1.6]), "temperature")
    policy = LanguageModelPolicy(
        model, temperature=temperature, microbatch_size=data.draw(st.integers(1, 5), "microbatch_size")
    )
    rollout = collect_dialogues(
        policy,
        nano,
        data.draw(st.integers(1, 9), "episodes"),
        data.draw(st.integers(0, 999), "seed"),
        slots=data.draw(st.integers(1, 5), "slots"),
        words=data.draw(st.sampled_from([1, 6, 20]), "words"),
    )
    fast = policy.sequence_forward.fast
    assert fast is not None
    for policy.sequence_forward.fast in (fast, None):
        new_BT = policy.logprobs_BT(rollout)
        assert float((((new_BT - rollout.logprobs_BT) * rollout.mask_BT).exp() - 1).abs().max()) < TOLERANCE
    policy.sequence_forward.fast = fast
    for sequence in range(rollout.num_sequences):
        old = rollout.logprobs_BT[sequence][rollout.mask_BT[sequence]]
        assert float(((whole_pass(model, rollout, sequence, temperature) - old).exp() - 1).abs().max()) < TOLERANCE


def test_an_episode_says_the_same_in_any_company(model: Any, nano: LoadedModel) -> None:
    """Slots, order, neighbours and when the others are done change nothing."""
    policy = LanguageModelPolicy(model)
    inputs = [collect_dialogues(policy, nano, 8, 3, slots=slots).inputs for slots in (1, 3, 8)]
    assert inputs[0].responses == inputs[1].responses == inputs[2].responses
    assert len({len(response) for response in inputs[0].responses}) > 3


def test_values_stand_before_actions_and_behind_the_end(model: Any, nano: LoadedModel) -> None:
    """The value after the last word of a turn is that of the state after the answer to it."""
    for own in (True, False):
        critic = LanguageModelCritic(model.base_model, 32)
        policy = LanguageModelPolicy(model, critic if own else "head")
        head = policy.value_head if policy.value_head is not None else critic.head
        with torch.no_grad():
            head.weight.normal_(generator=torch.Generator().manual_seed(0))
        rollout = collect_dialogues(policy, nano, 5, 1)
        for fast in (True, False):
            if not fast:
                policy.sequence_forward.fast = critic.sequence_forward.fast = None
            values_BT, next_BT = policy.values_BT(rollout)
            for sequence in range(rollout.num_sequences):
                prompt, response = rollout.inputs.prompts[sequence], rollout.inputs.responses[sequence]
                with torch.no_grad():
                    hidden = model.base_model(input_ids=torch.tensor([prompt + response])).last_hidden_state[0]
                    all_values = head(hidden)[:, 0]
                before = [*(rollout.inputs.chosen[sequence] + len(prompt) - 1).tolist(), len(prompt + response) - 1]
                n = len(before) - 1
                assert torch.allclose(values_BT[sequence, :n], all_values[before[:-1]], atol=1e-4)
                assert torch.allclose(next_BT[sequence, :n], all_values[before[1:]], atol=1e-4)


def test_gradients_come_from_actions_alone(model: Any, nano: LoadedModel) -> None:
    """The loss of a sequence is that of one plain pass in which all that was given is masked."""
    import copy

    own = copy.deepcopy(model)
    policy = LanguageModelPolicy(own)
    rollout = collect_dialogues(policy, nano, 4, 2)
    from palaestra.rl.rollouts import select_all

    for selection in select_all(rollout, True, 4):
        judged = policy.evaluate_actions(rollout, selection, values=False)
        (judged.logprobs * selection.take(rollout.mask_BT)).sum().backward()  # type: ignore[no-untyped-call]
    plain = copy.deepcopy(model)
    for sequence in range(rollout.num_sequences):
        ids = torch.tensor(rollout.inputs.prompts[sequence] + rollout.inputs.responses[sequence])
        labels = torch.full_like(ids, -100)
        places = torch.from_numpy(rollout.inputs.chosen[sequence]) + len(rollout.inputs.prompts[sequence])
        labels[places] = ids[places]
        logits = plain(input_ids=ids[None]).logits[0, :-1]
        (-torch.nn.functional.cross_entropy(logits, labels[1:], reduction="sum", ignore_index=-100)).backward()
    for (name, mine), theirs in zip(own.named_parameters(), plain.parameters(), strict=True):
        assert mine.grad is not None and theirs.grad is not None, name  # noqa: PT018
        assert torch.allclose(mine.grad, theirs.grad, atol=2e-3, rtol=1e-3), name


@pytest.mark.parametrize("kind", ["grpo", "rloo", "ppo", "reinforce"])
def test_first_update_of_every_algorithm_has_ratio_one(model: Any, nano: LoadedModel, kind: str) -> None:
    import copy

    from palaestra.rl.algorithms import ALGORITHMS

    algorithm_class = ALGORITHMS.get(kind)
    policy = LanguageModelPolicy(copy.deepcopy(model), "head" if algorithm_class.Config().needs_critic else None)
    rollout = collect_dialogues(policy, nano, 8, 5, group=4)
    # What `DialogueEnv` pays follows from the seed that a group shares: without this nobody would be ahead of anybody.
    rollout.rewards_BT[:, 0] += torch.arange(8.0)
    config = {
        "grpo": {"group_size": 4},
        "rloo": {"group_size": 4},
        "ppo": {"n_epochs": 1, "batch_size": 8},
        "reinforce": {},
    }[kind]
    before = [p.detach().clone() for p in policy.parameters()]
    metrics = algorithm_class(policy, algorithm_class.Config(**config)).update(rollout, 1)
    assert abs(metrics.get("approx_kl", 0.0)) < 1e-5
    assert any(not torch.equal(a, b) for a, b in zip(before, policy.parameters(), strict=True))
