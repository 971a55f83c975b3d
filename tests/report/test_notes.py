"""The name and the notes of a run: data of the user, apart from what the run writes."""

from __future__ import annotations

from pathlib import Path

import pytest
from html_pages import HtmlPage
from stored_runs import teach_run

from palaestra.core.errors import RunError, StorageError
from palaestra.report.notes import MAX_NAME, NOTES, RunNotes, read_notes, write_notes
from palaestra.report.page import write_report


def test_notes_replace_the_name_of_the_settings(tmp_path: Path) -> None:
    assert read_notes(tmp_path, {"name": "first"}) == RunNotes("first")
    write_notes(tmp_path, RunNotes("second", "the key sk-abcdefghijklmnop1234 works"))
    assert read_notes(tmp_path, {"name": "first"}) == RunNotes("second", "the key *** works")
    write_notes(tmp_path, RunNotes())
    assert read_notes(tmp_path, {"name": "first"}) == RunNotes(), "a name can be removed"
    assert [path.name for path in tmp_path.iterdir()] == [NOTES]


def test_notes_that_cannot_be_kept_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=f"at most {MAX_NAME} characters; got {MAX_NAME + 1}"):
        write_notes(tmp_path, RunNotes("x" * (MAX_NAME + 1)))
    outside = tmp_path / "outside.json"
    outside.write_text("{}")
    (tmp_path / NOTES).symlink_to(outside)
    with pytest.raises(StorageError, match="link"):
        write_notes(tmp_path, RunNotes("a"))
    with pytest.raises(RunError, match="link"):
        read_notes(tmp_path)
    assert outside.read_text() == "{}"


def test_damaged_notes_are_named(tmp_path: Path) -> None:
    for text in ("[]", '{"name": 3, "text": ""}'):
        (tmp_path / NOTES).write_text(text)
        with pytest.raises(RunError, match="delete it"):
            read_notes(tmp_path)


def test_a_report_shows_the_notes_as_text(tmp_path: Path) -> None:
    folder = teach_run(tmp_path / "run")
    write_notes(folder, RunNotes("a <b>name</b>", "line 1\nline 2"))
    page = HtmlPage(write_report(folder).read_text())
    assert "a <b>name</b> line 1 line 2" in page.text
