"""Programs in containers, by Docker or Podman: slower than bubblewrap, and with any image as their system.

A container lives as long as the engine's command that we keep open, so it goes when we do. Programs are executed in
it; files come and go as archives, because the workspace is in memory and the engines copy only from disks.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from os import PathLike
from typing import IO, ClassVar

from palaestra.core.errors import SandboxError
from palaestra.sandbox.archives import list_names, pack, read_packed
from palaestra.sandbox.base import SHELL_LIMITS, Files, Limits, SandboxResult, Status
from palaestra.sandbox.bash_protocol import LOOP, STEP, StatusLine
from palaestra.sandbox.files import parts
from palaestra.sandbox.processes import LOCKED, SIGNALS
from palaestra.sandbox.program import supervise
from palaestra.sandbox.shell import BURST, GRACE, START, BashShell, readable
from palaestra.sandbox.spawn import Child, behind_door

FETCH = 900.0
"""Seconds that an engine may take to start a container: it may have to fetch the image."""
CALL = 60.0
"""Seconds that an engine may take for anything else."""
WORKSPACE, HOME, NOBODY = "/workspace", "/home/user", "65534:65534"
# The first process: it cannot be killed from inside, takes no room, and ends when our end of its stdin is closed.
LIFELINE = "trap '' CHLD; echo ready; exec cat >/dev/null"
# Commands come by stdin, output goes to stdout, the status to stderr; the script for each command needs a file.
FILES = 'printf %s "$1" >/tmp/.step && exec 56</tmp/.step 57<&0 58>&1 59>&2 60>&2 && rm /tmp/.step\nset --\n'
OOM = "cat /sys/fs/cgroup/memory.events /sys/fs/cgroup/memory/memory.oom_control 2>/dev/null"


class Container:
    """A sandbox whose programs run in containers of an engine.

    Arguments:
        image: what the programs find as their system: sh and tar at least, bash for a shell. It is fetched by the
            engine's own rules if it is not there.
        read_only: paths that every program may read, from the path inside to that of the host.

    Raises:
        SandboxError: the engine is not installed or does not answer. Says what to do.
    """

    name: ClassVar[str]
    install: ClassVar[str]

    def __init__(self, image: str = "python:3.11-slim", read_only: Mapping[str, str] = {}) -> None:
        found = shutil.which(self.name)
        if found is None:
            raise SandboxError(f"the sandbox '{self.name}' needs {self.name}, which is not on PATH; {self.install}")
        self.engine, self.image, self.read_only = found, image, dict(read_only)
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
        wanted = ["/".join(parts(name)) for name in read_back]
        with _Life(self, limits, {"OMP_NUM_THREADS": "1", **env}, workspace, read_only) as life:
            life.write_files(files)
            wanted_limits = {
                "c": 0,
                "t": int(limits.cpu_seconds) + 1,
                "n": limits.open_files,
                "f": limits.file_size // 512,
            }
            bounded = "".join(f"ulimit -{letter} {value}; " for letter, value in wanted_limits.items()) + 'exec "$@"'
            command = [self.engine, "exec", "-i", life.name, "sh", "-c", bounded, "sh", *argv]
            with Child(behind_door(command), os.environ, session=True) as child:
                if child.meet() < 0:
                    raise SandboxError(f"cannot start {self.name}: {child.errors()}")
                child.let_in()
                result = supervise(child, stdin, limits, None, lambda: life.end(child))
            if result.status is Status.SIGNAL and result.exit_code == 137 and life.out_of_memory():
                result = replace(result, status=Status.MEMORY)
            if not result.status.is_limit:
                life.must_live()
                if wanted:
                    life.sweep()
                    found = life.read_files(wanted, limits.file_size)
                    result = replace(result, files={name: found[key] for name, key in zip(read_back, wanted, strict=True) if key in found})  # fmt: skip
        return result

    def shell(
        self,
        limits: Limits = SHELL_LIMITS,
        files: Mapping[str, bytes | str] = {},
        env: Mapping[str, str] = {},
        workspace: str | PathLike[str] | None = None,
        read_only: Mapping[str, str] = {},
    ) -> BashShell:
        """See `Sandbox.shell`. After a time-out the background processes are ended too."""

        def make_room() -> _ContainerRoom:
            life = _Life(self, limits, env, workspace, read_only)
            try:
                life.write_files(files)
                return _ContainerRoom(life, limits)
            except BaseException:
                life.close()
                raise

        return BashShell(make_room, limits)

    def options(
        self,
        limits: Limits,
        env: Mapping[str, str],
        workspace: str | PathLike[str] | None = None,
        read_only: Mapping[str, str] = {},
    ) -> list[str]:
        """How a container is confined: the options of `docker run`."""
        room = f"rw,exec,nosuid,nodev,mode=1777,size={limits.disk}"
        user = NOBODY if workspace is None else f"{os.getuid()}:{os.getgid()}"
        found = [
            "--network=none", "--read-only", "--cap-drop=ALL", "--security-opt=no-new-privileges", f"--user={user}",
            "--ipc=private", "--hostname=sandbox", "--log-driver=none", "--stop-timeout=0",
            f"--memory={limits.memory}", f"--memory-swap={limits.memory}", f"--pids-limit={limits.processes + 8}",
            f"--ulimit=nofile={limits.open_files}", f"--ulimit=fsize={limits.file_size}", "--ulimit=core=0",
            "--ulimit=msgqueue=0", f"--ulimit=sigpending={SIGNALS}", f"--ulimit=memlock={LOCKED}",
            f"--tmpfs=/tmp:{room}", f"--tmpfs={HOME}:{room}", f"--shm-size={limits.disk}", f"--workdir={WORKSPACE}",
            f"--env=HOME={HOME}", "--env=LANG=C.UTF-8", "--env=TERM=dumb",
        ]  # fmt: skip
        found += [f"--env={name}={value}" for name, value in env.items()]
        for inside, outside in {**self.read_only, **read_only}.items():
            if not os.path.exists(outside):
                raise SandboxError(f"read_only maps a path inside to a path that exists; got {inside!r}: {outside!r}")
            found.append(f"--mount=type=bind,source={os.path.abspath(outside)},target={inside},readonly")
        if workspace is None:
            return [*found, f"--tmpfs={WORKSPACE}:{room}"]
        if not os.path.isdir(workspace):
            raise SandboxError(f"the workspace must be a folder that exists; got '{os.fspath(workspace)}'")
        return [*found, f"--mount=type=bind,source={os.path.abspath(workspace)},target={WORKSPACE}"]

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
    install = "install it with: sudo apt-get install podman (or your system's way), or use the sandbox 'bubblewrap'"


class _Life:
    """One container from its start to its end."""

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
            _, said = self.process.communicate()
            raise SandboxError(f"{sandbox.name} cannot start a container of '{sandbox.image}': {_line(said)}; try: {sandbox.name} pull {sandbox.image}")  # fmt: skip

    def call(self, *command: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        return self.sandbox._call("exec", "-i", self.name, *command, stdin=stdin)

    @contextmanager
    def stream(self, *command: str) -> Iterator[IO[bytes]]:
        """What a command in the container prints, as it comes. Who stops listening ends it; so does `CALL`."""
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
        answer = self.call("tar", "-xf", "-", "-C", WORKSPACE, stdin=pack(files))
        if answer.returncode:
            raise SandboxError(f"cannot put files into the container: {_line(answer.stderr)}; the image needs tar")

    def read_files(self, names: Iterable[str], longest: int, total: int | None = None) -> dict[str, bytes]:
        return read_packed(self.stream, WORKSPACE, names, longest, total)

    def sweep(self) -> None:
        """End everything but the first process."""
        self.call("sh", "-c", "kill -9 -1")

    def out_of_memory(self) -> bool:
        counts = dict(
            line.split()[:2] for line in self.call("sh", "-c", OOM).stdout.decode().splitlines() if " " in line
        )
        return counts.get("oom_kill", "0") != "0"

    def must_live(self) -> None:
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

    def __enter__(self) -> _Life:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _ContainerRoom:
    """A shell in a container. Each new shell is executed anew; its processes are not seen from here."""

    workspace = WORKSPACE

    def __init__(self, life: _Life, limits: Limits) -> None:
        self.life, self.limits = life, limits
        self._process: subprocess.Popen[bytes] | None = None
        self.stdin = self.output = self.status = self.control = -1
        self.heard, self._partial, self._over = 0, b"", False

    def start(self, sweep: bool, seconds: float = START) -> None:
        if sweep:
            self.life.sweep()
        self.life.must_live()
        self._leave()
        command = ["bash", "--norc", "--noprofile", "-c", FILES + LOOP, "bash", STEP.decode()]
        self._process = process = subprocess.Popen(
            [self.life.sandbox.engine, "exec", "-i", self.life.name, *command],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0, start_new_session=True,
        )  # fmt: skip
        streams = [stream for stream in (process.stdin, process.stdout, process.stderr) if stream is not None]
        self.stdin, self.output, self.status = (stream.fileno() for stream in streams)
        self.control = self.status
        for file in (self.stdin, self.output, self.status):
            os.set_blocking(file, False)
        self._partial, self._over = b"", False
        said, end = [], time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0 and not self._over and readable(self.status, left):
            for line in self._lines():
                if line.startswith(b"hello "):
                    return
                said.append(line)
        raise SandboxError(f"a shell cannot start in '{self.life.sandbox.image}': {_line(b' '.join([*said, self._partial]))}; the image needs bash")  # fmt: skip

    def said(self) -> list[StatusLine]:
        return [said for said in map(StatusLine.of, self._lines()) if said is not None]

    def ended(self) -> int | None:
        if not self._over:
            return None
        assert self._process is not None
        try:
            code = self._process.wait(GRACE)
        except subprocess.TimeoutExpired:  # the shell lives, and has closed the way by which it could tell
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
            self.heard += len(data)
            self._partial += data
        *found, self._partial = self._partial.split(b"\n")
        return found

    def pids(self) -> set[int]:
        return set()

    def kill(self, pids: Collection[int]) -> None:
        pass

    def hurry(self) -> None:
        pass

    def interrupt(self, pids: Collection[int]) -> None:
        pass

    def end_shell(self) -> None:
        self.life.sweep()

    def stopped(self) -> bool:
        return False

    def begin(self) -> None:
        pass

    def check(self) -> Status | None:
        return None  # the engine holds the limits

    def was_killed(self) -> bool:
        return False

    def write_files(self, files: Files) -> None:
        self.life.write_files(files)

    def list_files(self, most: int) -> list[str]:
        return list_names(self.life.stream, WORKSPACE, most)

    def read_files(self, names: Sequence[str], longest: int, total: int | None) -> dict[str, bytes]:
        wanted = {name: "/".join(parts(name)) for name in names}
        found = self.life.read_files(wanted.values(), longest, total)
        return {name: found[key] for name, key in wanted.items() if key in found}

    def close(self) -> None:
        self.life.close()
        self._leave()

    def _leave(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(START)
            for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
                if stream is not None:
                    stream.close()
            self._process = None


def _line(said: bytes) -> str:
    return " ".join(said.decode("utf-8", "replace").split())[:500] or "it said nothing"
