"""The rank of this process among those that torchrun has started, from its environment variables."""

from __future__ import annotations

import os


def read_launch_size() -> int:
    """The number of processes that torchrun has started; 1 without torchrun."""
    return int(os.environ["WORLD_SIZE"]) if "TORCHELASTIC_RUN_ID" in os.environ else 1


def read_launch_rank() -> int:
    """The number of this process among them. Only rank 0 prints and writes."""
    return int(os.environ["RANK"]) if "TORCHELASTIC_RUN_ID" in os.environ else 0
