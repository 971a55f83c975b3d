"""Run programs in containers of Docker or Podman: slower than bubblewrap, but with any image.

A container lives as long as a command of the engine that this process keeps open, so it ends with this process.
Files are transferred as archives, because the workspace is in memory and the engines copy only from disks.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import IO, ClassVar

from palaestra.core.errors import SandboxError
from palaestra.core.tables import load_table
from palaestra.sandbox.archives import list_names, make_archive, read_archive
from palaestra.sandbox.base import Sandbox
from palaestra.sandbox.bash_protocol import LOOP, STEP, StatusLine
from palaestra.sandbox.files import split_path
from palaestra.sandbox.processes import MAX_LOCKED, MAX_SIGNALS
from palaestra.sandbox.program import Child, make_gated_command, supervise
from palaestra.sandbox.records import Files, Limits, SandboxCommand, SandboxResult, Status
from palaestra.sandbox.shell import BURST, GRACE, START, RunningSandbox, ShellHost, is_readable

_FETCH = 900.0
"""Seconds for an engine to start a container, which may include the download of the image."""
_CALL = 60.0
"""Seconds for any other command of an engine."""
_OPTIONS: list[str] = load_table(__file__, "containers")
_WORKSPACE, _HOME, _NOBODY = "/workspace", "/home/user", "65534:65534"
# The first process: it cannot be killed from inside, and ends when the other end of its stdin is closed.
_LIFELINE = "trap '' CHLD; echo ready; exec cat >/dev/null"
# Commands are read from stdin; output goes to stdout, and the status to stderr. The script for each command is a file.
_FILES = 'printf %s "$1" >/tmp/.step && exec 56</tmp/.step 57<&0 58>&1 59>&2 60>&2 && rm /tmp/.step\nset --\n'
_OOM = "cat /sys/fs/cgroup/memory.events /sys/fs/cgroup/memory/memory.oom_control 2>/dev/null"


class Container(Sandbox):
    """A sandbox whose programs run in containers of an engine.

    Arguments:
        image: the system of the programs. It needs sh and tar, and bash for a shell. The engine pulls it if necessary.
        read_only: paths that every program may read, from the path inside to that of the host.
        place: the path of the workspace inside.
        private: further folders inside that programs may write; empty at the start.

    Raises:
        SandboxError: the engine is not installed or does not answer. The message says what to do.
    """

    name: ClassVar[str]
    install: ClassVar[str]

    def __init__(
        self,
        image: str = "python:3.11-slim",
        read_only: Mapping[str, str] = {},
        place: str = _WORKSPACE,
        private: Sequence[str] = (),
    ) -> None:
        engine = shutil.which(self.name)
        if engine is None:
            raise SandboxError(f"the sandbox '{self.name}' needs {self.name}, which is not on PATH; {self.install}")
        self.engine, self.image, self.read_only = engine, image, dict(read_only)
        self.place, self.private = place, tuple(private)
        if (answer := self._call("version")).returncode:
            raise SandboxError(f"{self.name} does not answer ({_line(answer.stderr)}); start it, or join its group")

    def start(self, command: SandboxCommand) -> _RunningContainer:
        if command.pass_fds:
            raise SandboxError(f"the sandbox '{self.name}' does not support pass_fds: its programs run under an engine")
        return _RunningContainer(self, command)

    def options(self, command: SandboxCommand) -> list[str]:
        """Return the options of `docker run` that confine a container."""
        limits, workspace = command.limits, command.workspace
        mount = f"rw,exec,nosuid,nodev,mode=1777,size={limits.disk}"
        user = _NOBODY if workspace is None else f"{os.getuid()}:{os.getgid()}"
        values = {
            "mount": mount,
            "user": user,
            "limits": limits,
            "processes": limits.processes + 8,
            "place": self.place,
        }
        options = [option.format(**values, home=_HOME, signals=MAX_SIGNALS, locked=MAX_LOCKED) for option in _OPTIONS]
        options += [f"--tmpfs={path}:{mount}" for path in self.private]
        options += [f"--env={name}={value}" for name, value in command.env.items()]
        for inside, outside in {**self.read_only, **command.read_only}.items():
            if not os.path.exists(outside):
                raise SandboxError(f"read_only must map a path inside to an existing path; got {inside!r}: {outside!r}")
            options.append(f"--mount=type=bind,source={os.path.abspath(outside)},target={inside},readonly")
        if workspace is None:
            return [*options, f"--tmpfs={self.place}:{mount}"]
        return [*options, f"--mount=type=bind,source={os.path.abspath(workspace)},target={self.place}"]

    def _call(self, *arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        try:
            return subprocess.run([self.engine, *arguments], input=stdin, capture_output=True, timeout=_CALL)
        except subprocess.TimeoutExpired:
            message = f"{self.name} {arguments[0]} did not answer within {_CALL:.0f} s; is it overloaded?"
            raise SandboxError(message) from None


class Docker(Container):
    name = "docker"
    install = "install it: https://docs.docker.com/engine/install, or use the sandbox 'bubblewrap'"


class Podman(Container):
    name = "podman"
    install = "install it with: sudo apt-get install podman (or your package manager), or use the sandbox 'bubblewrap'"


class _RunningContainer(RunningSandbox):
    """A container, from start to end."""

    def __init__(self, sandbox: Container, command: SandboxCommand) -> None:
        self.sandbox, self.name, self.removed = sandbox, f"palaestra-{secrets.token_hex(8)}", False
        self.place = sandbox.place
        options = sandbox.options(command)
        lifeline = (sandbox.image, "sh", "-c", _LIFELINE)
        self.process = self._open("run", "-i", "--rm", "--name", self.name, *options, *lifeline)
        assert self.process.stdout is not None
        if not is_readable(self.process.stdout.fileno(), _FETCH) or self.process.stdout.readline().strip() != b"ready":
            self.process.kill()
            _, errors = self.process.communicate()
            raise SandboxError(
                f"{sandbox.name} cannot start a container of '{sandbox.image}': {_line(errors)}; "
                f"try: {sandbox.name} pull {sandbox.image}"
            )

    def _open(self, *arguments: str, buffer: int = -1, errors: int = subprocess.PIPE) -> subprocess.Popen[bytes]:
        """Start a command of the engine with pipes to it."""
        return subprocess.Popen(
            [self.sandbox.engine, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            bufsize=buffer,
            start_new_session=True,
        )

    def open_bash(self, script: str, *arguments: str) -> subprocess.Popen[bytes]:
        bash = ("bash", "--norc", "--noprofile", "-c", script, "bash")
        return self._open("exec", "-i", self.name, *bash, *arguments, buffer=0)

    def run(self, command: SandboxCommand) -> SandboxResult:
        limits = command.limits
        kernel = {"c": 0, "t": int(limits.cpu_seconds) + 1, "n": limits.open_files, "f": limits.file_size // 512}
        bounded = "".join(f"ulimit -{letter} {value}; " for letter, value in kernel.items()) + 'exec "$@"'
        argv = [self.sandbox.engine, "exec", "-i", self.name, "sh", "-c", bounded, "sh", *command.argv]
        with Child(make_gated_command(argv), os.environ, session=True) as child:
            if child.wait_until_ready() < 0:
                raise SandboxError(f"cannot start {self.sandbox.name}: {child.errors()}")
            child.release()
            result = supervise(child, command.stdin, limits, None, lambda: self.end(child))
        if result.status is Status.SIGNAL and result.exit_code == 137 and self.out_of_memory():
            result = replace(result, status=Status.MEMORY)
        if result.status.is_limit:
            self.remove()
        else:
            self.check_alive()
        return result

    def make_shell_host(self, limits: Limits) -> _ContainerHost:
        return _ContainerHost(self)

    def call(self, *command: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        return self.sandbox._call("exec", "-i", self.name, *command, stdin=stdin)

    @contextmanager
    def stream(self, *command: str) -> Iterator[IO[bytes]]:
        """Stream the output of a command in the container. It is killed at the end of the context, or after `_CALL` seconds."""
        with self._open("exec", "-i", self.name, *command, errors=subprocess.DEVNULL) as process:
            timer = threading.Timer(_CALL, process.kill)
            timer.start()
            try:
                assert process.stdout is not None
                yield process.stdout
            finally:
                timer.cancel()
                process.kill()

    def write_files(self, files: Files) -> None:
        if not files:
            return
        answer = self.call("tar", "-xf", "-", "-C", self.place, stdin=make_archive(files))
        if answer.returncode:
            raise SandboxError(f"cannot put files into the container: {_line(answer.stderr)}; the image needs tar")

    def read_files(self, names: Iterable[str], longest: int, total: int | None = None) -> dict[str, bytes]:
        if self.removed:  # the program exceeded a limit
            return {}
        wanted = {name: "/".join(split_path(name)) for name in names}
        contents = read_archive(self.stream, self.place, wanted.values(), longest, total)
        return {name: contents[key] for name, key in wanted.items() if key in contents}

    def list_files(self, most: int) -> list[str]:
        return list_names(self.stream, self.place, most)

    def kill(self) -> None:
        """Kill all processes but the first one."""
        if not self.removed:
            self.call("sh", "-c", "kill -9 -1")

    def out_of_memory(self) -> bool:
        lines = self.call("sh", "-c", _OOM).stdout.decode().splitlines()
        return any(line.startswith("oom_kill ") and line.split()[1] != "0" for line in lines)

    def check_alive(self) -> None:
        if self.process.poll() is not None:
            errors = _line(self.process.communicate()[1])
            raise SandboxError(
                f"the container ended before its program: {errors}; look at the log of {self.sandbox.name}"
            )

    def end(self, child: Child) -> None:
        self.remove()
        child.kill()

    def remove(self) -> None:
        if not self.removed:
            self.removed = True
            self.sandbox._call("rm", "-f", self.name)

    def close(self) -> None:
        if self.process.poll() is None:
            self.remove()
            self.process.kill()
        self.process.communicate()


class _ContainerHost(ShellHost):
    """Hosts a shell in a container. Its processes are not visible from the host."""

    running: _RunningContainer

    def __init__(self, container: _RunningContainer) -> None:
        self.running = container
        self._process: subprocess.Popen[bytes] | None = None
        self.stdin = self.output = self.status = self.control = -1
        self.status_bytes, self._partial, self._over = 0, b"", False

    def start(self, sweep: bool, seconds: float = START) -> None:
        if sweep:
            self.running.kill()
        self.running.check_alive()
        self._leave()
        self._process = process = self.running.open_bash(_FILES + LOOP, STEP.decode())
        streams = [stream for stream in (process.stdin, process.stdout, process.stderr) if stream is not None]
        self.stdin, self.output, self.status = (stream.fileno() for stream in streams)
        self.control = self.status
        for file in (self.stdin, self.output, self.status):
            os.set_blocking(file, False)
        self._partial, self._over = b"", False
        lines, end = [], time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0 and not self._over and is_readable(self.status, left):
            for line in self._lines():
                if line.startswith(b"hello "):
                    return
                lines.append(line)
        errors, image = _line(b" ".join([*lines, self._partial])), self.running.sandbox.image
        raise SandboxError(f"a shell cannot start in '{image}': {errors}; the image needs bash")

    def read_status(self) -> list[StatusLine]:
        return [status for line in self._lines() if (status := StatusLine.parse(line)) is not None]

    def read_exit_code(self) -> int | None:
        if not self._over:
            return None
        assert self._process is not None
        try:
            code = self._process.wait(GRACE)
        except subprocess.TimeoutExpired:  # the shell is alive, but has closed its status descriptor
            self._process.kill()
            code = self._process.wait(START)
        return code if code >= 0 else 128 - code

    def _lines(self) -> list[bytes]:
        for _ in range(BURST):
            try:
                data = os.read(self.status, 65536)
            except BlockingIOError:
                break
            if not data:
                self._over = True
                break
            self.status_bytes += len(data)
            self._partial += data
        *lines, self._partial = self._partial.split(b"\n")
        return lines

    def end_shell(self) -> None:
        self.running.kill()

    def close(self) -> None:
        super().close()
        self._leave()

    def _leave(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(START)
            for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
                if stream is not None:
                    stream.close()
            self._process = None


def _line(output: bytes) -> str:
    return " ".join(output.decode("utf-8", "replace").split())[:500] or "no error message"
