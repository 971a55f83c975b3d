"""A filter of system calls for the kernel: what is not allowed is refused.

A namespace hides what is outside; it does not make the kernel smaller. `syscalls` has the table of what is allowed; here are
the conditions on arguments. The filter is classic BPF, built by hand: some two hundred comparisons, no library. The kernel
looks up calls without a condition in a table of its own and runs the filter only for the others, so these come first.
"""

from __future__ import annotations

import errno
import platform
import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from palaestra.sandbox.syscalls import ABSENT, ALLOWED, FIRST_COMMON, PRETENDED


class Machine(NamedTuple):
    """How a processor family is named by the kernel, and which column of the tables is its own."""

    audit: int
    column: int


MACHINES = {"x86_64": Machine(0xC000003E, 0), "aarch64": Machine(0xC00000B7, 1)}

Instruction = tuple[int, int, int, int]  # the operation, how far to jump if true, if false, and its operand

X32 = 0x40000000
LOAD, AND, EQUAL, AT_LEAST, COMMON_BITS, RETURN = 0x20, 0x54, 0x15, 0x35, 0x45, 0x06
ALLOW, REFUSE = 0x7FFF0000, 0x00050000
NUMBER, ARCHITECTURE = 0, 4


def _return_error(error: int) -> Instruction:
    """The call is not made and gives this error; 0 is success."""
    return RETURN, 0, 0, REFUSE | error


def _load(argument: int, mask: int | None = None) -> list[Instruction]:
    """Load the low half of an argument; both families are little-endian."""
    load: list[Instruction] = [(LOAD, 0, 0, 16 + 8 * argument)]
    return load if mask is None else [*load, (AND, 0, 0, mask)]


def _refuse(argument: int, values: Sequence[int], error: int = errno.EPERM) -> list[Instruction]:
    """Refuse a call if an argument has one of these values."""
    checks = _load(argument)
    for value in values:
        checks += [(EQUAL, 0, 1, value), _return_error(error)]
    return checks


def _require(
    argument: int, values: Sequence[int], error: int = errno.EPERM, mask: int | None = None
) -> list[Instruction]:
    """Refuse a call unless an argument, or its bits below the mask, has one of these values."""
    matches = [(EQUAL, len(values) - at, 0, value) for at, value in enumerate(values)]
    return [*_load(argument, mask), *matches, _return_error(error)]


def _refuse_bits(*masks: tuple[int, int], error: int = errno.EPERM) -> list[Instruction]:
    """Refuse a call if every (argument, mask) has a bit in common."""
    checks: list[Instruction] = []
    for left, (argument, mask) in zip(range(len(masks) - 1, -1, -1), masks, strict=True):
        checks += [*_load(argument), (COMMON_BITS, 0, 2 * left + 1, mask)]
    return [*checks, _return_error(error)]


NEW_NAMESPACES = 0x7E020000
SET_ID, CREATE_OR_TEMPORARY = 0o6000, 0o100 | 0o20000000  # O_CREAT, and the bit of O_TMPFILE
KIND, KINDS = 0o170000, (0, 0o010000, 0o100000, 0o140000)  # plain files, FIFOs and sockets; no devices
HUGE_PAGES = 0x40000  # they come from a pool of the whole machine
FAMILIES, PROTOCOLS = (1, 2, 10, 16), (0, 6, 17)  # unix, IPv4, IPv6, netlink; the default one, TCP, UDP
SOCKET_LEVEL, FILTERS = 1, (26, 50, 51, 52)  # programs on a socket count against a limit of the whole machine
# Terminals and sockets. Others reach file systems: keys for encryption, for one, count against the user.
IOCTL_KIND, IOCTL_KINDS = 0xFF00, (0x5400, 0x8900)
TERMINAL = (0x5412, 0x541C, 0x541D, 0x5423)  # TIOCSTI, TIOCLINUX: type into it; TIOCCONS; TIOCSETD loads modules
# Duplicates, flags, locks, owners of signals, the size of pipes, seals. The rest lets others see who opens a file, leaves a
# mark on it (F_SET_RW_HINT), or takes memory of the user's pipes (F_SETPIPE_SZ).
FCNTL = (*range(12), 15, 16, 36, 37, 38, 1025, 1027, 1028, 1030, 1032, 1033, 1034)
LOCKS = (6, 7, 37, 38)  # F_SETLK and F_SETLKW, of a process and of an open file
# All but those that push pages out of the cache, or merge them with those of others.
ADVICE = (0, 1, 2, 3, 4, 8, 9, 10, 11, 13, 14, 15, 16, 17, 18, 19, 22, 23, 102, 103)
DROP_CACHE = 4  # POSIX_FADV_DONTNEED
PERSONALITIES = (0, 0xFFFFFFFF)  # Linux as usual; asking for it
PROCESS_CONTROL = (22, 62, 67)  # filters of its own; sharing of cores; merging of equal pages

CONDITIONS: dict[str, list[Instruction]] = {
    "clone": _refuse_bits((0, NEW_NAMESPACES)),
    # Files that run as their owner would be left behind in a workspace of the host.
    "chmod": _refuse_bits((1, SET_ID)),
    "fchmod": _refuse_bits((1, SET_ID)),
    "fchmodat": _refuse_bits((2, SET_ID)),
    "fchmodat2": _refuse_bits((2, SET_ID)),
    "open": _refuse_bits((1, CREATE_OR_TEMPORARY), (2, SET_ID)),
    "openat": _refuse_bits((2, CREATE_OR_TEMPORARY), (3, SET_ID)),
    "creat": _refuse_bits((1, SET_ID)),
    "mknod": [*_refuse_bits((1, SET_ID)), *_require(1, KINDS, mask=KIND)],
    "mknodat": [*_refuse_bits((2, SET_ID)), *_require(2, KINDS, mask=KIND)],
    "mmap": _refuse_bits((3, HUGE_PAGES), error=errno.ENOMEM),
    "madvise": _require(2, ADVICE, errno.EINVAL),
    "fadvise64": _refuse(3, (DROP_CACHE,), 0),
    # Their flags tell whether a file is in the page cache, or keep it out.
    "preadv2": _require(5, (0,), errno.EOPNOTSUPP),
    "pwritev2": _require(5, (0,), errno.EOPNOTSUPP),
    "socket": [*_require(0, FAMILIES, errno.EAFNOSUPPORT), *_require(2, PROTOCOLS, errno.EPROTONOSUPPORT)],
    "socketpair": _require(0, FAMILIES[:1], errno.EAFNOSUPPORT),
    "ioctl": [*_require(1, IOCTL_KINDS, errno.ENOTTY, IOCTL_KIND), *_refuse(1, TERMINAL)],
    "fcntl": _require(1, FCNTL),
    "prctl": _refuse(0, PROCESS_CONTROL),
    "personality": _require(0, PERSONALITIES),
}
for _option in FILTERS:
    CONDITIONS.setdefault("setsockopt", []).extend(
        [*_load(1), (EQUAL, 0, 3, SOCKET_LEVEL), *_load(2), (EQUAL, 0, 1, _option), _return_error(errno.EPERM)]
    )


def seccomp_filter(machine: str | None = None, locks: bool = True) -> bytes | None:
    """The filter in the form that `bwrap --seccomp` reads; None for a processor family that is not in the tables.

    Arguments:
        locks: whether files can be locked. A lock on a file that several sandboxes see is a word from one to another.
            Without, every lock seems to be had and none is taken.
    """
    known = MACHINES.get(machine or platform.machine())
    if known is None:
        return None
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in _program(known, locks))


def _program(machine: Machine, locks: bool) -> Iterator[Instruction]:
    conditions = dict(CONDITIONS)
    if not locks:
        conditions["fcntl"] = [*_refuse(1, LOCKS, 0), *conditions["fcntl"]]
        conditions["flock"] = [_return_error(0)]
    yield LOAD, 0, 0, ARCHITECTURE
    yield EQUAL, 1, 0, machine.audit
    yield _return_error(errno.ENOSYS)  # 32-bit programs have other numbers
    yield LOAD, 0, 0, NUMBER
    yield AT_LEAST, 0, 1, X32
    yield _return_error(errno.ENOSYS)
    for name, checks in conditions.items():
        if (number := ALLOWED[name][machine.column]) is not None:
            yield EQUAL, 0, len(checks) + 1, number
            yield from checks
            yield RETURN, 0, 0, ALLOW
    for table, error in ((ABSENT, errno.ENOSYS), (PRETENDED, 0)):
        for numbers in table.values():
            if (number := numbers[machine.column]) is not None:
                yield EQUAL, 0, 1, number
                yield _return_error(error)
    allowed = {numbers[machine.column] for numbers in ALLOWED.values()} - {None}
    for first, behind in _ranges(sorted(number for number in allowed if number is not None)):
        yield AT_LEAST, 0, 2, first
        yield AT_LEAST, 1, 0, behind
        yield RETURN, 0, 0, ALLOW
    yield AT_LEAST, 0, 1, FIRST_COMMON
    yield _return_error(errno.ENOSYS)
    yield _return_error(errno.EPERM)


def _ranges(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """The first number of each run of consecutive ones, and the number behind it."""
    first = before = numbers[0]
    for number in [*numbers[1:], -1]:
        if number != before + 1:
            yield first, before + 1
            first = number
        before = number
