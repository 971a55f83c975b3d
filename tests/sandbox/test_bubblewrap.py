import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import palaestra
from palaestra.core.errors import SandboxError
from palaestra.sandbox import Limits, SandboxCommand, Status
from palaestra.sandbox.base import MIB
from palaestra.sandbox.bubblewrap import Bubblewrap

SOURCE = Path(palaestra.__file__).parents[1]
QUICK = Limits(wall_seconds=5.0)


def test_input_files_and_environment_go_in_and_output_comes_out(bubblewrap: Bubblewrap) -> None:
    program = "import os, sys; print(os.environ['GREETING'], sys.stdin.read(), open('in/a.txt').read()); open('out.txt', 'w').write('made'); sys.exit(3)"
    files = {"main.py": program, "in/a.txt": "file"}
    env, read_back = {"GREETING": "good day"}, ["out.txt", "missing"]
    result = bubblewrap.run(SandboxCommand([sys.executable, "main.py"], files, b"input", QUICK, env, read_back))
    assert (result.status, result.exit_code, result.stderr) == (Status.EXIT, 3, b"")
    assert (result.text, result.files) == ("good day input file\n", {"out.txt": b"made"})
    assert 0 < result.seconds < 5


def test_an_argument_reaches_its_program_as_it_is(bubblewrap: Bubblewrap) -> None:
    assert bubblewrap.run(SandboxCommand(["printf", "%s", "{stdin} {status}"])).stdout == b"{stdin} {status}"


@pytest.mark.parametrize("size", [0, 1, 65536, 3_000_000])
def test_input_and_output_of_any_size_pass_through(bubblewrap: Bubblewrap, size: int) -> None:
    data = os.urandom(size)
    result = bubblewrap.run(SandboxCommand(["cat"], stdin=data, limits=Limits(output=4 * MIB)))
    assert result.ok
    assert result.stdout == data


@pytest.mark.parametrize(
    ("argv", "status", "code"),
    [
        (["true"], Status.OK, 0),
        (["sh", "-c", "exit 7"], Status.EXIT, 7),
        (["sh", "-c", "exit 255"], Status.EXIT, 255),
        (["sh", "-c", "kill -SEGV $$"], Status.SIGNAL, 139),
        (["sh", "-c", "kill -KILL $$"], Status.SIGNAL, 137),
        (["no-such-program"], Status.EXIT, 127),
        (["/etc/passwd"], Status.EXIT, 126),
        (["cat", "/dev/stdin"], Status.OK, 0),
    ],
)
def test_how_a_program_ends_is_told(bubblewrap: Bubblewrap, argv: list[str], status: Status, code: int) -> None:
    result = bubblewrap.run(SandboxCommand(argv, limits=QUICK))
    assert (result.status, result.exit_code) == (status, code), result
    assert (b"Segmentation" in result.stderr) is False, "what the sandbox's own shell says is not the program's"


def test_a_limit_says_which_and_keeps_what_was_printed(bubblewrap: Bubblewrap) -> None:
    result = bubblewrap.run(SandboxCommand(["sh", "-c", "echo first; sleep 9"], limits=Limits(wall_seconds=0.3)))
    assert (result.status, result.stdout, result.exit_code) == (Status.WALL_TIME, b"first\n", 137)
    assert result.seconds == pytest.approx(0.3, abs=1.0)
    result = bubblewrap.run(
        SandboxCommand(["sh", "-c", "echo bad >&2; sleep .1; echo 123456789"], limits=Limits(output=5))
    )
    assert (result.status, result.stdout, result.stderr) == (Status.OUTPUT, b"12345", b"bad\n")
    assert (result.stdout_truncated, result.stderr_truncated) == (True, False)


def test_a_bubblewrap_that_knows_no_sizes_is_held_by_the_watch(bubblewrap: Bubblewrap, tmp_path: Path) -> None:
    old = tmp_path / "bwrap"
    old.write_text(f"""#!/bin/bash
[ "$1" = --help ] && exit
for a in "$@"; do [ "$a" = --size ] && {{ echo "bwrap: Unknown option --size" >&2; exit 1; }}; done
exec {bubblewrap.bwrap} "$@"
""")
    old.chmod(0o755)
    fill = "for i in range(2000): open(f'f{i}', 'wb').write(b'x' * 1000000)\nimport time; time.sleep(9)"
    result = Bubblewrap(bwrap=str(old)).run(
        SandboxCommand([sys.executable, "-c", fill], limits=Limits(wall_seconds=5.0, disk=4 * MIB))
    )
    assert result.status is Status.DISK


def test_packages_can_be_hidden(bubblewrap: Bubblewrap) -> None:
    import numpy

    command = [sys.executable, "-c", "import numpy; numpy.zeros(1)"]
    assert bubblewrap.run(SandboxCommand(command)).ok
    hidden = Bubblewrap(hide=[Path(numpy.__file__).parent]).run(SandboxCommand(command))
    assert "has no attribute 'zeros'" in hidden.error_text


def test_hiding_works_for_whatever_lies_below_something_shown(bubblewrap: Bubblewrap, tmp_path: Path) -> None:
    (tmp_path / "data" / "secret").mkdir(parents=True)
    (tmp_path / "data" / "secret" / "key").write_text("hidden")
    (tmp_path / "data" / "answers.txt").write_text("hidden")
    (tmp_path / "data" / "open.txt").write_text("shown")
    sandbox = Bubblewrap(
        {"/data": str(tmp_path / "data")}, hide=[tmp_path / "data" / "answers.txt", tmp_path / "data" / "secret"]
    )
    result = sandbox.run(
        SandboxCommand(["sh", "-c", "cd /data; cat open.txt answers.txt secret/*; echo x >open.txt; echo x >secret/x"])
    )
    assert result.stdout == b"shown"
    assert (tmp_path / "data" / "open.txt").read_text() == "shown"


def test_peak_memory_is_seen(bubblewrap: Bubblewrap) -> None:
    program = "x = bytearray(60_000_000)\nfor i in range(0, len(x), 4096): x[i] = 1\nimport time; time.sleep(.2)"
    result = bubblewrap.run(SandboxCommand([sys.executable, "-c", program], limits=QUICK))
    assert result.peak_memory is not None
    assert 60_000_000 < result.peak_memory < 120_000_000


def test_threads_and_libraries_work_within_the_limits(bubblewrap: Bubblewrap) -> None:
    program = "import numpy, threading, multiprocessing as m\nprint(numpy.ones((300, 300)).dot(numpy.ones((300, 300))).sum())\nwith m.Pool(2) as pool: print(sum(pool.map(abs, range(9))))"
    result = bubblewrap.run(SandboxCommand([sys.executable, "-c", program], limits=Limits(wall_seconds=20.0)))
    assert (result.text, result.error_text) == ("27000000.0\n36\n", "")


def test_runs_do_not_see_each_other(bubblewrap: Bubblewrap) -> None:
    def item(number: int) -> str:
        return bubblewrap.run(
            SandboxCommand(
                ["sh", "-c", "echo $0 >/tmp/mine; echo $0 >mine; sleep .1; cat mine /tmp/mine; ls | wc -l", str(number)]
            )
        ).text

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(item, range(16))) == [f"{n}\n{n}\n1\n" for n in range(16)]


def test_nothing_is_left_behind(bubblewrap: Bubblewrap) -> None:
    bubblewrap.run(SandboxCommand(["true"]))
    files, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
    for argv in (["true"], ["no-such"], ["sleep", "9"]):
        bubblewrap.run(SandboxCommand(argv, {"a": "b"}, b"input", Limits(wall_seconds=0.1), read_back=["a"]))
    with pytest.raises(SandboxError):
        bubblewrap.run(SandboxCommand(["true"], {"../x": "y"}))
    with pytest.raises(SandboxError):
        bubblewrap.run(SandboxCommand(["true"], workspace="/no/such/folder"))
    with bubblewrap.shell() as shell:
        shell.execute("exit")
    assert len(os.listdir("/proc/self/fd")) == files
    assert threading.active_count() == threads
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


LOOK = """
import glob
for path in glob.glob("/proc/*") + glob.glob("/proc/*/*") + glob.glob("/proc/*/task/*/mount*"):
    if path.endswith(("/mem", "/pagemap", "/kmsg", "/kcore")): continue
    try:
        with open(path, "rb") as file: text = file.read(1 << 16)
    except OSError: continue
    if b"zq-host" in text: print(path)
print("looked", [line for line in open("/proc/self/status") if line.startswith("CapEff")])
"""


def test_nothing_in_proc_names_a_folder_of_the_host(bubblewrap: Bubblewrap, tmp_path: Path) -> None:
    shown, work = tmp_path / "zq-host-data", tmp_path / "zq-host-work"
    for folder in (shown, work):
        folder.mkdir()
    (work / "look.py").write_text(LOOK)
    options = {"workspace": work, "read_only": {"/data": str(shown)}}
    program = bubblewrap.run(SandboxCommand(["python3", "look.py"], limits=QUICK, **options))  # type: ignore[arg-type]
    with bubblewrap.shell(**options) as shell:  # type: ignore[arg-type]
        texts = [program.text, shell.execute("python3 look.py").text]
        assert shell.execute("cat /proc/self/mountinfo /proc/1/mounts /proc/$$/mountstats").text == ""
        assert not shell.execute("unshare --mount true || chroot / true").ok
    assert texts == ["looked ['CapEff:\\t0000000000000000\\n']\n"] * 2


def test_a_folder_of_the_host_can_be_the_workspace(bubblewrap: Bubblewrap, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("before")
    result = bubblewrap.run(
        SandboxCommand(["sh", "-c", "cat a.txt; echo after >b.txt; chmod 4755 b.txt"], workspace=tmp_path, limits=QUICK)
    )
    assert result.stdout == b"before"
    assert (tmp_path / "b.txt").read_text() == "after\n"
    assert not (tmp_path / "b.txt").stat().st_mode & 0o6000, "no file that runs as its owner is left behind"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"argv": []}, "argv"),
        ({"argv": ["true"], "workspace": "/no/such"}, "'/no/such'"),
        ({"argv": ["true"], "read_only": {"/x": "/no/such"}}, "'/x': '/no/such'"),
        ({"argv": ["true"], "read_only": {"x": "/usr"}}, "'x': '/usr'"),
        ({"argv": ["true"], "env": {"A=B": "c"}}, "'A=B'"),
        ({"argv": ["a\0b"]}, "embedded null byte"),
        ({"argv": ["true", "x" * 3_000_000]}, "Argument list too long"),
        ({"argv": ["true"], "files": {"big": b"x" * 2 * MIB}, "limits": Limits(disk=MIB)}, "'big'"),
    ],
)  # fmt: skip
def test_an_invalid_command_raises_in_one_line(
    bubblewrap: Bubblewrap, arguments: dict[str, object], message: str
) -> None:
    with pytest.raises(SandboxError) as caught:
        bubblewrap.run(SandboxCommand(**arguments))  # type: ignore[arg-type]
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_bubblewrap_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(SandboxError, match="apt-get install bubblewrap"):
        Bubblewrap()


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        ("bwrap: setting up uid map: Permission denied", "apparmor_restrict_unprivileged_userns"),
        ("bwrap: No permissions to create new namespace", "unprivileged_userns_clone"),
        ("bwrap: Can't mount proc on /newroot/proc: Operation not permitted", "systempaths=unconfined"),
        ("bwrap: Unknown option --size", "bubblewrap is too old"),
        ("bwrap: something else", "use another sandbox"),
    ],
)
def test_a_bubblewrap_that_cannot_work_says_why_and_what_to_do(tmp_path: Path, error: str, hint: str) -> None:
    fake = tmp_path / "bwrap"
    fake.write_text(f'#!/bin/sh\necho "{error}" >&2\nexit 1\n')
    fake.chmod(0o755)
    with pytest.raises(SandboxError) as caught:
        Bubblewrap(bwrap=str(fake))
    assert error in str(caught.value)
    assert hint in str(caught.value)
    assert "\n" not in str(caught.value)


# When we die

ORPHANS = """
import sys, threading, time
from palaestra.sandbox import SandboxCommand
from palaestra.sandbox.bubblewrap import Bubblewrap
sandbox = Bubblewrap()
shell = sandbox.shell()
shell.execute(f"sleep 61{sys.argv[1]} & (setsid sleep 62{sys.argv[1]} &)")
threading.Thread(target=shell.execute, args=(f"trap '' TERM HUP INT; sleep 63{sys.argv[1]}",), daemon=True).start()
threading.Thread(target=sandbox.run, args=(SandboxCommand(["sh", "-c", f"trap '' TERM HUP INT; sleep 64{sys.argv[1]} & sleep 65{sys.argv[1]}"]),), daemon=True).start()
print("up", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_everything_dies_with_the_process_that_started_it(
    bubblewrap: Bubblewrap, how: signal.Signals, alive: Callable[[str], list[int]], gone: Callable[..., bool]
) -> None:
    token = f"{time.time_ns() % 10**9:09}"
    with subprocess.Popen(
        [sys.executable, "-c", ORPHANS, token], stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(SOURCE)}
    ) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"up\n"
        end = time.monotonic() + 5
        sleeps = [f"6{n}{token}" for n in range(1, 6)]
        while not all(map(alive, sleeps)) and time.monotonic() < end:
            time.sleep(0.02)
        assert all(map(alive, sleeps))
        parent.send_signal(how)
    for word in sleeps:
        assert gone(word)


def test_a_shell_outlives_the_thread_that_opened_it(bubblewrap: Bubblewrap) -> None:
    with ThreadPoolExecutor(1) as pool:
        shell = pool.submit(bubblewrap.shell).result()
    time.sleep(0.05)
    with shell:
        assert shell.execute("echo here").output == b"here\n"


# Not as root

UNPRIVILEGED = """
import os, sys, types
package = sys.modules["palaestra"] = types.ModuleType("palaestra")  # the system's Python has no gymnasium
package.__path__ = [os.environ["SOURCE"] + "/palaestra"]
from palaestra.sandbox import SandboxCommand, Limits, Status
from palaestra.sandbox.bubblewrap import Bubblewrap
assert os.getuid() == 65534
sandbox = Bubblewrap()
result = sandbox.run(SandboxCommand(["sh", "-c", "id -u; cat a; echo b >b; head -c1 /proc/sys/kernel/ostype; echo x >/proc/sys/kernel/core_pattern"], {"a": "A"}, read_back=["b"]))
assert (result.stdout, result.files) == (b"1000\\nAL", {"b": b"b\\n"}), result
small = Limits(wall_seconds=3.0, memory=64 * 2**20, processes=16)
bomb = sandbox.run(SandboxCommand(["sh", "-c", "f() { f | f & }; f; sleep 5"], limits=small))
assert bomb.status is Status.PROCESSES, bomb
bomb = sandbox.run(SandboxCommand(["/usr/bin/python3", "-c", "x = []\\nwhile True: x.append(b'x' * 1000000)"], limits=small))
assert bomb.status is Status.MEMORY, bomb
with sandbox.shell() as shell:
    assert shell.execute("echo $((1 + 1))").output == b"2\\n"
    late = shell.execute("sleep 9; echo never", 0.2)
    assert (late.status, late.output, late.restarted) == (Status.WALL_TIME, b"", False), late
    assert shell.execute("exit 4").restarted
    assert shell.execute("kill -STOP $$").restarted
    shell.write_files({"x": "y"})
    assert shell.execute("cat x; cat /proc/$$/environ").output.startswith(b"ycat: ")
print("held")
"""


def test_all_of_it_holds_for_a_user_who_is_not_root(bubblewrap: Bubblewrap) -> None:
    python = "/usr/bin/python3"
    if os.getuid() != 0 or shutil.which("setpriv") is None or not os.path.exists(python):
        pytest.skip("needs root, setpriv and a Python of the system to become another user")
    if subprocess.run([python, "-c", "import sys; sys.exit(sys.version_info < (3, 11))"], check=False).returncode:
        pytest.skip("the system's Python is older than 3.11")
    answer = subprocess.run(
        ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", python, "-B", "-c", UNPRIVILEGED],
        capture_output=True, cwd="/", env={"SOURCE": str(SOURCE), "PATH": "/usr/bin:/bin"}, check=False,
    )  # fmt: skip
    assert answer.stdout == b"held\n", answer.stderr.decode()
