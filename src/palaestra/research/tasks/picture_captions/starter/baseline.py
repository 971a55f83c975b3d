"""The baseline: the caption of the most similar training picture, by its pixels. Writes captions.json."""

import json

import numpy as np


def load(split: str) -> np.ndarray:
    return np.load(f"/data/{split}_pictures.npy").reshape(-1, 1200) / 255.0


train = load("train")
with open("/data/train_captions.json", encoding="utf-8") as file:
    captions = json.load(file)
result = {}
for split in ("validation", "test"):
    pictures = load(split)
    distances = (pictures**2).sum(1)[:, None] - 2 * pictures @ train.T + (train**2).sum(1)
    result[split] = [captions[place] for place in distances.argmin(1)]
with open("captions.json", "w", encoding="utf-8") as out:
    json.dump(result, out)
