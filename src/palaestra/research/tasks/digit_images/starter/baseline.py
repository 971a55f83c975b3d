"""The baseline: logistic regression on the grey values."""

import csv

import numpy as np
from sklearn.linear_model import LogisticRegression


def pixels(split: str) -> np.ndarray:
    images = np.load(f"/data/{split}_images.npy")
    return images.reshape(len(images), -1) / 255.0


def main() -> None:
    model = LogisticRegression(C=0.05, max_iter=300)
    model.fit(pixels("train"), np.load("/data/train_labels.npy"))
    with open("submission.csv", "w", encoding="utf-8", newline="") as out:
        writer = csv.writer(out)
        writer.writerow(["id", "prediction"])
        for split in ("validation", "test"):
            for k, digit in enumerate(model.predict(pixels(split))):
                writer.writerow([f"{split}-{k}", digit])


if __name__ == "__main__":
    main()
