"""Episodes token by token: the text of each token, its values and its alternatives."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from tokenizers import Tokenizer

from palaestra.core.records import Json, Segment, Trajectory
from palaestra.models.embedded import EMBEDDED
from palaestra.view.texts import make_visible

_CONTEXT = 8
"""Tokens before a part that are decoded with it: a character may begin there."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """A likely token at the place of a sampled one."""

    text: str
    id: int
    logprob: float


@dataclass(frozen=True, slots=True)
class ShownToken:
    """One token of an episode. Values are `None` where they are not known, and for tokens that were given.

    Arguments:
        place: the number of the token in its episode.
        own: whether the model sampled it.
        divergence: its log-prob when it was sampled minus that under the reference.
    """

    place: int
    text: str
    id: int
    own: bool
    logprob: float | None = None
    advantage: float | None = None
    entropy: float | None = None
    reference_logprob: float | None = None
    alternatives: tuple[Alternative, ...] = ()

    @property
    def divergence(self) -> float | None:
        if self.logprob is None or self.reference_logprob is None:
            return None
        return self.logprob - self.reference_logprob

    @property
    def visible_text(self) -> str:
        """The text with signs for control characters, which could hide or reorder what follows."""
        return make_visible(self.text)

    @property
    def description(self) -> str:
        """Everything that is known, one line for each value."""
        if not self.own or self.logprob is None:
            return f"token {self.place}, id {self.id}, given"
        lines = [
            f"token {self.place}, id {self.id}",
            f"log-prob {_round(self.logprob):.3f} ({_format_probability(self.logprob)})",
        ]
        if self.advantage is not None:
            lines.append(f"advantage {_round(self.advantage):+.3f}")
        if self.entropy is not None:
            lines.append(f"entropy {_round(self.entropy):.3f} nats")
        if self.divergence is not None:
            lines.append(f"divergence {_round(self.divergence):+.3f} nats")
        if self.alternatives:
            lines.append(f"most likely: {self.describe_alternatives()}")
        return "\n".join(lines)

    def describe_alternatives(self) -> str:
        """The alternatives with their probabilities, the most likely first."""
        return ", ".join(f"{a.text!r} {_format_probability(a.logprob)}" for a in self.alternatives)


@dataclass(frozen=True, slots=True)
class ShownSegment:
    """Consecutive tokens of an episode that were all given or all sampled.

    Arguments:
        title: whose tokens they are.
        reward: the reward of a turn, if turns have rewards.
        tokens: those that are shown.
    """

    title: str
    own: bool
    reward: float | None
    tokens: list[ShownToken]


def read_segments(
    trajectory: Trajectory, tokenizer: Tokenizer | None, start: int = 0, count: int | None = None
) -> list[ShownSegment]:
    """The segments of an episode with the tokens from number `start` on, at most `count` of them.

    Without a tokenizer the texts are the ids.
    """
    ids = [token for segment in trajectory.segments for token in segment.token_ids]
    end = len(ids) if count is None else min(len(ids), start + count)
    texts = _decode_part(ids, start, end, tokenizer)
    decode = _make_decoder(tokenizer)
    turns = sum(any(segment.chosen) for segment in trajectory.segments)
    segments, first, turn = [], 0, 0
    for position, segment in enumerate(trajectory.segments):
        own, last = any(segment.chosen), first + len(segment.token_ids)
        turn += own
        places = range(max(start, first), min(end, last))
        if places:
            tokens = [_read_token(segment, k - first, k, texts[k - start], decode) for k in places]
            reward = trajectory.rewards[turn - 1] if own and 1 < turns == len(trajectory.rewards) else None
            segments.append(ShownSegment(_name_segment(own, position, turn, turns), own, reward, tokens))
        first = last
    return segments


def _name_segment(own: bool, position: int, turn: int, turns: int) -> str:
    if own:
        return f"Model, turn {turn} of {turns}" if turns > 1 else "Response"
    return "Prompt" if position == 0 else "Environment"


def _read_token(segment: Segment, k: int, place: int, text: str, decode: Callable[[int], str]) -> ShownToken:
    if not segment.chosen[k]:
        return ShownToken(place, text, segment.token_ids[k], False)
    best = segment.alternatives[k] if segment.alternatives else ()
    optional = (segment.advantages, segment.entropies, segment.reference_logprobs)
    advantage, entropy, reference = (stored[k] if stored else None for stored in optional)
    alternatives = tuple(Alternative(decode(id_), id_, logprob) for id_, logprob in best)
    token, logprob = segment.token_ids[k], segment.logprobs[k]
    return ShownToken(place, text, token, True, logprob, advantage, entropy, reference, alternatives)


def _format_probability(logprob: float) -> str:
    """Format the probability of a log-prob.

    >>> _format_probability(math.log(0.5)), _format_probability(-12.0)
    ('50.0 %', '6.1e-04 %')
    """
    percent = 100 * math.exp(min(0.0, logprob))
    return f"{percent:.1f} %" if percent >= 0.1 else f"{percent:.1e} %"


def _round(value: float) -> float:
    """Round to three decimals, without a negative zero."""
    return round(value, 3) + 0.0


def _make_decoder(tokenizer: Tokenizer | None) -> Callable[[int], str]:
    """A function that decodes single tokens and remembers their texts."""
    if tokenizer is None:
        return str
    return lru_cache(maxsize=None)(lambda id_: tokenizer.decode([id_], skip_special_tokens=False))


def _decode_part(ids: Sequence[int], start: int, end: int, tokenizer: Tokenizer | None) -> list[str]:
    if tokenizer is None:
        return [f"{token} " for token in ids[start:end]]
    before = max(0, start - _CONTEXT)
    return _decode_each(ids[before:end], tokenizer)[start - before :]


def _decode_each(ids: Sequence[int], tokenizer: Tokenizer) -> list[str]:
    """The text that each token adds. A character of several tokens is shown at the last of them."""
    texts: list[str] = []
    start = done = 0
    previous = ""
    for place in range(1, len(ids) + 1):
        # Decoding from the last complete character keeps the cost linear.
        text = tokenizer.decode(ids[start:place], skip_special_tokens=False)
        if text.endswith("�") and place - done < 4:
            texts.append("")
            continue
        texts.append(text[len(previous) :])
        start, done = max(0, place - 4), place
        previous = tokenizer.decode(ids[start:place], skip_special_tokens=False)
    return texts


def find_tokenizer(folder: Path, settings: Json) -> Tokenizer | None:
    """The tokenizer of a run's model, if its file is on this machine."""
    model = str(settings.get("model") or settings.get("student") or "")
    places = [folder / "model", Path(model)] if model else [folder / "model"]
    if model in EMBEDDED:
        places.append(EMBEDDED[model].folder)
    for place in places:
        if (place / "tokenizer.json").is_file():
            return _load(str(place / "tokenizer.json"))
    return None


@lru_cache(maxsize=4)
def _load(path: str) -> Tokenizer:
    return Tokenizer.from_file(path)
