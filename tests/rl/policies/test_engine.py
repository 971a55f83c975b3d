"""Rollouts by an engine: the same rollouts as by stepping, with the weights of the learner."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from palaestra.chat.encoder import ChatEncoder
from palaestra.chat.rendering import end_ids
from palaestra.core.errors import EngineError, EnvError, SettingsError, UnknownNameError
from palaestra.core.records import Completion, Failure, FailureCause, StopReason, Usage
from palaestra.core.seeding import Seeds
from palaestra.engines.base import ENGINES, RolloutEngine
from palaestra.envs.factory import make_turn_env
from palaestra.envs.token import TokenVectorEnv
from palaestra.models import registry as models
from palaestra.recipes.train.recipe import Iteration, resume, train
from palaestra.rl.algorithms import ALGORITHMS
from palaestra.rl.collection import collect_responses, join_rollouts
from palaestra.rl.losses import compute_importance_weights
from palaestra.rl.policies.engine import EnginePolicy, correct_importance, iterate_weights
from palaestra.rl.policies.language_model import LanguageModelPolicy
from palaestra.rl.rollouts import Rollout
from palaestra.rl.turns import collect_turns
from palaestra.runs.run import Run
from palaestra.students.supervised import Supervision, add_adapter

ENGINE_NAMES = [
    "transformers",
    pytest.param("vllm", marks=[pytest.mark.backends, pytest.mark.filterwarnings("ignore")]),
]
PROMPT = "A clock shows 3:40. What does it show 35 minutes later?"
SMALL: dict[str, Any] = {
    "env": "CoTEnv-v0", "env_kwargs": {"problems": 10, "skills": ["clock", "percent"]}, "iterations": 3, "episodes": 16, "num_envs": 16,
    "group_size": 4, "evaluation": 4, "checkpoint_every": 1, "threads": 1, "max_tokens": 32, "rollout": "engine",
}  # fmt: skip


@pytest.fixture(scope="module", params=ENGINE_NAMES)
def engine(request: pytest.FixtureRequest) -> Iterator[RolloutEngine]:
    if request.param == "vllm":
        pytest.importorskip("vllm")
    engine = ENGINES.get(request.param).open_for_rollouts("nano", device="cpu")
    yield engine
    engine.close()


@pytest.fixture
def policy() -> LanguageModelPolicy:
    return LanguageModelPolicy(models.load("nano", device="cpu", trainable=True).weights, temperature=1.3)


def make_env(episodes: int, **options: Any) -> TokenVectorEnv:
    return TokenVectorEnv(
        [PROMPT],
        lambda response: float(len(response.text) % 2),
        num_envs=episodes,
        max_tokens=12,
        context=256,
        **options,
    )


def make_sampler(engine: Any, policy: LanguageModelPolicy, **changes: Any) -> EnginePolicy:
    options = {"temperature": policy.temperature, "vocabulary": policy.vocabulary, "max_tokens": 12, "context": 256}
    return EnginePolicy(engine, **(options | changes))


def compute_chi_square(first: list[Any], second: list[Any]) -> tuple[float, int]:
    """Pearson's statistic of two samples of the same size, rare values together, and its degrees of freedom."""
    counts = [Counter(first), Counter(second)]
    common = [value for value in counts[0] | counts[1] if counts[0][value] + counts[1][value] >= 10]
    cells = [(counts[0][value], counts[1][value]) for value in common]
    cells.append((len(first) - sum(a for a, _ in cells), len(second) - sum(b for _, b in cells)))
    cells = [(a, b) for a, b in cells if a + b]
    return sum((a - b) ** 2 / (a + b) for a, b in cells), len(cells) - 1


def test_both_ways_agree_in_distribution(engine: RolloutEngine, policy: LanguageModelPolicy) -> None:
    episodes = 600
    stepped = collect_responses(make_env(episodes), policy, episodes, Seeds(1), seed=0)
    sampler = make_sampler(engine, policy)
    sampler.update_weights(policy.model, 0)
    sampled = collect_responses(make_env(episodes), sampler, episodes, Seeds(2), seed=0)
    assert sampled.stats.lengths != stepped.stats.lengths  # different samples
    for describe in (
        lambda rollout, k: rollout.inputs.responses[k][:2],
        lambda rollout, k: rollout.inputs.responses[k][-1],
        lambda rollout, k: (len(rollout.inputs.responses[k]), rollout.get_episodes().records[k].stop_reason),
        lambda rollout, k: rollout.get_episodes().records[k].reward,
    ):
        statistic, freedom = compute_chi_square(
            *([describe(r, k) for k in range(episodes)] for r in (stepped, sampled))
        )
        assert freedom >= 1
        assert statistic < freedom + 4 * math.sqrt(2 * freedom), (statistic, freedom)
    entropies = [float(rollout.entropy_BT[rollout.mask_BT].mean()) for rollout in (stepped, sampled)]
    assert abs(entropies[0] - entropies[1]) < 0.1 * entropies[0]


def test_a_rollout_has_the_ids_and_log_probs_of_the_engine(engine: RolloutEngine, policy: LanguageModelPolicy) -> None:
    env = make_env(16, group_size=4)
    sampler = make_sampler(engine, policy)
    rollout = collect_responses(env, sampler, 16, Seeds(0), seed=0, first=32)
    assert [response.episode for response in rollout.get_episodes().records] == list(range(32, 48))
    assert rollout.get_episodes().group_B.tolist() == [k // 4 for k in range(32, 48)]
    for k, response in enumerate(rollout.get_episodes().records):
        assert rollout.inputs.responses[k] == response.token_ids
        assert response.text == env.tokenizer.decode(response.token_ids, skip_special_tokens=True)
    again = collect_responses(env, make_sampler(engine, policy), 16, Seeds(0), seed=0, first=32)
    assert again.inputs == rollout.inputs
    metrics = correct_importance(rollout, policy.logprobs_BT(rollout), 3.0)
    assert metrics["sampling_logprob_difference_max"] < 1e-3
    assert abs(metrics["importance_weight"] - 1.0) < 1e-3


def test_every_token_is_corrected_by_the_weights_that_sampled_it(policy: LanguageModelPolicy) -> None:
    old = LanguageModelPolicy(models.load("nano", device="cpu", trainable=True).weights, temperature=1.3)
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.mul_(0.98)
    samplers = (old, policy)
    rollout = join_rollouts(
        [
            collect_responses(make_env(8), sampler, 8, Seeds(0), seed=0, first=8 * version).mark_version(version)
            for version, sampler in enumerate(samplers)
        ]
    )
    assert rollout.get_episodes().versions == [0] * 8 + [1] * 8
    by_version = [sampler.logprobs_BT(rollout)[8 * k : 8 * k + 8] for k, sampler in enumerate(samplers)]
    current_BT = policy.logprobs_BT(rollout)
    correct_importance(rollout, current_BT, 1e9)
    assert rollout.importance is not None
    sampling_BT = rollout.importance.sampling_logprobs_BT
    torch.testing.assert_close(sampling_BT, torch.cat(by_version), atol=1e-4, rtol=0)
    weights_BT = compute_importance_weights(rollout.logprobs_BT, sampling_BT, rollout.importance.clip_max)
    stale_S, fresh_S = weights_BT[:8][rollout.mask_BT[:8]], weights_BT[8:][rollout.mask_BT[8:]]
    torch.testing.assert_close(stale_S, (current_BT[:8] - by_version[0]).exp()[rollout.mask_BT[:8]], atol=1e-3, rtol=0)
    assert float((stale_S - 1).abs().max()) > 0.01
    assert float((fresh_S - 1).abs().max()) < 1e-3


def test_fewer_slots_than_episodes_give_the_same_rollout(engine: RolloutEngine, policy: LanguageModelPolicy) -> None:
    first, second = (
        collect_responses(make_env(slots), make_sampler(engine, policy), 12, Seeds(0), seed=0) for slots in (12, 5)
    )
    assert first.inputs == second.inputs


def test_new_weights_reach_the_engine(engine: RolloutEngine, policy: LanguageModelPolicy) -> None:
    sampler = make_sampler(engine, policy)
    original = {name: tensor.clone() for name, tensor in policy.model.state_dict().items()}
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.mul_(0.98)
    try:
        rollout = collect_responses(make_env(8), sampler, 8, Seeds(0), seed=0)
        assert correct_importance(rollout, policy.logprobs_BT(rollout), 3.0)["sampling_logprob_difference_max"] > 0.01
        sampler.update_weights(policy.model, 1)
        rollout = collect_responses(make_env(8), sampler, 8, Seeds(0), seed=0)
        assert correct_importance(rollout, policy.logprobs_BT(rollout), 3.0)["sampling_logprob_difference_max"] < 1e-3
    finally:
        engine.update_weights(original.items())


def test_an_adapter_reaches_the_engine_within_the_weights(engine: RolloutEngine) -> None:
    loaded = models.load("nano", device="cpu", trainable=True)
    adapted = add_adapter(loaded.weights, Supervision(method="lora", rank=4), Seeds(0))
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.05, generator=torch.Generator().manual_seed(0))
    weights = {name: tensor.clone() for name, tensor in iterate_weights(adapted)}
    policy = LanguageModelPolicy(adapted)
    sampler = make_sampler(engine, policy)
    try:
        sampler.update_weights(adapted, 1)
        rollout = collect_responses(make_env(8), sampler, 8, Seeds(0), seed=0)
        assert correct_importance(rollout, policy.logprobs_BT(rollout), 3.0)["sampling_logprob_difference_max"] < 1e-3
    finally:
        engine.update_weights(models.load("nano", device="cpu").weights.state_dict().items())
    merged = adapted.merge_and_unload().state_dict()
    assert weights.keys() == merged.keys()
    for name, tensor in merged.items():
        torch.testing.assert_close(weights[name], tensor, atol=1e-6, rtol=1e-5)


def test_messages_of_several_turns_come_from_the_engine(engine: RolloutEngine) -> None:
    loaded = models.load("nano", device="cpu", trainable=True)
    policy, encoder = LanguageModelPolicy(loaded.weights), ChatEncoder(loaded.tokenizer)
    sampler = make_sampler(engine, policy, max_tokens=8)
    env = make_turn_env("palaestra/Guess-v0", 6, {"high": 4, "attempts": 2}, autoreset=False, failures="mark")
    rollout = collect_turns(
        env,
        sampler,
        encoder,
        16,
        Seeds(0),
        end_ids=end_ids(loaded.weights, loaded.tokenizer),
        max_tokens=8,
        group_size=4,
    )
    assert max(episode.turns for episode in rollout.get_episodes().records) == 2
    # The learner reads the conversation in one pass, so equal log-probs mean equal tokens before every decision.
    metrics = correct_importance(rollout, policy.logprobs_BT(rollout), 3.0)
    assert metrics["sampling_logprob_difference_max"] < 1e-3


class ScriptedEngine:
    """Answers with fixed token ids, one list per call."""

    name = "scripted"

    def __init__(self, *answers: list[int] | Failure) -> None:
        self.answers, self.requests = list(answers), list[Any]()

    def generate(self, requests: Any) -> list[list[Any]]:
        self.requests += requests
        answer = self.answers.pop(0)
        if isinstance(answer, list):
            ids = tuple(answer)
            answer = Completion("", ids, (-1.0,) * len(ids), StopReason.LENGTH, Usage(1, len(ids)), prompt_ids=(1,))  # type: ignore[assignment]
        return [[answer] for _ in requests]


def test_an_output_that_is_no_token_is_sampled_again() -> None:
    env = TokenVectorEnv([PROMPT], lambda response: 1.0, num_envs=1, max_tokens=4)
    outside = env.vocabulary + 3
    engine = ScriptedEngine([5, 6, outside, 7], [outside], [8, 9])
    sampler = EnginePolicy(engine, 1.0, env.vocabulary, 4, 256)  # type: ignore[arg-type]
    rollout = collect_responses(env, sampler, 1, Seeds(0), seed=0)
    assert rollout.inputs.responses == [(5, 6, 8, 9)]
    assert [len(request.prompt_ids) - len(env.prompt(0).ids) for request in engine.requests] == [0, 2, 2]
    assert [request.sampling.max_tokens for request in engine.requests] == [4, 2, 2]
    assert len({request.seed for request in engine.requests}) == 3


def test_failed_engine_and_restricted_tokens_raise() -> None:
    env = TokenVectorEnv([PROMPT], lambda response: 1.0, num_envs=1, max_tokens=4)
    dead = ScriptedEngine(Failure(FailureCause.ENGINE, "vLLM: EngineDeadError"))
    with pytest.raises(EngineError, match=r"\(engine\): vLLM: EngineDeadError"):
        collect_responses(env, EnginePolicy(dead, 1.0, 9, 4, 256), 1, Seeds(0))  # type: ignore[arg-type]
    with pytest.raises(EngineError, match="log-probs"):
        collect_responses(env, EnginePolicy(ScriptedEngine([]), 1.0, 9, 4, 256), 1, Seeds(0))  # type: ignore[arg-type]
    restricted = TokenVectorEnv([PROMPT], lambda r: 1.0, legal_tokens=lambda prompt, ids: [5, 6], num_envs=1)
    with pytest.raises(EnvError, match="--rollout step"):
        collect_responses(restricted, EnginePolicy(dead, 1.0, 9, 4, 256), 1, Seeds(0))  # type: ignore[arg-type]


def make_rollout(logprobs: list[list[float]]) -> Rollout:
    table = torch.tensor(logprobs)
    mask = table != 0
    return Rollout(torch.zeros_like(table), table, mask, mask, mask, None)


def test_weights_are_the_truncated_ratio_of_the_probabilities() -> None:
    rollout = make_rollout([[-1.0, -2.0], [-0.5, 0.0]])
    learner = torch.tensor([[-0.5, -4.0], [-0.5 + math.log(9.0), 0.0]])
    metrics = correct_importance(rollout, learner, 3.0)
    assert rollout.logprobs_BT is learner
    assert metrics["sampling_logprob_difference"] == pytest.approx(np.mean([0.5, 2.0, math.log(9.0)]))
    assert metrics["sampling_logprob_difference_max"] == pytest.approx(math.log(9.0))
    assert metrics["importance_weight"] == pytest.approx(np.mean([math.exp(0.5), math.exp(-2.0), 3.0]))


def test_training_with_an_engine_resumes_exactly(tmp_path: Path) -> None:
    whole = train(out=tmp_path / "whole", **SMALL)

    def stop(done: Iteration) -> None:
        if done.number == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(out=tmp_path / "stopped", callbacks=[stop], **SMALL)
    with Run.open(tmp_path / "stopped") as run:
        resumed = resume(run)
    assert resumed.summary["weights_sha256"] == whole.summary["weights_sha256"]
    with Run.open(whole.folder, read_only=True) as run:
        metrics = run.store.metrics()[2]
    assert metrics["sampling_logprob_difference_max"] < 1e-3
    assert metrics["seconds_importance"] > 0


@pytest.mark.parametrize("algorithm", ["rloo", "reinforce", "ppo"])
def test_every_algorithm_weights_its_losses(algorithm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {**SMALL, "algorithm": algorithm, "iterations": 1, "evaluation": 0, "episodes": 8}
    if algorithm != "rloo":
        del options["group_size"]
    once = train(out=tmp_path / "once", **options)
    # Half the weight of every decision halves the gradient of the policy, and nothing else of the first step.
    module = sys.modules[ALGORITHMS.get(algorithm).__module__]
    compute = module.compute_importance_weights
    monkeypatch.setattr(module, "compute_importance_weights", lambda *args: 0.5 * compute(*args))
    halved = train(out=tmp_path / "halved", **options)
    norms = []
    for result in (once, halved):
        with Run.open(result.folder, read_only=True) as run:
            norms.append(run.store.metrics()[1]["grad_norm"])
    assert norms[1] < 0.99 * norms[0]
    if algorithm == "rloo":
        assert norms[1] == pytest.approx(0.5 * norms[0], rel=1e-3)


def test_settings_name_the_engine_and_the_way(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="vlm"):
        train(env="CoTEnv-v0", engine="vlm", out=tmp_path / "a")
    with pytest.raises(SettingsError, match="'mock'"):
        train(**{**SMALL, "engine": "mock"}, out=tmp_path / "b")
    with pytest.raises(SettingsError, match=r"'rollout' .*CartPole-v1"):
        train(env="CartPole-v1", rollout="engine", out=tmp_path / "c")


@pytest.mark.backends
@pytest.mark.filterwarnings("ignore")
def test_a_run_with_vllm_learns(tmp_path: Path) -> None:
    pytest.importorskip("vllm")
    result = train(env="CoTEnv-v0", engine="vllm", iterations=25, out=tmp_path / "run")
    assert result.summary["gain_low"] > 0, result.summary
    with Run.open(result.folder, read_only=True) as run:
        metrics = run.store.metrics()[25]
    assert metrics["sampling_logprob_difference_max"] < 1e-3
