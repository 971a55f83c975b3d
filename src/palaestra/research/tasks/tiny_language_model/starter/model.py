"""The baseline: trigram probabilities, interpolated with bigram, unigram and uniform ones."""

import json
import math

with open("/data/alphabet.json", encoding="utf-8") as file:
    ALPHABET = json.load(file)
with open("weights.json", encoding="utf-8") as file:
    COUNTS = json.load(file)
ORDER = 2
MIXED = 5.0
"""The weight of the shorter context, in observations."""


def log_probs(contexts: list[str]) -> list[list[float]]:
    """Return the natural log-probability of each next character of the alphabet, for each context."""
    return [[math.log(chance) for chance in chances(context)] for context in contexts]


def chances(context: str) -> list[float]:
    found = [1 / len(ALPHABET)] * len(ALPHABET)
    for order in range(min(ORDER, len(context)) + 1):
        seen = COUNTS.get(context[len(context) - order :], {})
        total = sum(seen.values()) + MIXED
        found = [(seen.get(one, 0) + MIXED * less) / total for one, less in zip(ALPHABET, found, strict=True)]
    return [0.999 * chance + 0.001 / len(ALPHABET) for chance in found]
