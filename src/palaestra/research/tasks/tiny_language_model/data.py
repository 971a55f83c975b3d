"""Small documents in an invented language with a fixed lexicon and long-range structure.

Accounts with correct sums, letters with answers, rhyming verses, reversed lists: the last few characters predict plausible
words, but not the right ones.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np

ALPHABET = "\n '(),-.0123456789:;?abcdefghijklmnopqrstuvwxyz"
DOCUMENTS = 6000
CONTEXTS = 3000
MAX_CONTEXT = 200
NAMES = (
    "anna", "boris", "carla", "dmitri", "elena", "felix", "greta", "hugo", "irma", "jonas", "klara", "leo", "mina", "nils",
)  # fmt: skip
ENDINGS = ("a", "um", "et")


class Language:
    """A lexicon of invented words: nouns of three classes, and adjectives and verbs that agree with them."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        onsets = ["b", "d", "f", "g", "k", "l", "m", "n", "p", "r", "s", "t", "v", "z", "st", "tr", "bl", "gr", "pl"]
        vowels = ["a", "e", "i", "o", "u", "ai", "ou"]
        codas = ["", "", "n", "r", "l", "s", "t", "m"]
        words: dict[str, None] = {}
        while len(words) < 420:
            syllables = range(rng.choice([1, 2, 2, 3]))
            stem = "".join(self._choose(onsets) + self._choose(vowels) + self._choose(codas) for _ in syllables)
            words[stem] = None
        stems = [stem + "k" if len(stem) < 3 else stem for stem in words]
        self.nouns = [stems[:60], stems[60:120], stems[120:180]]
        self.adjectives, self.verbs, self.adverbs = stems[180:260], stems[260:360], stems[360:420]

    def document(self) -> str:
        """Generate one document, which ends with an empty line."""
        kinds: list[Callable[[], str]] = [self.account, self.exchange, self.verses, self.backwards, self.tale]
        return kinds[int(self.rng.choice(len(kinds), p=[0.2, 0.2, 0.2, 0.15, 0.25]))]() + "\n\n"

    def account(self) -> str:
        """An account: who has how many of what, and the changes."""
        who, other = self.rng.choice(NAMES, 2, replace=False)
        what, has = self._noun()[0], int(self.rng.integers(3, 60))
        lines = [f"{who} has {has} {what}."]
        for _ in range(self.rng.integers(2, 5)):
            by = int(self.rng.integers(1, 20))
            if by < has and self.rng.random() < 0.5:
                has -= by
                lines.append(f"{who} gives {by} to {other}: {has} left.")
            else:
                has += by
                lines.append(f"{other} gives {by} to {who}: {has} now.")
        return "\n".join([*lines, f"{who} has {has} {what} in the end."])

    def exchange(self) -> str:
        """A letter and its answer, which repeats the request."""
        writer, reader = self.rng.choice(NAMES, 2, replace=False)
        adjective, noun = self._phrase()
        place = self._rare(self.adverbs)
        return (
            f"dear {reader}, {self.sentence()} where is the {adjective} {noun}? yours, {writer}\n"
            f"dear {writer}, the {adjective} {noun} is {place}. {self.sentence()} yours, {reader}"
        )

    def verses(self) -> str:
        """A verse of four lines with the rhyme scheme ABAB."""
        ends = [self._rare(self.verbs), self._rare(self.adverbs)]
        lines = [f"{' '.join(self._phrase())} {self._rare(self.adverbs)} {ends[k % 2]}" for k in range(4)]
        return ",\n".join(lines) + "."

    def backwards(self) -> str:
        """A list, and the reversed list."""
        words = [self._noun()[0] for _ in range(self.rng.integers(3, 7))]
        return f"say: {', '.join(words)}\nback: {', '.join(reversed(words))} ({len(words)} words)"

    def tale(self) -> str:
        """A tale: every line begins with the hero, and brackets are balanced."""
        hero = str(self.rng.choice(NAMES))
        lines = []
        for _ in range(self.rng.integers(3, 6)):
            aside = f" ({self.sentence()[:-1]})" if self.rng.random() < 0.4 else ""
            lines.append(f"{hero} {self._rare(self.verbs)} the {' '.join(self._phrase())}{aside};")
        return "\n".join(lines) + f" so ends {hero}."

    def sentence(self) -> str:
        """A noun with adjective and verb that agree with its class."""
        adjective, noun = self._phrase()
        ending = ENDINGS[self._class]
        return f"{adjective} {noun} {self._rare(self.verbs)}{ending} {self._rare(self.adverbs)}."

    def _phrase(self) -> tuple[str, str]:
        noun, self._class = self._noun()
        return self._rare(self.adjectives) + ENDINGS[self._class], noun

    def _noun(self) -> tuple[str, int]:
        kind = int(self.rng.integers(3))
        return self._rare(self.nouns[kind]), kind

    def _rare(self, words: list[str]) -> str:
        """Sample a word; later words are rarer."""
        return words[int(len(words) * self.rng.random() ** 2)]

    def _choose(self, of: list[str]) -> str:
        return of[int(self.rng.integers(len(of)))]


def make(public: Path, hidden: Path, rng: np.random.Generator) -> None:
    language = Language(rng)
    (public / "train.txt").write_text("".join(language.document() for _ in range(DOCUMENTS)), encoding="utf-8")
    (public / "alphabet.json").write_text(json.dumps(list(ALPHABET)), encoding="utf-8")
    for split in ("validation", "test"):
        # Each context is from a different document, so that no context reveals another target.
        asked = []
        for _ in range(CONTEXTS):
            text = language.document()
            at = int(rng.integers(1, len(text)))
            asked.append((text[max(0, at - MAX_CONTEXT) : at], text[at]))
        (hidden / f"{split}.json").write_text(json.dumps(asked), encoding="utf-8")
