"""Memory and CPU time that polling does not see; cgroups limit all of it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import palaestra
from palaestra.sandbox import Limits, SandboxCommand, SandboxResult, Status, report_limits
from palaestra.sandbox.base import MIB
from palaestra.sandbox.bubblewrap import Bubblewrap

SOURCE = Path(palaestra.__file__).parents[1]
LIMITS = Limits(
    wall_seconds=10.0,
    cpu_seconds=10.0,
    memory=96 * MIB,
    processes=24,
    open_files=1024,
    disk=256 * MIB,
    file_size=256 * MIB,
)
PRELUDE = """
import ctypes, fcntl, mmap, os, platform, select, signal, socket, struct, sys, threading, time
C = ctypes.CDLL(None, use_errno=True)
X86 = platform.machine() == "x86_64"
def call(x86, arm, *arguments): return C.syscall(ctypes.c_long(x86 if X86 else arm), *arguments)
def burn(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end: pass
def fill(file, most=10**9):
    "Write without waiting, as much as is taken."
    total, data = 0, b"x" * 65536
    try:
        while total < most: total += file.send(data) if isinstance(file, socket.socket) else os.write(file, data)
    except BlockingIOError: pass
    return total
"""
EVERYWHERE = {
    "the first thread ends and another allocates": """
def work():
    time.sleep(.05)
    x = b"x" * 200_000_000
    time.sleep(.3)
    os._exit(0)
threading.Thread(target=work).start()
call(60, 93, 0)
""",
    "a short peak and a good end": 'x = b"x" * 300_000_000',
    "a child's short peak and a good end": 'if os.fork() == 0:\n  x = b"x" * 300_000_000\n  os._exit(0)\nos.wait()',
    "the threads of many processes": """
def work():
    time.sleep(.05)
    x = b"x" * 25_000_000
    time.sleep(.5)
    os._exit(0)
for _ in range(10):
    if os.fork() == 0:
        threading.Thread(target=work).start()
        call(60, 93, 0)
time.sleep(.6)
""",
}
IN_GROUPS = {
    "pipes": """
for _ in range(16):
    if os.fork() == 0:
        pipes = [os.pipe() for _ in range(220)]
        for _, end in pipes: os.set_blocking(end, False); fill(end)
        time.sleep(2); os._exit(0)
for _ in range(16): os.wait()
""",
    "unix sockets": """
pairs = [socket.socketpair() for _ in range(480)]
total = 0
for pair in pairs:
    for end in pair: end.setblocking(False); total += fill(end)
time.sleep(.2)
""",
    "files in shared memory": 'for n in range(4):\n  with open(f"/dev/shm/{n}", "wb") as f: f.write(b"x" * 50_000_000)',
    "files of every folder": 'for root in "/tmp", os.environ["HOME"], "/workspace", "/dev/shm":\n  with open(f"{root}/f", "wb") as f: f.write(b"x" * 50_000_000)',
    "files that are deleted and kept open": 'files = []\nfor n in range(4):\n  files.append(open("/tmp/f", "wb")); os.unlink("/tmp/f")\n  files[-1].write(b"x" * 50_000_000)',
    "shared memory that is mapped by nobody": 'x = mmap.mmap(-1, 200_000_000)\nfor i in range(0, len(x), 4096): x[i] = 1\nx.close()',
    "descriptors of the kernel": """
for _ in range(16):
    if os.fork() == 0:
        polls, files = [select.epoll() for _ in range(300)], [os.eventfd(0) for _ in range(600)]
        for p in polls:
            for f in files: p.register(f)
        time.sleep(5); os._exit(0)
for _ in range(16): os.wait()
""",
}  # fmt: skip
SHORT_CHILDREN = """
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for _ in range({count}):
    ours, theirs = os.pipe()
    if os.fork() == 0:
        burn({seconds}); os._exit(0)
    os.close(theirs); os.read(ours, 1); os.close(ours)
"""
CPU = {
    "children that nobody waits for": SHORT_CHILDREN.format(count=40, seconds=0.1),
    "orphans": """
for _ in range(40):
    ours, theirs = os.pipe()
    if os.fork() == 0:
        if os.fork() == 0: burn(.1)
        os._exit(0)
    os.close(theirs); os.wait(); os.read(ours, 1); os.close(ours)
""",
}  # fmt: skip


@pytest.fixture
def polling(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which no control group can be created."""
    monkeypatch.setattr("palaestra.sandbox.bubblewrap.create_group", lambda memory, tasks: None)


@pytest.fixture
def groups(bubblewrap: Bubblewrap) -> None:
    if report_limits().controllers != ("memory", "pids", "cpu"):
        pytest.skip(str(report_limits()))


def run(sandbox: Bubblewrap, program: str, limits: Limits = LIMITS) -> SandboxResult:
    return sandbox.run(
        SandboxCommand([sys.executable, "-I", "-S", "main.py"], {"main.py": PRELUDE + program}, limits=limits)
    )


@pytest.mark.parametrize("program", EVERYWHERE | IN_GROUPS)
def test_memory_that_no_process_shows_is_held_by_groups(bubblewrap: Bubblewrap, groups: None, program: str) -> None:
    result = run(bubblewrap, (EVERYWHERE | IN_GROUPS)[program])
    assert result.status is Status.MEMORY, result
    assert result.seconds < 8


@pytest.mark.parametrize("program", EVERYWHERE)
def test_memory_between_looks_is_seen_by_polling(bubblewrap: Bubblewrap, polling: None, program: str) -> None:
    assert run(bubblewrap, EVERYWHERE[program]).status is Status.MEMORY


def test_buffers_of_tcp_are_bounded(bubblewrap: Bubblewrap, groups: None) -> None:
    program = """
server = socket.create_server(("127.0.0.1", 0)); total, kept = 0, []
for _ in range(200):
    try:
        one = socket.create_connection(server.getsockname(), 1); other, _ = server.accept()
    except OSError: break
    kept += [one, other]
    for end in one, other: end.setblocking(False); total += fill(end)
print(total)
"""
    result = run(bubblewrap, program, replace(LIMITS, wall_seconds=3.0))
    assert result.status in (Status.MEMORY, Status.WALL_TIME) or int(result.text) < LIMITS.memory, result


@pytest.mark.parametrize("program", CPU)
@pytest.mark.parametrize("limit_method", ["groups", "polling"])
def test_cpu_time_of_processes_that_nobody_waits_for_counts(
    bubblewrap: Bubblewrap, request: pytest.FixtureRequest, program: str, limit_method: str
) -> None:
    request.getfixturevalue(limit_method)
    result = run(bubblewrap, CPU[program], replace(LIMITS, cpu_seconds=0.3))
    assert result.status is Status.CPU_TIME, result


def test_cpu_time_of_the_shortest_children_counts(bubblewrap: Bubblewrap, groups: None) -> None:
    result = run(bubblewrap, SHORT_CHILDREN.format(count=100, seconds=0.004), replace(LIMITS, cpu_seconds=0.25))
    assert result.status is Status.CPU_TIME, result


@pytest.mark.parametrize("limit_method", ["groups", "polling"])
def test_honest_programs_are_not_ended(
    bubblewrap: Bubblewrap, request: pytest.FixtureRequest, limit_method: str
) -> None:
    """Files that are read and dropped, children that are waited for, most of the memory."""
    request.getfixturevalue(limit_method)
    program = """
x = b"x" * 50_000_000
del x
for root, _, names in os.walk("/usr/lib"):
    for name in names[:20]:
        try: open(os.path.join(root, name), "rb").read(4_000_000)
        except OSError: pass
    if time.process_time() > .2: break
for _ in range(5):
    if os.fork() == 0: burn(.02); os._exit(0)
    os.wait()
"""
    result = run(bubblewrap, program)
    assert result.ok, result


# The persistent shell


@pytest.fixture(params=["groups", "polling"])
def limit_method(request: pytest.FixtureRequest) -> str:
    request.getfixturevalue(request.param)
    return str(request.param)


def python(program: str) -> str:
    return f"cat >/tmp/p.py <<'END'\n{PRELUDE}{program}\nEND\n{sys.executable} -I -S /tmp/p.py"


def test_a_shell_is_told_of_memory_and_lives_on(bubblewrap: Bubblewrap, limit_method: str) -> None:
    with bubblewrap.shell(LIMITS) as shell:
        shell.execute("kept=1")
        result = shell.execute(python(EVERYWHERE["the first thread ends and another allocates"]))
        assert result.status is Status.MEMORY, result
        assert "more memory than allowed" in result.note
        assert shell.execute("echo $kept").text == "1\n"


def test_a_shell_survives_folders_that_are_full_of_memory(bubblewrap: Bubblewrap, groups: None) -> None:
    with bubblewrap.shell(LIMITS, files={"keep": "kept"}) as shell:
        for _ in range(3):
            result = shell.execute("for i in 1 2 3 4; do head -c 50000000 /dev/zero >/dev/shm/$i; done")
            assert result.status is Status.MEMORY, result
        assert shell.read_files(["keep"]) == {"keep": b"kept"}
        shell.execute("rm -f /dev/shm/*")
        assert b"kept" in shell.execute("cat keep").output


def test_a_command_of_a_shell_has_a_limit_of_cpu_time(bubblewrap: Bubblewrap, limit_method: str) -> None:
    with bubblewrap.shell(replace(LIMITS, cpu_seconds=0.3)) as shell:
        for _ in range(2):
            result = shell.execute(python(SHORT_CHILDREN.format(count=40, seconds=0.06)))
            assert (result.status, result.exit_code) == (Status.CPU_TIME, 124), result
        for _ in range(3):  # each command has its own
            assert shell.execute(python("burn(.15)")).ok


# Groups come and go


def find_cgroups(process: int) -> list[Path]:
    from palaestra.sandbox.cgroups import find_hierarchy

    hierarchy, _ = find_hierarchy(request=lambda: False)
    folders = set(hierarchy.folders.values()) if hierarchy else set()
    return [path for folder in folders for path in folder.glob(f"palaestra-{process}-*")]


def test_groups_are_removed(bubblewrap: Bubblewrap, groups: None) -> None:
    with bubblewrap.shell() as shell:
        shell.execute("sleep 60 &")
        assert find_cgroups(os.getpid())
    for program in ("", "time.sleep(9)", EVERYWHERE["a short peak and a good end"]):
        run(bubblewrap, program, replace(LIMITS, wall_seconds=0.3))
    with pytest.raises(palaestra.core.errors.SandboxError):
        bubblewrap.run(SandboxCommand(["true"], {"../x": "y"}))
    end = time.monotonic() + 10
    while find_cgroups(os.getpid()) and time.monotonic() < end:  # the kernel may take its time
        run(bubblewrap, "", LIMITS)
    assert not find_cgroups(os.getpid())


CRASH = """
import os, signal, sys
from palaestra.sandbox.bubblewrap import Bubblewrap
sandbox = Bubblewrap()
shell = sandbox.shell()
if sys.argv[1] == "crash":
    print(os.getpid(), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_groups_of_a_killed_process_are_removed_later(bubblewrap: Bubblewrap, groups: None) -> None:
    def start(limit_method: str) -> str:
        command, env = [sys.executable, "-c", CRASH, limit_method], {**os.environ, "PYTHONPATH": str(SOURCE)}
        return subprocess.run(command, env=env, capture_output=True, text=True, check=False).stdout

    process = int(start("crash"))
    assert find_cgroups(process)
    start("well")
    assert not find_cgroups(process)


@pytest.fixture(autouse=True)
def nothing_is_left_running() -> Iterator[None]:
    yield
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)
