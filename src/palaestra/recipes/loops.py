"""One iteration of learning, for language models and for classic environments: collect, learn, measure.

A loop owns the environment, the policy and the algorithm. It knows nothing of run folders; the recipe
writes down what it returns.
"""

from __future__ import annotations

import hashlib
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from palaestra.core.errors import EnvError, RewardError
from palaestra.core.events import Event, Listener
from palaestra.core.records import Segment, Split, Trajectory, Usage
from palaestra.core.seeding import Seeds
from palaestra.core.statistics import Mean, gain_between, mean_interval, report_on
from palaestra.learn.collect import ControlCollector, collect_responses
from palaestra.learn.grpo import GRPO, GRPOConfig, variant
from palaestra.learn.kernels import suited
from palaestra.learn.policies.control import ControlPolicy, history_policy, mlp_policy
from palaestra.learn.policies.language_model import LanguageModelCritic, LanguageModelPolicy
from palaestra.learn.ppo import PPO, PPOConfig
from palaestra.learn.reference import Reference, penalise
from palaestra.learn.reinforce import REINFORCE, REINFORCEConfig
from palaestra.learn.rloo import RLOO, RLOOConfig
from palaestra.learn.rollouts import Rollout
from palaestra.recipes.checkpoints import check_shapes
from palaestra.runs.ledger import LedgerEntry

if TYPE_CHECKING:
    from pathlib import Path

    from palaestra.recipes.train import TrainSettings
    from palaestra.runs.store import Store

MOST_FAILURES = 0.1
"""The share of an iteration's episodes that may fail before the run stops."""
RECENT = 100
"""Episodes over which the return is averaged to decide whether an environment is solved."""


class Loop:
    """What both kinds of loop share: counters, weights and their hash."""

    env: Any
    policy: Any
    algorithm: Any

    def __init__(self, settings: TrainSettings) -> None:
        self.settings, self.seeds = settings, Seeds(settings.seed)
        self.decisions = self.episodes = 0
        self.stopped = False
        self.failures: dict[str, int] = {}
        self.usage = Usage()
        self.responses: list[Any] = []
        self._recent: deque[float] = deque(maxlen=RECENT)

    def iterate(
        self, iteration: int, share_left: float, listener: Listener
    ) -> tuple[dict[str, float], list[Trajectory]]:
        """Collect, learn; returns the figures and the episodes to be kept."""
        raise NotImplementedError

    def evaluate(self, iteration: int, store: Store, listener: Listener) -> tuple[dict[str, float], LedgerEntry | None]:
        """Measure the policy on what it does not learn from; returns figures, and a cost that is not stored yet."""
        raise NotImplementedError

    def outcome(self, store: Store, iterations: int) -> dict[str, Any]:
        """What the summary says of the evaluations."""
        raise NotImplementedError

    def environment_state(self) -> bytes | None:
        return None

    def load_environment_state(self, state: bytes) -> None:
        raise NotImplementedError

    def save_model(self, folder: Path) -> None:
        """Leave the trained model where others can load it."""

    @property
    def recent_return(self) -> float:
        """The mean return of the last 100 episodes; minus infinity before there are so many."""
        return float(np.mean(self._recent)) if len(self._recent) == RECENT else float("-inf")

    def weights(self) -> dict[str, torch.Tensor]:
        """All that learning changes, by name."""
        trained = {name: p.detach() for name, p in self.policy.named_parameters() if p.requires_grad}
        buffers = {name: b for name, b in self.policy.named_buffers() if name in ("seen", "mean_F", "square_F")}
        return {name: tensor.contiguous().clone() for name, tensor in {**trained, **buffers}.items()}

    def load_weights(self, weights: Mapping[str, torch.Tensor], where: str) -> None:
        check_shapes(self.weights(), dict(weights), where)
        with torch.no_grad():
            for name, tensor in [*self.policy.named_parameters(), *self.policy.named_buffers()]:
                if name in weights:
                    tensor.copy_(weights[name])

    def weights_sha256(self) -> str:
        digest = hashlib.sha256()
        for name, tensor in sorted(self.weights().items()):
            digest.update(name.encode())
            digest.update(tensor.cpu().float().numpy().tobytes())
        return digest.hexdigest()

    def counters(self) -> dict[str, Any]:
        return {
            "decisions": self.decisions, "episodes": self.episodes, "failures": self.failures,
            "recent": list(self._recent), "stopped": self.stopped,
        }  # fmt: skip

    def load_counters(self, counters: Mapping[str, Any]) -> None:
        self.decisions, self.episodes = int(counters["decisions"]), int(counters["episodes"])
        self.failures, self.stopped = dict(counters["failures"]), bool(counters["stopped"])
        self._recent.extend(counters["recent"])

    def _count(self, rollout: Rollout, what: str) -> dict[str, float]:
        """Add a rollout to the counters; returns its own figures."""
        self.decisions += rollout.decisions
        self.episodes += len(rollout.episode_returns)
        self._recent.extend(rollout.episode_returns)
        if rollout.failures:
            self.failures[what] = self.failures.get(what, 0) + len(rollout.failures)
        total = len(rollout.episode_returns) + len(rollout.failures)
        if len(rollout.failures) > max(1.0, MOST_FAILURES * total):
            raise (RewardError if what == "reward" else EnvError)(
                f"{len(rollout.failures)} of {total} episodes failed in one iteration; the first: {rollout.failures[0]}"
            )
        reward = reward_interval(rollout)
        figures = {
            "episodes": float(reward.count), "failures": float(len(rollout.failures)),
            "decisions": float(rollout.decisions), "total_decisions": float(self.decisions),
        }  # fmt: skip
        if reward.count:
            figures |= {"reward": reward.value, "reward_low": reward.low, "reward_high": reward.high}
            figures |= {"reward_count": float(reward.count), "length": float(np.mean(rollout.episode_lengths))}
        if len(self._recent) == RECENT:
            figures["recent_return"] = self.recent_return
        return figures


class TokenLoop(Loop):
    """A language model learns in a token environment."""

    policy: LanguageModelPolicy

    def __init__(
        self,
        settings: TrainSettings,
        env: Any,
        policy: LanguageModelPolicy,
        algorithm: Any,
        reference: Reference | None,
        kl: float,
        held_out: Any = None,
        engine_name: str = "",
        tokenizer: Any = None,
    ) -> None:
        super().__init__(settings)
        self.env, self.policy, self.algorithm, self.reference, self.kl = env, policy, algorithm, reference, kl
        self.held_out, self.engine_name, self.tokenizer = held_out, engine_name, tokenizer
        env.reset(seed=self.seeds.derive("environment").integer(), options={"episodes": 0})

    def iterate(
        self, iteration: int, share_left: float, listener: Listener
    ) -> tuple[dict[str, float], list[Trajectory]]:
        settings, count = self.settings, self.settings.episodes
        first = (iteration - 1) * count
        rollout = collect_responses(self.env, self.policy, count, self.seeds, first=first)
        seconds = {
            name.removeprefix("seconds_"): rollout.figures[name] for name in ("seconds_model", "seconds_environment")
        }
        figures = self._count(rollout, "reward")
        self.usage, self.responses = usage_of(rollout), rollout.records
        assert rollout.entropy_BT is not None and rollout.cut_B is not None  # noqa: PT018
        figures["entropy"] = float(rollout.entropy_BT[rollout.mask_BT].mean())
        figures["truncated"] = float(rollout.cut_B.float().mean())
        trajectories = [
            trajectory_of(settings.env, settings.seed, rollout, lane)
            for lane in spread(rollout.lanes, settings.keep_trajectories)
        ]
        if self.reference is not None:
            start = time.perf_counter()
            reference_BT = self.reference.logprobs_BT(rollout)
            in_reward = self.kl if settings.algorithm != "grpo" else 0.0
            figures["reference_kl"] = penalise(rollout, reference_BT, in_reward)
            seconds["reference"] = time.perf_counter() - start
        if settings.reward_scale != 1.0:
            rollout.rewards_BT = rollout.rewards_BT * settings.reward_scale
        listener(Event("learn", iteration - 1, settings.iterations, iteration))
        start = time.perf_counter()
        figures |= self.algorithm.update(rollout, iteration, share_left)
        seconds["update"] = time.perf_counter() - start
        figures |= {f"seconds_{name}": value for name, value in seconds.items()}
        figures["tokens_per_second"] = rollout.decisions / sum(seconds.values())
        return figures, trajectories

    def evaluate(self, iteration: int, store: Store, listener: Listener) -> tuple[dict[str, float], LedgerEntry | None]:
        if hasattr(self.env, "task"):
            return self._evaluate_task(iteration, store, listener), None
        listener(Event("evaluate", 0, 0, iteration))
        env = self.held_out
        count = len(env) if hasattr(env, "__len__") else self.settings.evaluation
        seeds = self.seeds.derive("evaluation")
        rollout = collect_responses(env, self.policy, count, seeds, seed=seeds.integer(), first=0)
        reward = mean_interval(rollout.episode_returns)
        figures = {
            "test_reward": reward.value, "test_reward_low": reward.low, "test_reward_high": reward.high,
            "test_count": float(reward.count), "test_failures": float(len(rollout.failures)),
        }  # fmt: skip
        if self.reference is not None:
            figures["test_reference_kl"] = penalise(rollout, self.reference.logprobs_BT(rollout), 0.0)
        return figures, LedgerEntry("", self.engine_name, rollout.lanes, usage_of(rollout))

    def _evaluate_task(self, iteration: int, store: Store, listener: Listener) -> dict[str, float]:
        """Ask the held-out problems greedily, as `palaestra evaluate` does; the attempts go to the store."""
        from palaestra.engines.base import Sampling
        from palaestra.engines.transformers import TransformersEngine
        from palaestra.tasks.evaluate import evaluate

        settings, task = self.settings, self.env.task
        skills = sorted({item.skill for item in self.env.items if item.skill in task.skills()})
        problems = task.problems(Split.TEST, settings.evaluation, settings.seed, skills)
        phase = f"{iteration}/{Split.TEST}"
        attempts = evaluate(
            task,
            problems,
            lambda: TransformersEngine(self.policy.model, self.tokenizer, self.engine_name),
            sampling=Sampling(max_tokens=settings.max_tokens),
            seed=settings.seed,
            phase=phase,
            round_=iteration,
            known=store.attempts(phase),
            keep=lambda made, cost: store.add_attempts(phase, made, cost),
            listener=listener,
        )
        report = report_on(attempts, Split.TEST)
        listener(Event(phase, len(attempts), len(attempts), iteration, {"report": report}))
        if report.accuracy is None:
            return {}
        return {
            "test_accuracy": 100 * report.accuracy, "test_accuracy_low": 100 * report.low,
            "test_accuracy_high": 100 * report.high, "test_count": float(report.count),
            "test_failures": float(report.failure_count),
        }  # fmt: skip

    def outcome(self, store: Store, iterations: int) -> dict[str, Any]:
        if not self.settings.evaluation:
            return {}
        if not hasattr(self.env, "task"):
            return _before_after(store.figures(), iterations)
        before, after = store.attempts(f"0/{Split.TEST}"), store.attempts(f"{iterations}/{Split.TEST}")
        first, second, gain = report_on(before), report_on(after), gain_between(before, after)
        found: dict[str, Any] = {}
        for name, report in (("test_before", first), ("test_after", second)):
            found[name] = None if report.accuracy is None else round(100 * report.accuracy, 2)
            found |= {f"{name}_low": round(100 * report.low, 2), f"{name}_high": round(100 * report.high, 2)}
        return found | {
            "gain": round(gain.points, 2), "gain_low": round(gain.low, 2), "gain_high": round(gain.high, 2),
            "problems": gain.count,
        }  # fmt: skip

    def save_model(self, folder: Path) -> None:
        from palaestra.runs.files import write_folder

        def write(target: Path) -> None:
            self.policy.model.save_pretrained(target)
            if self.tokenizer is not None:
                self.tokenizer.save_pretrained(target)

        write_folder(folder / "model", write)


class ControlLoop(Loop):
    """A control policy learns in a classic environment."""

    policy: ControlPolicy

    def __init__(self, settings: TrainSettings, env: Any, policy: ControlPolicy, algorithm: Any) -> None:
        super().__init__(settings)
        self.env, self.policy, self.algorithm = env, policy, algorithm
        self.collector = ControlCollector(env, policy)
        self._started = False

    def iterate(
        self, iteration: int, share_left: float, listener: Listener
    ) -> tuple[dict[str, float], list[Trajectory]]:
        settings = self.settings
        generator = torch.Generator().manual_seed(self.seeds.derive("act", iteration).integer())
        with suited(small=True):
            self.policy.train()
            if self.algorithm.groups:
                seed = self.seeds.derive("episodes", iteration).integer()
                rollout = self.collector.collect_episodes(settings.group_size, seed, generator, _longest(self.env))
            else:
                if not self._started:
                    self.collector.start(self.seeds.derive("environment", iteration).integer() % 2**31)
                    self._started = True
                rollout = self.collector.collect(settings.steps, generator)
            self.policy.eval()
            figures = self._count(rollout, "environment")
            if settings.reward_scale != 1.0:
                rollout.rewards_BT = rollout.rewards_BT * settings.reward_scale
            start = time.perf_counter()
            figures |= self.algorithm.update(rollout, iteration, share_left)
        figures |= {name: value for name, value in rollout.figures.items() if name.startswith("seconds_")}
        figures["seconds_update"] = time.perf_counter() - start
        spent = sum(value for name, value in figures.items() if name.startswith("seconds_"))
        figures["steps_per_second"] = rollout.decisions / spent
        kept = [
            Trajectory(settings.env, settings.seed, (value,), infos=({"length": length},))
            for value, length in list(zip(rollout.episode_returns, rollout.episode_lengths, strict=True))[
                : settings.keep_trajectories
            ]
        ]
        return figures, kept

    def evaluate(self, iteration: int, store: Store, listener: Listener) -> tuple[dict[str, float], LedgerEntry | None]:
        """Whole episodes with the likeliest actions, in environments of their own."""
        from palaestra.envs.making import make_control_env

        listener(Event("evaluate", 0, 0, iteration))
        env = make_control_env(self.settings.env, self.settings.evaluation, self.settings.options, own_seeds=True)
        memory = self.policy.memory()
        try:
            seed = self.seeds.derive("evaluation").integer()
            with suited(small=True):
                self.policy.eval()
                collector = ControlCollector(env, self.policy)
                rollout = collector.collect_episodes(1, seed, torch.Generator(), _longest(env), greedy=True)
        finally:
            self.policy.remember(memory)
            env.close()
        reward = mean_interval(rollout.lane_returns())
        figures = {
            "test_reward": reward.value, "test_reward_low": reward.low, "test_reward_high": reward.high,
            "test_count": float(reward.count), "test_failures": float(len(rollout.failures)),
        }  # fmt: skip
        return figures, LedgerEntry("", self.settings.policy, rollout.lanes)

    def outcome(self, store: Store, iterations: int) -> dict[str, Any]:
        found: dict[str, Any] = {"recent_return": self.recent_return if len(self._recent) == RECENT else None}
        return found | (_before_after(store.figures(), iterations) if self.settings.evaluation else {})

    def environment_state(self) -> bytes | None:
        """The environment as it stands, so that a resumed run goes on in the middle of its episodes.

        Where it cannot be pickled, it is reset here by a seed of the run: the undisturbed run does the same,
        so a resumed one still ends alike.
        """
        import cloudpickle

        if self.algorithm.groups:
            return None
        try:
            pickled: bytes = cloudpickle.dumps({"env": self.env, "collector": self.collector.state()})
            return pickled
        except Exception:  # Whatever a class of somebody else's raises when it is pickled.
            self._started = False
            return None

    def load_environment_state(self, state: bytes) -> None:
        import pickle

        found = pickle.loads(state)
        self.env = found["env"]
        self.collector = ControlCollector(self.env, self.policy)
        self.collector.load_state(found["collector"])
        self._started = True

    def save_model(self, folder: Path) -> None:
        from safetensors.torch import save_file

        from palaestra.runs.files import write_folder

        write_folder(folder / "model", lambda target: save_file(self.weights(), target / "policy.safetensors"))


def build_loop(settings: TrainSettings, listener: Listener) -> Loop:
    """The loop that `settings` describe."""
    return _token_loop(settings, listener) if settings.policy == "lm" else _control_loop(settings)


def make_algorithm(settings: TrainSettings, policy: Any, kl: float = 0.0) -> Any:
    """The algorithm that `settings` name, for a policy."""
    s, seeds = settings, Seeds(settings.seed).derive("algorithm")
    high = None if s.clip_high == -1 else s.clip_high
    if s.algorithm == "ppo":
        return PPO(policy, PPOConfig(
            lr_actor=s.learning_rate, lr_critic=s.critic_rate, gamma=s.gamma, update_epochs=s.epochs, eps_clip=s.clip,
            minibatch_size=s.minibatch, eps_clip_high=high, gae_lambda=s.gae_lambda, value_clip=s.value_clip or None,
            entropy_coefficient=s.entropy, max_grad_norm=s.max_grad_norm, target_kl=s.target_kl, anneal=s.anneal,
        ), seeds)  # fmt: skip
    if s.algorithm == "grpo":
        config = variant(s.variant, GRPOConfig(
            learning_rate=s.learning_rate, group_size=s.group_size, update_epochs=s.epochs, minibatches=s.minibatches,
            clip_low=s.clip, clip_high=s.clip if high is None else high, mask_truncated=s.mask_truncated,
            kl_coefficient=kl, entropy_coefficient=s.entropy, max_grad_norm=s.max_grad_norm, anneal=s.anneal,
        ))  # fmt: skip
        if s.weighting:
            config = replace(config, weighting=s.weighting)
        return GRPO(policy, config, seeds)
    if s.algorithm == "rloo":
        return RLOO(policy, RLOOConfig(
            learning_rate=s.learning_rate, group_size=s.group_size, update_epochs=s.epochs, minibatches=s.minibatches,
            clip=s.clip, max_grad_norm=s.max_grad_norm, anneal=s.anneal,
        ), seeds)  # fmt: skip
    baseline: Literal["batch", "critic"] = "critic" if policy.has_critic and not policy.by_lane else "batch"
    return REINFORCE(policy, REINFORCEConfig(
        learning_rate=s.learning_rate, lr_critic=s.critic_rate, gamma=s.gamma, baseline=baseline,
        entropy_coefficient=s.entropy, max_grad_norm=s.max_grad_norm, anneal=s.anneal,
    ), seeds)  # fmt: skip


def _token_loop(settings: TrainSettings, listener: Listener) -> TokenLoop:
    from palaestra.engines import shelf
    from palaestra.engines.chat import end_ids
    from palaestra.envs.making import make_token_env
    from palaestra.learn.supervised import add_adapter, supervision_for

    loaded = shelf.load(settings.model, device=settings.device, listener=listener)
    context = int(getattr(loaded.weights.config.get_text_config(), "max_position_embeddings", 0) or 0)
    group = settings.group_size if settings.algorithm in ("grpo", "rloo") else 1
    own = {"tokenizer": loaded.tokenizer, "max_tokens": settings.max_tokens, "context": context, "failures": "mark",
           "end_ids": end_ids(loaded.weights, loaded.tokenizer)}  # fmt: skip
    env = make_token_env(settings.env, settings.slots, settings.options, group_size=group, **own)
    held_out = None
    if settings.evaluation and not hasattr(env, "task"):
        if hasattr(env, "hold_out"):
            held_out = env.hold_out(settings.evaluation)
        else:
            held_out = make_token_env(settings.env, min(settings.slots, settings.evaluation), settings.options, **own)
    vocabulary = int(env.single_action_space.n)
    how = supervision_for(loaded.weights, settings.method, rank=settings.rank)
    weights, seeds = loaded.weights, Seeds(settings.seed)
    critic: Any = None
    if settings.algorithm == "ppo":
        critic = "head"
        if settings.critic == "separate":
            body = shelf.load(settings.model, device=settings.device, listener=listener).weights.base_model
            critic = LanguageModelCritic(body, int(body.config.get_text_config().hidden_size), seeds)
    if how.method == "lora":
        weights = add_adapter(weights, how, seeds)
    policy = LanguageModelPolicy(weights, critic, settings.temperature, vocabulary, seeds=seeds)
    kl = settings.kl if settings.kl != -1 else float(getattr(env, "kl_coefficient", 0.0))
    reference = None
    if kl or hasattr(env, "kl_coefficient"):
        name = str(getattr(env, "reference", ""))
        reference = Reference(policy, shelf.load(name, device=settings.device).weights if name else None)
    settings = replace(settings, kl=kl)
    algorithm = make_algorithm(settings, policy, kl)
    return TokenLoop(settings, env, policy, algorithm, reference, kl, held_out, loaded.name, loaded.tokenizer)


def _control_loop(settings: TrainSettings) -> ControlLoop:
    from palaestra.envs.making import make_control_env

    grouped = settings.algorithm in ("grpo", "rloo")
    env = make_control_env(settings.env, settings.slots, settings.options, own_seeds=grouped)
    spaces = (env.single_observation_space, env.single_action_space)
    seeds = Seeds(settings.seed)
    try:
        if settings.policy == "transformer":
            policy = history_policy(
                *spaces, window=settings.window, seeds=seeds, normalise=bool(settings.normalise_observations)
            )
        else:
            policy = mlp_policy(*spaces, seeds=seeds, normalise=bool(settings.normalise_observations))
    except EnvError as error:
        raise EnvError(f"policy '{settings.policy}' does not fit {settings.env}: {error}") from None
    return ControlLoop(settings, env, policy, make_algorithm(settings, policy))


def trajectory_of(env: str, seed: int, rollout: Rollout, lane: int) -> Trajectory:
    """One episode of a language model as it goes to the store: exact ids, log-probs, what was chosen."""
    response = rollout.records[lane]
    prompt, chosen = response.prompt.ids, response.token_ids
    logprobs = rollout.logprobs_BT[lane, : len(chosen)].tolist()
    segments = (
        Segment(tuple(prompt), (False,) * len(prompt), (0.0,) * len(prompt)),
        Segment(tuple(chosen), (True,) * len(chosen), tuple(logprobs)),
    )
    info = {"prompt": response.prompt.text, "response": response.text, "stop_reason": str(response.stop_reason)}
    info |= {"episode": response.episode, "group": response.group} | (
        {"failure": response.failure} if response.failure else {}
    )
    return Trajectory(
        env, seed, tuple(rollout.rewards_BT[lane, : len(chosen)].tolist()), segments,
        not response.truncated, response.truncated, (info,),
    )  # fmt: skip


def reward_interval(rollout: Rollout) -> Mean:
    """The mean return with its interval. Episodes that started alike are not independent: their groups are."""
    plain = mean_interval(rollout.episode_returns)
    groups: dict[int, list[float]] = {}
    if rollout.group_B is not None and rollout.valid_B is not None:
        known = [lane for lane in range(rollout.lanes) if bool(rollout.valid_B[lane])]
        if len(known) == len(rollout.episode_returns):
            for lane, value in zip(known, rollout.episode_returns, strict=True):
                groups.setdefault(int(rollout.group_B[lane]), []).append(value)
    if len(groups) in (0, len(rollout.episode_returns)):
        return plain
    clustered = mean_interval([float(np.mean(values)) for values in groups.values()])
    half = (clustered.high - clustered.low) / 2
    return Mean(plain.value, plain.value - half, plain.value + half, plain.count)


def usage_of(rollout: Rollout) -> Usage:
    return Usage(sum(len(p) for p in rollout.inputs.prompts), rollout.decisions)


def spread(count: int, wanted: int) -> list[int]:
    """Places at even distances, so that the episodes that are kept are not all of one group.

    >>> spread(16, 4)
    [0, 4, 8, 12]
    """
    wanted = min(count, wanted)
    return [k * count // wanted for k in range(wanted)]


def _before_after(table: Mapping[int, Mapping[str, float]], iterations: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, iteration in (("test_before", 0), ("test_after", iterations)):
        row = table.get(iteration, {})
        found[name] = row.get("test_reward")
        found |= {f"{name}_low": row.get("test_reward_low"), f"{name}_high": row.get("test_reward_high")}
        found["test_episodes"] = row.get("test_count")
    return found


def _longest(env: Any) -> int:
    """The most steps of an episode, where the environment says so."""
    spec = getattr(env, "spec", None)
    return int(getattr(spec, "max_episode_steps", None) or 10_000)
