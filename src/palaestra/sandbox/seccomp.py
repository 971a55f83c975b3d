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
    # files and folders
    "access": (21, None), "chdir": (80, 49), "chmod": (90, None), "chown": (92, None), "close": (3, 57),
    "close_range": (436, 436), "copy_file_range": (326, 285), "creat": (85, None), "dup": (32, 23),
    "dup2": (33, None), "dup3": (292, 24), "faccessat": (269, 48), "faccessat2": (439, 439), "fadvise64": (221, 223),
    "fallocate": (285, 47), "fchdir": (81, 50), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452),
    "fchown": (93, 55), "fchownat": (260, 54), "fcntl": (72, 25), "fdatasync": (75, 83), "fgetxattr": (193, 10),
    "flistxattr": (196, 13), "flock": (73, 32), "fremovexattr": (199, 16), "fsetxattr": (190, 7), "fstat": (5, 80),
    "fstatfs": (138, 44), "fsync": (74, 82), "ftruncate": (77, 46), "futimesat": (261, None), "getcwd": (79, 17),
    "getdents": (78, None), "getdents64": (217, 61), "getxattr": (191, 8), "ioctl": (16, 29), "lchown": (94, None),
    "lgetxattr": (192, 9), "link": (86, None), "linkat": (265, 37), "listxattr": (194, 11), "llistxattr": (195, 12),
    "lremovexattr": (198, 15), "lseek": (8, 62), "lsetxattr": (189, 6), "lstat": (6, None), "mkdir": (83, None),
    "mkdirat": (258, 34), "mknod": (133, None), "mknodat": (259, 33), "newfstatat": (262, 79), "open": (2, None),
    "openat": (257, 56), "pipe": (22, None), "pipe2": (293, 59), "pread64": (17, 67), "preadv": (295, 69),
    "preadv2": (327, 286), "pwrite64": (18, 68), "pwritev": (296, 70), "pwritev2": (328, 287), "read": (0, 63),
    "readahead": (187, 213), "readlink": (89, None), "readlinkat": (267, 78), "readv": (19, 65),
    "removexattr": (197, 14), "rename": (82, None), "renameat": (264, 38), "renameat2": (316, 276),
    "rmdir": (84, None), "sendfile": (40, 71), "setxattr": (188, 5), "splice": (275, 76), "stat": (4, None),
    "statfs": (137, 43), "statx": (332, 291), "symlink": (88, None), "symlinkat": (266, 36),
    "sync_file_range": (277, 84), "tee": (276, 77), "truncate": (76, 45), "umask": (95, 166), "unlink": (87, None),
    "unlinkat": (263, 35), "utime": (132, None), "utimensat": (280, 88), "utimes": (235, None), "write": (1, 64),
    "writev": (20, 66),
    # memory
    "brk": (12, 214), "madvise": (28, 233), "map_shadow_stack": (453, 453), "membarrier": (324, 283),
    "mlock": (149, 228), "mlock2": (325, 284), "mlockall": (151, 230), "mmap": (9, 222), "mprotect": (10, 226),
    "mremap": (25, 216), "mseal": (462, 462), "msync": (26, 227), "munlock": (150, 229), "munlockall": (152, 231),
    "munmap": (11, 215), "pkey_alloc": (330, 289), "pkey_free": (331, 290), "pkey_mprotect": (329, 288),
    # processes and threads
    "arch_prctl": (158, None), "clone": (56, 220), "execve": (59, 221), "execveat": (322, 281), "exit": (60, 93),
    "exit_group": (231, 94), "fork": (57, None), "futex": (202, 98), "futex_requeue": (456, 456),
    "futex_wait": (455, 455), "futex_waitv": (449, 449), "futex_wake": (454, 454), "get_robust_list": (274, 100),
    "get_thread_area": (211, None), "getcpu": (309, 168), "getpgid": (121, 155), "getpgrp": (111, None),
    "getpid": (39, 172), "getppid": (110, 173), "getpriority": (140, 141), "getrlimit": (97, 163),
    "getrusage": (98, 165), "getsid": (124, 156), "gettid": (186, 178), "kill": (62, 129), "personality": (135, 92),
    "pidfd_open": (434, 434), "pidfd_send_signal": (424, 424), "prctl": (157, 167), "prlimit64": (302, 261),
    "restart_syscall": (219, 128), "rseq": (334, 293), "sched_get_priority_max": (146, 125),
    "sched_get_priority_min": (147, 126), "sched_getaffinity": (204, 123), "sched_getattr": (315, 275),
    "sched_getparam": (143, 121), "sched_getscheduler": (145, 120), "sched_rr_get_interval": (148, 127),
    "sched_setaffinity": (203, 122), "sched_setattr": (314, 274), "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119), "sched_yield": (24, 124), "set_robust_list": (273, 99),
    "set_thread_area": (205, None), "set_tid_address": (218, 96), "setpgid": (109, 154), "setpriority": (141, 140),
    "setrlimit": (160, 164), "setsid": (112, 157), "tgkill": (234, 131), "times": (100, 153), "tkill": (200, 130),
    "vfork": (58, None), "wait4": (61, 260), "waitid": (247, 95),
    # users and groups, without a way to gain privileges
    "capget": (125, 90), "capset": (126, 91), "getegid": (108, 177), "geteuid": (107, 175), "getgid": (104, 176),
    "getgroups": (115, 158), "getresgid": (120, 150), "getresuid": (118, 148), "getuid": (102, 174),
    "setfsgid": (123, 152), "setfsuid": (122, 151), "setgid": (106, 144), "setgroups": (116, 159),
    "setregid": (114, 143), "setresgid": (119, 149), "setresuid": (117, 147), "setreuid": (113, 145),
    "setuid": (105, 146),
    # signals
    "pause": (34, None), "rt_sigaction": (13, 134), "rt_sigpending": (127, 136), "rt_sigprocmask": (14, 135),
    "rt_sigqueueinfo": (129, 138), "rt_sigreturn": (15, 139), "rt_sigsuspend": (130, 133),
    "rt_sigtimedwait": (128, 137), "rt_tgsigqueueinfo": (297, 240), "sigaltstack": (131, 132),
    "signalfd": (282, None), "signalfd4": (289, 74),
    # time
    "alarm": (37, None), "clock_getres": (229, 114), "clock_gettime": (228, 113), "clock_nanosleep": (230, 115),
    "getitimer": (36, 102), "gettimeofday": (96, 169), "nanosleep": (35, 101), "setitimer": (38, 103),
    "time": (201, None), "timerfd_create": (283, 85), "timerfd_gettime": (287, 87), "timerfd_settime": (286, 86),
    # waiting for files
    "epoll_create": (213, None), "epoll_create1": (291, 20), "epoll_ctl": (233, 21), "epoll_pwait": (281, 22),
    "epoll_pwait2": (441, 441), "epoll_wait": (232, None), "eventfd": (284, None), "eventfd2": (290, 19),
    "poll": (7, None), "ppoll": (271, 73), "pselect6": (270, 72), "select": (23, None),
    # sockets, in a network without other hosts
    "accept": (43, 202), "accept4": (288, 242), "bind": (49, 200), "connect": (42, 203), "getpeername": (52, 205),
    "getsockname": (51, 204), "getsockopt": (55, 209), "listen": (50, 201), "recvfrom": (45, 207),
    "recvmmsg": (299, 243), "recvmsg": (47, 212), "sendmmsg": (307, 269), "sendmsg": (46, 211), "sendto": (44, 206),
    "setsockopt": (54, 208), "shutdown": (48, 210), "socket": (41, 198), "socketpair": (53, 199),
    # the system
    "getrandom": (318, 278), "ioprio_get": (252, 31), "sysinfo": (99, 179), "uname": (63, 160),
}  # fmt: skip

_MOUNTS: dict[str, Numbers] = {"chroot": (161, 51), "unshare": (272, 97)}

ABSENT: dict[str, Numbers] = {
    "clone3": (435, 435), "io_setup": (206, 0), "openat2": (437, 437), "timer_create": (222, 107),
}  # fmt: skip
"""Refused as in an older kernel: callers fall back to an older call, whose arguments can be checked or which is harmless."""

PRETENDED: dict[str, Numbers] = {"sync": (162, 81), "syncfs": (306, 267)}
"""Succeed without an effect: they would slow down the whole machine."""

_FIRST_COMMON = 424
"""Numbers from here on are the same on all machines. Callers expect that older kernels lack these calls."""
