"""The system calls that a program in the sandbox may make, with their numbers on x86-64 and aarch64.

The base is what Docker and Podman allow by default: years of programs in containers have shown that they need no more.
Left out of that base, with the reason:

- Objects that the kernel counts by user or for the whole machine, so that a program could use up what is the host's:
  System V messages, semaphores and shared memory, POSIX message queues and timers, asynchronous I/O, inotify and
  fanotify, filters (`seccomp`, Landlock).
- What tells of, or changes, the page cache of files that later programs see too: `mincore`, `cachestat`.
- Memory outside of any process and folder: `memfd_create`, `memfd_secret`, `vmsplice`.
- Other processes: `ptrace`, `process_vm_readv` and its kind.
- The machine: `sync`, `adjtimex`, `ioprio_set`, handles of files, tables of mounts.

What is allowed only with certain arguments is in `seccomp`. Numbers are those of the kernel's own tables; a test compares
them with the headers of the C library.
"""

from __future__ import annotations

Numbers = tuple[int | None, int | None]
"""On x86-64 and on aarch64; None where the call does not exist."""

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
    # users, whose rights they cannot raise
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
    # sockets, of a network that has nobody else
    "accept": (43, 202), "accept4": (288, 242), "bind": (49, 200), "connect": (42, 203), "getpeername": (52, 205),
    "getsockname": (51, 204), "getsockopt": (55, 209), "listen": (50, 201), "recvfrom": (45, 207),
    "recvmmsg": (299, 243), "recvmsg": (47, 212), "sendmmsg": (307, 269), "sendmsg": (46, 211), "sendto": (44, 206),
    "setsockopt": (54, 208), "shutdown": (48, 210), "socket": (41, 198), "socketpair": (53, 199),
    # the system
    "getrandom": (318, 278), "ioprio_get": (252, 31), "sysinfo": (99, 179), "uname": (63, 160),
}  # fmt: skip

ABSENT: dict[str, Numbers] = {
    "clone3": (435, 435), "io_setup": (206, 0), "openat2": (437, 437), "timer_create": (222, 107),
}  # fmt: skip
"""Refused as if the kernel were older: callers then take an older call, which can be looked at or which does no harm."""

PRETENDED: dict[str, Numbers] = {"sync": (162, 81), "syncfs": (306, 267)}
"""Seem to succeed, and do nothing: they would hold up the whole machine."""

FIRST_COMMON = 424
"""From here on numbers are the same everywhere. Who makes such a new call must do without it on older kernels."""
