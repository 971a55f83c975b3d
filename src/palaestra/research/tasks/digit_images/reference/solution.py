"""A small convolutional network with random rotations, shifts and scratches in every epoch.

There are few training pictures, so augmentation is essential. The contrast of each picture is normalised. The predictions of
several slightly shifted copies are averaged.
"""

import numpy as np
import torch
from baseline import write_submission
from torch import nn
from torch.nn import functional

PASSES = 32
BATCH = 64
RATE = 4e-3


def images(split: str) -> torch.Tensor:
    """Normalise pictures to mean 0 and standard deviation 1."""
    pictures = torch.from_numpy(np.load(f"/data/{split}_images.npy")).float()[:, None] / 255
    pictures = pictures - pictures.mean((1, 2, 3), keepdim=True)
    return pictures / pictures.std((1, 2, 3), keepdim=True)


def changed(pictures: torch.Tensor, random: torch.Generator, size: float = 1.0) -> torch.Tensor:
    """Rotate, shear, scale, shift and bend copies, and add a little noise."""
    count = len(pictures)

    def normal(scale: float) -> torch.Tensor:
        return torch.randn(count, generator=random) * scale * size

    angle, shear, down, right = normal(0.2), normal(0.15), torch.exp(normal(0.12)), torch.exp(normal(0.12))
    cosine, sine = angle.cos(), angle.sin()
    rows = [
        torch.stack([cosine * right, (shear * cosine - sine) * down, normal(0.1)], 1),
        torch.stack([sine * right, (shear * sine + cosine) * down, normal(0.1)], 1),
    ]
    grid = functional.affine_grid(torch.stack(rows, 1), list(pictures.shape), align_corners=False)
    phase = torch.rand(4, count, 1, 1, generator=random)
    wave = 0.06 * size * torch.sin(2 * (grid[..., 0] * phase[0] + grid[..., 1] * phase[1]) + 6.3 * phase[2])
    bent = functional.grid_sample(pictures, grid + wave[..., None], padding_mode="border", align_corners=False)
    return bent + torch.randn(bent.shape, generator=random) * 0.15 * size


def network() -> nn.Module:
    def block(inside: int, outside: int) -> list[nn.Module]:
        return [nn.Conv2d(inside, outside, 3, padding=1, bias=False), nn.BatchNorm2d(outside), nn.ReLU()]

    features = [*block(1, 16), nn.MaxPool2d(2), *block(16, 32), *block(32, 32), nn.MaxPool2d(2), *block(32, 64)]
    return nn.Sequential(*features, nn.Flatten(), nn.Dropout(0.4), nn.Linear(1600, 10))


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    random = torch.Generator().manual_seed(0)
    pictures, labels = images("train"), torch.from_numpy(np.load("/data/train_labels.npy"))
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.02)
    steps = PASSES * (len(pictures) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=steps)
    for _ in range(PASSES):
        order = torch.randperm(len(pictures), generator=random)
        for k in range(len(pictures) // BATCH):
            chosen = order[k * BATCH : (k + 1) * BATCH]
            loss = functional.cross_entropy(
                model(changed(pictures[chosen], random)), labels[chosen], label_smoothing=0.1
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    model.eval()

    @torch.no_grad()
    def predict(split: str) -> list[int]:
        seen = images(split)
        chances = model(seen).softmax(1) * 2
        for _ in range(6):
            chances += model(changed(seen, random, 0.4)).softmax(1)
        return chances.argmax(1).tolist()

    write_submission(predict)


if __name__ == "__main__":
    main()
