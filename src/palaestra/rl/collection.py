"""Collect rollouts with a policy, and share episodes among processes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import fields, replace
from itertools import accumulate
from typing import Any, TypeVar

import numpy as np
import torch
from gymnasium.vector import AutoresetMode

from palaestra.core.errors import EnvError, SettingsError
from palaestra.core.seeding import Seeds
from palaestra.envs.base import GymVectorEnv
from palaestra.envs.token.contract import TokenEnvContract
from palaestra.rl.distributed.ranks import gather, rank, world_size
from palaestra.rl.interruptions import Interruptions
from palaestra.rl.policies.control import ControlPolicy
from palaestra.rl.policies.engine import EnginePolicy
from palaestra.rl.policies.language_model import LanguageModelPolicy
from palaestra.rl.rollouts import ControlInputs, Episodes, EpisodeStats, Rollout, TokenInputs, make_episode_rollout

Part = TypeVar("Part", Rollout, Episodes, EpisodeStats)


def split_episodes(first: int, episodes: int, group_size: int = 1) -> tuple[int, int]:
    """The number of the first episode that this process plays, and how many it plays. Groups stay whole.

    Raises:
        SettingsError: there are fewer groups than processes.
    """
    groups, count, number = -(-episodes // group_size), world_size(), rank()
    if groups < count:
        raise SettingsError(f"expected at least one group of episodes for each of {count} processes; got {groups}")
    begin, end = (min(groups * k // count * group_size, episodes) for k in (number, number + 1))
    return first + begin, end - begin


def gather_rollout(rollout: Rollout) -> Rollout:
    """The episodes of all processes as one rollout, which equals that of a single process."""
    return rollout if world_size() == 1 else join_rollouts(gather(rollout))


def join_rollouts(parts: Sequence[Rollout]) -> Rollout:
    """Join rollouts of a language model in order. Tables are padded to the longest sequence.

    If only some of them have turns or several sequences per episode, each sequence of the others is one turn and one
    episode.
    """
    if any(part.turn_BT is not None for part in parts):
        parts = [
            part
            if part.turn_BT is not None
            else replace(part, turn_BT=torch.zeros_like(part.mask_BT, dtype=torch.long))
            for part in parts
        ]
    joined = _join_fields(parts)
    episodes = [part.get_episodes() for part in parts]
    if any(part.number_B is not None for part in episodes):
        numbers = [torch.arange(len(p.group_B)) if p.number_B is None else p.number_B for p in episodes]
        episodes = [replace(part, number_B=number_B) for part, number_B in zip(episodes, numbers, strict=True)]
    joined.episodes = _join_fields(episodes)
    joined.episodes.limit = max(part.limit for part in episodes)
    numbers = [part.number_B for part in episodes if part.number_B is not None]
    if numbers:
        firsts = accumulate((len(part.first_sequences) for part in episodes), initial=0)
        joined.episodes.number_B = torch.cat([part_B + first for part_B, first in zip(numbers, firsts, strict=False)])
    joined.inputs = _join_inputs([part.inputs for part in parts])
    joined.stats = _join_fields([part.stats for part in parts])
    joined.metrics = _join_metrics(parts)
    return joined


def _join_fields(parts: Sequence[Part]) -> Part:
    return replace(parts[0], **{f.name: _join([getattr(part, f.name) for part in parts]) for f in fields(parts[0])})


def _join(values: Sequence[Any]) -> Any:
    """Join the values of one field: tensors along their first axis, lists, dictionaries."""
    first = values[0]
    if isinstance(first, torch.Tensor):
        if first.dim() == 1:
            return torch.cat(list(values))
        width = max(value.shape[1] for value in values)
        return torch.cat([torch.nn.functional.pad(value, (0, width - value.shape[1])) for value in values])
    if isinstance(first, list):
        return [item for value in values for item in value]
    return first


def _join_inputs(parts: Sequence[TokenInputs]) -> TokenInputs:
    restricted = any(part.legal for part in parts)
    return TokenInputs(
        _join([part.prompts for part in parts]),
        _join([part.responses for part in parts]),
        # A sequence without an entry was never restricted.
        _join([part.legal or [[] for _ in part.prompts] for part in parts]) if restricted else [],
        _join([part.chosen or [np.arange(len(r)) for r in part.responses] for part in parts])
        if any(part.chosen for part in parts)
        else [],
    )


def _join_metrics(parts: Sequence[Rollout]) -> dict[str, float]:
    """Times and maxima are those of the slowest or largest part; other metrics are means over all sequences."""
    total = sum(part.num_sequences for part in parts)
    metrics = {}
    for name in [name for name in parts[0].metrics if all(name in part.metrics for part in parts)]:
        if name.startswith("seconds_") or name.endswith("_max"):
            metrics[name] = max(part.metrics[name] for part in parts)
        else:
            metrics[name] = sum(part.metrics[name] * part.num_sequences for part in parts) / total
    return metrics


def collect_responses(
    env: TokenEnvContract,
    policy: LanguageModelPolicy | EnginePolicy,
    episodes: int,
    seeds: Seeds,
    *,
    seed: int | None = None,
    first: int | None = None,
    prompts: Sequence[int] = (),
    interruptions: Interruptions | None = None,
) -> Rollout:
    """Play `episodes` whole episodes in a token environment.

    Arguments:
        env: a token environment (`palaestra.envs.token.contract.TokenEnvContract`).
        seeds: for sampling. The samples of an episode depend on its number, not on its slot or on other episodes.
        seed: resets the order of the prompts; `None` continues it.
        first: the number of the first episode; `None` continues the count.
        prompts: the index of the prompt of each group; by default the environment's order.
        interruptions: new weights for the policy, or a cut, while the episodes are played. The rollout then has versions.
    """
    start = time.perf_counter()
    options: dict[str, Any] = {"episodes": episodes, **({"prompts": prompts} if prompts else {})}
    if first is not None:
        options["episode"] = first
    observation, infos = env.reset(seed=seed, options=options)
    deferred = env.defer_rewards()
    slots = env.num_envs
    policy.begin(slots)
    max_tokens = min(env.max_tokens, env.width)  # Tokens beyond the context need no memory.
    uniforms = np.zeros((slots, max_tokens))
    age = np.zeros(slots, dtype=np.int64)
    logprobs = np.zeros((slots, max_tokens), dtype=np.float32)
    entropies = np.zeros((slots, max_tokens), dtype=np.float32)
    step_rewards = np.zeros((slots, max_tokens), dtype=np.float64)
    legal: list[list[np.ndarray | None]] = [[] for _ in range(slots)]
    starts: list[list[tuple[int, int]]] = [[] for _ in range(slots)]
    every = np.arange(slots)
    done: dict[int, tuple[Any, ...]] = {}
    model_seconds = 0.0
    while infos["active"].any():
        active, fresh = infos["active"], infos["fresh"]
        for slot in np.flatnonzero(fresh & active).tolist():
            episode_seeds = seeds.derive("response", int(infos["episode"][slot]))
            uniforms[slot] = episode_seeds.generator().random(max_tokens)
            age[slot], legal[slot], starts[slot] = 0, [], [(0, interruptions.version if interruptions else 0)]
        is_new = fresh
        if interruptions is not None and (interruption := interruptions.check()) is not None:
            env.cuts_responses = interruptions.is_cut
            if interruption.version is not None:
                policy.begin(slots)  # The new weights read all sequences from their start.
                is_new = active
                for slot in np.flatnonzero(active).tolist():
                    earlier = [span for span in starts[slot] if span[0] < age[slot]]
                    starts[slot] = [*earlier, (int(age[slot]), interruption.version)]
        mask = infos.get("action_mask")
        tick = time.perf_counter()
        actions, chosen, entropy = policy.act(
            observation["tokens"],
            observation["length"],
            is_new,
            active,
            uniforms[every, np.minimum(age, max_tokens - 1)],
            mask,
        )
        model_seconds += time.perf_counter() - tick
        acting = np.flatnonzero(active)
        places = acting, age[acting]
        logprobs[places], entropies[places] = chosen[acting], entropy[acting]
        if policy.kept is not None:
            for slot in acting.tolist():
                legal[slot].append(policy.kept[slot])
        elif mask is not None:
            for slot in acting.tolist():
                allowed = np.flatnonzero(mask[slot])
                legal[slot].append(None if len(allowed) == mask.shape[1] else allowed)
        episode = infos["episode"]
        observation, rewards, _, _, infos = env.step(actions)
        step_rewards[places] = rewards[acting]
        age[acting] += 1
        slot_by_episode = {int(episode[slot]): int(slot) for slot in acting}
        for response in infos.get("responses", ()):
            slot = slot_by_episode[response.episode]
            n = len(response.token_ids)
            done[response.episode] = (
                response,
                logprobs[slot, :n].copy(),
                entropies[slot, :n].copy(),
                step_rewards[slot, :n].copy(),
                legal[slot],
                starts[slot],
            )
    responses, chosen_logprobs, chosen_entropies, own_rewards, own_legal, own_starts = zip(
        *(done[number] for number in sorted(done)), strict=True
    )
    if deferred:
        responses = tuple(env.score_responses(responses))
        for row, response in zip(own_rewards, responses, strict=True):
            row[-1] = 0.0 if response.failure else row[-1] + response.reward
    restricted = any(ids is not None for row in own_legal for ids in row)
    rollout = make_episode_rollout(
        TokenInputs(
            [response.prompt.ids for response in responses],
            [response.token_ids for response in responses],
            list(own_legal) if restricted else [],
        ),
        logprobs=chosen_logprobs,
        entropies=chosen_entropies,
        rewards=own_rewards,
        returns=[float(row.sum()) for row in own_rewards],
        truncated=[response.truncated for response in responses],
        bootstrapped=[response.truncated and env.bootstrap_truncated for response in responses],
        failures=[response.failure for response in responses],
        groups=[response.group for response in responses],
        records=responses,
        limit=env.max_tokens,
    )
    if interruptions is not None:
        interruptions.mark(rollout, own_starts)
    seconds = time.perf_counter() - start
    rollout.metrics.update({"seconds_model": model_seconds, "seconds_environment": seconds - model_seconds})
    return rollout


class ControlCollector:
    """Collects rollouts in a classic vector environment; each continues where the last one ended.

    Arguments:
        env: any `gymnasium.vector.VectorEnv` with autoreset, in the same step or in the next one. Truncated episodes are
            bootstrapped unless it has a false `bootstrap_truncated`.

    Rollouts are on the policy's device. Random numbers come from the generator, which may be on another device.
    """

    def __init__(self, env: GymVectorEnv, policy: ControlPolicy) -> None:
        self.env, self.policy, self.count = env, policy, env.num_envs
        mode = env.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP)
        if mode == AutoresetMode.DISABLED:
            raise EnvError("expected a vector environment with autoreset; its autoreset mode is DISABLED")
        self.same_step = mode == AutoresetMode.SAME_STEP
        self.bootstraps = bool(getattr(env, "bootstrap_truncated", True))
        self._inputs: torch.Tensor | None = None
        self._idle = np.zeros(self.count, dtype=bool)
        self._return = np.zeros(self.count)
        self._length = np.zeros(self.count, dtype=np.int64)
        self._failed = np.zeros(self.count, dtype=bool)
        self._terminated = np.zeros(self.count, dtype=bool)

    def start(self, seed: int | list[int]) -> None:
        """Reset every slot and drop the episodes in progress."""
        observation, _ = self.env.reset(seed=seed)  # type: ignore[arg-type]
        self._idle[:], self._return[:], self._length[:] = False, 0.0, 0
        self.policy.memory = None
        self._inputs = self.policy.encode_observation(observation, np.ones(self.count, dtype=bool), None)

    def state(self) -> dict[str, Any]:
        """The state for a checkpoint, apart from the environment's own. Its tensors are on the CPU."""
        return {
            "inputs": _move(self._inputs, "cpu"), "idle": self._idle, "return": self._return, "length": self._length,
            "memory": _move(self.policy.memory, "cpu"),
        }  # fmt: skip

    def load_state(self, state: dict[str, Any]) -> None:
        self._inputs, self._idle = _move(state["inputs"], self.policy.device), state["idle"]
        self._return, self._length = state["return"], state["length"]
        self.policy.memory = _move(state["memory"], self.policy.device)

    def collect(self, steps: int, generator: torch.Generator) -> Rollout:
        """Take `steps` steps in every slot. A sequence is a slot with one episode after another."""
        return self._play(steps, generator, whole_episodes=False)

    def collect_episodes(
        self, group_size: int, seed: int, generator: torch.Generator, max_steps: int, greedy: bool = False
    ) -> Rollout:
        """Play one whole episode in every slot. The slots of a group are reset with the same seed.

        Arguments:
            max_steps: longer episodes are truncated.
            greedy: take the most likely actions, for an evaluation. The rollout then has neither inputs nor log-probs.
        """
        groups = -(-self.count // group_size)
        seeds = Seeds(seed)
        starts = [seeds.derive("group", group).integer() % 2**31 for group in range(groups)]
        try:
            self.start([starts[slot // group_size] for slot in range(self.count)])
        except TypeError as error:
            if group_size > 1:
                raise EnvError(
                    "group methods need a vector environment that takes one seed per slot; this one takes a single seed; "
                    "register a single environment (entry_point), or train with ppo or reinforce"
                ) from error
            self.start(starts[0])
        rollout = self._play(max_steps, generator, whole_episodes=True, greedy=greedy)
        slots_B = torch.arange(self.count, device=self.policy.device)
        rollout.episodes = Episodes(
            group_B=slots_B // group_size,
            # An episode whose environment failed has no valid return.
            valid_B=torch.from_numpy(~self._failed).to(self.policy.device),
            truncated_B=torch.from_numpy(~self._terminated).to(self.policy.device),
            limit=max_steps,
        )
        # The step after the last action of a sequence belongs to another episode.
        last_B = (rollout.mask_BT.sum(-1) - 1).clamp(min=0)
        rollout.ended_BT[slots_B, last_B] = True
        if not self.bootstraps:
            rollout.terminated_BT[slots_B, last_B] = True
        return rollout

    def _play(self, steps: int, generator: torch.Generator, whole_episodes: bool, greedy: bool = False) -> Rollout:
        """Take up to `steps` steps in every slot; with `whole_episodes`, until the first episode of each has ended."""
        assert self._inputs is not None, "call start first"
        start, environment_seconds = time.perf_counter(), 0.0
        policy, inputs = self.policy, self._inputs
        observed, actions, logprobs = [], [], []
        rewards, terminations, masks = [], [], []
        ends: list[np.ndarray] = []
        finals: dict[tuple[int, int], torch.Tensor] = {}
        returns: list[float] = []
        lengths: list[int] = []
        failures: list[str] = []
        over = np.zeros(self.count, dtype=bool)
        self._failed, self._terminated = np.zeros(self.count, dtype=bool), np.zeros(self.count, dtype=bool)
        num_truncated = 0
        for t in range(steps):
            if greedy:
                action = policy.act_greedily(inputs)
            else:
                action, logprob = policy.act(inputs, generator)
                observed.append(inputs)
                actions.append(action)
                logprobs.append(logprob)
            chosen = policy.head.to_environment(action)  # Waits for a GPU, which is the model's time.
            tick = time.perf_counter()
            observation, reward, terminated, truncated, infos = self.env.step(chosen)
            environment_seconds += time.perf_counter() - tick
            _check_finite(reward)
            counts, ended = ~self._idle & ~over, np.logical_or(terminated, truncated)
            if "failed" in infos:
                # The environment of a slot failed: the step does not count, and the episode ends before it.
                failures += infos["failures"]
                self._failed |= infos["failed"] & ~over
                counts &= ~infos["failed"]
                if t:
                    ends[-1] = ends[-1] | infos["failed"]
            rewards.append(np.where(counts, np.asarray(reward, dtype=np.float64), 0.0))
            terminations.append(terminated if self.bootstraps else ended)
            ends.append(ended)
            masks.append(counts)
            self._return += rewards[-1]
            self._length += counts
            self._terminated |= terminated & counts
            num_truncated += int((ended & ~terminated & counts).sum())
            for slot in np.flatnonzero(ended & counts).tolist():
                returns.append(float(self._return[slot]))
                lengths.append(int(self._length[slot]))
                if self.same_step and not terminated[slot] and not greedy:
                    finals[slot, t] = policy.encode_final_observation(infos["final_obs"][slot], slot, action)
            self._return[ended], self._length[ended] = 0.0, 0
            # With autoreset in the next step, that step only resets and its action is ignored.
            fresh = ended if self.same_step else self._idle
            self._idle = np.zeros(self.count, dtype=bool) if self.same_step else ended
            inputs = policy.encode_observation(observation, fresh, action)
            over |= ended & whole_episodes
            if over.all():
                break
        self._inputs = inputs
        rewards_BT = _stack_steps(rewards, np.float32, policy.device)
        recorded = None if greedy else ControlInputs(torch.stack(observed, 1), torch.stack(actions, 1), inputs, finals)
        seconds = time.perf_counter() - start
        return Rollout(
            rewards_BT=rewards_BT,
            logprobs_BT=torch.zeros_like(rewards_BT) if greedy else torch.stack(logprobs, 1),
            mask_BT=_stack_steps(masks, bool, policy.device),
            terminated_BT=_stack_steps(terminations, bool, policy.device),
            ended_BT=_stack_steps(ends, bool, policy.device),
            inputs=recorded,
            stats=EpisodeStats(returns, lengths, failures, num_truncated),
            metrics={"seconds_environment": environment_seconds, "seconds_model": seconds - environment_seconds},
        )


def _check_finite(rewards: np.ndarray) -> None:
    if not np.isfinite(rewards).all():
        slot = int(np.flatnonzero(~np.isfinite(rewards))[0])
        raise EnvError(f"the environment returned the reward {rewards[slot]} in slot {slot}; expected a finite number")


def _stack_steps(steps: list[np.ndarray], dtype: Any, device: torch.device) -> torch.Tensor:
    """Arrange one array per step as a table `[slots, steps]`."""
    return torch.from_numpy(np.stack(steps, 1).astype(dtype)).to(device)


def _move(tensor: torch.Tensor | None, device: torch.device | str) -> torch.Tensor | None:
    return None if tensor is None else tensor.to(device)
