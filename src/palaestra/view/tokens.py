"""Episodes token by token: the text of each token, its log-prob, and its colour."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from palaestra.core.records import Trajectory

SHADES = 5
"""Number of shades of a token."""


@dataclass(frozen=True, slots=True)
class ShownToken:
    """One token of an episode.

    Arguments:
        own: whether the model sampled it.
        shade: from 0, certain, to `SHADES - 1`; -1 without a colour.
    """

    text: str
    id: int
    own: bool
    logprob: float
    shade: int


def read_tokens(trajectory: Trajectory, tokenizer: Tokenizer | None) -> list[ShownToken]:
    """The tokens of all segments. Without a tokenizer the texts are the ids."""
    ids = [token for segment in trajectory.segments for token in segment.token_ids]
    texts = _decode_each(ids, tokenizer) if tokenizer is not None else [f"{token} " for token in ids]
    chosen = [own for segment in trajectory.segments for own in segment.chosen]
    logprobs = [value for segment in trajectory.segments for value in segment.logprobs]
    return [
        ShownToken(text, token, own, logprob, shade(logprob) if own else -1)
        for text, token, own, logprob in zip(texts, ids, chosen, logprobs, strict=True)
    ]


def shade(logprob: float) -> int:
    """The shade of a log-prob: one for each factor of four in the probability.

    >>> [shade(math.log(p)) for p in (1.0, 0.5, 0.1, 0.02, 1e-6)]
    [0, 0, 1, 2, 4]
    """
    return min(SHADES - 1, max(0, int(-logprob / math.log(4))))


def _decode_each(ids: list[int], tokenizer: Tokenizer) -> list[str]:
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
        start, done, previous = (
            max(0, place - 4),
            place,
            tokenizer.decode(ids[max(0, place - 4) : place], skip_special_tokens=False),
        )
    return texts


def find_tokenizer(folder: Path, settings: Mapping[str, Any]) -> Tokenizer | None:
    """The tokenizer of a run's model, if its file is on this machine."""
    model = str(settings.get("model") or settings.get("student") or "")
    places = [folder / "model", Path(model)] if model else [folder / "model"]
    if model in ("nano", "nano-vlm"):
        places.append(Path(str(files("palaestra") / "assets" / model.replace("-", "_"))))
    for place in places:
        if (place / "tokenizer.json").is_file():
            return _load(str(place / "tokenizer.json"))
    return None


@lru_cache(maxsize=4)
def _load(path: str) -> Tokenizer:
    return Tokenizer.from_file(path)
