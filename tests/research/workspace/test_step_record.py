"""The files that a step changed, as diffs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from palaestra.core.errors import SandboxError
from palaestra.research.workspace import workspace as step_record
from palaestra.research.workspace.workspace import MAX_BYTES, MAX_DIFF, MAX_FILES, FileTracker, compare_files
from palaestra.sandbox import make_sandbox
from palaestra.sandbox.base import Shell


@pytest.fixture(scope="module")
def shell() -> Iterator[Shell]:
    with make_sandbox().shell(files={"a.txt": "one\ntwo\n", "b.txt": "b"}) as shell:
        yield shell


def test_a_tracker_finds_what_programs_and_commands_changed(shell: Shell) -> None:
    tracker = FileTracker(shell)
    assert tracker.take_changes() == (), "the first look has nothing to compare with"
    shell.execute(
        "sed -i s/two/zwei/ a.txt; rm b.txt; mkdir -p sub __pycache__; printf 'x\\n' > sub/new.py; echo 1 > __pycache__/c.pyc"
    )
    assert [(c.path, c.kind, c.diff) for c in tracker.take_changes()] == [
        ("a.txt", "changed", "@@ -1,2 +1,2 @@\n one\n-two\n+zwei"),
        ("b.txt", "deleted", "@@ -1 +0,0 @@\n-b"),
        ("sub/new.py", "created", "@@ -0,0 +1 @@\n+x"),
    ]
    assert tracker.take_changes() == ()
    # What is not a small text is not shown, and not taken for a deleted file.
    shell.execute(
        f"head -c {MAX_BYTES + 1} /dev/zero | tr '\\0' a > a.txt; printf '\\0' > zero; printf '\\377' > sub/new.py; ln -s a.txt link"
    )
    assert tracker.take_changes() == ()
    shell.execute(f"printf 'one\\n' > a.txt; touch empty; for k in $(seq {MAX_FILES}); do touch f$k; done")
    assert tracker.take_changes() == (), "a large workspace is not compared"
    shell.execute("rm f*")
    assert tracker.take_changes() == ()
    shell.execute("rm empty")
    assert [(c.path, c.kind, c.diff) for c in tracker.take_changes()] == [("empty", "deleted", "")]


def test_a_slow_or_dead_sandbox_is_left_alone(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    tracker = FileTracker(shell)
    monkeypatch.setattr(step_record, "MAX_SECONDS", -1.0)
    tracker.take_changes()
    shell.execute("echo new > other.txt")
    assert tracker.take_changes() == ()
    closed = make_sandbox().shell()
    closed.close()
    with pytest.raises(SandboxError):
        closed.list_files()
    assert FileTracker(closed).take_changes() == ()


def test_long_diffs_are_cut_and_final_newlines_are_reported() -> None:
    (change,) = compare_files({}, {"long": "y\n" * MAX_DIFF})
    assert (len(change.diff), change.missing) == (
        MAX_DIFF,
        3 * MAX_DIFF - 1 + len(f"@@ -0,0 +1,{MAX_DIFF} @@\n") - MAX_DIFF,
    )
    (change,) = compare_files({"a": "x\n"}, {"a": "x"})
    assert change.diff == "\\ No newline at the end of the file"
    (change,) = compare_files({"a": "x"}, {"a": "y\n"})
    assert change.diff.splitlines() == ["@@ -1 +1 @@", "-x", "+y", "\\ A newline at the end of the file"]
