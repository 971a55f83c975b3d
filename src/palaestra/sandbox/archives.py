"""Files into a container and out of it, as archives: all that an image needs for it is sh, tar and find."""

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
from palaestra.sandbox.base import KIB, MIB, Files
from palaestra.sandbox.files import DEEPEST, parts

Stream = Callable[..., AbstractContextManager[IO[bytes]]]
"""Runs a command in a container, and gives what it prints for as long as somebody listens."""

# Packs the plain files among the names that it is given, and nothing else: tar would take all that is below a folder.
PACK = r"""
cd "$0" || exit
for name; do
  shift
  if [ -f "./$name" ] && [ ! -h "./$name" ]; then set -- "$@" "$name"; fi
done
if [ $# -eq 0 ]; then echo nothing; exit; fi
echo packed
exec tar -cf - -- "$@" 2>/dev/null
"""
FIND = f"""
cd "$0" && command -v find >/dev/null || exit
echo listed
exec find . -maxdepth {DEEPEST + 1} -type f -print0 2>/dev/null
"""
LISTED = 32 * MIB
"""Bytes of names that are taken for a list."""
BATCH = 64 * KIB
"""Bytes of names that are asked for at once; a system takes only so many arguments."""


def pack(files: Files) -> bytes:
    """An archive of `files`, by relative path.

    Raises:
        SandboxError: a path leads out of the workspace, or is no text.
    """
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, content in files.items():
            data = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
            if not _is_text(name):
                raise SandboxError(f"cannot put the file {name!r} into the workspace: it is no text; give another path")
            entry = tarfile.TarInfo("/".join(parts(name)))
            entry.size, entry.mode = len(data), 0o755
            archive.addfile(entry, io.BytesIO(data))
    return packed.getvalue()


def list_names(stream: Stream, folder: str, most: int) -> list[str]:
    """The plain files in `folder` of a container, in the order and within the bounds of `files.list_files`.

    Raises:
        SandboxError: the container cannot list them.
    """
    with stream("sh", "-c", FIND, folder) as source:
        if source.readline(16) != b"listed\n":
            raise SandboxError(
                "cannot list the files of the container: it does not answer; the image needs sh and find"
            )
        *whole, _ = source.read(LISTED).split(b"\0")  # the last may be cut
    names: list[str] = []
    for name in whole:
        with suppress(UnicodeDecodeError):
            names.append(name.removeprefix(b"./").decode())

    def files_first(name: str) -> list[tuple[bool, str]]:
        *above, last = name.split("/")
        return [*((True, part) for part in above), (False, last)]

    return sorted(names, key=files_first)[:most]


def read_packed(
    stream: Stream,
    folder: str,
    names: Iterable[str],
    longest: int,
    total: int | None = None,
) -> dict[str, bytes]:
    """Those of `names` that are plain files in `folder` of a container; see `Shell.read_files`.

    An archive is read as it comes and no further than wanted. What lies behind a file that is longer than `longest` is
    asked for anew, so that the rest of that file need not come.

    Raises:
        SandboxError: what came is no archive.
    """
    found: dict[str, bytes] = {}
    left = sys.maxsize if total is None else total
    waiting = deque(filter(_is_text, dict.fromkeys(names)))
    while waiting:
        batch, taken = list[str](), 0
        while waiting and taken < BATCH:
            taken += 4 * len(waiting[0]) + 1  # in bytes, at most
            batch.append(waiting.popleft())
        with stream("sh", "-c", PACK, folder, *batch) as source:
            if (said := source.readline(16)) == b"nothing\n":
                continue
            try:
                if said != b"packed\n":
                    raise tarfile.ReadError("the container does not answer")
                with tarfile.open(fileobj=source, mode="r|") as archive:
                    for entry in archive:
                        file = archive.extractfile(entry) if entry.isreg() and entry.name in batch else None
                        if file is None:
                            continue
                        size = min(entry.size, longest)
                        if size > left:
                            return found
                        found[entry.name] = file.read(size)
                        left -= size
                        if entry.size > longest:
                            waiting.extendleft(reversed(batch[batch.index(entry.name) + 1 :]))
                            break
            except (tarfile.TarError, ValueError, EOFError) as error:
                raise SandboxError(
                    f"cannot read files of the container: {error}; the image needs sh and tar"
                ) from error
    return found


def _is_text(name: str) -> bool:
    """Whether a file can have this name."""
    try:
        os.fsencode(name)
    except UnicodeEncodeError:
        return False
    return True
