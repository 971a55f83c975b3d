"""Train the baseline: counts of which character follows which two, one or none."""

import json
from collections import Counter, defaultdict

ORDER = 2


def main() -> None:
    with open("/data/train.txt", encoding="utf-8", newline="") as file:
        text = file.read()
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for order in range(ORDER + 1):
        for k in range(order, len(text)):
            counts[text[k - order : k]][text[k]] += 1
    with open("weights.json", "w", encoding="utf-8") as out:
        json.dump(counts, out)


if __name__ == "__main__":
    main()
