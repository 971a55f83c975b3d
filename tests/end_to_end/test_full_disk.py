"""A disk that fills up during a checkpoint, and a read-only disk, both mounted in memory."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import processes
import pytest

TEACH = ["teach", "--skill", "geometry", "--skill", "addition", "--rounds", "2", "--lesson-size", "4", "--validation", "1", "--test", "1", "--epochs", "1", "--threads", "1"]  # fmt: skip


def _can_mount() -> bool:
    if os.geteuid() != 0 or shutil.which("mount") is None:
        return False
    probe = subprocess.run(["unshare", "-m", "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True, check=False)
    return probe.returncode == 0


pytestmark = pytest.mark.skipif(not _can_mount(), reason="mounting a small disk needs the right to mount")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 6 MB: room for the store, too little for a checkpoint of 8 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(folder)], check=True)
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def palaestra(*arguments: str | Path) -> processes.Completed:
    return processes.run_command(*arguments)


@pytest.mark.backends
def test_full_disk_during_a_checkpoint_loses_nothing(small_disk: Path, tmp_path: Path) -> None:
    full = palaestra(*TEACH, "--out", small_disk / "run")
    assert full.returncode == 2, full
    assert full.stderr.strip().count("\n") == 0, full.stderr
    assert "no space left" in full.stderr
    assert f"palaestra resume {small_disk / 'run'}" in full.stderr
    assert not list((small_disk / "run").rglob("*.partial"))
    again = palaestra("resume", small_disk / "run")
    assert again.returncode == 2
    subprocess.run(["mount", "-o", "remount,size=200m", str(small_disk)], check=True)
    resumed = palaestra("resume", small_disk / "run")
    assert resumed.returncode == 0, resumed.stderr
    alone = palaestra(*TEACH, "--out", tmp_path / "alone")
    assert alone.returncode == 0, alone.stderr
    figures = [json.loads((f / "summary.json").read_text()) for f in (small_disk / "run", tmp_path / "alone")]
    for summary in figures:
        del summary["seconds"]
    assert figures[0] == figures[1]


def test_a_disk_too_small_for_a_store_is_one_line(small_disk: Path) -> None:
    (small_disk / "ballast").write_bytes(b"x" * (6 * 1024 * 1024 - 8192))
    result = palaestra(*TEACH, "--out", small_disk / "run")
    assert result.returncode == 2
    assert result.stderr.strip().count("\n") == 0, result.stderr
    assert "no space left" in result.stderr


def test_a_disk_that_cannot_be_written_to_is_one_line(small_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    result = palaestra(*TEACH, "--out", small_disk / "run")
    assert result.returncode == 2
    assert result.stderr.strip().count("\n") == 0, result.stderr
    assert "read-only" in result.stderr
