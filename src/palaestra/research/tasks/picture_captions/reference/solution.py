"""Read facts from the captions, train a small convolutional network to see them, and write them as a caption. Writes captions.json."""

import json
import re

import numpy as np
import torch
from torch import nn

EPOCHS, BATCH, RATE = 30, 64, 4e-3
SIZES, COLORS = ("small", "large"), ("red", "green", "blue", "yellow", "purple")
SHAPES, RELATIONS = ("circle", "square", "triangle", "cross"), ("left of", "above")
OPPOSITE = {"right of": "left of", "below": "above"}
HEADS = (RELATIONS, SIZES, COLORS, SHAPES, SIZES, COLORS, SHAPES)


def read_facts(caption: str) -> list[int]:
    """The relation, and size, color and shape of the left or upper shape and of the other one."""
    relation = re.search("left of|right of|above|below", caption)[0]
    words = [word for word in caption.split() if any(word in names for names in (SIZES, COLORS, SHAPES))]
    one, other = words[:3], words[3:]
    if caption.startswith(relation):
        one, other = other, one
    if relation in OPPOSITE:
        relation, one, other = OPPOSITE[relation], other, one
    return [names.index(word) for names, word in zip(HEADS, (relation, *one, *other), strict=True)]


def load(split: str) -> torch.Tensor:
    return torch.from_numpy(np.load(f"/data/{split}_pictures.npy") / 255.0).float().permute(0, 3, 1, 2)


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    with open("/data/train_captions.json", encoding="utf-8") as file:
        facts = torch.tensor([read_facts(caption) for caption in json.load(file)])
    pictures = load("train")
    network = nn.Sequential(
        nn.Conv2d(3, 24, 3, padding=1), nn.BatchNorm2d(24), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(24, 48, 3, padding=1), nn.BatchNorm2d(48), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(48, 48, 3, padding=1), nn.BatchNorm2d(48), nn.ReLU(), nn.Flatten(),
        nn.Dropout(0.3), nn.Linear(48 * 25, 128), nn.ReLU(), nn.Linear(128, sum(map(len, HEADS))),
    )  # fmt: skip
    steps = EPOCHS * -(-len(pictures) // BATCH)
    optimizer = torch.optim.AdamW(network.parameters(), weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=steps)
    for _ in range(EPOCHS):
        for part in torch.randperm(len(pictures)).split(BATCH):
            outputs = network(pictures[part] + 0.05 * torch.randn(1)).split(list(map(len, HEADS)), 1)
            loss = sum(nn.functional.cross_entropy(output, facts[part, k]) for k, output in enumerate(outputs))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    network.eval()
    result = {}
    for split in ("validation", "test"):
        with torch.no_grad():
            outputs = network(load(split)).split(list(map(len, HEADS)), 1)
        words = [[names[k] for k in output.argmax(1)] for names, output in zip(HEADS, outputs, strict=True)]
        result[split] = [
            f"a {a} {b} {c} {relation} a {d} {e} {f}" for relation, a, b, c, d, e, f in zip(*words, strict=True)
        ]
    with open("captions.json", "w", encoding="utf-8") as out:
        json.dump(result, out)


if __name__ == "__main__":
    main()
