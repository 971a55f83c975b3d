"""Log the metrics of a run to TensorBoard, Weights & Biases and trackio, beside the run's store."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from palaestra.core.errors import MissingExtraError
from palaestra.core.secrets import mask_settings
from palaestra.recipes.settings import to_plain
from palaestra.recipes.train.settings import TrainSettings

TRACKERS = ("tensorboard", "wandb", "trackio")
"""The settings that enable a tracker; each is also the name of its package and of its extra."""


def check_trackers(settings: TrainSettings) -> None:
    """Raise if the package of an enabled tracker is not installed.

    Raises:
        MissingExtraError: names the install command.
    """
    for name in TRACKERS:
        if getattr(settings, name) and find_spec(name) is None:
            raise MissingExtraError(name, name, f"the setting '{name}'")


class Trackers:
    """Logs metrics to the trackers that the settings enable.

    The event files of TensorBoard are in `tensorboard/` of the run folder, those of Weights & Biases in `wandb/`. Weights &
    Biases and trackio are configured by their own environment variables (`WANDB_MODE`, `TRACKIO_DIR`, ...). A resumed run
    continues its entry in both.

    Arguments:
        run_id: the unique id of the run.
    """

    def __init__(self, folder: Path, settings: TrainSettings, run_id: str) -> None:
        self.tensorboard: Any = None
        self.wandb: Any = None
        self.trackio: Any = None
        name, config = folder.resolve().name, mask_settings(to_plain(settings))
        if settings.tensorboard:
            from torch.utils.tensorboard import SummaryWriter

            self.tensorboard = SummaryWriter(str(folder / "tensorboard"))
        if settings.wandb:
            import wandb

            self.wandb = wandb.init(
                project=settings.wandb, dir=str(folder), config=config, name=name, id=run_id, resume="allow"
            )
        if settings.trackio:
            import trackio

            self.trackio = trackio.init(
                project=settings.trackio, name=f"{name}-{run_id[:8]}", config=config, resume="allow", embed=False
            )

    def log(self, iteration: int, metrics: Mapping[str, float]) -> None:
        if self.tensorboard is not None:
            for name, value in metrics.items():
                self.tensorboard.add_scalar(name, value, iteration)
        if self.wandb is not None:
            self.wandb.log(dict(metrics), step=iteration)
        if self.trackio is not None:
            self.trackio.log(dict(metrics), step=iteration)

    def close(self) -> None:
        if self.tensorboard is not None:
            self.tensorboard.close()
        for tracker in (self.wandb, self.trackio):
            if tracker is not None:
                tracker.finish()
