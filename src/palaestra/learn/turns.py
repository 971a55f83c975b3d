"""Collecting episodes of turns: a language model speaks, an environment answers, and every token is written down once.

All slots speak side by side, a token at a time, and wait for each other at the end of their messages: what an episode
says depends on its seed alone. The key-value cache of a slot lives through its episode. Behind an answer it reads on
from there where the answer is short, and the whole conversation anew, in one pass, where that is cheaper.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from gymnasium.vector import AutoresetMode

from palaestra.core.errors import EnvError
from palaestra.core.records import Failure, FailureCause, Message, Segment, Trajectory
from palaestra.core.seeding import Seeds
from palaestra.learn.chats import ChatEncoder
from palaestra.learn.policies.language_model import LanguageModelPolicy
from palaestra.learn.rollouts import Rollout, TokenInputs

ANEW = 4
"""A conversation is read anew where what is to be read of it is more than one part of so many."""


@dataclass(frozen=True, slots=True)
class TurnEpisode:
    """An episode of turns as it was played.

    Arguments:
        number, group: of the episode, and of those that started alike.
        opening: how many of `messages` came before the model's first.
        messages: the whole conversation.
        segments: all tokens that the model read or chose, in order, what was given and what was chosen in turn.
        rewards: of each of the model's messages.
        cut_messages: how many of the model's messages ended at the token limit, without an end token.
        stop_reason: why it ended.
        failure: what broke around the model, its cause first (`sandbox: ...`); the rewards then say nothing.
    """

    number: int
    group: int
    seed: int
    opening: int
    messages: tuple[Message, ...]
    segments: tuple[Segment, ...]
    rewards: tuple[float, ...]
    terminated: bool
    truncated: bool
    stop_reason: str = ""
    failure: str = ""
    cut_messages: int = 0

    @property
    def turns(self) -> int:
        """The model's messages."""
        return len(self.rewards)

    @property
    def reward(self) -> float:
        return float(sum(self.rewards))

    def trajectory(self, environment: str) -> Trajectory:
        """The record of the store; its one info holds what a person reads."""
        info: dict[str, Any] = {
            "prompt": transcript(self.messages[: self.opening]),
            "response": transcript(self.messages[self.opening :]),
            "stop_reason": self.stop_reason, "turns": self.turns, "cut_messages": self.cut_messages,
            "episode": self.number, "group": self.group,
        }  # fmt: skip
        if self.failure:
            info["failure"] = self.failure
        return Trajectory(environment, self.seed, self.rewards, self.segments, self.terminated, self.truncated, (info,))


def transcript(messages: Sequence[Message]) -> str:
    """Messages as a person reads them; a single one without its role."""
    if len(messages) == 1:
        return messages[0].text
    return "\n".join(f"[{message.role}] {message.text}" for message in messages)


def collect_turns(
    env: Any,
    policy: LanguageModelPolicy,
    encoder: ChatEncoder,
    episodes: int,
    seeds: Seeds,
    *,
    end_ids: Sequence[int],
    max_tokens: int,
    group_size: int = 1,
    first: int = 0,
) -> Rollout:
    """Play `episodes` whole episodes of a turn environment; sequences are episodes, and their decisions are tokens.

    The reward of a turn stands at the last token of its message. An episode whose conversation has no room left in the
    model's context is stopped there by `env.stop`; one that failed, or whose opening has no room, teaches nothing.

    Arguments:
        env: a `TurnVectorEnv` that leaves its finished slots alone (`autoreset=False`).
        encoder: of the policy's tokenizer.
        seeds: of the episodes' starts, by group, and of the choices, by episode and turn.
        end_ids: the tokens that end a message.
        max_tokens: the most tokens of one message; one that is longer is cut there.
        group_size: how many consecutive episodes start alike.
        first: the number of the first episode.

    Raises:
        EnvError: the environment starts its slots anew by itself, or changes what was said before.
    """
    if env.metadata.get("autoreset_mode") != AutoresetMode.DISABLED:
        raise EnvError(
            "collecting turns needs an environment that leaves finished slots alone; make it with autoreset=False"
        )
    start = time.perf_counter()
    table = _Table(env, policy, encoder, seeds, frozenset(end_ids), max_tokens, group_size)
    waiting = deque(range(first, first + episodes))
    policy.begin(env.num_envs)
    while waiting or table.sequences:
        table.fill(waiting)
        table.speak()
        table.answer()
    rollout = _rollout([table.done[number] for number in sorted(table.done)])
    most_turns = int(getattr(env.envs[0].unwrapped, "max_turns", 0))
    rollout.limit = min(policy.context, most_turns * max_tokens) if most_turns else policy.context
    seconds = time.perf_counter() - start
    rollout.metrics.update(
        seconds_model=table.model_seconds, seconds_environment=seconds - table.model_seconds,
        turns=float(np.mean([one.turns for one in rollout.records])),
    )  # fmt: skip
    return rollout


@dataclass(slots=True)
class _Episode:
    """An episode that is going on."""

    number: int
    group: int
    seed: int
    opening: int = 0
    messages: tuple[Message, ...] = ()
    ids: list[int] = field(default_factory=list)
    prompt: int = 0
    """How many of the ids came before the model's first."""
    read: int = 0
    """How many of the ids are in the cache."""
    chosen: list[int] = field(default_factory=list)
    """The places in `ids` that the model chose."""
    logprobs: list[float] = field(default_factory=list)
    entropies: list[float] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    """By turn, how many decisions there were at its end."""
    rewards: list[float] = field(default_factory=list)
    said: Message | None = None
    cut_messages: int = 0
    """Messages that ended at `max_tokens`, or at the end of the model's context."""
    terminated: bool = False
    truncated: bool = False
    stop_reason: str = ""
    failure: str = ""

    @property
    def spoken(self) -> int:
        """The decisions of the message that is being spoken."""
        return len(self.chosen) - (self.ends[-1] if self.ends else 0)

    def segments(self) -> tuple[Segment, ...]:
        own = dict(zip(self.chosen, self.logprobs, strict=True))
        found: list[Segment] = []
        start = 0
        for place in range(1, len(self.ids) + 1):
            if place == len(self.ids) or (place in own) != (start in own):
                stretch = range(start, place)
                found.append(Segment(
                    tuple(self.ids[start:place]), (start in own,) * len(stretch), tuple(own.get(k, 0.0) for k in stretch)
                ))  # fmt: skip
                start = place
        return tuple(found)

    def finished(self) -> TurnEpisode:
        return TurnEpisode(
            self.number, self.group, self.seed, self.opening, self.messages, self.segments(), tuple(self.rewards),
            self.terminated, self.truncated, self.stop_reason, self.failure, self.cut_messages,
        )  # fmt: skip


class _Table:
    """The slots of an environment with the episodes in them: filled, spoken in, answered."""

    def __init__(
        self,
        env: Any,
        policy: LanguageModelPolicy,
        encoder: ChatEncoder,
        seeds: Seeds,
        end_ids: frozenset[int],
        max_tokens: int,
        group_size: int,
    ) -> None:
        self.env, self.policy, self.encoder, self.seeds = env, policy, encoder, seeds
        self.end_ids, self.max_tokens, self.group_size = end_ids, min(max_tokens, policy.context), group_size
        self.sequences: dict[int, _Episode] = {}
        self.done: dict[int, _Episode] = {}
        self.model_seconds = 0.0

    def fill(self, waiting: deque[int]) -> None:
        """Start episodes in the slots that are free."""
        while waiting and len(self.sequences) < self.env.num_envs:
            mask = np.zeros(self.env.num_envs, dtype=bool)
            seeds: list[int | None] = [None] * self.env.num_envs
            for slot in (slot for slot in range(self.env.num_envs) if slot not in self.sequences):
                if waiting:
                    number = waiting.popleft()
                    group = number // self.group_size
                    seed = self.seeds.derive("episode", group).integer() % 2**31
                    self.sequences[slot] = _Episode(number, group, seed)
                    mask[slot], seeds[slot] = True, seed
            observations, infos = self.env.reset(seed=seeds, options={"reset_mask": mask})
            for slot in np.flatnonzero(mask).tolist():
                self._open(slot, observations[slot].messages, infos)

    def _open(self, slot: int, messages: tuple[Message, ...], infos: Mapping[str, Any]) -> None:
        sequence = self.sequences[slot]
        sequence.messages, sequence.opening = messages, len(messages)
        if not infos["active"][slot]:
            self._leave(slot, "failed", infos["failure"][slot])
            return
        sequence.ids = list(self.encoder.opening(messages))
        sequence.prompt = len(sequence.ids)
        if sequence.prompt >= self.policy.context:
            told = f"the opening of an episode has {sequence.prompt} tokens; the model reads {self.policy.context}"
            self._leave(slot, "context", Failure(FailureCause.CONTEXT_LENGTH, told))

    def speak(self) -> None:
        """Let the model say a message in every slot; those that are done wait for the others."""
        slots, start = self.env.num_envs, time.perf_counter()
        fresh, active = np.zeros(slots, dtype=bool), np.zeros(slots, dtype=bool)
        uniforms, speaking = np.zeros((slots, self.max_tokens)), dict(self.sequences)
        for slot, sequence in self.sequences.items():
            active[slot] = True
            fresh[slot] = not sequence.read or ANEW * (len(sequence.ids) - sequence.read) > len(sequence.ids)
            generator = self.seeds.derive("message", sequence.number, len(sequence.ends)).generator()
            uniforms[slot] = generator.random(self.max_tokens)
        while speaking:
            self._step(speaking, fresh, active, uniforms)
            fresh[:] = False
        self.model_seconds += time.perf_counter() - start

    def _step(self, speaking: dict[int, _Episode], fresh: np.ndarray, active: np.ndarray, uniforms: np.ndarray) -> None:
        """Every slot reads a token, or all of them; where it has read them all it chooses the next."""
        slots = len(active)
        length, uniform, waiting = np.zeros(slots, dtype=np.int64), np.zeros(slots), active.copy()
        for slot, sequence in speaking.items():
            waiting[slot] = False
            length[slot] = len(sequence.ids) if fresh[slot] else sequence.read + 1
            uniform[slot] = uniforms[slot, sequence.spoken]
        tokens = np.zeros((slots, int(length.max())), dtype=np.int64)
        for slot, sequence in speaking.items():
            n = int(length[slot])
            tokens[slot, 0 if fresh[slot] else n - 1 : n] = sequence.ids[:n] if fresh[slot] else sequence.ids[n - 1]
        choices, logprobs, entropies = self.policy.act(tokens, length, fresh, active, uniform, waiting_S=waiting)
        for slot, sequence in list(speaking.items()):
            sequence.read = int(length[slot])
            if sequence.read < len(sequence.ids):
                continue  # What was given is still being read.
            sequence.chosen.append(len(sequence.ids))
            sequence.ids.append(int(choices[slot]))
            sequence.logprobs.append(float(logprobs[slot]))
            sequence.entropies.append(float(entropies[slot]))
            ended = sequence.ids[-1] in self.end_ids
            if ended or sequence.spoken == self.max_tokens or len(sequence.ids) == self.policy.context:
                own = sequence.ids[len(sequence.ids) - sequence.spoken : len(sequence.ids) - ended]
                sequence.cut_messages += not ended
                sequence.said = Message("assistant", str(self.encoder.tokenizer.decode(own, skip_special_tokens=True)))
                del speaking[slot]

    def answer(self) -> None:
        """Hand the messages to the environment, and write down what it answers."""
        if not self.sequences:
            return
        actions = [sequence.said if (sequence := self.sequences.get(slot)) else "" for slot in range(self.env.num_envs)]
        step = self.env.step(actions)
        full = []
        for slot, sequence in list(self.sequences.items()):
            sequence.ends.append(len(sequence.chosen))
            sequence.rewards.append(float(step[1][slot]))
            if self._over(slot, step):
                continue
            assert sequence.said is not None
            reply = self._grown(sequence, step[0][slot].messages)
            given = self.encoder.answer(sequence.messages, sequence.said, reply, sequence.ids[-1])
            sequence.messages = step[0][slot].messages
            if len(sequence.ids) + len(given) >= self.policy.context:
                full.append(slot)
            else:
                sequence.ids += given
        if full:
            step = self.env.stop(dict.fromkeys(full, "context"))
            for slot in full:
                self.sequences[slot].rewards[-1] += float(step[1][slot])
                self._over(slot, step)

    def _over(self, slot: int, step: tuple[Any, ...]) -> bool:
        """Write down the end of an episode, if this is one."""
        sequence = self.sequences[slot]
        sequence.terminated, sequence.truncated = bool(step[2][slot]), bool(step[3][slot])
        if not sequence.terminated and not sequence.truncated:
            return False
        info = step[4]["final_info"][slot]
        sequence.messages = step[4]["final_obs"][slot].messages
        self._leave(slot, str(info.get("stop_reason", "")), info.get("failure"))
        return True

    def _leave(self, slot: int, stop_reason: str, failure: Failure | None = None) -> None:
        sequence = self.sequences.pop(slot)
        sequence.stop_reason = stop_reason
        if failure is not None:
            sequence.failure = f"{failure.cause}: {failure.message}"
        self.done[sequence.number] = sequence

    def _grown(self, sequence: _Episode, messages: tuple[Message, ...]) -> tuple[Message, ...]:
        """What came behind the model's message."""
        known = len(sequence.messages)
        if messages[:known] != sequence.messages or len(messages) <= known or messages[known] != sequence.said:
            raise EnvError(
                f"the environment changed what was said before turn {len(sequence.ends)}; a conversation may only grow at its end"
            )
        return messages[known + 1 :]


def _rollout(sequences: Sequence[_Episode]) -> Rollout:
    """Sequences of decisions; what was given between them is in the inputs alone."""
    count = len(sequences)
    lengths = torch.tensor([len(sequence.chosen) for sequence in sequences])
    width = max(1, int(lengths.max()))
    logprobs, entropies, rewards = (np.zeros((count, width), dtype=np.float32) for _ in range(3))
    for row, sequence in enumerate(sequences):
        n = len(sequence.chosen)
        logprobs[row, :n], entropies[row, :n] = sequence.logprobs, sequence.entropies
        for end, reward in zip(sequence.ends, sequence.rewards, strict=True):
            rewards[row, end - 1] += reward
    place_BT = torch.arange(width)[None]
    last_BT = place_BT == lengths[:, None] - 1
    terminated_B = torch.tensor([sequence.terminated for sequence in sequences])
    known = [sequence for sequence in sequences if not sequence.failure]
    return Rollout(
        rewards_BT=torch.from_numpy(rewards),
        logprobs_BT=torch.from_numpy(logprobs),
        mask_BT=place_BT < lengths[:, None],
        terminated_BT=last_BT & terminated_B[:, None],
        ended_BT=last_BT,
        inputs=TokenInputs(
            # A sequence in which nothing was said is still read, with the others; what it holds does not matter.
            [tuple(sequence.ids[: sequence.prompt]) if sequence.chosen else (0,) for sequence in sequences],
            [tuple(sequence.ids[sequence.prompt :]) for sequence in sequences],
            chosen=[np.array(sequence.chosen, dtype=np.int64) - sequence.prompt for sequence in sequences],
        ),
        entropy_BT=torch.from_numpy(entropies),
        group_B=torch.tensor([sequence.group for sequence in sequences]),
        valid_B=torch.tensor([not sequence.failure for sequence in sequences]),
        cut_B=torch.tensor(
            [not sequence.failure and (sequence.truncated or sequence.cut_messages > 0) for sequence in sequences]
        ),
        episode_returns=[float(sum(sequence.rewards)) for sequence in known],
        episode_lengths=[len(sequence.chosen) for sequence in known],
        failures=[sequence.failure for sequence in sequences if sequence.failure],
        records=[sequence.finished() for sequence in sequences],
    )
