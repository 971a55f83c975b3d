"""The system-call filter, run by a BPF interpreter for each processor family."""

from __future__ import annotations

import csv
import errno
import os
import re
import struct
from pathlib import Path
from typing import Any

import pytest

from palaestra.sandbox.seccomp import ABSENT, ALLOWED, CONDITIONS, MACHINES, PRETENDED, seccomp_filter

ALLOW, SUCCESS = "allow", 0
FAMILIES = list(MACHINES)


def interpret(program: bytes, number: int, machine: int, arguments: tuple[int, ...] = ()) -> str | int:
    """What the kernel would do: allow the call, or return an error without making it."""
    data = {0: number, 4: machine} | {16 + 8 * at: value for at, value in enumerate((*arguments, *[0] * 6)[:6])}
    code = list(struct.iter_unpack("=HBBI", program))
    at = value = 0
    while True:
        operation, if_true, if_false, operand = code[at]
        at += 1
        if operation == 0x20:
            value = data[operand] & 0xFFFFFFFF
        elif operation == 0x54:
            value &= operand
        elif operation == 0x06:
            return ALLOW if operand == 0x7FFF0000 else operand & 0xFFFF
        else:
            holds = {0x15: value == operand, 0x35: value >= operand, 0x45: bool(value & operand)}[operation]
            at += if_true if holds else if_false


def ask(family: str, name: str, *arguments: int, locks: bool = True) -> str | int:
    number = (ALLOWED | ABSENT | PRETENDED | REFUSED)[name][MACHINES[family].column]
    program = seccomp_filter(family, locks)
    assert program is not None
    assert number is not None
    return interpret(program, number, MACHINES[family].audit, arguments)


# Calls that the sandbox must refuse, whatever their arguments; numbers as in the kernel's tables.
REFUSED: dict[str, tuple[int | None, int | None]] = {
    "semget": (64, 190), "semop": (65, 193), "msgget": (68, 186), "msgsnd": (69, 189), "shmget": (29, 194),
    "shmat": (30, 196), "mq_open": (240, 180), "io_submit": (209, 2), "timer_settime": (223, 110),
    "mincore": (27, 232), "cachestat": (451, 451), "memfd_create": (319, 279), "memfd_secret": (447, 447),
    "vmsplice": (278, 75), "inotify_init1": (294, 26), "fanotify_init": (300, 262), "fanotify_mark": (301, 263),
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
    "pidfd_getfd": (438, 438), "process_madvise": (440, 440), "mount": (165, 40), "umount2": (166, 39),
    "pivot_root": (155, 41), "chroot": (161, 51), "unshare": (272, 97), "setns": (308, 268), "fsopen": (430, 430),
    "open_tree": (428, 428), "mount_setattr": (442, 442), "open_by_handle_at": (304, 265),
    "name_to_handle_at": (303, 264), "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282), "io_uring_setup": (425, 425),
    "syslog": (103, 116), "init_module": (175, 105), "kexec_load": (246, 104), "reboot": (169, 142),
    "swapon": (167, 224), "acct": (163, 89), "quotactl": (179, 60), "clock_settime": (227, 112),
    "clock_adjtime": (305, 266), "adjtimex": (159, 171), "sethostname": (170, 161), "seccomp": (317, 277),
    "landlock_create_ruleset": (444, 444), "mbind": (237, 235), "move_pages": (279, 239),
    "remap_file_pages": (216, 234), "lsm_set_self_attr": (460, 460), "quotactl_fd": (443, 443),
}  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("locks", [True, False])
def test_what_is_not_in_the_table_is_refused(family: str, locks: bool) -> None:
    machine, program = MACHINES[family], seccomp_filter(family, locks)
    assert program is not None
    assert len(program) // 8 < 4096, "what the kernel takes"
    plain = {n[machine.column] for name, n in ALLOWED.items() if name not in CONDITIONS and name != "flock"}
    pretended = {numbers[machine.column] for numbers in PRETENDED.values()}
    conditional = {n[machine.column] for name, n in ALLOWED.items() if name in CONDITIONS or name == "flock"}
    for number in range(600):
        answer = interpret(program, number, machine.audit)
        if number in plain:
            assert answer == ALLOW, number
        elif number in pretended:
            assert answer == SUCCESS, number
        elif number not in conditional:
            assert answer in (errno.EPERM, errno.ENOSYS), number
            assert answer == errno.ENOSYS or number < 424, "a new call is answered as by an older kernel"


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", list(REFUSED))
def test_what_reaches_the_host_is_refused(family: str, name: str) -> None:
    assert ask(family, name) in (errno.EPERM, errno.ENOSYS)


@pytest.mark.parametrize("family", FAMILIES)
def test_calls_with_an_older_form_seem_to_be_missing(family: str) -> None:
    for name in ("clone3", "openat2", "timer_create", "io_setup"):
        assert ask(family, name) == errno.ENOSYS


@pytest.mark.parametrize("family", FAMILIES)
def test_programs_of_another_kind_are_refused(family: str) -> None:
    program, machine = seccomp_filter(family), MACHINES[family]
    assert program is not None
    for other in (0x40000003, 0x40000028, *(m.audit for m in MACHINES.values() if m != machine)):  # i386, ARM
        assert interpret(program, 1, other) == errno.ENOSYS
    for number in (0x40000000, 0x40000001, 0x40000000 + 520, 0xFFFFFFFF):  # x32
        assert interpret(program, number, machine.audit) == errno.ENOSYS


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("name", "arguments", "answer"),
    [
        ("clone", (0x11,), ALLOW), ("clone", (0x3D0F00,), ALLOW), *(("clone", (bit | 0x11,), 1) for bit in (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000)),
        ("fchmodat", (0, 0, 0o755), ALLOW), ("fchmodat", (0, 0, 0o4755), 1), ("fchmod", (0, 0o2755), 1), ("fchmodat2", (0, 0, 0o6755), 1),
        ("openat", (0, 0, 0o100, 0o644), ALLOW), ("openat", (0, 0, 0o100, 0o4644), 1), ("openat", (0, 0, 0, 0o4644), ALLOW),
        ("openat", (0, 0, 0o20200001, 0o2644), 1), ("openat", (0, 0, 0o20040001, 0o4644), 1), ("openat", (0, 0, 0o20200001, 0o644), ALLOW),
        ("mknodat", (0, 0, 0o100644), ALLOW), ("mknodat", (0, 0, 0o10644), ALLOW), ("mknodat", (0, 0, 0o104644), 1), ("mknodat", (0, 0, 0o20666), 1), ("mknodat", (0, 0, 0o60666), 1),
        *(("socket", (family, 1), ALLOW) for family in (1, 2, 10, 16)), *(("socket", (family, 1), 97) for family in (0, 3, 17, 29, 30, 31, 38, 40, 41, 44)),
        ("socket", (2, 1, 6), ALLOW), ("socket", (2, 1, 132), 93), ("socket", (2, 3, 255), 93), ("socket", (16, 3, 9), 93),
        ("socketpair", (1, 1), ALLOW), *(("socketpair", (family, 1), 97) for family in (2, 16, 30, 38, 40)),
        ("setsockopt", (3, 1, 2), ALLOW), ("setsockopt", (3, 6, 26), ALLOW), *(("setsockopt", (3, 1, option), 1) for option in (26, 50, 51, 52)),
        ("ioctl", (0, 0x5401), ALLOW), ("ioctl", (0, 0x80045430), ALLOW), ("ioctl", (0, 0x8912), ALLOW), *(("ioctl", (0, item), 1) for item in (0x5412, 0x541C, 0x541D, 0x5423)),
        *(("ioctl", (0, item), 25) for item in (0xC0506617, 0x800C6613, 0x40806685, 0x40049409, 0xC0045877, 0xAE01)),
        *(("fcntl", (0, item), ALLOW) for item in (0, 1, 2, 3, 4, 6, 1030, 1032)), *(("fcntl", (0, item), 1) for item in (1024, 1026, 1031, 1035, 1036, 1037, 1038, 9999)),
        *(("madvise", (0, 0, item), ALLOW) for item in (4, 8, 14, 15)), *(("madvise", (0, 0, item), 22) for item in (12, 20, 21, 25, 100, 101)),
        ("fadvise64", (0, 0, 0, 2), ALLOW), ("fadvise64", (0, 0, 0, 4), SUCCESS),
        ("preadv2", (0, 0, 0, 0, 0, 0), ALLOW), *(("preadv2", (0, 0, 0, 0, 0, flag), 95) for flag in (8, 128)), ("pwritev2", (0, 0, 0, 0, 0, 128), 95),
        ("mmap", (0, 0, 3, 0x22), ALLOW), ("mmap", (0, 0, 3, 0x40022), 12),
        ("prctl", (15,), ALLOW), ("prctl", (22,), 1), ("prctl", (62,), 1), ("prctl", (67,), 1),
        ("personality", (0,), ALLOW), ("personality", (0xFFFFFFFF,), ALLOW), ("personality", (0x40000,), 1), ("personality", (8,), 1),
    ],
)  # fmt: skip
def test_the_filter_looks_at_arguments(family: str, name: str, arguments: Any, answer: Any) -> None:
    assert ask(family, name, *arguments) == answer
    high_half = tuple(value | 0xDEAD << 32 for value in arguments)
    assert ask(family, name, *high_half) == answer, "the kernel takes the low half of these arguments"


def test_old_calls_of_x86_are_looked_at_too() -> None:
    for name, arguments in (("chmod", (0, 0o4755)), ("creat", (0, 0o4755)), ("mknod", (0, 0o104755)), ("open", (0, 0o20200002, 0o4755)), ("open", (0, 0o100, 0o2755))):  # fmt: skip
        assert ask("x86_64", name, *arguments) == errno.EPERM


@pytest.mark.parametrize("family", FAMILIES)
def test_locks_seem_to_be_had_where_there_are_none(family: str) -> None:
    assert ask(family, "flock", 0, 2) == ALLOW
    assert ask(family, "flock", 0, 2, locks=False) == SUCCESS
    for command in (6, 7, 37, 38):
        assert ask(family, "fcntl", 0, command) == ALLOW
        assert ask(family, "fcntl", 0, command, locks=False) == SUCCESS
    assert ask(family, "fcntl", 0, 3, locks=False) == ALLOW
    assert ask(family, "fcntl", 0, 1036, locks=False) == errno.EPERM


def test_a_processor_family_without_a_table_has_no_filter() -> None:
    assert seccomp_filter("riscv64") is None


def test_the_numbers_are_those_of_the_headers_of_this_machine() -> None:
    """Every Linux machine with a C compiler has those of its own family, and the generic ones are aarch64's."""
    headers = {
        "x86_64": ("/usr/include/x86_64-linux-gnu/asm/unistd_64.h", "/usr/include/asm/unistd_64.h"),
        "aarch64": ("/usr/include/asm-generic/unistd.h",),
    }
    checked = 0
    for family, paths in headers.items():
        for path in filter(os.path.exists, paths):
            actual = re.findall(r"^#define __NR(?:3264)?_(\w+)\s+(\d+)", Path(path).read_text(), re.MULTILINE)
            numbers = {name: int(number) for name, number in actual}
            for name, known in (ALLOWED | ABSENT | PRETENDED | REFUSED).items():
                # The generic header names these two otherwise.
                number = known[MACHINES[family].column]
                if name in numbers and name not in ("sync_file_range2",):
                    assert number == numbers[name], name
                    checked += 1
    if not checked:
        pytest.skip("no headers of the kernel here: sudo apt-get install linux-libc-dev")
    assert checked > 200


def test_the_numbers_are_those_of_libseccomp() -> None:
    """All calls of both families, by the table that libseccomp keeps: PALAESTRA_LIBSECCOMP is its src/syscalls.csv."""
    path = os.environ.get("PALAESTRA_LIBSECCOMP", "")
    if not path:
        pytest.skip("set PALAESTRA_LIBSECCOMP to src/syscalls.csv of a checkout of libseccomp")
    rows = list(csv.DictReader(Path(path).read_text().splitlines()))
    first = next(iter(rows[0]))
    table = {row[first]: tuple(None if row[f] == "PNR" else int(row[f]) for f in FAMILIES) for row in rows}
    for name, numbers in (ALLOWED | ABSENT | PRETENDED | REFUSED).items():
        assert numbers == table[name], name
