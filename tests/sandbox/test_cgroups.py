"""The search for usable cgroups, on folder trees like the kernel's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from palaestra.sandbox import LimitReport, report_limits
from palaestra.sandbox.cgroups import (
    LEAF,
    ControlGroup,
    Hierarchy,
    _remove_stale,
    _start_time,
    find_hierarchy,
    request_scope,
)

PID = str(os.getpid())


class Machine:
    """A process's view of control groups."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.mounts = folder, list[str]()
        self.proc = folder / "proc"
        self.proc.mkdir()
        self.place("/")

    def place(self, path: str, kinds: str = "", number: int = 0) -> None:
        """Tell the process that it is in a group."""
        with open(self.proc / "cgroup", "a" if kinds else "w") as file:
            file.write(f"{number}:{kinds}:{path}\n")

    def mount(self, kind: str, options: str, root: str = "/") -> Path:
        point = self.folder / f"{kind}-{options}"
        point.mkdir()
        self.mounts.append(f"30 29 0:26 {root} {point} rw,nosuid - {kind} {kind} rw,{options}")
        (self.proc / "mountinfo").write_text("\n".join(self.mounts) + "\n")
        return point

    def mount_unified(self, controllers: str = "cpu io memory pids", root: str = "/", top: bool = True) -> Path:
        point = self.mount("cgroup2", "nsdelegate", root)
        self.group(point, controllers)
        if top:
            (point / "cgroup.type").unlink()
        return point

    def group(self, path: Path, controllers: str = "memory pids", processes: str = "") -> Path:
        path.mkdir(parents=True, exist_ok=True)
        files = {"controllers": controllers, "subtree_control": "", "procs": processes, "type": "domain"}
        for name, text in files.items():
            (path / f"cgroup.{name}").write_text(text + "\n")
        return path


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def refuse_scope() -> bool:
    return False


def test_root_uses_the_top_of_version_2(machine: Machine) -> None:
    top = machine.mount_unified()
    machine.place("/user.slice/user-0.slice/session-1.scope")
    actual, _ = find_hierarchy(machine.proc, True, refuse_scope)
    assert actual == Hierarchy(2, {"memory": top, "pids": top, "cpu": top})
    assert (top / "cgroup.subtree_control").read_text() == "+memory +pids"


def test_version_1_is_used_if_version_2_has_no_memory(machine: Machine) -> None:
    machine.mount_unified("hugetlb")
    folders = {}
    for number, (kind, controller) in enumerate((("memory", "memory"), ("pids", "pids"), ("cpu", "cpuacct")), 1):
        point = machine.mount("cgroup", controller)
        folders[kind] = machine.group(point / "mine")
        machine.place("/mine", controller, number)
    actual, _ = find_hierarchy(machine.proc, True, refuse_scope)
    assert actual == Hierarchy(1, folders)


def test_a_container_of_version_2_is_divided(machine: Machine) -> None:
    """Its root sees its own group as the top; every process moves into a child, so that others can be limited."""
    top = machine.mount_unified(top=False)
    (top / "cgroup.procs").write_text(f"1\n{PID}\n")
    actual, _ = find_hierarchy(machine.proc, True, refuse_scope)
    assert actual is not None
    assert actual.folders["memory"] == top
    assert (top / LEAF / "cgroup.procs").read_text() == PID, "the last one that was moved"
    machine.place(f"/{LEAF}")
    again, _ = find_hierarchy(machine.proc, True, refuse_scope)
    assert again == actual, "our child processes are in the leaf, and use the same place"


def test_a_user_who_is_alone_in_a_delegated_group_divides_it(machine: Machine) -> None:
    top = machine.mount_unified()
    own = machine.group(top / "user.slice" / "run-1.scope", processes=PID)
    machine.place("/user.slice/run-1.scope")
    actual, _ = find_hierarchy(machine.proc, False, refuse_scope)
    assert actual == Hierarchy(2, dict.fromkeys(("memory", "pids", "cpu"), own))
    assert (own / LEAF / "cgroup.procs").read_text() == PID


def test_a_user_among_others_asks_systemd_for_a_scope(machine: Machine) -> None:
    top = machine.mount_unified()
    machine.group(top / "session", processes=f"1\n{PID}")
    machine.place("/session")

    def move() -> bool:
        machine.group(top / "app.slice" / "palaestra.scope", processes=PID)
        machine.place("/app.slice/palaestra.scope")
        return True

    actual, _ = find_hierarchy(machine.proc, False, move)
    assert actual is not None
    assert actual.folders["memory"] == top / "app.slice" / "palaestra.scope"
    assert not (top / "session" / LEAF).exists()


def test_a_user_without_a_group_is_told_why(machine: Machine) -> None:
    top = machine.mount_unified()
    machine.group(top / "session", processes=f"1\n{PID}")
    machine.place("/session")
    actual, reason = find_hierarchy(machine.proc, False, refuse_scope)
    assert actual is None
    assert "systemd-run --user --scope -p Delegate=yes" in reason
    assert "limited by polling" in str(LimitReport("polling", reason=reason))


def test_a_machine_without_groups_is_told_why(machine: Machine) -> None:
    (machine.proc / "mountinfo").write_text("22 1 0:20 / /proc rw - proc proc rw\n")
    assert find_hierarchy(machine.proc, True, refuse_scope) == (None, "no memory controller of version 2 is mounted")


def test_a_group_of_version_2_has_its_limits_and_is_read(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    top = machine.mount_unified()
    real = os.mkdir
    files = {
        "memory.max": "m", "memory.swap.max": "m", "memory.current": "5000000", "pids.max": "m", "pids.current": "3",
        "memory.stat": "anon 900\ninactive_file 1000000\nactive_file 500000\n", "cgroup.procs": "",
        "memory.events": "low 0\noom 1\noom_kill 2\n", "cpu.stat": "usage_usec 1500000\nuser_usec 1\n",
    }  # fmt: skip

    def mkdir(path: str) -> None:
        real(path)
        for name, text in files.items():
            Path(path, name).write_text(text)

    monkeypatch.setattr(os, "mkdir", mkdir)
    group = ControlGroup(Hierarchy(2, dict.fromkeys(("memory", "pids", "cpu"), top)), 1 << 20, 7)
    folder = Path(group.folders["memory"])
    group.add(42)
    limits = {
        name: (folder / name).read_text() for name in ("memory.max", "memory.swap.max", "pids.max", "cgroup.procs")
    }
    assert limits == {"memory.max": "1048576", "memory.swap.max": "0", "pids.max": "7", "cgroup.procs": "42"}
    assert group.read_usage() == (3, 3_500_000, 1.5)
    assert group.count_kills() == 2
    for file in folder.iterdir():
        file.unlink()
    group.close()
    assert not folder.exists()


def test_groups_of_processes_that_are_gone_are_removed(tmp_path: Path) -> None:
    gone, reused, ours, other = (
        tmp_path / name
        for name in (
            f"palaestra-{2**22 + 5}-1-0",
            f"palaestra-{PID}-1-0",
            f"palaestra-{PID}-{_start_time(int(PID))}-0",
            "palaestra-host",
        )
    )
    for path in (gone, reused, ours, other):
        path.mkdir()
    _remove_stale(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([ours, other])


def test_what_is_active_is_told_in_words() -> None:
    assert (
        str(LimitReport("cgroup2", ("memory", "pids", "cpu")))
        == "memory, pids, cpu are limited by control groups, version 2"
    )
    assert (
        str(LimitReport("cgroup1", ("pids",)))
        == "pids are limited by control groups, version 1; cpu and memory by polling"
    )
    report = report_limits()
    assert report.backend in ("cgroup2", "cgroup1", "polling")
    assert bool(report.reason) == (report.backend == "polling")


# systemd, by a stand-in for its command

BUSCTL = """#!/bin/sh
echo "$@" >{folder}/asked
echo '0::/user.slice/user-{uid}.slice/user@{uid}.service/app.slice/palaestra-{pid}.scope' >{folder}/cgroup
"""


@pytest.mark.parametrize(
    ("own", "moved"),
    [
        ("/user.slice/user-{uid}.slice/session-3.scope", True),
        ("/user.slice/user-{uid}.slice/user@{uid}.service/app.slice/terminal.scope", True),
        ("/system.slice/slurmstepd.scope/job_1/step_0", False),
        ("/docker/0123", False),
    ],
)  # fmt: skip
def test_systemd_moves_a_process_of_a_session_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str, moved: bool
) -> None:
    uid = os.getuid()
    (tmp_path / "cgroup").write_text("0::" + own.format(uid=uid) + "\n")
    (tmp_path / "bus").touch()
    (tmp_path / "busctl").write_text(BUSCTL.format(folder=tmp_path, uid=uid, pid=PID))
    (tmp_path / "busctl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert request_scope(tmp_path / "cgroup") is moved
    assert (tmp_path / "asked").exists() is moved
    if moved:
        asked = (tmp_path / "asked").read_text()
        assert f"palaestra-{PID}.scope" in asked
        assert f"PIDs au 1 {PID} Delegate b true" in asked


def test_a_systemd_that_fails_or_is_not_there_moves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cgroup").write_text(f"0::/user.slice/user-{os.getuid()}.slice/session-3.scope\n")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    assert not request_scope(tmp_path / "cgroup"), "no bus"
    (tmp_path / "bus").touch()
    (tmp_path / "busctl").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "busctl").chmod(0o755)
    assert not request_scope(tmp_path / "cgroup")
