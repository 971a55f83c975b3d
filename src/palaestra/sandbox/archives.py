"""Write and read the files of a container as archives. The image only needs sh, tar and find."""

from __future__ import annotations

import io
import os
import sys
import tarfile
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, suppress
from typing import IO

from palaestra.core.errors import SandboxError
from palaestra.core.tables import load_table
from palaestra.sandbox.files import MAX_DEPTH, split_path
from palaestra.sandbox.records import KIB, MIB, Files

Stream = Callable[..., AbstractContextManager[IO[bytes]]]
"""Runs a command in a container and streams its output."""

_SCRIPTS: dict[str, str] = load_table(__file__, "scripts")
PACK, FIND = _SCRIPTS["pack"], _SCRIPTS["find"].format(depth=MAX_DEPTH + 1)
_MAX_LISTING = 32 * MIB
"""Maximum size of a listing in bytes."""
BATCH = 64 * KIB
"""Bytes of names in one command: the number of arguments is limited."""


def make_archive(files: Files) -> bytes:
    """Return an archive of `files`, by relative path.

    Raises:
        SandboxError: a path leaves the workspace, or cannot be encoded.
    """
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, content in files.items():
            data = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
            if not _is_text(name):
                raise SandboxError(f"cannot put the file {name!r} into the workspace: it is no text; give another path")
            entry = tarfile.TarInfo("/".join(split_path(name)))
            entry.size, entry.mode = len(data), 0o755
            archive.addfile(entry, io.BytesIO(data))
    return packed.getvalue()


def list_names(stream: Stream, folder: str, most: int) -> list[str]:
    """Return the regular files in `folder` of a container, in the order of `files.list_files` and with its limits.

    Raises:
        SandboxError: the container cannot list them.
    """
    with stream("sh", "-c", FIND, folder) as source:
        if source.readline(16) != b"listed\n":
            raise SandboxError(
                "cannot list the files of the container: it does not answer; the image needs sh and find"
            )
        *whole, _ = source.read(_MAX_LISTING).split(b"\0")  # the last one may be incomplete
    names: list[str] = []
    for name in whole:
        with suppress(UnicodeDecodeError):
            names.append(name.removeprefix(b"./").decode())

    def files_first(name: str) -> list[tuple[bool, str]]:
        *above, last = name.split("/")
        return [*((True, part) for part in above), (False, last)]

    return sorted(names, key=files_first)[:most]


def read_archive(
    stream: Stream, folder: str, names: Iterable[str], longest: int, total: int | None = None
) -> dict[str, bytes]:
    """Read the regular files among `names` in `folder` of a container; see `Shell.read_files`.

    An archive is read as a stream. After a file that is longer than `longest` the remaining files are requested again,
    so that the rest of that file is not transferred.

    Raises:
        SandboxError: the container did not return an archive.
    """
    contents: dict[str, bytes] = {}
    left = sys.maxsize if total is None else total
    waiting = deque(filter(_is_text, dict.fromkeys(names)))
    while waiting:
        batch, taken = list[str](), 0
        while waiting and taken < BATCH:
            taken += 4 * len(waiting[0]) + 1  # in bytes, at most
            batch.append(waiting.popleft())
        with stream("sh", "-c", PACK, folder, *batch) as source:
            if (header := source.readline(16)) == b"nothing\n":
                continue
            try:
                if header != b"packed\n":
                    raise tarfile.ReadError("the container does not answer")
                with tarfile.open(fileobj=source, mode="r|") as archive:
                    for entry in archive:
                        file = archive.extractfile(entry) if entry.isreg() and entry.name in batch else None
                        if file is None:
                            continue
                        size = min(entry.size, longest)
                        if size > left:
                            return contents
                        contents[entry.name] = file.read(size)
                        left -= size
                        if entry.size > longest:
                            waiting.extendleft(reversed(batch[batch.index(entry.name) + 1 :]))
                            break
            except (tarfile.TarError, ValueError, EOFError) as error:
                raise SandboxError(
                    f"cannot read files of the container: {error}; the image needs sh and tar"
                ) from error
    return contents


def _is_text(name: str) -> bool:
    """Whether the name can be encoded."""
    try:
        os.fsencode(name)
    except UnicodeEncodeError:
        return False
    return True
