"""Containers with a fake engine that records its calls and runs programs on the host.

`make test-backends` tests the isolation with a real engine, if there is one.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from palaestra.core.errors import SandboxError
from palaestra.sandbox import Limits, SandboxCommand, Status, make_sandbox
from palaestra.sandbox.base import MIB
from palaestra.sandbox.containers import Container, Docker, Podman

ENGINE = """#!{python} -S
import json, os, signal, sys, time
root, arguments = {root!r}, sys.argv[1:]
with open(root + "/log", "a") as log: log.write(json.dumps(arguments) + "\\n")
def fails(how):
    return os.path.exists(root + "/" + how)
if arguments[0] == "version":
    if fails("dead"): sys.exit("Cannot connect to the daemon")
elif arguments[0] == "run":
    if fails("no-image"): sys.exit("Unable to find image 'x' locally")
    name = arguments[arguments.index("--name") + 1]
    os.makedirs(f"{{root}}/{{name}}/workspace"); os.makedirs(f"{{root}}/{{name}}/tmp")
    open(f"{{root}}/{{name}}/pid", "w").write(str(os.getpid()))
    print("ready", flush=True)
    if fails("short-life"): sys.exit(1)
    sys.stdin.read()
elif arguments[0] == "rm":
    for line in open(f"{{root}}/{{arguments[2]}}/pid"): os.kill(int(line), signal.SIGKILL)
    for line in open(f"{{root}}/{{arguments[2]}}/running"):
        try: os.killpg(int(line), signal.SIGKILL)
        except ProcessLookupError: pass
elif arguments[0] == "exec":
    name, command = arguments[2], arguments[3:]
    if command[-1] == "kill -9 -1":
        for line in open(f"{{root}}/{{name}}/running"):
            try: os.killpg(int(line), signal.SIGKILL)
            except ProcessLookupError: pass
    elif "memory.events" in command[-1]: print("oom 1\\noom_kill", 1 if fails("oom") else 0)
    else:
        if os.getpgid(0) != os.getpid(): os.setpgid(0, 0)
        open(f"{{root}}/{{name}}/running", "a").write(f"{{os.getpid()}}\\n")
        os.chdir(f"{{root}}/{{name}}/workspace")
        command = [a.replace("/workspace", os.getcwd()).replace("/tmp/.step", f"{{root}}/{{name}}/tmp/.step") for a in command]
        os.execvp(command[0], command)
"""


class Engine:
    """The engine that pretends."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def calls(self, kind: str) -> list[list[str]]:
        lines = (self.folder / "log").read_text().splitlines()
        return [call for call in map(json.loads, lines) if call[0] == kind]

    def set_behavior(self, how: str) -> None:
        (self.folder / how).touch()


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Engine:
    (tmp_path / "bin").mkdir()
    for name in ("docker", "podman"):
        program = tmp_path / "bin" / name
        program.write_text(ENGINE.format(python=sys.executable, root=str(tmp_path)))
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    return Engine(tmp_path)


@pytest.mark.parametrize("name", ["docker", "podman"])
def test_a_program_runs_in_a_container_and_the_container_goes(engine: Engine, name: str) -> None:
    sandbox = make_sandbox(name)
    argv = ["sh", "-c", "cat - in/a.txt; echo made >out.txt; echo bad >&2; exit 3"]
    result = sandbox.run(SandboxCommand(argv, {"in/a.txt": "A"}, b"input ", read_back=["out.txt", "missing"]))
    assert (result.status, result.exit_code, result.stdout, result.stderr) == (Status.EXIT, 3, b"input A", b"bad\n")
    assert result.files == {"out.txt": b"made\n"}
    container = engine.calls("run")[0][4]
    assert container.startswith("palaestra-")
    assert engine.calls("rm") == [["rm", "-f", container]]


def test_a_container_is_confined_by_its_options(engine: Engine) -> None:
    Docker("image:1").run(
        SandboxCommand(["true"], limits=Limits(memory=64 * MIB, processes=8, disk=MIB, open_files=99), env={"A": "b c"})
    )
    options = engine.calls("run")[0]
    assert options[:4] == ["run", "-i", "--rm", "--name"]
    assert {
        "--network=none",
        "--read-only",
        "--cap-drop=ALL",
        "--security-opt=no-new-privileges",
        "--user=65534:65534",
        "--ipc=private",
        "--log-driver=none",
        f"--memory={64 * MIB}",
        f"--memory-swap={64 * MIB}",
        "--pids-limit=16",
        "--ulimit=nofile=99",
        "--ulimit=core=0",
        "--env=A=b c",
        f"--tmpfs=/workspace:rw,exec,nosuid,nodev,mode=1777,size={MIB}",
        f"--tmpfs=/tmp:rw,exec,nosuid,nodev,mode=1777,size={MIB}",
        f"--shm-size={MIB}",
    } <= set(options)
    assert options[-4:-1] == ["image:1", "sh", "-c"]
    assert not any(option.startswith(("--privileged", "--pid=", "--volume", "-v", "--mount")) for option in options)


def test_folders_of_the_host_are_mounted_as_asked(engine: Engine, tmp_path: Path) -> None:
    options = Docker(read_only={"/a": "/usr"}).options(SandboxCommand((), workspace=tmp_path, read_only={"/b": "/etc"}))
    assert "--mount=type=bind,source=/usr,target=/a,readonly" in options
    assert "--mount=type=bind,source=/etc,target=/b,readonly" in options
    assert f"--mount=type=bind,source={tmp_path},target=/workspace" in options
    assert f"--user={os.getuid()}:{os.getgid()}" in options, "else the workspace cannot be written"
    with pytest.raises(SandboxError, match="/no/such"):
        Docker().run(SandboxCommand(["true"], workspace="/no/such"))


@pytest.mark.parametrize(
    ("argv", "limits", "status"),
    [
        (["sleep", "9"], Limits(wall_seconds=0.4), Status.WALL_TIME),
        (["yes"], Limits(output=1000), Status.OUTPUT),
        (["sh", "-c", "kill -KILL $$"], Limits(), Status.SIGNAL),
        (["no-such-program"], Limits(), Status.EXIT),
    ],
)
def test_verdicts(engine: Engine, argv: list[str], limits: Limits, status: Status, gone: Callable[..., bool]) -> None:
    assert Docker().run(SandboxCommand(argv, limits=limits)).status is status
    assert len(engine.calls("rm")) >= 1
    assert gone(str(engine.folder))


def test_a_kill_for_lack_of_memory_has_its_own_status(engine: Engine) -> None:
    engine.set_behavior("oom")
    assert Docker().run(SandboxCommand(["sh", "-c", "kill -KILL $$"])).status is Status.MEMORY


def test_its_shell_keeps_the_protocol(engine: Engine) -> None:
    with Docker().shell(files={"a.txt": "A"}) as shell:
        assert shell.workspace == "/workspace"
        assert shell.execute("x=1; cat a.txt").output == b"A"
        assert shell.execute("echo $x; printf '\\0ended 0\\n\\0' >&2; (exit 3)").exit_code == 3
        late = shell.execute("echo before; sleep 9", 0.3)
        assert (late.status, late.output, late.restarted) == (Status.WALL_TIME, b"before\n", True)
        ended = shell.execute("exit 4")
        assert (ended.exit_code, ended.restarted) == (4, True)
        shell.write_files({"b/c.txt": "C"})
        assert shell.execute("cat a.txt b/c.txt").output == b"AC"
        assert shell.read_files(["b/c.txt", "nothing"]) == {"b/c.txt": b"C"}


@pytest.mark.parametrize(
    "line",
    [
        "trap 'trap - DEBUG; yes x >&59 &' DEBUG",
        "trap 'trap - DEBUG; cat /dev/zero >&59 &' DEBUG",
        "trap 'printf \"ended x\\nended 5\\nhello x\\n\" >&59' DEBUG",
        "trap 'exec 59>&-' DEBUG",
        """builtin() { if [[ $1 == printf && $2 == '%s %d\\n' ]]; then printf '%s 300\\n' "$3" >&59; else command builtin "$@"; fi; }""",
    ],
    ids=["flood", "no lines", "words of the room", "silence", "no code"],
)
def test_its_shell_cannot_be_made_to_hang_or_to_fail(engine: Engine, line: str) -> None:
    with Docker().shell(Limits(wall_seconds=1.0)) as shell:
        for command in (line, "true", "true"):
            result = shell.execute(command)
            assert 0 <= result.exit_code <= 255, result
            assert result.seconds < 4, result
        shell.execute("exit 0")
        assert shell.execute("echo well").output[-5:] == b"well\n"


def test_no_more_comes_out_of_a_container_than_is_wanted(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"a": "123", "b/-c": "4567", "d e": "8", "folder/x": "not asked for"}
    with Docker().shell(files=files) as shell:
        (workspace,) = engine.folder.glob("palaestra-*/workspace")
        (workspace / "hole").touch()
        os.truncate(workspace / "hole", 2**40)
        (workspace / "link").symlink_to("a")
        small = {"a": b"123", "b/-c": b"4567", "d e": b"8"}
        names = ["a", "missing", "link", "folder", "b/-c", "d e"]
        assert shell.read_files(names) == small
        assert shell.read_files(names, total=8) == small
        assert shell.read_files(names, total=7) == {"a": b"123", "b/-c": b"4567"}
        assert shell.read_files(names, total=6) == {"a": b"123"}
        assert shell.read_files(["a", "hole", "d e"], longest=2**41, total=10 * MIB) == {"a": b"123"}
        short = {"a": b"12", "hole": b"\0\0", "b/-c": b"45", "d e": b"8"}
        assert shell.read_files(["a", "hole", "b/-c", "d e"], longest=2, total=7) == short
        assert shell.read_files(["missing", "folder", "\ud800"]) == {}
        with pytest.raises(SandboxError, match="ud800"):
            shell.write_files({"\ud800": ""})
        os.close(os.open(bytes(workspace) + b"/\xff", os.O_CREAT))
        assert shell.list_files() == ["a", "d e", "hole", "b/-c", "folder/x"]
        assert shell.list_files(2) == ["a", "d e"]
        monkeypatch.setattr("palaestra.sandbox.archives.BATCH", 1)
        assert shell.read_files(names) == small


def test_a_container_without_tar_says_so(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    with Docker().shell(files={"a": "A"}) as shell:
        monkeypatch.setattr("palaestra.sandbox.archives.PACK", "echo packed; exec no-such-tar 2>/dev/null")
        with pytest.raises(SandboxError, match="tar"):
            shell.read_files(["a"])
        monkeypatch.setattr("palaestra.sandbox.archives.FIND", "command -v no-such-find || exit")
        with pytest.raises(SandboxError, match="find"):
            shell.list_files()


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("dead", "Cannot connect to the daemon"),
        (
            "no-image",
            "docker pull x:1",
        ),
        ("short-life", "ended before its program"),
    ],
)
def test_a_failure_of_the_engine_raises_in_one_line(engine: Engine, how: str, message: str) -> None:
    engine.set_behavior(how)
    with pytest.raises(SandboxError) as caught:
        Docker("x:1").run(SandboxCommand(["sleep", "0.3"]))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "hint"), [(Docker, "docs.docker.com/engine/install"), (Podman, "apt-get install podman")]
)
def test_a_missing_engine_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, kind: type[Container], hint: str
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(SandboxError, match=hint):
        kind()


PARENT = "from palaestra.sandbox import SandboxCommand; from palaestra.sandbox.containers import Docker; print('up', flush=True); Docker().run(SandboxCommand(['sleep', '66']))"


def test_a_container_ends_when_we_die(engine: Engine, gone: Callable[..., bool]) -> None:
    """The lifeline is the container's stdin: the kernel closes it when we are killed."""
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE) as parent:
        end = time.monotonic() + 10
        while not list(engine.folder.glob("palaestra-*/running")) and time.monotonic() < end:
            time.sleep(0.02)
        parent.send_signal(signal.SIGKILL)
    assert gone(f"{engine.folder}/bin/docker run")
    for file in engine.folder.glob("palaestra-*/running"):  # in a real container this is the engine's work
        for line in file.read_text().splitlines():
            os.killpg(int(line), signal.SIGKILL)


# A real one


@pytest.mark.backends
@pytest.mark.parametrize("kind", [Docker, Podman])
def test_a_real_engine_confines_a_program(kind: type[Container]) -> None:
    try:
        sandbox = kind(os.environ.get("PALAESTRA_TEST_IMAGE", "python:3.11-slim"))
        sandbox.run(SandboxCommand(["true"], limits=Limits(wall_seconds=60.0)))
    except SandboxError as error:
        pytest.skip(str(error))
    program = "import os, socket\nprint(os.getuid(), os.listdir('.'), open('a').read())\nfor work in (lambda: open('/etc/x', 'w'), lambda: socket.create_connection(('1.1.1.1', 53), 1), lambda: os.setuid(0)):\n  try: work()\n  except OSError: print('refused')\n  else: print('ESCAPED')\nopen('b', 'w').write('B')"
    result = sandbox.run(SandboxCommand(["python3", "-c", program], {"a": "A"}, read_back=["b"]))
    assert (result.text, result.files) == ("65534 ['a'] A\nrefused\nrefused\nrefused\n", {"b": b"B"})
    bomb = sandbox.run(
        SandboxCommand(["python3", "-c", "x = []\nwhile True: x.append(b'x' * 10**6)"], limits=Limits(memory=64 * MIB))
    )
    assert bomb.status is Status.MEMORY
    assert sandbox.run(SandboxCommand(["sleep", "9"], limits=Limits(wall_seconds=1.0))).status is Status.WALL_TIME
    with sandbox.shell() as shell:
        assert shell.execute("x=5; echo $x").output == b"5\n"
        assert shell.execute("sleep 9", 1.0).restarted
        assert shell.execute("exit 3").exit_code == 3
