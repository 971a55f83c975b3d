"""Run programs in containers of Docker or Podman: slower than bubblewrap, but with any image.

A container lives as long as a command of the engine that this process keeps open, so it ends with this process.
Files are transferred as archives, because the workspace is in memory and the engines copy only from disks.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from os import PathLike
from typing import IO, ClassVar

from palaestra.core.errors import SandboxError
from palaestra.sandbox.archives import list_names, pack, read_packed
from palaestra.sandbox.base import SHELL_LIMITS, Files, Limits, SandboxResult, Status
from palaestra.sandbox.bash_protocol import LOOP, STEP, StatusLine
from palaestra.sandbox.files import split_path
from palaestra.sandbox.processes import LOCKED, SIGNALS
from palaestra.sandbox.program import Child, make_gated_command, supervise
from palaestra.sandbox.shell import BURST, GRACE, START, BashShell, ShellHost, readable

FETCH = 900.0
"""Seconds for an engine to start a container, which may include the download of the image."""
CALL = 60.0
"""Seconds for any other command of an engine."""
WORKSPACE, HOME, NOBODY = "/workspace", "/home/user", "65534:65534"
# The first process: it cannot be killed from inside, and ends when the other end of its stdin is closed.
LIFELINE = "trap '' CHLD; echo ready; exec cat >/dev/null"
# Commands are read from stdin; output goes to stdout, and the status to stderr. The script for each command is a file.
FILES = 'printf %s "$1" >/tmp/.step && exec 56</tmp/.step 57<&0 58>&1 59>&2 60>&2 && rm /tmp/.step\nset --\n'
OOM = "cat /sys/fs/cgroup/memory.events /sys/fs/cgroup/memory/memory.oom_control 2>/dev/null"


class Container:
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
        place: str = WORKSPACE,
        private: Sequence[str] = (),
    ) -> None:
        engine = shutil.which(self.name)
        if engine is None:
            raise SandboxError(f"the sandbox '{self.name}' needs {self.name}, which is not on PATH; {self.install}")
        self.engine, self.image, self.read_only = engine, image, dict(read_only)
        self.place, self.private = place, tuple(private)
        if (answer := self._call("version")).returncode:
            raise SandboxError(f"{self.name} does not answer ({_line(answer.stderr)}); start it, or join its group")

    def run(
        self,
        argv: Sequence[str],
        files: Mapping[str, bytes | str] = {},
        stdin: bytes | socket.socket = b"",
        limits: Limits = Limits(),
        env: Mapping[str, str] = {},
        read_back: Sequence[str] = (),
        workspace: str | PathLike[str] | None = None,
        read_only: Mapping[str, str] = {},
    ) -> SandboxResult:
        """See `Sandbox.run`."""
        if not argv:
            raise SandboxError("run needs a program; got an empty argv")
        env = {"OMP_NUM_THREADS": "1", **env}
        with closing(_RunningContainer(self, limits, env, workspace, read_only)) as container:
            container.write_files(files)
            kernel = {"c": 0, "t": int(limits.cpu_seconds) + 1, "n": limits.open_files, "f": limits.file_size // 512}
            bounded = "".join(f"ulimit -{letter} {value}; " for letter, value in kernel.items()) + 'exec "$@"'
            command = [self.engine, "exec", "-i", container.name, "sh", "-c", bounded, "sh", *argv]
            with Child(make_gated_command(command), os.environ, session=True) as child:
                if child.wait_until_ready() < 0:
                    raise SandboxError(f"cannot start {self.name}: {child.errors()}")
                child.release()
                result = supervise(child, stdin, limits, None, lambda: container.end(child))
            if result.status is Status.SIGNAL and result.exit_code == 137 and container.out_of_memory():
                result = replace(result, status=Status.MEMORY)
            if not result.status.is_limit:
                container.check_alive()
                if read_back:
                    container.sweep()
                    result = replace(result, files=container.read_files(read_back, limits.file_size))
        return result

    def shell(
        self,
        limits: Limits = SHELL_LIMITS,
        files: Mapping[str, bytes | str] = {},
        env: Mapping[str, str] = {},
        workspace: str | PathLike[str] | None = None,
        read_only: Mapping[str, str] = {},
    ) -> BashShell:
        """See `Sandbox.shell`. A timeout kills the background processes too."""

        def start_host() -> _ContainerHost:
            container = _RunningContainer(self, limits, env, workspace, read_only)
            try:
                container.write_files(files)
                return _ContainerHost(container, limits)
            except BaseException:
                container.close()
                raise

        return BashShell(start_host, limits)

    def options(
        self,
        limits: Limits,
        env: Mapping[str, str],
        workspace: str | PathLike[str] | None = None,
        read_only: Mapping[str, str] = {},
    ) -> list[str]:
        """Return the options of `docker run` that confine a container."""
        mount = f"rw,exec,nosuid,nodev,mode=1777,size={limits.disk}"
        user = NOBODY if workspace is None else f"{os.getuid()}:{os.getgid()}"
        options = [
            "--network=none", "--read-only", "--cap-drop=ALL", "--security-opt=no-new-privileges", f"--user={user}",
            "--ipc=private", "--hostname=sandbox", "--log-driver=none", "--stop-timeout=0",
            f"--memory={limits.memory}", f"--memory-swap={limits.memory}", f"--pids-limit={limits.processes + 8}",
            f"--ulimit=nofile={limits.open_files}", f"--ulimit=fsize={limits.file_size}", "--ulimit=core=0",
            "--ulimit=msgqueue=0", f"--ulimit=sigpending={SIGNALS}", f"--ulimit=memlock={LOCKED}",
            f"--tmpfs=/tmp:{mount}", f"--tmpfs={HOME}:{mount}", f"--shm-size={limits.disk}", f"--workdir={self.place}",
            f"--env=HOME={HOME}", "--env=LANG=C.UTF-8", "--env=TERM=dumb",
        ]  # fmt: skip
        options += [f"--tmpfs={path}:{mount}" for path in self.private]
        options += [f"--env={name}={value}" for name, value in env.items()]
        for inside, outside in {**self.read_only, **read_only}.items():
            if not os.path.exists(outside):
                raise SandboxError(f"read_only must map a path inside to an existing path; got {inside!r}: {outside!r}")
            options.append(f"--mount=type=bind,source={os.path.abspath(outside)},target={inside},readonly")
        if workspace is None:
            return [*options, f"--tmpfs={self.place}:{mount}"]
        if not os.path.isdir(workspace):
            raise SandboxError(f"the workspace must be an existing folder; got '{os.fspath(workspace)}'")
        return [*options, f"--mount=type=bind,source={os.path.abspath(workspace)},target={self.place}"]

    def _call(self, *arguments: str, stdin: bytes = b"", seconds: float = CALL) -> subprocess.CompletedProcess[bytes]:
        try:
            return subprocess.run([self.engine, *arguments], input=stdin, capture_output=True, timeout=seconds)
        except subprocess.TimeoutExpired:
            raise SandboxError(f"{self.name} {arguments[0]} did not answer within {seconds:.0f} s; is it overloaded?") from None  # fmt: skip


class Docker(Container):
    name = "docker"
    install = "install it: https://docs.docker.com/engine/install, or use the sandbox 'bubblewrap'"


class Podman(Container):
    name = "podman"
    install = "install it with: sudo apt-get install podman (or your package manager), or use the sandbox 'bubblewrap'"


class _RunningContainer:
    """A container, from start to end."""

    def __init__(
        self,
        sandbox: Container,
        limits: Limits,
        env: Mapping[str, str],
        workspace: str | PathLike[str] | None,
        read_only: Mapping[str, str],
    ) -> None:
        self.sandbox, self.name, self.removed = sandbox, f"palaestra-{secrets.token_hex(8)}", False
        options = sandbox.options(limits, env, workspace, read_only)
        self.process = subprocess.Popen(
            [sandbox.engine, "run", "-i", "--rm", "--name", self.name, *options, sandbox.image, "sh", "-c", LIFELINE],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        if not readable(self.process.stdout.fileno(), FETCH) or self.process.stdout.readline().strip() != b"ready":
            self.process.kill()
            _, errors = self.process.communicate()
            raise SandboxError(f"{sandbox.name} cannot start a container of '{sandbox.image}': {_line(errors)}; try: {sandbox.name} pull {sandbox.image}")  # fmt: skip

    def call(self, *command: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        return self.sandbox._call("exec", "-i", self.name, *command, stdin=stdin)

    @contextmanager
    def stream(self, *command: str) -> Iterator[IO[bytes]]:
        """Stream the output of a command in the container. It is killed at the end of the context, or after `CALL` seconds."""
        with subprocess.Popen(
            [self.sandbox.engine, "exec", "-i", self.name, *command],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True,
        ) as process:  # fmt: skip
            timer = threading.Timer(CALL, process.kill)
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
        answer = self.call("tar", "-xf", "-", "-C", self.sandbox.place, stdin=pack(files))
        if answer.returncode:
            raise SandboxError(f"cannot put files into the container: {_line(answer.stderr)}; the image needs tar")

    def read_files(self, names: Iterable[str], longest: int, total: int | None = None) -> dict[str, bytes]:
        wanted = {name: "/".join(split_path(name)) for name in names}
        contents = read_packed(self.stream, self.sandbox.place, wanted.values(), longest, total)
        return {name: contents[key] for name, key in wanted.items() if key in contents}

    def sweep(self) -> None:
        """Kill all processes but the first one."""
        self.call("sh", "-c", "kill -9 -1")

    def out_of_memory(self) -> bool:
        counts = dict(
            line.split()[:2] for line in self.call("sh", "-c", OOM).stdout.decode().splitlines() if " " in line
        )
        return counts.get("oom_kill", "0") != "0"

    def check_alive(self) -> None:
        if self.process.poll() is not None:
            raise SandboxError(f"the container ended before its program: {_line(self.process.communicate()[1])}; look at the log of {self.sandbox.name}")  # fmt: skip

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

    def __init__(self, container: _RunningContainer, limits: Limits) -> None:
        self.container, self.limits, self.workspace = container, limits, container.sandbox.place
        self._process: subprocess.Popen[bytes] | None = None
        self.stdin = self.output = self.status = self.control = -1
        self.status_bytes, self._partial, self._over = 0, b"", False

    def start(self, sweep: bool, seconds: float = START) -> None:
        if sweep:
            self.container.sweep()
        self.container.check_alive()
        self._leave()
        command = ["bash", "--norc", "--noprofile", "-c", FILES + LOOP, "bash", STEP.decode()]
        self._process = process = subprocess.Popen(
            [self.container.sandbox.engine, "exec", "-i", self.container.name, *command],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0, start_new_session=True,
        )  # fmt: skip
        streams = [stream for stream in (process.stdin, process.stdout, process.stderr) if stream is not None]
        self.stdin, self.output, self.status = (stream.fileno() for stream in streams)
        self.control = self.status
        for file in (self.stdin, self.output, self.status):
            os.set_blocking(file, False)
        self._partial, self._over = b"", False
        lines, end = [], time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0 and not self._over and readable(self.status, left):
            for line in self._lines():
                if line.startswith(b"hello "):
                    return
                lines.append(line)
        raise SandboxError(f"a shell cannot start in '{self.container.sandbox.image}': {_line(b' '.join([*lines, self._partial]))}; the image needs bash")  # fmt: skip

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
        self.container.sweep()

    def write_files(self, files: Files) -> None:
        self.container.write_files(files)

    def list_files(self, most: int) -> list[str]:
        return list_names(self.container.stream, self.workspace, most)

    def read_files(self, names: Sequence[str], longest: int, total: int | None) -> dict[str, bytes]:
        return self.container.read_files(names, longest, total)

    def close(self) -> None:
        self.container.close()
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
