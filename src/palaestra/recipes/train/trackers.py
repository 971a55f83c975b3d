"""Trackers of metrics beside the store: TensorBoard and Weights & Biases. Both are optional dependencies."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from palaestra.core.errors import MissingExtraError


class Tracker(Protocol):
    """Logs the metrics of each iteration."""

    def log(self, iteration: int, metrics: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


class TensorBoardTracker:
    """Writes event files to `tensorboard/` in the run folder."""

    def __init__(self, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str(folder / "tensorboard"))

    def log(self, iteration: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self.writer.add_scalar(name, value, iteration)

    def close(self) -> None:
        self.writer.close()


class WandbTracker:
    """Logs to a project of Weights & Biases, configured by wandb's own environment variables (`WANDB_MODE`, ...)."""

    def __init__(self, project: str, folder: Path, settings: Mapping[str, Any]) -> None:
        import wandb

        self.run = wandb.init(project=project, dir=str(folder), config=dict(settings), name=folder.name)

    def log(self, iteration: int, metrics: Mapping[str, float]) -> None:
        self.run.log(dict(metrics), step=iteration)

    def close(self) -> None:
        self.run.finish()


def check_trackers(tensorboard: bool, wandb: str) -> None:
    """Raise `MissingExtraError` if a tracker is requested and not installed."""
    if tensorboard and find_spec("tensorboard") is None:
        raise MissingExtraError("tensorboard", "tensorboard", "writing metrics for TensorBoard")
    if wandb and find_spec("wandb") is None:
        raise MissingExtraError("wandb", "wandb", "logging to Weights & Biases")


def make_trackers(folder: Path, tensorboard: bool, wandb: str, settings: Mapping[str, Any]) -> list[Tracker]:
    trackers: list[Tracker] = []
    if tensorboard:
        trackers.append(TensorBoardTracker(folder))
    if wandb:
        trackers.append(WandbTracker(wandb, folder, settings))
    return trackers
