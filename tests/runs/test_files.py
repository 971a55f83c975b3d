"""Files in a run folder: links are neither followed when writing nor when reading."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from palaestra.core.errors import PalaestraError, RunError, StorageError
from palaestra.envs.lesson.state import RoundCheckpoints
from palaestra.runs.files import read_json, read_text, refuse_links, write_folder, write_json, write_text
from palaestra.runs.log import TRACEBACK
from palaestra.runs.run import Run


@pytest.fixture
def outside_file(tmp_path: Path) -> Path:
    """A file of the user outside of the run folder."""
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "treasure").write_text("mine")
    return tmp_path / "home" / "treasure"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    Run.create(tmp_path / "run", "teach", {}).close()
    return tmp_path / "run"


@pytest.mark.parametrize("name", ["report.html", "report.html.partial"])
@pytest.mark.parametrize("link", [Path.symlink_to, Path.hardlink_to])
def test_writing_replaces_a_link(
    folder: Path, outside_file: Path, name: str, link: Callable[[Path, Path], None]
) -> None:
    link(folder / name, outside_file)
    write_text(folder / "report.html", "report")
    assert outside_file.read_text() == "mine"
    assert (folder / "report.html").read_text() == "report"
    assert not (folder / "report.html").is_symlink()
    assert not (folder / "report.html.partial").exists()


def test_writing_a_folder_replaces_links(folder: Path, outside_file: Path) -> None:
    (folder / "model").symlink_to(outside_file.parent)
    (folder / "model.partial").symlink_to(outside_file.parent)
    write_folder(folder / "model", lambda target: (target / "treasure").write_text("model"))
    assert outside_file.read_text() == "mine"
    assert (folder / "model" / "treasure").read_text() == "model"


def test_nothing_is_written_into_a_linked_folder(folder: Path, outside_file: Path) -> None:
    (folder / "figures").symlink_to(outside_file.parent)
    with pytest.raises(StorageError, match="figures is a link"):
        write_text(folder / "figures" / "treasure", "figure")
    with pytest.raises(StorageError, match="figures is a link"):
        write_folder(folder / "figures" / "treasure", lambda target: None)
    assert outside_file.read_text() == "mine"
    refuse_links(folder / "figures.txt")


def test_a_link_to_the_run_folder_itself_is_followed(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "latest").symlink_to(folder)
    with Run.open(tmp_path / "latest") as run:
        run.write_summary({"gain": 1.0})
    assert read_json(folder / "summary.json") == {"gain": 1.0}


@pytest.mark.parametrize(
    "name", ["run.lock", "store.sqlite", "store.sqlite-wal", "checkpoints", "tensorboard", TRACEBACK]
)
def test_a_run_with_a_link_is_not_continued(folder: Path, outside_file: Path, name: str) -> None:
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(outside_file if "." in name else outside_file.parent)
    with pytest.raises(StorageError, match=f"{name} is a link"):
        Run.open(folder)
    assert outside_file.read_text() == "mine"


@pytest.mark.parametrize("name", ["run.lock", "store.sqlite"])
def test_a_file_with_two_names_is_not_written_in_place(folder: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "other").hardlink_to(folder / name)
    before = (tmp_path / "other").read_bytes()
    with pytest.raises(StorageError, match="hard links"):
        Run.open(folder)
    assert (tmp_path / "other").read_bytes() == before


def test_links_inside_checkpoints_stop_a_resume(folder: Path, outside_file: Path) -> None:
    (folder / "checkpoints").mkdir()
    (folder / "checkpoints" / "training").symlink_to(outside_file.parent)
    with pytest.raises(StorageError, match="training is a link"):
        Run.open(folder)


def test_removing_old_checkpoints_keeps_the_target_of_a_link(folder: Path, outside_file: Path) -> None:
    with Run.open(folder) as run:
        run.checkpoints.mkdir()
        (run.checkpoints / "round-1").symlink_to(outside_file.parent)
        RoundCheckpoints(run.checkpoints).tidy(2)
    assert outside_file.read_text() == "mine"


def test_a_traceback_is_not_written_through_a_link(folder: Path, outside_file: Path) -> None:
    run = Run.open(folder)
    (folder / TRACEBACK).symlink_to(outside_file)
    run.__exit__(ValueError, ValueError("broken"), None)
    assert outside_file.read_text() == "mine"
    assert "broken" in (folder / TRACEBACK).read_text()


def test_reading_follows_no_link_and_no_pipe(folder: Path, tmp_path: Path) -> None:
    write_json(tmp_path / "secret.json", {"key": "secret"})
    (folder / "summary.json").symlink_to(tmp_path / "secret.json")
    os.mkfifo(folder / "provenance.json")
    (folder / "large.json").write_bytes(b"")
    os.truncate(folder / "large.json", 1 << 40)
    for name, reason in (
        ("summary.json", "link"),
        ("provenance.json", "pipe"),
        ("large.json", "MB"),
        (".", "directory"),
    ):
        with pytest.raises(RunError, match=reason):
            read_text(folder / name)
    with Run.open(folder, read_only=True) as run, pytest.raises(RunError, match="link"):
        _ = run.summary


@pytest.mark.parametrize(
    "schema",
    [
        "DROP TABLE metrics; CREATE VIEW metrics AS WITH RECURSIVE c(iteration) AS (SELECT 1 UNION ALL SELECT iteration FROM c) "
        "SELECT iteration, '' AS name, 1.0 AS value FROM c",
        "CREATE TRIGGER t AFTER INSERT ON ledger BEGIN DELETE FROM metrics; END",
        "ALTER TABLE metrics ADD COLUMN more AS (length(zeroblob(1000000000)))",
        "DROP TABLE skills; PRAGMA writable_schema=ON; INSERT INTO sqlite_master VALUES ('table', 'skills', 'skills', 0, "
        "'CREATE VIEW skills AS WITH RECURSIVE c(stage) AS (SELECT 1 UNION ALL SELECT stage FROM c) SELECT stage FROM c')",
    ],
)  # fmt: skip
def test_a_store_that_computes_something_is_refused(folder: Path, schema: str) -> None:
    db = sqlite3.connect(folder / "store.sqlite")
    db.executescript(schema)
    db.close()
    for read_only in (True, False):
        with pytest.raises(PalaestraError, match="damaged"):
            Run.open(folder, read_only=read_only)


def test_a_query_that_takes_too_long_ends(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("palaestra.runs.store.MAX_SECONDS", 0.1)
    endless = "WITH RECURSIVE c(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM c) SELECT COUNT(*) FROM c"
    with Run.open(folder, read_only=True) as run, pytest.raises(RunError, match="took too long"):
        run.store.select(endless)
