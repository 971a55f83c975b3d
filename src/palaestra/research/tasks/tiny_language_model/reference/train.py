"""Count what follows the last 1 to 14 characters, and learn the weights of the counts and of repetitions.

The counts are sorted hashes. The weights are learned on documents that were not counted: a log-linear mixture with weights
that depend on the frequency of a context and its confidence.
"""

import numpy as np
import torch
from model import Counts, experts, text_of

HELD_OUT = 400
POSITIONS = 6000


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with open("/data/train.txt", encoding="utf-8", newline="") as file:
        documents = [part + "\n\n" for part in file.read().split("\n\n") if part]
    counts = Counts.of("".join(documents[HELD_OUT:]))
    rng = np.random.default_rng(0)
    contexts, targets = [], []
    for _ in range(POSITIONS):
        text = documents[rng.integers(HELD_OUT)]
        at = int(rng.integers(1, len(text)))
        contexts.append(text[max(0, at - 200) : at])
        targets.append(text_of(text[at])[0])
    values, trust = (torch.from_numpy(part) for part in experts(contexts, counts))
    right = torch.from_numpy(np.array(targets, dtype=np.int64))
    # The weight of each expert is linear in its features.
    weights = torch.full(trust.shape[1:], 0.02, requires_grad=True)
    optimizer = torch.optim.Adam([weights], 0.02)
    for _ in range(250):
        chosen = torch.from_numpy(rng.integers(len(right), size=1500))
        mixed = torch.einsum("nkf,kf,nkc->nc", trust[chosen], weights, values[chosen])
        loss = torch.nn.functional.cross_entropy(mixed, right[chosen]) + 1e-4 * (weights**2).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    everything = Counts.of("".join(documents))
    np.savez_compressed("weights.npz", mixture=weights.detach().numpy(), **everything.arrays())


if __name__ == "__main__":
    main()
