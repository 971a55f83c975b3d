import inspect
import os
import re
import sys
import tracemalloc
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import pytest

from palaestra.core.errors import SandboxError, UnknownNameError
from palaestra.sandbox import SANDBOXES, SHELL_LIMITS, Limits, Sandbox, SandboxResult, Status, make_sandbox
from palaestra.sandbox.base import MIB
from palaestra.sandbox.bubblewrap import Bubblewrap
from palaestra.sandbox.files import MAX_DEPTH, list_files, read_files, write_files
from palaestra.sandbox.shell import Output


@pytest.mark.parametrize(
    ("limit", "value"),
    [("memory", 0), ("memory", 1.5), ("processes", -1), ("wall_seconds", 0.0), ("wall_seconds", float("inf")), ("output", True), ("disk", "1G")],
)  # fmt: skip
def test_a_limit_that_makes_no_sense_is_refused_in_one_line(limit: str, value: Any) -> None:
    with pytest.raises(
        SandboxError, match=f"the limit {limit} must be a .*number above 0; got {re.escape(repr(value))}"
    ) as caught:
        Limits(**{limit: value})
    assert "\n" not in str(caught.value)


def test_limits_and_results_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        SHELL_LIMITS.memory = 1  # type: ignore[misc]


def test_bytes_that_are_not_utf8_survive_as_bytes_and_as_text() -> None:
    result = SandboxResult(Status.OK, 0, b"a\xffb", b"\xc3(", 0.0)
    assert (result.stdout, result.text, result.error_text) == (b"a\xffb", "a�b", "�(")
    assert (result.ok, result.signal, SandboxResult(Status.SIGNAL, 139, b"", b"", 0.0).signal) == (True, None, 11)


def test_every_kind_of_sandbox_is_known_by_name() -> None:
    assert SANDBOXES.names() == ["bubblewrap", "docker", "none", "podman"]
    with pytest.raises(UnknownNameError, match="did you mean 'bubblewrap'"):
        make_sandbox("bublewrap")


def test_the_default_is_bubblewrap(bubblewrap: Bubblewrap) -> None:
    made = make_sandbox()
    assert isinstance(made, Bubblewrap)
    assert isinstance(made, Sandbox)


# Files


@pytest.fixture
def folder(tmp_path: Path) -> Any:
    opened = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    yield opened
    os.close(opened)


@pytest.mark.parametrize("name", ["", "/etc/passwd", "../x", "a/../../x", "a/", ".", "a\0b"])
def test_a_path_that_leads_out_of_the_workspace_is_refused(folder: int, name: str) -> None:
    for work in (lambda: write_files(folder, {name: b""}), lambda: read_files(folder, [name], 99)):
        with pytest.raises(SandboxError, match="relative path without"):
            work()


def test_files_go_in_and_out_and_no_link_is_followed(folder: int, tmp_path: Path) -> None:
    write_files(folder, {"a/b/c.txt": "text", "d": b"\x00\xff", "a/b/c.txt ": "other"})
    assert read_files(folder, ["a/b/c.txt", "d", "missing", "a"], 99) == {"a/b/c.txt": b"text", "d": b"\x00\xff"}
    assert read_files(folder, ["a/b/c.txt"], 2) == {"a/b/c.txt": b"te"}
    (tmp_path / "link").symlink_to("d")
    (tmp_path / "folder").symlink_to("a")
    os.mkfifo(tmp_path / "fifo")
    assert read_files(folder, ["link", "folder/b/c.txt", "fifo"], 99) == {}
    for name in ("link", "folder/x", "fifo", "d/x"):
        with pytest.raises(SandboxError, match=f"cannot put the file '{name}' into the workspace"):
            write_files(folder, {name: "x"})
    assert (tmp_path / "d").read_bytes() == b"\x00\xff"


def test_a_name_that_is_no_text_is_missing_and_cannot_be_written(folder: int) -> None:
    assert read_files(folder, ["\ud800"], 99) == {}
    with pytest.raises(SandboxError, match=r"cannot put the file '\\ud800' into the workspace: surrogates"):
        write_files(folder, {"\ud800": "x"})


def test_no_more_is_read_than_the_total(folder: int, tmp_path: Path) -> None:
    write_files(folder, {"a": "123", "b": "4567", "c": "8"})
    names = ["a", "missing", "b", "c"]
    assert read_files(folder, names, 99, 8) == {"a": b"123", "b": b"4567", "c": b"8"}
    assert read_files(folder, names, 99, 7) == {"a": b"123", "b": b"4567"}
    assert read_files(folder, names, 99, 6) == {"a": b"123"}, "what is behind a file that does not fit is not read"
    assert read_files(folder, names, 2, 5) == {"a": b"12", "b": b"45", "c": b"8"}, "what counts is what is read"
    assert read_files(folder, names, 99, 0) == {}


def test_a_hole_of_a_terabyte_costs_nothing(folder: int, tmp_path: Path) -> None:
    write_files(folder, {"a": "123", "hole": b"", "z": "4"})
    os.truncate(tmp_path / "hole", 2**40)
    tracemalloc.start()
    try:
        assert read_files(folder, ["a", "hole", "z"], 2**41, 10 * MIB) == {"a": b"123"}
        assert read_files(folder, ["hole", "z"], 5, 10 * MIB) == {"hole": bytes(5), "z": b"4"}
        assert tracemalloc.get_traced_memory()[1] < MIB
    finally:
        tracemalloc.stop()


def test_files_are_listed_folder_by_folder_and_no_link_is_followed(folder: int, tmp_path: Path) -> None:
    write_files(folder, dict.fromkeys(("z", "b/y", "b/a/x", "b.c/w", "a"), ""))
    (tmp_path / "b" / "link").symlink_to("y")
    (tmp_path / "loop").symlink_to(".")
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "empty").mkdir()
    os.close(os.open(os.fsencode(tmp_path) + b"/\xff", os.O_CREAT))
    assert list_files(folder, 99) == ["a", "z", "b/y", "b/a/x", "b.c/w"]
    assert list_files(folder, 3) == ["a", "z", "b/y"]


def test_folders_in_folders_are_listed_as_deep_as_the_limit(folder: int) -> None:
    here = os.dup(folder)
    for _ in range(MAX_DEPTH + 100):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY | os.O_DIRECTORY, dir_fd=here)
        os.close(os.open("f", os.O_CREAT, dir_fd=here))
        os.close(here)
        here = below
    os.close(here)
    opened, calls = len(os.listdir("/proc/self/fd")), sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack(0)) + MAX_DEPTH)  # no call for each folder: a thousand would be too many
    try:
        found = list_files(folder, 9999)
    finally:
        sys.setrecursionlimit(calls)
    assert found == ["d/" * depth + "f" for depth in range(MAX_DEPTH + 1)]
    assert len(os.listdir("/proc/self/fd")) == opened


def test_a_list_looks_at_so_many_names_and_no_more(
    folder: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("palaestra.sandbox.files.MAX_NAMES", 20)
    for number in range(50):
        (tmp_path / f"folder{number}").mkdir()
        (tmp_path / f"folder{number}" / "file").touch()
    assert list_files(folder, 9999) == [], "nothing but folders was seen"
    monkeypatch.setattr("palaestra.sandbox.files.MAX_NAMES", 60)
    assert len(list_files(folder, 9999)) == 10


# Output that is cut


@pytest.mark.parametrize("pieces", [1, 3, 1000])
def test_the_middle_is_cut_out_and_the_mark_is_found_wherever_it_is_split(pieces: int) -> None:
    data = b"a" * 700 + b"b" * 5000 + b"c" * 700 + b"\0word\0" + b"later"
    output = Output(1001, b"word")
    for start in range(0, len(data), pieces):
        output.add(data[start : start + pieces])
    text = output.finish()
    assert text == b"a" * 501 + b"\n... 5399 bytes are left out here ...\n" + b"c" * 500
    assert (output.ended, output.total) == (True, 6400)
    assert output.rest == b"later"


def test_hiding_works_for_whatever_lies_below_something_shown(bubblewrap: Bubblewrap, tmp_path: Path) -> None:
    (tmp_path / "data" / "secret").mkdir(parents=True)
    (tmp_path / "data" / "secret" / "key").write_text("hidden")
    (tmp_path / "data" / "answers.txt").write_text("hidden")
    (tmp_path / "data" / "open.txt").write_text("shown")
    sandbox = Bubblewrap(
        {"/data": str(tmp_path / "data")}, hide=[tmp_path / "data" / "answers.txt", tmp_path / "data" / "secret"]
    )
    result = sandbox.run(
        ["sh", "-c", "cd /data; cat open.txt answers.txt secret/*; echo x >open.txt; echo x >secret/x"]
    )
    assert result.stdout == b"shown"
    assert (tmp_path / "data" / "open.txt").read_text() == "shown"
