from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from palaestra.core.system import measure_system


def make_gpu(utilization: object) -> SimpleNamespace:
    cuda = {"is_available": lambda: True, "is_initialized": lambda: True, "utilization": utilization}
    return SimpleNamespace(cuda=SimpleNamespace(**cuda, mem_get_info=lambda: (30e9, 80e9)))


def test_the_memory_of_this_process_is_measured() -> None:
    values = measure_system()
    assert 0.01 < values["system/memory_gb"] < 1000
    assert set(values) <= {"system/memory_gb", "system/gpu_memory_gb", "system/gpu_utilization"}


def test_a_gpu_has_memory_and_if_known_utilization(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> float:
        raise ModuleNotFoundError("pynvml does not seem to be installed")

    monkeypatch.setitem(sys.modules, "torch", make_gpu(lambda: 75))
    values = measure_system()
    assert (values["system/gpu_memory_gb"], values["system/gpu_utilization"]) == (50.0, 75.0)
    monkeypatch.setitem(sys.modules, "torch", make_gpu(fail))
    assert "system/gpu_utilization" not in measure_system()
