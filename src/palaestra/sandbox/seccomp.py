"""The system calls that a program in the sandbox has no business with, as a filter for the kernel.

A namespace hides what is outside; it does not make the kernel smaller. The calls below reach into other processes,
change mounts and namespaces, hold memory that no limit counts, or are known for holes. What is not named is allowed.
The filter is classic BPF, built here by hand: a few dozen comparisons, no library.
"""

from __future__ import annotations

import errno
import platform
import struct
from collections.abc import Iterator
from typing import NamedTuple


class Machine(NamedTuple):
    """How a processor family is named by the kernel, and which column of the tables is its own."""

    audit: int
    column: int


MACHINES = {"x86_64": Machine(0xC000003E, 0), "aarch64": Machine(0xC00000B7, 1)}

# Numbers on x86_64 and aarch64; None where the call does not exist. From 424 on they are the same everywhere.
REFUSED: dict[str, tuple[int | None, int | None]] = {
    # other processes
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
    "pidfd_getfd": (438, 438), "process_madvise": (440, 440), "move_pages": (279, 239), "migrate_pages": (256, 238),
    # mounts and namespaces
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51), "unshare": (272, 97),
    "setns": (308, 268), "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430),
    "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442),
    "open_by_handle_at": (304, 265), "name_to_handle_at": (303, 264), "fanotify_init": (300, 262),
    # keys of the kernel
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    # programs inside the kernel, and windows into it
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282), "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "syslog": (103, 116), "lookup_dcookie": (212, 18),
    "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106), "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    # the machine
    "reboot": (169, 142), "swapon": (167, 224), "swapoff": (168, 225), "acct": (163, 89), "quotactl": (179, 60),
    "settimeofday": (164, 170), "clock_settime": (227, 112), "clock_adjtime": (305, 266), "adjtimex": (159, 171),
    "sethostname": (170, 161), "setdomainname": (171, 162), "vhangup": (153, 58), "nfsservctl": (180, 42),
    "iopl": (172, None), "ioperm": (173, None), "modify_ldt": (154, None), "uselib": (134, None),
    # what others do with the files that all can see: words from one sandbox to another
    "inotify_init": (253, None), "inotify_init1": (294, 26), "preadv2": (327, 286), "cachestat": (451, 451),
    # memory that belongs to no process and no folder, so that no limit would see it
    "memfd_create": (319, 279), "memfd_secret": (447, 447), "shmget": (29, 194),
}  # fmt: skip

# Their arguments are behind a pointer that a filter cannot follow: as if the kernel were older. The C library then
# takes the older call, which can be looked at.
ABSENT = {"clone3": (435, 435), "openat2": (437, 437)}

NEW_NAMESPACES = 0x7E020000
SET_ID, CREATE = 0o6000, 0o100

# Refused where every (argument, mask) has a bit in common: new namespaces, and files that run as their owner, which
# would be left behind in a workspace of the host.
REFUSED_BITS: tuple[tuple[tuple[int | None, int | None], tuple[tuple[int, int], ...]], ...] = (
    ((56, 220), ((0, NEW_NAMESPACES),)),  # clone
    ((90, None), ((1, SET_ID),)),  # chmod
    ((91, 52), ((1, SET_ID),)),  # fchmod
    ((268, 53), ((2, SET_ID),)),  # fchmodat
    ((452, 452), ((2, SET_ID),)),  # fchmodat2
    ((2, None), ((1, CREATE), (2, SET_ID))),  # open
    ((257, 56), ((2, CREATE), (3, SET_ID))),  # openat
    ((85, None), ((1, SET_ID),)),  # creat
    ((133, None), ((1, SET_ID),)),  # mknod
    ((259, 33), ((2, SET_ID),)),  # mknodat
)
SOCKET, SOCKETS = (41, 198), (1, 2, 10, 16)  # unix, IPv4, IPv6, netlink; vsock, for one, knows no namespaces
IOCTL, TERMINAL = (16, 29), (0x5412, 0x541C)  # TIOCSTI and TIOCLINUX type into the terminal
FCNTL, WATCHES = (72, 25), (1024, 1026)  # F_SETLEASE and F_NOTIFY tell who else opens a file
FLOCK, LOCKS = (73, 32), (6, 7, 37, 38)  # F_SETLK and F_SETLKW, of a process and of an open file

X32 = 0x40000000
LOAD, EQUAL, AT_LEAST, COMMON_BITS, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
ALLOW, REFUSE = 0x7FFF0000, 0x00050000
NUMBER, ARCHITECTURE = 0, 4

Instruction = tuple[int, int, int, int]  # the operation, how far to jump if true, if false, and its operand


def seccomp_filter(machine: str | None = None, locks: bool = True) -> bytes | None:
    """The filter in the form that `bwrap --seccomp` reads; None for a processor family that is not in the tables.

    Arguments:
        locks: whether files can be locked. A lock on a file that several sandboxes see is a word from one to another.
            Without, every lock seems to be had and none is taken.
    """
    found = MACHINES.get(machine or platform.machine())
    if found is None:
        return None
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in _program(found, locks))


def _program(machine: Machine, locks: bool) -> Iterator[Instruction]:
    column = machine.column
    yield LOAD, 0, 0, ARCHITECTURE
    yield EQUAL, 1, 0, machine.audit
    yield _refuse(errno.ENOSYS)  # 32-bit programs have other numbers
    yield LOAD, 0, 0, NUMBER
    yield AT_LEAST, 0, 1, X32
    yield _refuse(errno.ENOSYS)
    for table, error in ((REFUSED, errno.EPERM), (ABSENT, errno.ENOSYS)):
        for numbers in table.values():
            if (number := numbers[column]) is not None:
                yield EQUAL, 0, 1, number
                yield _refuse(error)
    for numbers, masks in REFUSED_BITS:
        if (number := numbers[column]) is not None:
            checks: list[Instruction] = []
            for left, (argument, mask) in zip(range(len(masks) - 1, -1, -1), masks, strict=True):
                checks += [(LOAD, 0, 0, _low_half(argument)), (COMMON_BITS, 0, 2 * left + 1, mask)]
            yield from _only_for(number, [*checks, _refuse(errno.EPERM)])
    allowed = [(EQUAL, len(SOCKETS) - at, 0, family) for at, family in enumerate(SOCKETS)]
    yield from _only_for(
        SOCKET[column], [(LOAD, 0, 0, _low_half(0)), *allowed, _refuse(errno.EAFNOSUPPORT), (LOAD, 0, 0, NUMBER)]
    )
    yield from _only_for(IOCTL[column], [(LOAD, 0, 0, _low_half(1)), *_each(TERMINAL, errno.EPERM)])
    pretended = [] if locks else [*_each(LOCKS, 0)]
    yield from _only_for(FCNTL[column], [(LOAD, 0, 0, _low_half(1)), *_each(WATCHES, errno.EPERM), *pretended])
    if not locks:
        yield from _only_for(FLOCK[column], [_refuse(0)])
    yield RETURN, 0, 0, ALLOW


def _only_for(number: int, checks: list[Instruction]) -> Iterator[Instruction]:
    """Run `checks` for one call; whatever falls out of them goes on with what follows."""
    yield LOAD, 0, 0, NUMBER
    yield EQUAL, 0, len(checks), number
    yield from checks


def _each(values: tuple[int, ...], error: int) -> Iterator[Instruction]:
    for value in values:
        yield EQUAL, 0, 1, value
        yield _refuse(error)


def _refuse(error: int) -> Instruction:
    """The call is not made and gives this error; 0 is success."""
    return RETURN, 0, 0, REFUSE | error


def _low_half(argument: int) -> int:
    return 16 + 8 * argument  # both families are little-endian
