"""Files of a workspace: written, read and listed without following links."""

import inspect
import os
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from palaestra.core.errors import SandboxError
from palaestra.sandbox.base import MIB
from palaestra.sandbox.files import MAX_DEPTH, list_files, read_files, write_files


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[int]:
    opened = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    yield opened
    os.close(opened)


@pytest.mark.parametrize("name", ["", "/etc/passwd", "../x", "a/../../x", "a/", ".", "a\0b"])
def test_a_path_that_leads_out_of_the_workspace_is_refused(folder: int, name: str) -> None:
    for work in (lambda: write_files(folder, {name: b""}), lambda: read_files(folder, [name], 99)):
        with pytest.raises(SandboxError, match="relative path"):
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
        with pytest.raises(SandboxError, match=f"'{name}'"):
            write_files(folder, {name: "x"})
    assert (tmp_path / "d").read_bytes() == b"\x00\xff"


def test_a_name_that_cannot_be_encoded_is_refused(folder: int) -> None:
    assert read_files(folder, ["\ud800"], 99) == {}
    with pytest.raises(SandboxError, match="ud800"):
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


def test_files_are_listed_by_folder_without_following_links(folder: int, tmp_path: Path) -> None:
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
        actual = list_files(folder, 9999)
    finally:
        sys.setrecursionlimit(calls)
    assert actual == ["d/" * depth + "f" for depth in range(MAX_DEPTH + 1)]
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
