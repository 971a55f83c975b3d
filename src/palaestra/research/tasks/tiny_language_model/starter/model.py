"""The baseline: chances by the last two characters, mixed with those by the last one, by none, and the same for all."""

import json
import math

with open("/data/alphabet.json", encoding="utf-8") as file:
    ALPHABET = json.load(file)
with open("weights.json", encoding="utf-8") as file:
    COUNTS = json.load(file)
ORDER = 2
MIXED = 5.0
"""How many observations the chances by fewer characters are worth."""


def log_probs(contexts: list[str]) -> list[list[float]]:
    """For each context, the natural logarithm of the chance of each character of the alphabet to come next."""
    return [[math.log(chance) for chance in chances(context)] for context in contexts]


def chances(context: str) -> list[float]:
    found = [1 / len(ALPHABET)] * len(ALPHABET)
    for order in range(min(ORDER, len(context)) + 1):
        seen = COUNTS.get(context[len(context) - order :], {})
        total = sum(seen.values()) + MIXED
        found = [(seen.get(one, 0) + MIXED * less) / total for one, less in zip(ALPHABET, found, strict=True)]
    return [0.999 * chance + 0.001 / len(ALPHABET) for chance in found]
