import json
import multiprocessing
import os
from pathlib import Path

import pytest

from palaestra.core.errors import RunError, StorageError
from palaestra.runs.files import hash_file, read_json, storage_errors, write_folder, write_json
from palaestra.runs.run import Run, new_folder


def test_a_run_is_made_opened_and_keeps_its_settings(tmp_path: Path) -> None:
    with Run.create(tmp_path / "run", "teach", {"seed": 3}) as run:
        run.write_summary({"gain": 1.0})
    with Run.open(tmp_path / "run") as again:
        assert (again.recipe, again.settings, again.summary) == ("teach", {"seed": 3}, {"gain": 1.0})


def test_a_folder_with_anything_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(RunError, match="not empty"):
        Run.create(tmp_path, "teach", {})
    assert [f.name for f in tmp_path.iterdir()] == ["notes.txt"]


def test_a_run_is_not_made_over_another(tmp_path: Path) -> None:
    Run.create(tmp_path / "run", "teach", {}).close()
    with pytest.raises(RunError, match="palaestra resume"):
        Run.create(tmp_path / "run", "teach", {})


def _hold(folder: Path, ready: object, stop: object) -> None:
    with Run.open(folder):
        ready.set()  # type: ignore[attr-defined]
        stop.wait(30)  # type: ignore[attr-defined]


def test_a_run_is_locked_until_its_process_dies(tmp_path: Path) -> None:
    Run.create(tmp_path / "run", "teach", {}).close()
    context = multiprocessing.get_context("spawn")
    ready, stop = context.Event(), context.Event()
    holder = context.Process(target=_hold, args=(tmp_path / "run", ready, stop))
    holder.start()
    assert ready.wait(30)
    with pytest.raises(RunError, match=f"pid {holder.pid}"):
        Run.open(tmp_path / "run")
    Run.open(tmp_path / "run", read_only=True).close()
    holder.kill()
    holder.join()
    Run.open(tmp_path / "run").close()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "settings.json").unlink(), "not a run folder"),
        (lambda folder: (folder / "settings.json").write_text("{"), "cannot be read"),
        (lambda folder: (folder / "settings.json").write_text("[]"), "has no format"),
        (lambda folder: (folder / "settings.json").write_text(json.dumps({"format": 9, "recipe": "", "settings": {}})), "another version"),
        (lambda folder: (folder / "store.sqlite").unlink(), "has no store"),
        (lambda folder: (folder / "store.sqlite").write_bytes(b"garbage" * 999), "damaged"),
    ],
)  # fmt: skip
def test_a_damaged_run_raises_and_releases_its_lock(tmp_path: Path, damage, message: str) -> None:  # type: ignore[no-untyped-def]
    Run.create(tmp_path / "run", "teach", {}).close()
    for name in ("store.sqlite-wal", "store.sqlite-shm"):
        (tmp_path / "run" / name).unlink(missing_ok=True)
    damage(tmp_path / "run")
    for _ in range(2):
        with pytest.raises(RunError, match=message) as caught:
            Run.open(tmp_path / "run")
        assert "\n" not in str(caught.value)


def test_a_missing_folder_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="does not exist"):
        Run.open(tmp_path / "none")


@pytest.mark.skipif(
    os.geteuid() == 0, reason="root may write anywhere; the command's tests cover it with a read-only mount"
)
def test_a_read_only_folder_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(StorageError, match="read-only"):
        Run.create(tmp_path / "run", "teach", {})


def test_a_file_where_the_folder_should_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StorageError, match="not a folder"):
        Run.create(tmp_path / "file" / "run", "teach", {})


def test_new_folders_do_not_collide(tmp_path: Path) -> None:
    first = new_folder("teach", tmp_path)
    first.mkdir(parents=True)
    assert new_folder("teach", tmp_path) != first


def test_a_folder_is_replaced_whole_or_stays(tmp_path: Path) -> None:
    write_folder(tmp_path / "c", lambda folder: write_json(folder / "a.json", 1))

    def broken(folder: Path) -> None:
        write_json(folder / "a.json", 2)
        raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError):
        write_folder(tmp_path / "c", broken)
    assert read_json(tmp_path / "c" / "a.json") == 1
    assert [f.name for f in tmp_path.iterdir()] == ["c"]


def test_a_checksum_is_that_of_the_content(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"abc")
    assert hash_file(tmp_path / "f") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


@pytest.mark.parametrize(
    "left",
    [
        ("run.lock",),
        ("run.lock", "store.sqlite"),
        ("run.lock", "store.sqlite", "store.sqlite-journal"),
        ("store.sqlite", "store.sqlite-wal", "settings.json.partial"),
    ],
)
def test_a_killed_start_can_be_started_again(tmp_path: Path, left: tuple[str, ...]) -> None:
    for name in left:
        (tmp_path / name).write_bytes(b"half")
    with Run.create(tmp_path, "teach", {"seed": 1}) as run:
        assert run.store.phases() == []
    assert not (tmp_path / "settings.json.partial").exists()


@pytest.mark.parametrize(
    "settings", ['{"format": 1, "recipe": "teach", "settings": []}', '{"format": 1, "recipe": 5, "settings": {}}']
)
def test_settings_of_the_wrong_shape_are_one_clear_line(tmp_path: Path, settings: str) -> None:
    Run.create(tmp_path / "run", "teach", {}).close()
    (tmp_path / "run" / "settings.json").write_text(settings)
    with pytest.raises(RunError, match="recipe or settings"):
        Run.open(tmp_path / "run")


@pytest.mark.parametrize("name", ["x" * 300, "nul\x00"])
def test_a_name_that_no_disk_takes_is_one_clear_line(tmp_path: Path, name: str) -> None:
    with pytest.raises((StorageError, ValueError)):
        Run.create(tmp_path / name, "teach", {})


def test_a_full_disk_names_the_run_to_resume_if_there_is_one(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="start again"), storage_errors(tmp_path / "cache", "fetching"):
        raise OSError(28, "No space left on device")
    Run.create(tmp_path / "run", "teach", {}).close()
    with (
        pytest.raises(StorageError, match=f"palaestra resume {tmp_path / 'run'}"),
        storage_errors(tmp_path / "run" / "checkpoints" / "c", "writing"),
    ):
        raise OSError(28, "No space left on device")


def test_a_quota_that_a_library_reports_in_words_is_a_full_disk(tmp_path: Path) -> None:
    def broken(folder: Path) -> None:
        raise RuntimeError("I/O error: Disk quota exceeded (os error 122)")

    with pytest.raises(StorageError, match="no space left"):
        write_folder(tmp_path / "c", broken)
