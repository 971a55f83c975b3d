"""The first Ctrl-C or SIGTERM waits for a save; the second does not."""

from __future__ import annotations

import signal
import sys
import threading
from types import SimpleNamespace

import pytest

from palaestra.core.process import HeldInterrupts, Terminated, measure_system, raise_on_sigterm


@pytest.fixture(autouse=True)
def python_handlers():
    """Background jobs of a shell ignore Ctrl-C; here both signals have the handlers of a program at a terminal."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(("number", "kind"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Terminated)])
def test_the_first_signal_waits_until_it_is_released(number, kind):
    notices = []
    with HeldInterrupts(lambda: notices.append(True)) as held:
        assert not held.pending
        signal.raise_signal(number)
        assert held.pending
        with pytest.raises(kind) as raised:
            held.release()
        assert not held.pending
    assert notices == [True]
    assert type(raised.value) is kind


def test_a_second_signal_stops_at_once():
    with HeldInterrupts() as held:
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(Terminated):
            signal.raise_signal(signal.SIGINT)
        assert not held.pending


def test_a_pending_signal_is_raised_at_the_end_of_the_block():
    with pytest.raises(KeyboardInterrupt), HeldInterrupts():
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_error_in_the_block_counts_more_than_the_signal():
    def fail() -> None:
        with HeldInterrupts():
            signal.raise_signal(signal.SIGINT)
            raise ValueError("the error")

    with pytest.raises(ValueError, match="the error"):
        fail()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_an_ignored_signal_stays_ignored():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with HeldInterrupts() as held:
        signal.raise_signal(signal.SIGINT)
        assert not held.pending
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_other_threads_hold_nothing():
    actual = []
    thread = threading.Thread(target=lambda: actual.append(HeldInterrupts().__enter__().pending))
    thread.start()
    thread.join()
    assert actual == [False]


def test_sigterm_ends_a_program_as_ctrl_c_does():
    raise_on_sigterm()
    with pytest.raises(Terminated):
        signal.raise_signal(signal.SIGTERM)


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
