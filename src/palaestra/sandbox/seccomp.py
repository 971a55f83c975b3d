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

`CONDITIONS` has the calls that are allowed with certain arguments only.
"""

from __future__ import annotations

import errno
import platform
import struct
from collections.abc import Iterator, Sequence
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


def _refuse(argument: int, values: Sequence[int], error: int = errno.EPERM) -> list[Instruction]:
    """Refuse a call if an argument has one of these values."""
    checks = _load(argument)
    for value in values:
        checks += [(_EQUAL, 0, 1, value), _return_error(error)]
    return checks


def _require(
    argument: int, values: Sequence[int], error: int = errno.EPERM, mask: int | None = None
) -> list[Instruction]:
    """Refuse a call unless an argument, or its bits below the mask, has one of these values."""
    matches = [(_EQUAL, len(values) - at, 0, value) for at, value in enumerate(values)]
    return [*_load(argument, mask), *matches, _return_error(error)]


def _refuse_bits(*masks: tuple[int, int], error: int = errno.EPERM) -> list[Instruction]:
    """Refuse a call if every (argument, mask) has a bit in common."""
    checks: list[Instruction] = []
    for left, (argument, mask) in zip(range(len(masks) - 1, -1, -1), masks, strict=True):
        checks += [*_load(argument), (_COMMON_BITS, 0, 2 * left + 1, mask)]
    return [*checks, _return_error(error)]


_NEW_NAMESPACES, _NEW_MOUNTS = 0x7E020000, 0x00020000
_SET_ID, _CREATE_OR_TEMPORARY = 0o6000, 0o100 | 0o20000000  # O_CREAT, and the bit of O_TMPFILE
_KIND, _KINDS = 0o170000, (0, 0o010000, 0o100000, 0o140000)  # regular files, FIFOs, sockets; no devices
_HUGE_PAGES = 0x40000  # from a pool of the whole machine
_FAMILIES, _PROTOCOLS = (1, 2, 10, 16), (0, 6, 17)  # unix, IPv4, IPv6, netlink; default, TCP, UDP
_SOCKET_LEVEL, _FILTERS = 1, (26, 50, 51, 52)  # socket filters count against a limit of the whole machine
# Terminals and sockets. Other requests reach file systems; for example, encryption keys count against the user.
_IOCTL_KIND, _IOCTL_KINDS = 0xFF00, (0x5400, 0x8900)
_TERMINAL = (0x5412, 0x541C, 0x541D, 0x5423)  # TIOCSTI and TIOCLINUX inject input; TIOCCONS; TIOCSETD loads modules
# Duplicates, flags, locks, owners of signals, the size of pipes, seals. The other commands show who opens a file, leave a
# mark on it (F_SET_RW_HINT), or use up the memory for the user's pipes (F_SETPIPE_SZ).
_FCNTL = (*range(12), 15, 16, 36, 37, 38, 1025, 1027, 1028, 1030, 1032, 1033, 1034)
_LOCKS = (6, 7, 37, 38)  # F_SETLK and F_SETLKW, of a process and of an open file
# Without advice that drops pages from the cache or merges them with those of other processes.
_ADVICE = (0, 1, 2, 3, 4, 8, 9, 10, 11, 13, 14, 15, 16, 17, 18, 19, 22, 23, 102, 103)
_DROP_CACHE = 4  # POSIX_FADV_DONTNEED
_PERSONALITIES = (0, 0xFFFFFFFF)  # the default of Linux; a query
_PROCESS_CONTROL = (22, 62, 67)  # seccomp filters; core scheduling; merging of equal pages

CONDITIONS: dict[str, list[Instruction]] = {
    "clone": _refuse_bits((0, _NEW_NAMESPACES)),
    # Set-user-ID files could be left behind in a workspace of the host.
    "chmod": _refuse_bits((1, _SET_ID)),
    "fchmod": _refuse_bits((1, _SET_ID)),
    "fchmodat": _refuse_bits((2, _SET_ID)),
    "fchmodat2": _refuse_bits((2, _SET_ID)),
    "open": _refuse_bits((1, _CREATE_OR_TEMPORARY), (2, _SET_ID)),
    "openat": _refuse_bits((2, _CREATE_OR_TEMPORARY), (3, _SET_ID)),
    "creat": _refuse_bits((1, _SET_ID)),
    "mknod": [*_refuse_bits((1, _SET_ID)), *_require(1, _KINDS, mask=_KIND)],
    "mknodat": [*_refuse_bits((2, _SET_ID)), *_require(2, _KINDS, mask=_KIND)],
    "mmap": _refuse_bits((3, _HUGE_PAGES), error=errno.ENOMEM),
    "madvise": _require(2, _ADVICE, errno.EINVAL),
    "fadvise64": _refuse(3, (_DROP_CACHE,), 0),
    # Their flags show whether a file is in the page cache, or bypass the cache.
    "preadv2": _require(5, (0,), errno.EOPNOTSUPP),
    "pwritev2": _require(5, (0,), errno.EOPNOTSUPP),
    "socket": [*_require(0, _FAMILIES, errno.EAFNOSUPPORT), *_require(2, _PROTOCOLS, errno.EPROTONOSUPPORT)],
    "socketpair": _require(0, _FAMILIES[:1], errno.EAFNOSUPPORT),
    "ioctl": [*_require(1, _IOCTL_KINDS, errno.ENOTTY, _IOCTL_KIND), *_refuse(1, _TERMINAL)],
    "fcntl": _require(1, _FCNTL),
    "prctl": _refuse(0, _PROCESS_CONTROL),
    "personality": _require(0, _PERSONALITIES),
}
for _option in _FILTERS:
    CONDITIONS.setdefault("setsockopt", []).extend(
        [*_load(1), (_EQUAL, 0, 3, _SOCKET_LEVEL), *_load(2), (_EQUAL, 0, 1, _option), _return_error(errno.EPERM)]
    )


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
        conditions |= {"chroot": [], "unshare": _require(0, (_NEW_MOUNTS,))}
    if not locks:
        conditions["fcntl"] = [*_refuse(1, _LOCKS, 0), *conditions["fcntl"]]
        conditions["flock"] = [_return_error(0)]
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
