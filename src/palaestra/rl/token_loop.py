"""Train a language model in a token or turn environment."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, cast

from palaestra.chat.encoder import ChatEncoder
from palaestra.core.errors import EnvError
from palaestra.core.process import quiet_libraries
from palaestra.core.records import Event, Json, Listener, Segment, Split, Trajectory, Usage
from palaestra.core.seeding import Seeds
from palaestra.core.statistics import Mean, mean_interval, report_on
from palaestra.rl.collection import collect_responses, gather_rollout, split_episodes
from palaestra.rl.curriculum import CURRICULA, UNIFORM, Curriculum
from palaestra.rl.distributed.ranks import broadcast, gather_state_dict, gather_weights, rank
from palaestra.rl.distributed.weights import WeightPublisher
from palaestra.rl.interruptions import Interruptions
from palaestra.rl.loop import Loop, LoopConfig, list_trained, summarize_returns
from palaestra.rl.policies.engine import EnginePolicy, correct_importance
from palaestra.rl.policies.language_model import LanguageModelPolicy, ReferencePolicy, apply_kl_penalty
from palaestra.rl.rollout_metrics import (
    TokenDetails,
    add_token_details,
    count_tokens,
    find_alternatives,
    measure_calls,
    measure_completions,
    measure_kl,
    measure_reward_parts,
    read_action_values,
    select_stored_sequences,
)
from palaestra.rl.rollouts import INTERRUPTED, Rollout
from palaestra.rl.turns import TurnEpisode, collect_turns
from palaestra.runs.provenance import LedgerEntry

if TYPE_CHECKING:
    from pathlib import Path

    from transformers import PreTrainedTokenizerBase

    from palaestra.core.records import Engine
    from palaestra.rl.rollout_workers import RolloutWorkers
    from palaestra.runs.store import Store


class TokenLoop(Loop):
    """Trains a language model in a token environment."""

    policy: LanguageModelPolicy
    failure_cause: ClassVar[str] = "reward"
    """The cause of failed episodes; empty if each failure message starts with its cause."""

    def __init__(
        self,
        config: LoopConfig,
        env: Any,
        policy: LanguageModelPolicy,
        algorithm: Any,
        reference: ReferencePolicy | None,
        held_out: Any = None,
        engine_name: str = "",
        tokenizer: PreTrainedTokenizerBase | None = None,
        sampler: EnginePolicy | None = None,
        workers: RolloutWorkers | None = None,
    ) -> None:
        super().__init__(config)
        self.env, self.policy, self.algorithm, self.reference = env, policy, algorithm, reference
        self.held_out, self.engine_name, self.tokenizer = held_out, engine_name, tokenizer
        self.sampler, self.workers = sampler, workers
        if algorithm is not None:
            algorithm.bind(env, tokenizer)
        self.group_size = config.group_size
        self._returns: dict[int, list[float | None]] = {}
        self.curriculum: Curriculum | None = None
        if config.curriculum != UNIFORM:
            if not env.skills:
                raise EnvError(f"setting 'curriculum': the prompts of {config.env} cannot be chosen; expected uniform")
            kind: type[Curriculum] = CURRICULA.get(config.curriculum)
            self.curriculum = kind(env.skills, self.seeds.derive("curriculum"))
        self._chosen: dict[int, list[int]] = {}  # The prompts of the iterations that are not finished,
        self._unlearned: dict[int, int] = {}  # how many of their groups are not learned yet,
        self._last_chosen = 0  # and the last of them.
        self.label = ""
        """The name of the environment, if the run has several."""
        self.publisher: WeightPublisher | None = None
        """Sends the weights to the workers; without it the executor does."""
        self.version: int | None = None
        """In a rollout worker, the number of updates of its weights."""
        self.prepare()

    def prepare(self) -> None:
        """Reset the environment at the start of the run."""
        self.env.reset(seed=self.seeds.derive("environment").integer(), options={"episodes": 0})

    def close(self) -> None:
        if self.workers is not None:
            self.workers.close()
        if self.publisher is not None:
            self.publisher.close()
        if self.sampler is not None:
            self.sampler.engine.close()

    def open_record(self, folder: Path) -> None:
        if self.workers is not None:
            self.workers.open_record(folder)

    def save_environment(self, folder: Path) -> None:
        """Save what workers need to go on. The environment itself has no state between iterations."""
        if self.workers is not None:
            self.workers.save(folder)

    def load_environment(self, folder: Path, trust: bool) -> None:
        if self.workers is not None:
            self.workers.load(folder)

    @contextmanager
    def open_sampler(self, version: int) -> Iterator[LanguageModelPolicy | EnginePolicy]:
        """Within the context, sample with the weights after `version` updates. All processes must enter it."""
        if self.sampler is None:
            with gather_weights(self.policy):
                yield self.policy
        else:
            self.sampler.update_weights(self.policy.model, version)
            yield self.sampler

    def collect(
        self,
        first: int,
        episodes: int,
        version: int,
        prompts: Sequence[int] = (),
        interruptions: Interruptions | None = None,
    ) -> Rollout:
        """Play the episodes from number `first` with the weights after `version` updates.

        Arguments:
            prompts: the prompt of each group; by default the environment's order.
            interruptions: changes of the weights on the way.
        """
        self.env.progress = self.describe_progress(version)
        with self.open_sampler(version) as sampler:
            return collect_responses(
                self.env, sampler, episodes, self.seeds, first=first, prompts=prompts, interruptions=interruptions
            )

    def choose_prompts(self, iteration: int) -> None:
        """Choose the prompts of an iteration, and of those that workers sample ahead."""
        if self.curriculum is None:
            return
        last = min(iteration + self.config.max_staleness, self.config.iterations)
        for number in range(max(iteration, self._last_chosen + 1), last + 1):
            self._chosen[number] = self.curriculum.choose(number, -(-self.config.episodes // self.group_size))
            self._last_chosen = number

    def record_rewards(self, iteration: int, rollout: Rollout) -> dict[str, float]:
        """Tell the curriculum the rewards of an iteration. Returns its metrics."""
        if self.curriculum is None:
            return {}
        episodes, count = rollout.get_episodes(), -(-self.config.episodes // self.group_size)
        rewards: dict[int, list[float]] = {group: [] for group in episodes.group_B.tolist()}
        totals_B = rollout.rewards_BT.sum(-1)
        for sequence in episodes.valid_B.nonzero().flatten().tolist():
            rewards[int(episodes.group_B[sequence])].append(float(totals_B[sequence]))
        prompts = []
        for group in rewards:  # Stale rollouts have groups of several iterations.
            number, place = group // count + 1, group % count
            prompts.append(self._chosen[number][place])
            self._unlearned[number] = self._unlearned.get(number, count) - 1
            if not self._unlearned[number]:
                del self._unlearned[number], self._chosen[number]
        return self.curriculum.record(prompts, list(rewards.values()))

    def describe_progress(self, version: int) -> Json:
        """The progress of the run after `version` updates, for reward functions."""
        groups = version * self.config.episodes // self.group_size
        epoch = groups / self.env.num_prompts if self.env.num_prompts else 0.0
        return {"global_step": version, "max_steps": self.config.iterations, "epoch": epoch}

    def collect_held_out(self, version: int) -> Rollout:
        """Play this process's share of the held-out episodes, with the same random numbers every time."""
        seeds, env = self.seeds.derive("evaluation"), self.held_out
        first, episodes = split_episodes(0, self.config.evaluation if env.num_prompts is None else env.num_prompts)
        env.progress = self.describe_progress(version)
        with self.open_sampler(version) as sampler:
            return collect_responses(env, sampler, episodes, seeds, seed=seeds.integer(), first=first)

    def measure_held_out(self, iteration: int, rollout: Rollout) -> dict[str, float]:
        """The metrics of held-out episodes. Their returns are kept, so that evaluations can be paired."""
        episodes = [rollout.get_episodes().records[sequence] for sequence in rollout.get_episodes().first_sequences]
        self._returns[iteration] = [None if episode.failure else episode.reward for episode in episodes]
        return self._measure(rollout, rollout.stats.returns, self.failure_cause)

    def find_cut_episodes(self, rollout: Rollout) -> list[bool]:
        """By episode, whether its response was cut at a limit."""
        return [bool(cut) for cut in rollout.get_episodes().truncated_B]

    def trajectory(self, rollout: Rollout, sequence: int) -> Trajectory:
        """An episode for the store."""
        return _make_trajectory(self.config.env, self.config.seed, rollout, sequence)

    def play(self, iteration: int, first: int, episodes: int) -> Rollout:
        """Play the episodes of an iteration from number `first`. This process plays its share and gets those of the others."""
        number, share = split_episodes(first, episodes, self.group_size)
        own = slice((number - first) // self.group_size, (number - first + share) // self.group_size)
        prompts = self._chosen.get(iteration, [])[own]
        return gather_rollout(self.collect(number, share, iteration - 1, prompts)).mark_version(iteration - 1)

    def play_iteration(self, iteration: int) -> Rollout:
        """Play all episodes of an iteration."""
        return self.play(iteration, (iteration - 1) * self.config.episodes, self.config.episodes)

    def measure(self, rollout: Rollout) -> dict[str, float]:
        """The metrics of the responses of a rollout."""
        episodes = rollout.get_episodes()
        assert rollout.entropy_BT is not None
        metrics = measure_reward_parts(episodes.records)
        metrics["entropy"] = float(rollout.entropy_BT[rollout.mask_BT].mean())
        metrics["truncated"] = float(episodes.truncated_B.float().mean())
        return metrics | measure_completions(rollout, self.find_cut_episodes(rollout))

    def iterate(
        self, iteration: int, progress_remaining: float, listener: Listener
    ) -> tuple[dict[str, float], list[Trajectory]]:
        config = self.config
        self.choose_prompts(iteration)
        if not config.uses_workers:
            rollout = self.play_iteration(iteration)
            names = ("seconds_model", "seconds_environment")
            seconds = {name.removeprefix("seconds_"): rollout.metrics[name] for name in names}
        else:
            start = time.perf_counter()
            weights = (
                self.weights()
                if self.publisher is None
                else self.publisher.publish(list_trained(self.policy).items(), iteration - 1)
            )
            # Rank 0 has the workers and gives their rollout to the other processes.
            rollout = cast(Rollout, broadcast(self.workers and self.workers.collect(iteration, weights, self._chosen)))
            seconds = {"rollout": time.perf_counter() - start}
        staleness = [iteration - 1 - version for version in rollout.get_episodes().versions]
        metrics = self._count(rollout, self.failure_cause) | self.record_rewards(iteration, rollout)
        self.usage, self.responses = _count_usage(rollout), rollout.get_episodes().records
        self.tokens += count_tokens(rollout)
        metrics = self.measure(rollout) | metrics | {"num_tokens": float(self.tokens)}
        if config.max_staleness:
            metrics |= {"staleness": sum(staleness) / len(staleness), "staleness_max": float(max(staleness))}
            metrics |= {name: rollout.metrics[name] for name in INTERRUPTED}
        stored = select_stored_sequences(rollout, self.group_size, config.keep_trajectories)
        # Before the KL penalty and the scale of the rewards.
        trajectories = {sequence: self.trajectory(rollout, sequence) for sequence in stored}
        if any(staleness) or config.rollout == "engine":
            start = time.perf_counter()
            metrics |= correct_importance(rollout, self.policy.logprobs_BT(rollout), config.importance_clip_max)
            seconds["importance"] = time.perf_counter() - start
        if self.reference is not None:
            start = time.perf_counter()
            reference_BT = self.reference.logprobs_BT(rollout)
            kl_coef = 0.0 if self.algorithm.kl_in_loss else self.algorithm.config.kl_coef
            metrics["reference_kl"] = apply_kl_penalty(rollout, reference_BT, kl_coef)
            metrics["kl"] = measure_kl(rollout, reference_BT)
            seconds["reference"] = time.perf_counter() - start
        details = self._describe_tokens(rollout, stored, seconds)
        if config.reward_scale != 1.0:
            rollout.rewards_BT = rollout.rewards_BT * config.reward_scale
        listener(Event("learn", iteration - 1, config.iterations, iteration))
        start = time.perf_counter()
        metrics |= self.algorithm.update(rollout, iteration, progress_remaining)
        seconds["update"] = time.perf_counter() - start
        metrics |= {f"seconds_{name}": value for name, value in seconds.items()}
        metrics["tokens_per_second"] = rollout.num_actions / sum(seconds.values())
        advantages_BT = self.algorithm.advantages_BT
        return metrics, [
            add_token_details(trajectory, rollout, sequence, advantages_BT, details[sequence])
            for sequence, trajectory in trajectories.items()
        ]

    def _describe_tokens(
        self, rollout: Rollout, stored: Sequence[int], seconds: dict[str, float]
    ) -> dict[int, TokenDetails]:
        """The entropies and the alternatives of the tokens that are stored, under the weights before the update."""
        if stored and self.config.keep_alternatives:
            start = time.perf_counter()
            details = find_alternatives(self.policy, rollout, stored, self.config.keep_alternatives)
            seconds["alternatives"] = time.perf_counter() - start
            return details
        # Engines only estimate entropies; see `EnginePolicy`.
        entropy_BT = None if self.config.rollout == "engine" else rollout.entropy_BT
        return {
            sequence: TokenDetails(entropies=read_action_values(entropy_BT, rollout, sequence)) for sequence in stored
        }

    def evaluate(
        self, iteration: int, store: Store | None, listener: Listener
    ) -> tuple[dict[str, float], LedgerEntry | None]:
        if self.stores_attempts:
            with self.open_sampler(iteration) as sampler:
                # Rank 0 evaluates and stores the attempts; the other processes wait for its next step.
                return {} if store is None else self._evaluate_task(iteration, sampler, store, listener), None
        listener(Event("evaluate", 0, 0, iteration))
        rollout = gather_rollout(self.collect_held_out(iteration))
        metrics = self.measure_held_out(iteration, rollout)
        if self.reference is not None:
            metrics["test_reference_kl"] = apply_kl_penalty(rollout, self.reference.logprobs_BT(rollout), 0.0)
        return metrics, LedgerEntry("", self.engine_name, rollout.num_sequences, _count_usage(rollout))

    def _evaluate_task(
        self, iteration: int, sampler: LanguageModelPolicy | EnginePolicy, store: Store, listener: Listener
    ) -> dict[str, float]:
        """Evaluate on the held-out problems with greedy decoding, as `palaestra evaluate` does, and store the attempts."""
        from palaestra.core.records import Sampling
        from palaestra.engines.transformers import TransformersEngine
        from palaestra.tasks.evaluate import evaluate

        config, task = self.config, self.env.task
        problems = self.env.draw_held_out_problems(config.evaluation, config.seed)
        phase = f"{iteration}/{Split.TEST}{self.label and f' {self.label}'}"

        def make_engine() -> Engine:
            if isinstance(sampler, EnginePolicy):
                return sampler.engine
            return TransformersEngine(self.policy.model, self.tokenizer, self.engine_name)

        attempts = evaluate(
            task,
            problems,
            make_engine,
            sampling=Sampling(max_tokens=config.max_tokens),
            seed=config.seed,
            phase=phase,
            round_=iteration,
            known=store.attempts(phase),
            keep=lambda attempts, cost: store.add_attempts(phase, attempts, cost),
            listener=listener,
        )
        report = report_on(attempts, Split.TEST)
        self._returns[iteration] = [None if attempt.correct is None else float(attempt.correct) for attempt in attempts]
        listener(Event(phase, len(attempts), len(attempts), iteration, {"report": report}))
        if report.accuracy is None:
            return {}
        return {
            "test_accuracy": 100 * report.accuracy, "test_accuracy_low": 100 * report.low,
            "test_accuracy_high": 100 * report.high, "test_count": float(report.count),
            "test_failures": float(report.failure_count),
        }  # fmt: skip

    @property
    def stores_attempts(self) -> bool:
        return self.env.task is not None

    def summarize(self, store: Store, iterations: int) -> Json:
        if not self.config.evaluation:
            return {}
        return summarize_returns(store.metrics(), iterations) | describe_gain(self.compute_gain(iterations))

    def compute_gain(self, iteration: int) -> Mean:
        """The mean difference between the returns after `iteration` and before training, over the same episodes."""
        pairs = zip(self._returns.get(0, ()), self._returns.get(iteration, ()), strict=True)
        return mean_interval([after - before for before, after in pairs if before is not None and after is not None])

    def counters(self) -> Json:
        counters = {**super().counters(), "returns": {str(iteration): r for iteration, r in self._returns.items()}}
        if self.curriculum is not None:
            counters |= {"curriculum": self.curriculum.state(), "last_chosen": self._last_chosen}
            for name, values in (("chosen", self._chosen), ("unlearned", self._unlearned)):
                counters[name] = {str(iteration): value for iteration, value in values.items()}
        return counters

    def load_counters(self, counters: Json) -> None:
        super().load_counters(counters)
        self.load_returns(counters.get("returns", {}))
        if self.curriculum is not None:
            self.curriculum.load_state(counters["curriculum"])
            self._last_chosen = int(counters.get("last_chosen", 0))  # Missing in checkpoints of earlier versions.
            self._chosen = {int(number): prompts for number, prompts in counters.get("chosen", {}).items()}
            self._unlearned = {int(number): count for number, count in counters.get("unlearned", {}).items()}

    def load_returns(self, returns: Json) -> None:
        """Restore the returns of the evaluations, as `counters` describes them."""
        self._returns = {int(iteration): list(values) for iteration, values in returns.items()}

    def describe_policy(self) -> Json:
        return {"vocabulary": self.policy.vocabulary, "critic": self.policy.has_critic}

    def save_model(self, folder: Path) -> None:
        from palaestra.runs.files import write_folder

        weights = gather_state_dict(self.policy.model)

        @quiet_libraries()
        def write(target: Path) -> None:
            self.policy.model.save_pretrained(target, state_dict=weights or None)
            if self.tokenizer is not None:
                self.tokenizer.save_pretrained(target)

        if rank() == 0:
            write_folder(folder / "model", write)


def describe_gain(gain: Mean) -> Json:
    """The gain of a summary. It is NaN without episodes and its interval is infinite with one; JSON has neither value."""
    values = {"gain": gain.value, "gain_low": gain.low, "gain_high": gain.high}
    known = {name: value if math.isfinite(value) else None for name, value in values.items()}
    return known | {"gain_episodes": gain.count}


def _make_trajectory(env: str, seed: int, rollout: Rollout, sequence: int) -> Trajectory:
    """One episode of a language model for the store: exact token ids, log-probs and the mask of chosen tokens."""
    response = rollout.get_episodes().records[sequence]
    prompt, chosen = response.prompt.ids, response.token_ids
    logprobs = rollout.logprobs_BT[sequence, : len(chosen)].tolist()
    segments = (
        Segment(tuple(prompt), (False,) * len(prompt), (0.0,) * len(prompt)),
        Segment(tuple(chosen), (True,) * len(chosen), tuple(logprobs)),
    )
    info = {"prompt": response.prompt.text, "response": response.text, "stop_reason": str(response.stop_reason)}
    version = rollout.get_episodes().versions[sequence]
    info |= {"episode": response.episode, "group": response.group, "version": version} | (
        {"failure": response.failure} if response.failure else {}
    )
    if continued := rollout.get_episodes().continued[sequence]:
        info["continued"] = [list(start) for start in continued]
    if response.reward_parts:
        info["rewards"] = dict(response.reward_parts)
    if response.columns:
        info["columns"] = dict(response.columns)
    return Trajectory(
        env,
        seed,
        tuple(rollout.rewards_BT[sequence, : len(chosen)].tolist()),
        segments,
        not response.truncated,
        response.truncated,
        (info,),
    )


def _count_usage(rollout: Rollout) -> Usage:
    """Count the tokens that the model read (prompts, and the messages of tools and users) and those that it chose."""
    inputs, decided_B = rollout.inputs, rollout.mask_BT.any(-1).tolist()
    # The model never read a sequence without an action; it contains only a placeholder for its prompt.
    read = sum(
        len(prompt) + len(response)
        for prompt, response, decided in zip(inputs.prompts, inputs.responses, decided_B, strict=True)
        if decided
    )
    return Usage(read - rollout.num_actions, rollout.num_actions)


class TurnLoop(TokenLoop):
    """Trains a language model in a turn environment.

    Every episode starts from its own seed. The environment has no state between iterations, and checkpoints contain none.

    Arguments:
        held_out: the environment of the evaluation; `None` without an evaluation.
        encoder: the chat encoder of the policy's tokenizer.
        end_ids: the tokens that end a message.
    """

    failure_cause = ""
    stores_attempts = False

    def __init__(
        self,
        config: LoopConfig,
        env: Any,
        policy: LanguageModelPolicy,
        algorithm: Any,
        reference: ReferencePolicy | None,
        held_out: Any,
        encoder: ChatEncoder,
        *,
        end_ids: Sequence[int],
        sampler: EnginePolicy | None = None,
        workers: RolloutWorkers | None = None,
    ) -> None:
        self.encoder, self.end_ids = encoder, tuple(end_ids)
        super().__init__(
            config, env, policy, algorithm, reference, held_out, encoder.name, encoder.tokenizer, sampler, workers
        )

    def prepare(self) -> None:
        """Do nothing: every episode is reset with its own seed."""

    def close(self) -> None:
        super().close()
        for env in (self.env, self.held_out):
            if env is not None:
                env.close()

    def collect(
        self,
        first: int,
        episodes: int,
        version: int,
        prompts: Sequence[int] = (),
        interruptions: Interruptions | None = None,
    ) -> Rollout:
        return self._play(self.env, version, episodes, self.seeds, self.group_size, first, interruptions)

    def find_cut_episodes(self, rollout: Rollout) -> list[bool]:
        """By episode, whether its last message was cut at a limit."""
        return [bool(episode.ids) and episode.ids[-1] not in self.end_ids for episode in rollout.get_episodes().records]

    def trajectory(self, rollout: Rollout, sequence: int) -> Trajectory:
        episode: TurnEpisode = rollout.get_episodes().records[sequence]
        return episode.to_trajectory(self.config.env, rollout.get_episodes().versions[sequence])

    def measure(self, rollout: Rollout) -> dict[str, float]:
        episodes: list[TurnEpisode] = rollout.get_episodes().records
        played = [episode for episode in episodes if not episode.failure]
        messages = sum(episode.turns for episode in played)
        num_episodes = len({episode.number for episode in episodes})
        metrics = super().measure(rollout)
        metrics["turns"] = sum(episode.turns for episode in episodes) / num_episodes
        metrics["truncated"] = sum(episode.cut_messages for episode in played) / max(1, messages)
        if self.encoder.tools:
            metrics |= measure_calls(played)
        if self.config.agent:
            metrics["sequences"] = len(episodes) / num_episodes
        return metrics

    def collect_held_out(self, version: int) -> Rollout:
        first, episodes = split_episodes(0, self.config.evaluation)
        return self._play(self.held_out, version, episodes, self.seeds.derive("evaluation"), 1, first)

    def measure_held_out(self, iteration: int, rollout: Rollout) -> dict[str, float]:
        return super().measure_held_out(iteration, rollout) | {"test_turns": rollout.metrics["turns"]}

    def _play(
        self,
        env: Any,
        version: int,
        episodes: int,
        seeds: Seeds,
        group_size: int,
        first: int,
        interruptions: Interruptions | None = None,
    ) -> Rollout:
        with self.open_sampler(version) as sampler:
            return collect_turns(
                env,
                sampler,
                self.encoder,
                episodes,
                seeds,
                end_ids=self.end_ids,
                max_tokens=self.config.max_tokens,
                group_size=group_size,
                first=first,
                interruptions=interruptions,
            )
