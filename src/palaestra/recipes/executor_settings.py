"""Settings for where the independent parts of a recipe run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

from palaestra.core.settings import setting
from palaestra.executors.base import Resources

INLINE = "inline"


@dataclass(frozen=True)
class ExecutorSettings:
    """Base class of the settings of recipes that use an executor."""

    executor: str = setting(
        INLINE, "Where independent parts run: inline, processes:N, or ray:ADDRESS (ray alone: this machine)."
    )
    worker_cpus: float = setting(1.0, "CPU cores of a Ray worker.", above=0)
    worker_gpus: float = setting(0.0, "GPUs of a Ray worker; fractions are allowed.", low=0)
    worker_memory: float = setting(0.0, "Memory of a Ray worker in GB; 0: unspecified.", low=0)

    @property
    def resources(self) -> Resources:
        return Resources(self.worker_cpus, self.worker_gpus, int(self.worker_memory * 1e9))


class ExecutorOptions(TypedDict, total=False):
    """The fields of `ExecutorSettings` as keyword arguments."""

    executor: str
    worker_cpus: float
    worker_gpus: float
    worker_memory: float
