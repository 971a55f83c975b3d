"""Collecting rollouts: a policy acts in a vector environment, and what happens is written down once."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv

from palaestra.core.errors import EnvError
from palaestra.core.seeding import Seeds
from palaestra.learn.policies.control import ControlPolicy
from palaestra.learn.policies.language_model import LanguageModelPolicy
from palaestra.learn.rollouts import ControlInputs, Rollout, TokenInputs


def collect_responses(
    env: Any,
    policy: LanguageModelPolicy,
    episodes: int,
    seeds: Seeds,
    *,
    seed: int | None = None,
    first: int | None = None,
) -> Rollout:
    """Play `episodes` whole episodes in a token environment.

    Arguments:
        env: a token environment (`palaestra.envs.token.contract.TokenEnvContract`).
        seeds: of the choices. Those of an episode belong to its number: they are the same in any slot and
            any company.
        seed: resets the order of the prompts; `None` goes on.
        first: the number of the first episode, `None` for the next one.
    """
    start = time.perf_counter()
    options: dict[str, Any] = {"episodes": episodes}
    if first is not None:
        options["episode"] = first
    observation, infos = env.reset(seed=seed, options=options)
    slots = env.num_envs
    policy.begin(slots)
    most = min(env.max_tokens, env.width)  # A limit beyond the context takes no memory.
    uniforms = np.zeros((slots, most))
    age = np.zeros(slots, dtype=np.int64)
    logprobs = np.zeros((slots, most), dtype=np.float32)
    entropies = np.zeros((slots, most), dtype=np.float32)
    step_rewards = np.zeros((slots, most), dtype=np.float64)
    legal: list[list[np.ndarray | None]] = [[] for _ in range(slots)]
    every = np.arange(slots)
    done: dict[int, dict[str, Any]] = {}
    model_seconds = 0.0
    while infos["active"].any():
        active, fresh = infos["active"], infos["fresh"]
        for slot in np.flatnonzero(fresh & active).tolist():
            episode_seeds = seeds.derive("response", int(infos["episode"][slot]))
            uniforms[slot] = episode_seeds.generator().random(most)
            age[slot], legal[slot] = 0, []
        mask = infos.get("action_mask")
        tick = time.perf_counter()
        actions, chosen, entropy = policy.act(
            observation["tokens"], observation["length"], fresh, active, uniforms[every, np.minimum(age, most - 1)], mask
        )  # fmt: skip
        model_seconds += time.perf_counter() - tick
        at = np.flatnonzero(active)
        logprobs[at, age[at]], entropies[at, age[at]] = chosen[at], entropy[at]
        if mask is not None:
            for slot in at.tolist():
                allowed = np.flatnonzero(mask[slot])
                legal[slot].append(None if len(allowed) == mask.shape[1] else allowed)
        episode = infos["episode"]
        observation, rewards, _, _, infos = env.step(actions)
        step_rewards[at, age[at]] = rewards[at]
        age[at] += 1
        slot_of = {int(episode[slot]): int(slot) for slot in at}
        for response in infos.get("responses", ()):
            slot = slot_of[response.episode]
            n = len(response.token_ids)
            done[response.episode] = {
                "response": response,
                "logprobs": logprobs[slot, :n].copy(),
                "entropies": entropies[slot, :n].copy(),
                "rewards": step_rewards[slot, :n].copy(),
                "legal": legal[slot],
            }
    rollout = _token_rollout([done[e] for e in sorted(done)])
    rollout.limit = env.max_tokens
    seconds = time.perf_counter() - start
    rollout.metrics.update({"seconds_model": model_seconds, "seconds_environment": seconds - model_seconds})
    return rollout


def _token_rollout(episodes: list[dict[str, Any]]) -> Rollout:
    responses = [one["response"] for one in episodes]
    count, width = len(responses), max(len(r.token_ids) for r in responses)

    def table(name: str) -> torch.Tensor:
        rows = np.zeros((count, width), dtype=np.float32)
        for k, one in enumerate(episodes):
            rows[k, : len(one[name])] = one[name]
        return torch.from_numpy(rows)

    lengths = torch.tensor([len(r.token_ids) for r in responses])
    place_BT = torch.arange(width)[None]
    mask_BT = place_BT < lengths[:, None]
    last_BT = place_BT == lengths[:, None] - 1
    cut_B = torch.tensor([r.truncated for r in responses])
    valid_B = torch.tensor([not r.failure for r in responses])
    restricted = any(allowed is not None for one in episodes for allowed in one["legal"])
    return Rollout(
        rewards_BT=table("rewards"),
        logprobs_BT=table("logprobs"),
        mask_BT=mask_BT,
        terminated_BT=last_BT & ~cut_B[:, None],
        ended_BT=last_BT,
        inputs=TokenInputs(
            [r.prompt.ids for r in responses],
            [r.token_ids for r in responses],
            [one["legal"] for one in episodes] if restricted else [],
        ),
        entropy_BT=table("entropies"),
        group_B=torch.tensor([r.group for r in responses]),
        valid_B=valid_B,
        cut_B=cut_B,
        episode_returns=[float(one["rewards"].sum()) for one in episodes if not one["response"].failure],
        episode_lengths=lengths.tolist(),
        failures=[r.failure for r in responses if r.failure],
        records=responses,
    )


class ControlCollector:
    """Plays on in a classic vector environment, rollout after rollout.

    Arguments:
        env: any `gymnasium.vector.VectorEnv` whose spaces the policy knows, with either kind of autoreset.
    """

    def __init__(self, env: VectorEnv[Any, Any, Any], policy: ControlPolicy) -> None:
        self.env, self.policy, self.count = env, policy, env.num_envs
        mode = env.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP)
        if mode == AutoresetMode.DISABLED:
            raise EnvError("collecting needs a vector environment that resets its slots by itself; this one does not")
        self.same_step = mode == AutoresetMode.SAME_STEP
        self._inputs: torch.Tensor | None = None
        self._idle = np.zeros(self.count, dtype=bool)
        self._return = np.zeros(self.count)
        self._length = np.zeros(self.count, dtype=np.int64)
        self._broken = np.zeros(self.count, dtype=bool)

    def start(self, seed: int | list[int]) -> None:
        """Reset every slot; the episodes that were going on are given up."""
        observation, _ = self.env.reset(seed=seed)  # type: ignore[arg-type]
        self._idle[:], self._return[:], self._length[:] = False, 0.0, 0
        self.policy.forget()
        self._inputs = self.policy.perceive(observation, np.ones(self.count, dtype=bool), None)

    def state(self) -> dict[str, Any]:
        """What a checkpoint needs beside the environment itself."""
        return {
            "inputs": self._inputs, "idle": self._idle, "return": self._return, "length": self._length,
            "memory": self.policy.memory(),
        }  # fmt: skip

    def load_state(self, state: dict[str, Any]) -> None:
        self._inputs, self._idle = state["inputs"], state["idle"]
        self._return, self._length = state["return"], state["length"]
        self.policy.remember(state["memory"])

    def collect(self, steps: int, generator: torch.Generator) -> Rollout:
        """`steps` steps of every slot; sequences are slots, and episodes follow each other in them."""
        return self._play(steps, generator, whole=False)

    def collect_episodes(
        self, group_size: int, seed: int, generator: torch.Generator, most_steps: int, greedy: bool = False
    ) -> Rollout:
        """One whole episode in every slot; slots of a group are reset with the same seed, so they start alike.

        Arguments:
            most_steps: an episode that goes on after so many steps is cut there.
            greedy: take the likeliest actions, for an evaluation.
        """
        groups = -(-self.count // group_size)
        seeds = Seeds(seed)
        starts = [seeds.derive("group", group).integer() % 2**31 for group in range(groups)]
        try:
            self.start([starts[slot // group_size] for slot in range(self.count)])
        except TypeError:
            raise EnvError(
                "group methods need an environment whose slots take seeds of their own; this vector environment takes "
                "one; make it with vectorization_mode='sync'"
            ) from None
        rollout = self._play(most_steps, generator, whole=True, greedy=greedy)
        rollout.group_B = torch.arange(self.count) // group_size
        # An episode whose environment broke has no return: what it had until then is not its result.
        rollout.valid_B = torch.from_numpy(~self._broken)
        rollout.limit = most_steps
        rollout.cut_B = ~(rollout.terminated_BT & rollout.mask_BT).any(-1)
        # Behind the last decision of a sequence nothing is known; the step that follows it is another episode's.
        last_B = rollout.mask_BT.sum(-1) - 1
        rollout.ended_BT[torch.arange(self.count), last_B.clamp(min=0)] = True
        return rollout

    def _play(self, steps: int, generator: torch.Generator, whole: bool, greedy: bool = False) -> Rollout:
        assert self._inputs is not None, "call start first"
        start = time.perf_counter()
        policy, env, count, inputs = self.policy, self.env, self.count, self._inputs
        finals: dict[tuple[int, int], torch.Tensor] = {}
        rewards: list[np.ndarray] = []
        terminations: list[np.ndarray] = []
        ends: list[np.ndarray] = []
        masks: list[np.ndarray] = []
        seen, actions, logprobs = [], [], []
        returns: list[float] = []
        lengths: list[int] = []
        failures: list[str] = []
        over = np.zeros(count, dtype=bool)
        self._broken = np.zeros(count, dtype=bool)
        environment_seconds = 0.0
        for t in range(steps):
            action, logprob = policy.act(inputs, generator)
            if greedy:
                action = policy.likeliest(inputs)
            seen.append(inputs)
            actions.append(action)
            logprobs.append(logprob)
            tick = time.perf_counter()
            observation, reward, terminated, truncated, infos = env.step(policy.head.to_environment(action))
            environment_seconds += time.perf_counter() - tick
            reward = np.asarray(reward, dtype=np.float64)
            if not np.isfinite(reward).all():
                slot = int(np.flatnonzero(~np.isfinite(reward))[0])
                raise EnvError(
                    f"the environment gave the reward {reward[slot]} in slot {slot}; expected a finite number"
                )
            counts = ~self._idle & ~over
            ended = np.logical_or(terminated, truncated)
            if "failed" in infos:
                # A slot whose environment broke: the step did not happen, and the episode was cut before it.
                failures += infos["failures"]
                self._broken |= infos["failed"] & ~over
                counts = counts & ~infos["failed"]
                if t:
                    ends[-1] = ends[-1] | infos["failed"]
            rewards.append(np.where(counts, reward, 0.0))
            terminations.append(np.asarray(terminated))
            ends.append(ended)
            masks.append(counts)
            self._return += rewards[-1]
            self._length += counts
            if ended.any():
                for slot in np.flatnonzero(ended & counts).tolist():
                    returns.append(float(self._return[slot]))
                    lengths.append(int(self._length[slot]))
                    if self.same_step and not terminated[slot]:
                        finals[int(slot), t] = policy.perceive_final(infos["final_obs"][slot], int(slot), action)
                self._return[ended], self._length[ended] = 0.0, 0
            # With autoreset in the next step, that step only resets: its action counts for nothing.
            fresh = ended if self.same_step else self._idle
            self._idle = np.zeros(count, dtype=bool) if self.same_step else ended
            inputs = policy.perceive(observation, np.asarray(fresh), action)
            if whole:
                over |= ended
                if over.all():
                    break
        self._inputs = inputs
        seconds = time.perf_counter() - start

        def sequences(rows: list[np.ndarray], kind: Any) -> torch.Tensor:
            return torch.from_numpy(np.stack(rows, 1).astype(kind))

        return Rollout(
            rewards_BT=sequences(rewards, np.float32),
            logprobs_BT=torch.stack(logprobs, 1),
            mask_BT=sequences(masks, bool),
            terminated_BT=sequences(terminations, bool),
            ended_BT=sequences(ends, bool),
            inputs=ControlInputs(torch.stack(seen, 1), torch.stack(actions, 1)),
            last_inputs=inputs,
            final_inputs=finals,
            episode_returns=returns,
            episode_lengths=lengths,
            failures=failures,
            metrics={"seconds_environment": environment_seconds, "seconds_model": seconds - environment_seconds},
        )
