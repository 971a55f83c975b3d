"""Collect episodes of a turn environment: the model writes a message, the environment replies, every token is recorded.

All slots generate side by side, one token per step, and wait for each other at the end of their messages. The samples of
an episode depend only on its seed. The key-value cache of a slot is kept for the whole episode. After a short reply the
model continues from the cache; after a long one it computes the whole conversation again in one pass, which is cheaper.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import numpy as np

from palaestra.chat.encoder import ChatEncoder
from palaestra.chat.tool_formats import is_malformed
from palaestra.core.errors import EnvError
from palaestra.core.records import Failure, FailureCause, Json, Message, Segment, Trajectory, Values
from palaestra.core.seeding import Seeds
from palaestra.envs.turn.base import TurnStopReason, format_transcript
from palaestra.rl.interruptions import Interruptions
from palaestra.rl.policies.engine import EnginePolicy
from palaestra.rl.policies.language_model import LanguageModelPolicy
from palaestra.rl.rollouts import Rollout, TokenInputs, make_episode_rollout
from palaestra.runs.files import to_data

_PREFILL_FRACTION = 4
"""The whole conversation is computed again if more than 1 / `_PREFILL_FRACTION` of its tokens are not in the cache."""


@dataclass(slots=True)
class TurnEpisode:
    """A turn episode: the conversation, and every token with its origin. It grows while it is played.

    Arguments:
        number, group: the numbers of the episode and its group; episodes of a group start from the same state.
        branch: the number of the sequence within its episode. Only the episodes of an agent have several sequences.
        samplings: the temperature, `top_p` and `top_k` of each message of the model, if an agent may choose them.
        opening: number of `messages` before the model's first.
        messages: the conversation so far.
        ids: all tokens in order.
        prompt: number of `ids` before the model's first.
        cached: number of `ids` in the key-value cache.
        chosen: the positions in `ids` that the model sampled; `logprobs` and `entropies` have one value for each.
        kept: the tokens that top-p and top-k have kept for each of them; empty without these.
        ends: the number of actions at the end of each turn.
        rewards: one for each of the model's messages.
        message: the model's last message, before the environment has replied.
        cut_messages: messages of the model that were cut at the token limit or at the end of the context.
        calls, malformed_calls: the model's tool calls, and those of them that could not be read.
        failed_calls: calls that were answered with an error, including malformed ones.
        starts: the first action of each version of the weights, with the version, if they may change.
        stop_reason: why the episode ended.
        failure: the cause and message of an infrastructure failure (`sandbox: ...`); the rewards are then invalid.
    """

    number: int
    group: int
    seed: int
    opening: int = 0
    messages: tuple[Message, ...] = ()
    ids: list[int] = field(default_factory=list)
    prompt: int = 0
    cached: int = 0
    chosen: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    entropies: list[float] = field(default_factory=list)
    kept: list[np.ndarray] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    message: Message | None = None
    cut_messages: int = 0
    calls: int = 0
    malformed_calls: int = 0
    failed_calls: int = 0
    terminated: bool = False
    truncated: bool = False
    stop_reason: str = ""
    failure: str = ""
    branch: int = 0
    samplings: list[Json] = field(default_factory=list)
    starts: list[tuple[int, int]] = field(default_factory=list)

    @property
    def turns(self) -> int:
        """The number of the model's messages."""
        return len(self.rewards)

    @property
    def reward(self) -> float:
        return float(sum(self.rewards))

    @property
    def message_length(self) -> int:
        """The number of tokens of the message in progress."""
        return len(self.chosen) - (self.ends[-1] if self.ends else 0)

    @property
    def segments(self) -> tuple[Segment, ...]:
        """All tokens in order, alternating between given and sampled ones."""
        own = dict(zip(self.chosen, self.logprobs, strict=True))
        segments = []
        for is_own, group in groupby(range(len(self.ids)), key=own.__contains__):
            places = list(group)
            ids, logprobs = (self.ids[k] for k in places), (own.get(k, 0.0) for k in places)
            segments.append(Segment(tuple(ids), (is_own,) * len(places), tuple(logprobs)))
        return tuple(segments)

    def to_trajectory(self, environment: str, version: int = 0) -> Trajectory:
        """Convert to a record of the store. Its info contains the conversation, also as readable text, and the version of the weights."""
        info: Json = {
            "prompt": format_transcript(self.messages[: self.opening]),
            "response": format_transcript(self.messages[self.opening :]),
            "messages": [to_data(message) for message in self.messages],
            "opening": self.opening,
            "stop_reason": self.stop_reason,
            "turns": self.turns,
            "cut_messages": self.cut_messages,
            "episode": self.number,
            "group": self.group,
            "version": version,
        }
        if len(self.starts) > 1:
            info["continued"] = [list(start) for start in self.starts[1:]]
        if self.branch:
            info["branch"] = self.branch
        if self.samplings:
            info["sampling"] = self.samplings
        if self.calls:
            info |= {"calls": self.calls, "malformed_calls": self.malformed_calls, "failed_calls": self.failed_calls}
        if self.failure:
            info["failure"] = self.failure
        rewards = tuple(self.rewards)
        return Trajectory(environment, self.seed, rewards, self.segments, self.terminated, self.truncated, (info,))


def collect_turns(
    env: Any,
    policy: LanguageModelPolicy | EnginePolicy,
    encoder: ChatEncoder,
    episodes: int,
    seeds: Seeds,
    *,
    end_ids: Sequence[int],
    max_tokens: int,
    group_size: int = 1,
    first: int = 0,
    interruptions: Interruptions | None = None,
) -> Rollout:
    """Play `episodes` whole episodes of a turn environment. A sequence is an episode; its actions are tokens.

    The reward of a turn is at the last token of its message. An episode that fills the model's context is ended by
    `env.stop`. Failed episodes, and those whose opening does not fit into the context, are marked as invalid.

    Arguments:
        env: a `TurnVectorEnv` with `autoreset=False`.
        encoder: encodes messages with the policy's tokenizer.
        seeds: for the start of episodes, by group, and for sampling, by episode and turn.
        end_ids: the tokens that end a message.
        max_tokens: maximum number of tokens per message; longer messages are cut.
        group_size: number of consecutive episodes that start from the same state.
        first: the number of the first episode.
        interruptions: as for `collect_responses`. A cut ends the messages in progress, the environment answers them, and the
            episodes are stopped.

    Raises:
        EnvError: the environment changes earlier messages.
    """
    start = time.perf_counter()
    slots = _TurnSlots(env, policy, encoder, seeds, frozenset(end_ids), max_tokens, group_size, interruptions)
    waiting = deque(range(first, first + episodes))
    policy.begin(env.num_envs)
    while waiting or slots.episodes:
        slots.start_episodes(waiting)
        slots.generate_messages()
        slots.step_environment()
    limit = count_max_actions(env, policy.context, max_tokens)
    rollout = make_turn_rollout([slots.done[number] for number in sorted(slots.done)], limit, env.bootstrap_truncated)
    if interruptions is not None:
        interruptions.mark(rollout, [episode.starts for episode in rollout.get_episodes().records])
    rollout.metrics = {
        "seconds_model": slots.model_seconds,
        "seconds_environment": time.perf_counter() - start - slots.model_seconds,
        "turns": float(np.mean([episode.turns for episode in rollout.get_episodes().records])),
    }
    return rollout


def count_max_actions(env: Any, context: int, max_tokens: int) -> int:
    """The maximum number of tokens that a model with `context` samples in an episode."""
    max_turns = int(getattr(env.envs[0].unwrapped, "max_turns", 0))
    return min(context, max_turns * max_tokens or context)


class _TurnSlots:
    """The slots of an environment with their episodes."""

    def __init__(
        self,
        env: Any,
        policy: LanguageModelPolicy | EnginePolicy,
        encoder: ChatEncoder,
        seeds: Seeds,
        end_ids: frozenset[int],
        max_tokens: int,
        group_size: int,
        interruptions: Interruptions | None,
    ) -> None:
        self.env, self.policy, self.encoder, self.seeds = env, policy, encoder, seeds
        self.interruptions = interruptions
        self.end_ids, self.max_tokens, self.group_size = end_ids, min(max_tokens, policy.context), group_size
        self.episodes: dict[int, TurnEpisode] = {}
        self.done: dict[int, TurnEpisode] = {}
        self.model_seconds = 0.0

    def start_episodes(self, waiting: deque[int]) -> None:
        """Start waiting episodes in free slots."""
        while waiting and len(self.episodes) < self.env.num_envs:
            mask = np.zeros(self.env.num_envs, dtype=bool)
            seeds: list[int | None] = [None] * self.env.num_envs
            for slot in (slot for slot in range(self.env.num_envs) if slot not in self.episodes):
                if waiting:
                    number = waiting.popleft()
                    group = number // self.group_size
                    seed = self.seeds.derive("episode", group).integer() % 2**31
                    version = self.interruptions.version if self.interruptions is not None else 0
                    self.episodes[slot] = TurnEpisode(number, group, seed, starts=[(0, version)])
                    mask[slot], seeds[slot] = True, seed
            observations, infos = self.env.reset(seed=seeds, options={"reset_mask": mask})
            for slot in np.flatnonzero(mask).tolist():
                self._encode_opening(slot, observations[slot].messages, infos)

    def _encode_opening(self, slot: int, messages: tuple[Message, ...], infos: Values) -> None:
        episode = self.episodes[slot]
        episode.messages, episode.opening = messages, len(messages)
        if not infos["active"][slot]:
            self._finish(slot, "failed", infos["failure"][slot])
            return
        episode.ids = list(self.encoder.encode_opening(messages))
        episode.prompt = len(episode.ids)
        if episode.prompt >= self.policy.context:
            reason = f"the first messages have {episode.prompt} tokens; the model reads at most {self.policy.context}"
            self._finish(slot, "context", Failure(FailureCause.CONTEXT_LENGTH, reason))

    def generate_messages(self) -> None:
        """Generate one message in every slot. Finished slots wait for the others."""
        slots, start = self.env.num_envs, time.perf_counter()
        fresh, active = np.zeros(slots, dtype=bool), np.zeros(slots, dtype=bool)
        uniforms, generating = np.zeros((slots, self.max_tokens)), dict(self.episodes)
        for slot, episode in self.episodes.items():
            active[slot] = True
            missing = len(episode.ids) - episode.cached
            fresh[slot] = (
                not episode.cached or not self.policy.has_cache or _PREFILL_FRACTION * missing > len(episode.ids)
            )
            generator = self.seeds.derive("message", episode.number, len(episode.ends)).generator()
            uniforms[slot] = generator.random(self.max_tokens)
        while generating:
            self._step(generating, fresh, active, uniforms)
            fresh[:] = False
        self.model_seconds += time.perf_counter() - start

    def _step(
        self, generating: dict[int, TurnEpisode], fresh: np.ndarray, active: np.ndarray, uniforms: np.ndarray
    ) -> None:
        """Feed one token, or all of them, to every slot; sample the next token where all have been fed."""
        slots, is_cut = len(active), self._interrupt(generating, fresh)
        length, uniform, waiting = np.zeros(slots, dtype=np.int64), np.zeros(slots), active.copy()
        for slot, episode in generating.items():
            waiting[slot] = False
            length[slot] = len(episode.ids) if fresh[slot] else episode.cached + 1
            uniform[slot] = uniforms[slot, episode.message_length]
        tokens = np.zeros((slots, int(length.max())), dtype=np.int64)
        for slot, episode in generating.items():
            n = int(length[slot])
            tokens[slot, 0 if fresh[slot] else n - 1 : n] = episode.ids[:n] if fresh[slot] else episode.ids[n - 1]
        choices, logprobs, entropies = self.policy.act(tokens, length, fresh, active, uniform, waiting_S=waiting)
        for slot, episode in list(generating.items()):
            episode.cached = int(length[slot])
            if episode.cached < len(episode.ids):
                continue  # Tokens of the reply are still to be fed.
            episode.chosen.append(len(episode.ids))
            episode.ids.append(int(choices[slot]))
            episode.logprobs.append(float(logprobs[slot]))
            episode.entropies.append(float(entropies[slot]))
            if self.policy.kept is not None:
                episode.kept.append(self.policy.kept[slot])
            ended = episode.ids[-1] in self.end_ids
            is_full = episode.message_length == self.max_tokens or len(episode.ids) == self.policy.context
            if ended or is_full or is_cut:
                own = episode.ids[len(episode.ids) - episode.message_length : len(episode.ids) - ended]
                episode.cut_messages += not ended
                episode.message = self.encoder.decode_message(own, episode.calls)
                episode.calls += len(episode.message.tool_calls)
                episode.malformed_calls += sum(map(is_malformed, episode.message.tool_calls))
                del generating[slot]

    def _interrupt(self, generating: dict[int, TurnEpisode], fresh: np.ndarray) -> bool:
        """Let newer weights continue, if they are due: they read all conversations again. Returns whether messages are cut."""
        if self.interruptions is None:
            return False
        interruption = self.interruptions.check()
        if interruption is not None and interruption.version is not None:
            self.policy.begin(len(fresh))
            fresh[list(generating)] = True
            for episode in self.episodes.values():
                episode.cached, place = 0, len(episode.chosen)
                earlier = [start for start in episode.starts if start[0] < place]
                episode.starts = [*earlier, (place, interruption.version)]
        return self.interruptions.is_cut

    def step_environment(self) -> None:
        """Send the messages to the environment and record its replies."""
        if not self.episodes:
            return
        actions = [episode.message if (episode := self.episodes.get(slot)) else "" for slot in range(self.env.num_envs)]
        step = self.env.step(actions)
        full, is_cut = dict[int, str](), self.interruptions is not None and self.interruptions.is_cut
        for slot, episode in list(self.episodes.items()):
            episode.ends.append(len(episode.chosen))
            episode.rewards.append(float(step[1][slot]))
            self._count_failed_calls(slot, step)
            if self._record_end(slot, step):
                continue
            assert episode.message is not None
            reply = self._new_messages(episode, step[0][slot].messages)
            reply_ids = self.encoder.encode_reply(episode.messages, episode.message, reply, episode.ids[-1])
            episode.messages = step[0][slot].messages
            if len(episode.ids) + len(reply_ids) >= self.policy.context:
                full[slot] = TurnStopReason.CONTEXT
            elif is_cut:
                full[slot] = TurnStopReason.TIME
            else:
                episode.ids += reply_ids
        if full:
            step = self.env.stop(full)
            for slot in full:
                self.episodes[slot].rewards[-1] += float(step[1][slot])
                self._record_end(slot, step)

    def _count_failed_calls(self, slot: int, step: tuple[Any, ...]) -> None:
        """Count the calls of the last message that the environment answered with an error."""
        episode = self.episodes[slot]
        if episode.message is None or not episode.message.tool_calls:
            return
        infos = step[4]
        ended = bool(step[2][slot] or step[3][slot])
        errors = infos["final_info"][slot].get("tool_errors") if ended else infos.get("tool_errors", {slot: None})[slot]
        malformed = sum(map(is_malformed, episode.message.tool_calls))
        episode.failed_calls += malformed if errors is None else int(errors)

    def _record_end(self, slot: int, step: tuple[Any, ...]) -> bool:
        """Record the end of the episode if it has ended; returns whether it has."""
        episode = self.episodes[slot]
        episode.terminated, episode.truncated = bool(step[2][slot]), bool(step[3][slot])
        if not episode.terminated and not episode.truncated:
            return False
        info = step[4]["final_info"][slot]
        episode.messages = step[4]["final_obs"][slot].messages
        self._finish(slot, str(info.get("stop_reason", "")), info.get("failure"))
        return True

    def _finish(self, slot: int, stop_reason: str, failure: Failure | None = None) -> None:
        episode = self.episodes.pop(slot)
        episode.stop_reason = stop_reason
        if failure is not None:
            episode.failure = f"{failure.cause}: {failure.message}"
        self.done[episode.number] = episode

    def _new_messages(self, episode: TurnEpisode, messages: tuple[Message, ...]) -> tuple[Message, ...]:
        """The messages after the model's own."""
        known = len(episode.messages)
        if messages[:known] != episode.messages or len(messages) <= known or messages[known] != episode.message:
            raise EnvError(
                f"the environment changed messages before turn {len(episode.ends)}; it may only append to the conversation"
            )
        return messages[known + 1 :]


def make_turn_rollout(episodes: Sequence[TurnEpisode], limit: int, bootstrap_truncated: bool = False) -> Rollout:
    """Make a rollout whose actions are the sampled tokens. Given tokens are only in the inputs.

    Arguments:
        limit: maximum number of actions of an episode.
        bootstrap_truncated: whether the critic estimates the rewards after the end of a truncated episode.
    """
    rewards = []
    for episode in episodes:
        row = [0.0] * len(episode.chosen)
        for end, reward in zip(episode.ends, episode.rewards, strict=True):
            row[end - 1] = reward
        rewards.append(row)
    rollout = make_episode_rollout(
        TokenInputs(
            # An episode without a message is evaluated like the others; its prompt does not matter.
            [tuple(episode.ids[: episode.prompt]) if episode.chosen else (0,) for episode in episodes],
            [tuple(episode.ids[episode.prompt :]) for episode in episodes],
            [list(episode.kept) for episode in episodes] if any(episode.kept for episode in episodes) else [],
            chosen=[np.array(episode.chosen, dtype=np.int64) - episode.prompt for episode in episodes],
        ),
        logprobs=[episode.logprobs for episode in episodes],
        entropies=[episode.entropies for episode in episodes],
        rewards=rewards,
        returns=[episode.reward for episode in episodes],
        truncated=[not e.failure and (e.truncated or e.cut_messages > 0) for e in episodes],
        bootstrapped=[bootstrap_truncated and e.truncated for e in episodes],
        failures=[episode.failure for episode in episodes],
        groups=[episode.group for episode in episodes],
        records=episodes,
        turns=[np.searchsorted(e.ends, np.arange(len(e.chosen)), side="right").tolist() for e in episodes],
        limit=limit,
    )
    rollout.stats.lengths = [len(episode.chosen) for episode in episodes if not episode.failure]
    return rollout
