"""Copy a whole workspace as a submission."""

from __future__ import annotations

from collections.abc import Callable

from palaestra.research.tasks.records import InvalidSubmission
from palaestra.sandbox.base import Shell

MOST_FILES = 10_000
LONGEST_NAME, LONGEST_PATH = 200, 1000
"""Bytes of a name and of a path that fit below any run folder."""


def collect_workspace(
    shell: Shell, largest: int, spare: int = 0, is_data: Callable[[str], bool] = lambda name: False
) -> dict[str, bytes] | InvalidSubmission:
    """Copy the files of a workspace. Symbolic links are not followed.

    A workspace that is too large is rejected rather than truncated, because only the agent knows which files it needs.

    Arguments:
        largest: the maximum total size in bytes.
        spare: files beside `MOST_FILES` that may be there, for example data.
        is_data: whether a file is not copied.
    """
    names_ = shell.list_files(MOST_FILES + spare + 1)
    if len(names_) > MOST_FILES + spare:
        return InvalidSubmission(f"the workspace has more than {MOST_FILES} files, which are the most; remove some")
    names = [name for name in names_ if not is_data(name)]
    for name in names:
        size, part = len(name.encode()), max(len(part.encode()) for part in name.split("/"))
        if size > LONGEST_PATH or part > LONGEST_NAME:
            return InvalidSubmission(
                f"the path {name[:80]}... has {size} bytes, and {part} in one name; at most {LONGEST_PATH} and "
                f"{LONGEST_NAME} can be handed in; give the file another name, or remove it"
            )
    files = shell.read_files(names, total=largest)
    # Missing files did not fit, or were deleted since they were listed.
    if len(files) < len(names) and shell.read_files([name for name in names if name not in files], longest=1):
        return InvalidSubmission(f"the workspace has more than {largest} bytes, which are the most; remove some files")
    return files
