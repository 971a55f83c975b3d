"""Memory of this process, and memory and utilization of its GPU."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

_GB = 1e9


def measure_system() -> dict[str, float]:
    """Measure what this process uses now.

    Returns:
        `system/memory_gb`: memory of the process. With a GPU also `system/gpu_memory_gb`: memory in use on the GPU, by all
        processes; and `system/gpu_utilization` in percent, if the package nvidia-ml-py is installed. A value that cannot be
        measured is left out.
    """
    values: dict[str, float] = {}
    with suppress(OSError, ValueError):
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        values["system/memory_gb"] = pages * os.sysconf("SC_PAGE_SIZE") / _GB
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        with suppress(RuntimeError):
            free, total = torch.cuda.mem_get_info()
            values["system/gpu_memory_gb"] = (total - free) / _GB
        with suppress(ModuleNotFoundError, RuntimeError):
            values["system/gpu_utilization"] = float(torch.cuda.utilization())
    return values
