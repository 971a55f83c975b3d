"""A seccomp filter: the kernel refuses every system call that is not allowed.

Namespaces hide the host, but programs still reach the whole kernel. The filter is classic BPF, built by hand from about
two hundred comparisons. The kernel looks up calls without a condition in a table and runs the filter only for the others,
so these come first.

`ALLOWED` is based on the calls that Docker and Podman allow by default. These are left out:

- Objects that the kernel counts for each user or for the whole machine, because a program could use them up: System V
  messages, semaphores and shared memory, POSIX message queues and timers, asynchronous I/O, inotify and fanotify,
  filters (`seccomp`, Landlock).
- Calls that read or change the page cache of files that later programs see: `mincore`, `cachestat`.
- Memory outside of all processes and folders: `memfd_create`, `memfd_secret`, `vmsplice`.
- Access to other processes: `ptrace`, `process_vm_readv` and similar calls.
- Access to the machine: `sync`, `adjtimex`, `ioprio_set`, file handles, mount tables.

`CONDITIONS` has the calls that are allowed with certain arguments only (`conditions.yaml`).
"""

from __future__ import annotations

import errno
import platform
import struct
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import NamedTuple

from palaestra.core.tables import load_table


class _Machine(NamedTuple):
    """The kernel's number of a processor family, and its column in the tables."""

    audit: int
    column: int


MACHINES = {"x86_64": _Machine(0xC000003E, 0), "aarch64": _Machine(0xC00000B7, 1)}

Instruction = tuple[int, int, int, int]  # operation, jump if true, jump if false, operand

_X32 = 0x40000000
_LOAD, _AND, _EQUAL, _AT_LEAST, _COMMON_BITS, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x45, 0x06
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000
_NUMBER, _ARCHITECTURE = 0, 4


def _return_error(error: int) -> Instruction:
    """Return this error without making the call; 0 is success."""
    return _RETURN, 0, 0, _REFUSE | error


def _load(argument: int, mask: int | None = None) -> list[Instruction]:
    """Load the low half of an argument. Both processor families are little-endian."""
    load: list[Instruction] = [(_LOAD, 0, 0, 16 + 8 * argument)]
    return load if mask is None else [*load, (_AND, 0, 0, mask)]


def _refuse(error: int, argument: int, values: Sequence[int]) -> list[Instruction]:
    """Refuse a call if an argument has one of these values."""
    checks = _load(argument)
    for value in values:
        checks += [(_EQUAL, 0, 1, value), _return_error(error)]
    return checks


def _require(error: int, argument: int, values: Sequence[int], mask: int | None = None) -> list[Instruction]:
    """Refuse a call unless an argument, or its bits below the mask, has one of these values."""
    matches = [(_EQUAL, len(values) - at, 0, value) for at, value in enumerate(values)]
    return [*_load(argument, mask), *matches, _return_error(error)]


def _refuse_bits(error: int, *masks: tuple[int, int]) -> list[Instruction]:
    """Refuse a call if every (argument, mask) has a bit in common."""
    checks: list[Instruction] = []
    for left, (argument, mask) in zip(range(len(masks) - 1, -1, -1), masks, strict=True):
        checks += [*_load(argument), (_COMMON_BITS, 0, 2 * left + 1, mask)]
    return [*checks, _return_error(error)]


def _refuse_pair(error: int, first: int, second: int) -> list[Instruction]:
    """Refuse a call if its arguments 1 and 2 have these values."""
    return [*_load(1), (_EQUAL, 0, 3, first), *_load(2), (_EQUAL, 0, 1, second), _return_error(error)]


def _skip(error: int) -> list[Instruction]:
    """Do not make the call, whatever its arguments."""
    return [_return_error(error)]


_CHECKS: dict[str, Callable[..., list[Instruction]]] = {
    check.__name__.removeprefix("_"): check for check in (_refuse, _require, _refuse_bits, _refuse_pair, _skip)
}


def _read_conditions(group: str) -> dict[str, list[Instruction]]:
    """The checks of a group of `conditions.yaml`, by system call."""
    return {
        name: [step for kind, error, *given in rows for step in _CHECKS[kind](getattr(errno, error, 0), *given)]
        for name, rows in load_table(__file__, "conditions")[group].items()
    }


CONDITIONS = _read_conditions("allowed")


@cache
def seccomp_filter(machine: str | None = None, locks: bool = True, mounts: bool = False) -> bytes | None:
    """Build the filter for `bwrap --seccomp`; None for a processor family that is not in the tables.

    Arguments:
        locks: whether files can be locked. Programs in different sandboxes could communicate by locks on a shared file.
            Without locks, every locking call succeeds and does nothing.
        mounts: whether a process with capabilities may change its root folder and its mount namespace. No program in a
            sandbox has them; the sandbox does that before it drops its own.
    """
    known = MACHINES.get(machine or platform.machine())
    if known is None:
        return None
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in _program(known, locks, mounts))


def _program(machine: _Machine, locks: bool, mounts: bool) -> Iterator[Instruction]:
    conditions = dict(CONDITIONS)
    if mounts:
        conditions |= _read_conditions("mounts")
    if not locks:
        conditions |= {name: [*steps, *conditions.get(name, ())] for name, steps in _read_conditions("locks").items()}
    yield _LOAD, 0, 0, _ARCHITECTURE
    yield _EQUAL, 1, 0, machine.audit
    yield _return_error(errno.ENOSYS)  # 32-bit programs have other numbers
    yield _LOAD, 0, 0, _NUMBER
    yield _AT_LEAST, 0, 1, _X32
    yield _return_error(errno.ENOSYS)
    for name, checks in conditions.items():
        if (number := (ALLOWED | _MOUNTS)[name][machine.column]) is not None:
            yield _EQUAL, 0, len(checks) + 1, number
            yield from checks
            yield _RETURN, 0, 0, _ALLOW
    for table, error in ((ABSENT, errno.ENOSYS), (PRETENDED, 0)):
        for numbers in table.values():
            if (number := numbers[machine.column]) is not None:
                yield _EQUAL, 0, 1, number
                yield _return_error(error)
    allowed = {numbers[machine.column] for numbers in ALLOWED.values()} - {None}
    for first, behind in _ranges(sorted(number for number in allowed if number is not None)):
        yield _AT_LEAST, 0, 2, first
        yield _AT_LEAST, 1, 0, behind
        yield _RETURN, 0, 0, _ALLOW
    yield _AT_LEAST, 0, 1, _FIRST_COMMON
    yield _return_error(errno.ENOSYS)
    yield _return_error(errno.EPERM)


def _ranges(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the first number of each run of consecutive numbers, and the number after the run."""
    first = before = numbers[0]
    for number in [*numbers[1:], -1]:
        if number != before + 1:
            yield first, before + 1
            first = number
        before = number


Numbers = tuple[int | None, int | None]
"""Numbers on x86-64 and on aarch64; None if the call does not exist. A test compares them with the C library."""

ALLOWED: dict[str, Numbers] = {
    name: (on_x86, on_arm)
    for group in load_table(__file__, "syscalls").values()
    for name, (on_x86, on_arm) in group.items()
}

_MOUNTS: dict[str, Numbers] = {"chroot": (161, 51), "unshare": (272, 97)}

ABSENT: dict[str, Numbers] = {
    "clone3": (435, 435), "io_setup": (206, 0), "openat2": (437, 437), "timer_create": (222, 107),
}  # fmt: skip
"""Refused as in an older kernel: callers fall back to an older call, whose arguments can be checked or which is harmless."""

PRETENDED: dict[str, Numbers] = {"sync": (162, 81), "syncfs": (306, 267)}
"""Succeed without an effect: they would slow down the whole machine."""

_FIRST_COMMON = 424
"""Numbers from here on are the same on all machines. Callers expect that older kernels lack these calls."""
