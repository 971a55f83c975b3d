"""Programs in Linux namespaces, by bubblewrap: no daemon, no root, some 10 ms each.

A program sees a system that is read-only, an interpreter, and folders in memory that vanish with it. It has no
network, no capability, none of the host's files, environment, processes or sockets, and no way to get any: see
`seccomp`. Its locks on files seem to be had and are none, but in a shell that stays: who sees the same files would see
them. Everything that it starts is in one process namespace; when the first process there dies, the kernel kills
the rest, and it dies when we say so, when the program ends, or when we die.
"""

from __future__ import annotations

import os
import shutil
import socket
import stat
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import cache
from os import PathLike
from pathlib import Path
from typing import NamedTuple

from palaestra.core.errors import SandboxError
from palaestra.sandbox.base import SHELL_LIMITS, Limits, SandboxResult
from palaestra.sandbox.bash_protocol import STEP
from palaestra.sandbox.cgroups import ControlGroup, create_group
from palaestra.sandbox.devices import DEVICES, prepare_devices, reset_times
from palaestra.sandbox.files import find_special_files, read_files, write_files
from palaestra.sandbox.local_host import LocalHost, RunningSandbox, find_bash, keeper
from palaestra.sandbox.processes import SPARE, LimitMonitor, ProcTree, limit_process
from palaestra.sandbox.program import supervise
from palaestra.sandbox.seccomp import seccomp_filter
from palaestra.sandbox.shell import BashShell
from palaestra.sandbox.spawn import Child, behind_door, copying, holding

WORKSPACE, HOME = "/workspace", "/home/user"
PRIVATE = ("/tmp", HOME, "/dev/shm")
BASH = "/run/bash"
"""A bash that may be executed and not read; see `shell`."""
INSTALL = (
    "install it with: sudo apt-get install bubblewrap (or your system's way), or take another sandbox: docker, podman"
)

SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store")
USERS = {
    "passwd": f"root:x:0:0:root:/:/bin/sh\nuser:x:1000:1000:user:{HOME}:/bin/bash\n",
    "group": "root:x:0:\nuser:x:1000:\n",
    "hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}
INTERPRETER = ("bin", "lib", "lib64", "pyvenv.cfg")
USERS_KEYS = ("keys", "key-users")
"""What every user may read in /proc and no program should."""
GUARDED = ("kcore", "kmsg")
"""What the kernel lets nobody open without a capability, owner or not."""
SYSCTLS = ("kernel/ostype", "kernel/osrelease", "kernel/pid_max", "vm/overcommit_memory")
"""The settings of the kernel that programs read, where we are root and all others are hidden."""

HINTS = {
    "setting up uid map": "this system keeps users from making namespaces; as root: sysctl kernel.apparmor_restrict_unprivileged_userns=0",
    "No permissions to create": "this system keeps users from making namespaces; as root: sysctl kernel.unprivileged_userns_clone=1, or, in a container, start it with --security-opt seccomp=unconfined",
    "Creating new namespace failed": "this system keeps users from making namespaces; as root: sysctl user.max_user_namespaces=10000, or, in a container, start it with --security-opt seccomp=unconfined",
    "mount proc": "a container hides parts of /proc; start it with --security-opt systempaths=unconfined, or --privileged",
    "Unknown option": "bubblewrap is too old; 0.5 or later is needed",
}  # fmt: skip


class Bubblewrap:
    """The default sandbox.

    Arguments:
        read_only: paths that every program may read, from the path inside to that of the host.
        hide: paths of the host that are shown empty, where they lie below something that is shown.
        place: where programs find their workspace.
        bwrap: the program; None takes the one on PATH.

    Raises:
        SandboxError: bubblewrap is not installed, or cannot make namespaces here. Says what to do.
    """

    name = "bubblewrap"

    def __init__(
        self,
        read_only: Mapping[str, str] = {},
        hide: Sequence[str | PathLike[str]] = (),
        bwrap: str | None = None,
        place: str = WORKSPACE,
    ) -> None:
        if not place.startswith("/") or place.rstrip("/") in ("", *SYSTEM, *PRIVATE) or ".." in place.split("/"):
            raise SandboxError(
                f"the workspace's place is an absolute path of its own, such as {WORKSPACE}; got {place!r}"
            )
        found = shutil.which(bwrap or "bwrap")
        if found is None:
            raise SandboxError(f"the sandbox needs bubblewrap, and {bwrap or 'bwrap'} is not on PATH; {INSTALL}")
        self.bwrap, self.read_only, self.place = found, dict(read_only), place.rstrip("/")
        # The package itself holds graders and the families that make problems: not for a program to see.
        self.hide = [str(Path(path).resolve()) for path in (Path(__file__).parents[1], *hide)]
        self._hidden = _inside(self.hide, {path: path for path in (*SYSTEM, *_interpreter())})
        _try(self)

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
        pass_fds: Sequence[int] = (),
    ) -> SandboxResult:
        """See `Sandbox.run`. The program inherits the open files `pass_fds` under the same numbers, as of `subprocess.Popen`."""
        if not argv:
            raise SandboxError("run needs a program; got an empty argv")
        env = {"OMP_NUM_THREADS": "1", **env}  # a thread for each core would be over the limit of processes
        tenancy = self._start(behind_door(argv), limits, env, workspace, read_only, pass_fds=pass_fds)
        try:
            write_files(tenancy.workspace, files)
            tenancy.child.let_in()
            watch = LimitMonitor(tenancy.tree, limits, tenancy.folders, tenancy.group, own_tasks=1)
            result = supervise(tenancy.child, stdin, limits, watch, tenancy.kill)
            if read_back:
                result = replace(result, files=read_files(tenancy.workspace, read_back, limits.file_size))
        finally:
            tenancy.close()
        return result

    def shell(
        self,
        limits: Limits = SHELL_LIMITS,
        files: Mapping[str, bytes | str] = {},
        env: Mapping[str, str] = {},
        workspace: str | PathLike[str] | None = None,
        read_only: Mapping[str, str] = {},
    ) -> BashShell:
        """See `Sandbox.shell`."""

        def make_room() -> LocalHost:
            tenancy = self._start(keeper(BASH), limits, env, workspace, read_only, bash=True)
            try:
                write_files(tenancy.workspace, files)
                return LocalHost(tenancy, limits, self.place)
            except BaseException:
                tenancy.close()
                raise

        return BashShell(make_room, limits)

    def _start(
        self,
        command: Sequence[str],
        limits: Limits,
        env: Mapping[str, str],
        workspace: str | PathLike[str] | None,
        read_only: Mapping[str, str],
        bash: bool = False,
        pass_fds: Sequence[int] = (),
    ) -> RunningSandbox:
        """A sandbox with its first process at the door, under its limits."""
        held: list[int] = []
        try:
            arguments = self._arguments(limits, workspace, {**self.read_only, **read_only}, held, bash)
            for name, value in env.items():
                if not name or "=" in name or "\0" in name + value:
                    raise SandboxError(f"a name of env is not empty and has no '=', and there is no NUL; got {name!r}")
                arguments += ["--setenv", name, value]
            if bash:
                held.append(holding(STEP))
                command = [*command, str(held[-1]), Child.STDIN, Child.STATUS]
            reset_times(prepare_devices())
            child = Child([self.bwrap, *arguments, "--", *command], environment(), [*held, *pass_fds])
        finally:
            for file in held:
                os.close(file)
        try:
            first = child.meet()
            if first < 0:
                child.kill()
                child.wait()
                raise SandboxError(_explain(child.errors()))
            limit_process(first, limits, own_users=True)
            group = create_group(limits.memory, limits.processes + SPARE)
            try:
                if group is not None and not bash:  # the keeper of a shell stays outside; see `LocalHost.start`
                    group.add(first)
                return _look_into(child, first, self.place, workspace is None, group)
            except BaseException:
                child.close()
                if group is not None:
                    group.close()
                raise
        except OSError as error:
            child.close()
            raise SandboxError(
                f"cannot reach into the sandbox: {error}; /proc must be there without hidepid"
            ) from error
        except BaseException:
            child.close()
            raise

    def _arguments(
        self,
        limits: Limits,
        workspace: str | PathLike[str] | None,
        read_only: Mapping[str, str],
        held: list[int],
        bash: bool,
    ) -> list[str]:
        """The options of bwrap; files that it is to read are opened, and added to `held`."""

        def file_with(content: bytes) -> str:
            held.append(copying(content))
            return str(held[-1])

        found = [*_namespaces(), *_system(terminals=bash)]
        copies = {f"/etc/{name}": text.encode() for name, text in USERS.items()} | _sysctls()
        with suppress(OSError):
            copies["/etc/ld.so.cache"] = Path("/etc/ld.so.cache").read_bytes()
        for path, content in copies.items():
            found += ["--file", file_with(content), path]
        found += ["--remount-ro", "/proc/sys"] if _sysctls() else []
        if (rules := _filter(locks=bash)) is not None:
            found += ["--seccomp", file_with(rules)]
        shown, private = dict(read_only), [*PRIVATE]
        if workspace is None:
            private.append(self.place)
        size = ["--size", str(limits.disk)] if _knows_sizes(self.bwrap) else []  # else the watch alone holds the limit
        for path in private:
            found += ["--perms", "0700", *size, "--tmpfs", path]
        # Behind the private folders: the Python in use may lie below one of them.
        for path in _interpreter():
            if os.path.islink(path):
                found += ["--symlink", os.readlink(path), path]
            elif os.path.isfile(path):  # a copy is cheaper than a mount
                found += ["--file", file_with(Path(path).read_bytes()), path]
            else:
                found += ["--ro-bind", path, path]
        for inside, outside in read_only.items():
            if not inside.startswith("/") or not os.path.exists(outside):
                raise SandboxError(
                    f"read_only maps an absolute path inside to a path that exists; got {inside!r}: {outside!r}"
                )
            found += ["--ro-bind", os.path.abspath(outside), inside]
            for name in find_special_files(os.path.abspath(outside)):
                found += ["--ro-bind", os.devnull, os.path.normpath(os.path.join(inside, name))]
        if bash:
            found += ["--perms", "0111", "--file", file_with(_bash_itself()), BASH]
        if workspace is not None:
            if not os.path.isdir(workspace):
                raise SandboxError(f"the workspace must be a folder that exists; got '{os.fspath(workspace)}'")
            found += ["--bind", os.path.abspath(workspace), self.place]
            shown[self.place] = os.fspath(workspace)
        for path, is_folder in (*self._hidden, *_inside(self.hide, shown)):
            found += ["--tmpfs", path, "--remount-ro", path] if is_folder else ["--ro-bind", os.devnull, path]
        if bash or prepare_devices() is None:  # the folder of devices that belong to nobody cannot be written to anyway
            found += ["--remount-ro", "/dev"]
        found += ["--remount-ro", "/", "--chdir", self.place]
        return found


def _look_into(child: Child, first: int, place: str, own_workspace: bool, group: ControlGroup | None) -> RunningSandbox:
    """Open the sandbox's processes and folders from outside. They stay open when it is dead."""
    root = f"/proc/{first}/root"
    with ExitStack() as undo:
        tree = ProcTree(f"{root}/proc")
        undo.callback(tree.close)
        opened = []
        for path in (place, *PRIVATE):
            opened.append(os.open(root + path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
            undo.callback(os.close, opened[-1])
        tenancy = RunningSandbox(child, first, tree, opened[0], opened if own_workspace else opened[1:], group)
        undo.pop_all()
    return tenancy


def environment() -> dict[str, str]:
    """All that a program finds in its environment."""
    folders = dict.fromkeys(
        [os.path.join(prefix, "bin") for prefix in (sys.prefix, sys.base_prefix)]
        + ["/usr/local/bin", "/usr/bin", "/bin", "/usr/local/sbin", "/usr/sbin", "/sbin"]
    )
    return {
        "PATH": ":".join(folders), "HOME": HOME, "USER": "user", "LOGNAME": "user", "SHELL": "/bin/bash",
        "LANG": "C.UTF-8", "TERM": "dumb", "TMPDIR": "/tmp", "PYTHONDONTWRITEBYTECODE": "1",
    }  # fmt: skip


@cache
def _namespaces() -> tuple[str, ...]:
    return (
        "--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try",
        "--die-with-parent", "--new-session", "--as-pid-1", "--cap-drop", "ALL", "--uid", "1000", "--gid", "1000",
        "--hostname", "sandbox",
    )  # fmt: skip


@cache
def _system(terminals: bool) -> tuple[str, ...]:
    """The read-only system: what a program needs to start, and the Python that we run on.

    Arguments:
        terminals: whether pseudo-terminals can be opened, where that costs extra.
    """
    found: list[str] = []
    for path in SYSTEM:
        if os.path.islink(path):
            found += ["--symlink", os.readlink(path), path]
        elif os.path.isdir(path):
            found += ["--ro-bind", path, path]
    if os.path.exists("/etc/alternatives"):
        found += ["--ro-bind", os.path.realpath("/etc/alternatives"), "/etc/alternatives"]
    found += ["--proc", "/proc"]
    devices = prepare_devices()
    for path in _hidden_in_proc():
        if devices is not None:
            found += ["--dev-bind", f"{devices}/{'shm' if os.path.isdir(path) else 'null'}", path]
        else:
            found += ["--tmpfs", path, "--remount-ro", path] if os.path.isdir(path) else ["--ro-bind", os.devnull, path]
    # Where we are root, its owner may set up the kernel by writing to /proc/sys; and nobody may write to the memory of
    # another process.
    found += ["--remount-ro", "/proc", *(["--tmpfs", "/proc/sys"] if _sysctls() else [])]
    if devices is None:
        return (*found, "--dev", "/dev")
    if not terminals:  # one mount instead of eight
        return (*found, "--dev-bind", devices, "/dev")
    return (*found, "--dev", "/dev", *(word for name in DEVICES for word in ("--dev-bind", f"{devices}/{name}", f"/dev/{name}")))  # fmt: skip


@cache
def _hidden_in_proc() -> tuple[str, ...]:
    """What an ordinary user cannot read in /proc, and root can by being its owner; and keys."""
    hidden = [f"/proc/{name}" for name in USERS_KEYS if os.path.exists(f"/proc/{name}")]
    folders = ["/proc"] if os.geteuid() == 0 else []
    while folders:
        with suppress(OSError), os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.name.isdigit() or entry.is_symlink() or entry.name in (*GUARDED, "sys"):
                    continue
                if not entry.stat().st_mode & stat.S_IROTH:
                    hidden.append(entry.path)
                elif entry.is_dir():
                    folders.append(entry.path)
    return tuple(hidden)


@cache
def _sysctls() -> dict[str, bytes]:
    """What is shown of /proc/sys where we are root: the kernel takes the sandbox's user for the owner of all settings."""
    if os.geteuid() != 0:
        return {}
    paths = (f"/proc/sys/{name}" for name in SYSCTLS)
    return {path: Path(path).read_bytes() for path in paths if os.path.exists(path)}


@cache
def _interpreter() -> tuple[str, ...]:
    """The parts of the Python installation and virtual environment in use that lie outside the system's folders."""
    prefixes = dict.fromkeys(
        [sys.prefix, sys.base_prefix, sys.exec_prefix, str(Path(sys.executable).resolve().parents[1])]
    )
    outside = [prefix for prefix in prefixes if not Path(prefix).is_relative_to("/usr") and prefix != "/"]
    return tuple(
        path for prefix in outside for name in INTERPRETER if os.path.lexists(path := os.path.join(prefix, name))
    )


class Hidden(NamedTuple):
    inside: str
    folder: bool


def _inside(hide: Sequence[str], shown: Mapping[str, str]) -> list[Hidden]:
    """Where the paths of the host that are to be hidden would be seen, given what is shown where."""
    found = []
    for inside, outside in shown.items():
        above = os.path.realpath(outside)
        for path in hide:
            if os.path.commonpath([above, path]) == above and os.path.exists(path):
                place = os.path.normpath(os.path.join(inside, os.path.relpath(path, above)))
                found.append(Hidden(place, os.path.isdir(path)))
    return found


@cache
def _filter(locks: bool) -> bytes | None:
    return seccomp_filter(locks=locks)


@cache
def _knows_sizes(bwrap: str) -> bool:
    """Whether this bwrap can limit the size of a folder; older ones cannot."""
    return b"--size" in subprocess.run([bwrap, "--help"], capture_output=True, check=False).stdout


@cache
def _bash_itself() -> bytes:
    return Path(find_bash()).read_bytes()


_tried: set[str] = set()


def _try(sandbox: Bubblewrap) -> None:
    """Once for each bwrap: does it work at all?"""
    if sandbox.bwrap not in _tried:
        result = sandbox.run(["true"], limits=Limits(wall_seconds=30.0))
        if not result.ok:
            raise SandboxError(
                f"the sandbox cannot run even 'true': {result.status.value}, {result.error_text.strip() or result.exit_code}"
            )
        _tried.add(sandbox.bwrap)


def _explain(said: str) -> str:
    hint = next(
        (hint for words, hint in HINTS.items() if words in said),
        "look at the system's log, or take another sandbox: docker, podman",
    )
    return f"bubblewrap cannot make a sandbox here ({said or 'it said nothing'}); {hint}"
