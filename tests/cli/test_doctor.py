"""`palaestra doctor`: one line for each check, and the exit code."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import processes
import pytest
import typer

from palaestra.cli import doctor
from palaestra.cli.doctor import FAILED, MISSING, OK, MachineCheck, run_checks


@pytest.mark.backends
def test_every_check_is_a_line_and_the_self_test_runs(tmp_path: Path) -> None:
    result = processes.run_command("doctor", cwd=tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    lines = {line[9:30].strip(): line for line in result.stdout.splitlines()}
    assert {"Python", "packages", "torch", "GPU", "bubblewrap", "extra vllm", "disk", "cache"} <= set(lines)
    assert all(line.split()[0] in (OK, MISSING, FAILED) for line in lines.values())
    assert lines["sampling"].startswith(OK)
    assert lines["training"].startswith(OK)
    assert not list(tmp_path.iterdir())


def test_a_missing_extra_names_its_install_command() -> None:
    check = doctor._check_packages("ray", ["no-such-package>=1"])
    assert (check.status, check.remedy, check.needed) == (MISSING, "pip install 'palaestra[ray]'", False)
    check = doctor._check_packages("", ["numpy>=1000"])
    assert (check.status, check.remedy, check.needed) == (FAILED, "pip install 'palaestra'", True)


@pytest.mark.parametrize(("needed", "code"), [(True, 1), (False, 0)])
def test_only_what_the_base_install_needs_fails(needed: bool, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        doctor, "run_checks", lambda self_test: iter([MachineCheck(FAILED, "x", "broken", "mend it", needed)])
    )
    status = 0
    try:
        doctor.doctor(self_test=False)
    except typer.Exit as end:
        status = end.exit_code
    assert status == code


def test_problems_of_the_machine_have_a_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("")
    monkeypatch.setenv("PALAESTRA_CACHE", str(blocker / "cache"))
    monkeypatch.setattr(doctor, "_MIN_FREE", 1e9)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    checks = {check.name: check for check in run_checks(self_test=False)}
    assert {checks[name].status for name in ("cache", "disk")} == {FAILED}
    assert checks["bubblewrap"].status == MISSING
    assert all(check.remedy for check in checks.values() if check.status != OK)


def test_a_failed_self_test_is_a_line() -> None:
    def fail() -> str:
        raise RuntimeError("no such\nkernel")

    check = doctor._measure("training", fail, "do this")
    assert (check.status, check.detail, check.remedy) == (FAILED, "RuntimeError: no such kernel", "do this")


def test_the_gpu_of_the_driver_is_compared_with_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho 570.1\n")
    smi.chmod(0o755)
    monkeypatch.setattr(shutil, "which", lambda name: str(smi))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    check = doctor._check_gpu()
    assert (check.status, check.needed) == (FAILED, False)
    assert "driver 570.1" in check.detail
    properties = SimpleNamespace(name="H200", total_memory=2**37)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    check = doctor._check_gpu()
    assert check.status == OK
    assert check.detail.startswith("2 x H200, 128 GiB")
