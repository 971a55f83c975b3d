"""Run programs in Linux namespaces with bubblewrap: no daemon, no root, about 10 ms each.

A program sees a read-only system, a Python interpreter, and folders in memory that vanish with it. It has no network,
no capabilities, and none of the host's files, environment variables, processes or sockets, nor the host's paths of the
files that it sees. System calls that could reach them are filtered (see `seccomp`). File locks are ignored except in a persistent shell, because other programs
that see the same files could observe them. All processes are in one process namespace. When its first process dies,
the kernel kills the others. It dies when it is killed, when the program ends, or when this process dies.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import cache
from os import PathLike
from pathlib import Path

from palaestra.core.errors import SandboxError
from palaestra.core.tables import load_table
from palaestra.sandbox.base import Limits, Sandbox, SandboxCommand
from palaestra.sandbox.cgroups import ControlGroup, create_group
from palaestra.sandbox.files import DEVICES, find_special_files, prepare_devices, reset_times
from palaestra.sandbox.local_host import LocalProcesses, find_bash, prepare_command
from palaestra.sandbox.processes import SPARE, ProcTree, limit_process
from palaestra.sandbox.program import Child, make_memory_file
from palaestra.sandbox.seccomp import seccomp_filter

_WORKSPACE, HOME = "/workspace", "/home/user"
_PRIVATE = ("/tmp", HOME, "/dev/shm")
_BASH = "/run/bash"
"""A bash that can be executed but not read; see `bash_protocol`."""
_INSTALL = (
    "install it with: sudo apt-get install bubblewrap (or your package manager), or use another sandbox: docker, podman"
)

_NAMESPACES = (
    "--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try",
    "--die-with-parent", "--new-session", "--as-pid-1", "--cap-drop", "ALL", "--uid", "1000", "--gid", "1000",
    "--hostname", "sandbox",
)  # fmt: skip
# The mount table of a process lists the host's paths of everything that is mounted, so programs get an empty one: they
# are in a second mount namespace, while their root folder is in the first. Descriptor 8 of the first process keeps the
# first namespace alive. It takes capabilities in the sandbox's own user namespace, which are dropped before any program
# starts.
_MOUNT_CAPABILITIES = ("--cap-add", "CAP_SYS_ADMIN", "--cap-add", "CAP_SYS_CHROOT", "--cap-add", "CAP_SETPCAP")
_HIDE_MOUNTS = (
    "/bin/sh",
    "-c",
    'exec 8</proc/self/ns/mnt 9</ && exec unshare --mount --propagation unchanged --root /proc/self/fd/9 --wd "$PWD" '
    'setpriv --ambient-caps=-all --inh-caps=-all --bounding-set=-all "$@"',
    "sh",
)
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store")
_TABLE = load_table(__file__, "bubblewrap")
_USERS: dict[str, str] = _TABLE["users"]
_tried: set[str] = set()
"""The bwrap executables that have run a program."""
_INTERPRETER = ("bin", "lib", "lib64", "pyvenv.cfg")
_USERS_KEYS = ("keys", "key-users")
"""Files in /proc that every user may read but no program in a sandbox should."""
_GUARDED = ("kcore", "kmsg")
"""Files in /proc that only a process with a capability can open."""
_SYSCTLS = ("kernel/ostype", "kernel/osrelease", "kernel/pid_max", "vm/overcommit_memory")
"""Kernel settings that stay visible if this process is root; all others are hidden."""

_HINTS: dict[str, str] = _TABLE["hints"]


class Bubblewrap(Sandbox):
    """The default sandbox.

    Arguments:
        read_only: paths that every program may read, from the path inside to that of the host.
        hide: paths of the host that appear empty if they are below a mounted path.
        place: the path of the workspace inside.
        private: further folders inside that programs may write; empty at the start.
        bwrap: the bubblewrap program; None for the one on PATH.

    Raises:
        SandboxError: bubblewrap is not installed or cannot create namespaces. The message says what to do.
    """

    name = "bubblewrap"

    def __init__(
        self,
        read_only: Mapping[str, str] = {},
        hide: Sequence[str | PathLike[str]] = (),
        bwrap: str | None = None,
        place: str = _WORKSPACE,
        private: Sequence[str] = (),
    ) -> None:
        for path in (place, *private):
            if not path.startswith("/") or path.rstrip("/") in ("", *_SYSTEM, *_PRIVATE) or ".." in path.split("/"):
                raise SandboxError(
                    f"place must be an absolute path that is not a system folder, such as {_WORKSPACE}; got {path!r}"
                )
        program = shutil.which(bwrap or "bwrap")
        if program is None:
            raise SandboxError(f"the sandbox needs bubblewrap, and {bwrap or 'bwrap'} is not on PATH; {_INSTALL}")
        self.bwrap, self.read_only, self.place = program, dict(read_only), place.rstrip("/")
        self.private = (*_PRIVATE, *private)
        # The package itself contains graders and problem generators, which a program must not see.
        self.hide = [str(Path(path).resolve()) for path in (Path(__file__).parents[1], *hide)]
        self._hidden = _inside(self.hide, {path: path for path in (*_SYSTEM, *_interpreter())})
        if program not in _tried:
            result = self.run(SandboxCommand(["true"], limits=Limits(wall_seconds=30.0)))
            if not result.ok:
                raise SandboxError(f"the sandbox cannot run 'true': {result.status.value}, {result.error_text.strip()}")
            _tried.add(program)

    def start(self, command: SandboxCommand) -> LocalProcesses:
        held = list[int]()
        try:
            arguments = self._arguments(command, held)
            for name, value in command.env.items():
                if not name or "=" in name or "\0" in name + value:
                    raise SandboxError(f"env needs non-empty names without '=', and no NUL characters; got {name!r}")
                arguments += ["--setenv", name, value]
            reset_times(prepare_devices())
            hide = _HIDE_MOUNTS if _can_hide_mounts(self.bwrap) else ()
            with prepare_command(command, _BASH) as (argv, files):
                child = Child([self.bwrap, *arguments, "--", *hide, *argv], environment(), [*held, *files])
        finally:
            for file in held:
                os.close(file)
        group: ControlGroup | None = None
        try:
            first = child.wait_until_ready()
            if first < 0:
                child.kill()
                child.wait()
                raise SandboxError(_explain(child.errors()))
            limit_process(first, command.limits, own_users=True)
            group = create_group(command.limits.memory, command.limits.processes + SPARE)
            if group is not None and command.argv:  # the supervisor of a shell stays outside; see `LocalHost.start`
                group.add(first)
            return self._open(child, first, group, own_workspace=command.workspace is None)
        except BaseException as error:
            child.close()
            if group is not None:
                group.close()
            if isinstance(error, OSError):
                hint = "/proc must be mounted without hidepid"
                raise SandboxError(f"cannot access the sandbox: {error}; {hint}") from error
            raise

    def _open(self, child: Child, first: int, group: ControlGroup | None, own_workspace: bool) -> LocalProcesses:
        """Open the processes and folders of a sandbox. The descriptors stay valid after its end."""
        root = f"/proc/{first}/root"
        with ExitStack() as undo:
            tree = ProcTree(f"{root}/proc")
            undo.callback(tree.close)
            opened = []
            for path in (self.place, *self.private):
                opened.append(os.open(root + path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
                undo.callback(os.close, opened[-1])
            folders = opened if own_workspace else opened[1:]
            running = LocalProcesses(child, first, tree, opened[0], self.place, folders, group)
            undo.pop_all()
        return running

    def _arguments(self, command: SandboxCommand, held: list[int]) -> list[str]:
        """Return the options of bwrap. Descriptors of files that it reads are added to `held`."""
        workspace, read_only, bash = command.workspace, {**self.read_only, **command.read_only}, not command.argv

        def file_with(content: bytes) -> str:
            held.append(make_memory_file(content))
            return str(held[-1])

        hides_mounts = _can_hide_mounts(self.bwrap)
        options = [*_NAMESPACES, *(_MOUNT_CAPABILITIES if hides_mounts else ()), *_system(terminals=bash)]
        copies = {f"/etc/{name}": text.encode() for name, text in _USERS.items()} | _sysctls()
        with suppress(OSError):
            copies["/etc/ld.so.cache"] = Path("/etc/ld.so.cache").read_bytes()
        for path, content in copies.items():
            options += ["--file", file_with(content), path]
        options += ["--remount-ro", "/proc/sys"] if _sysctls() else []
        if (rules := seccomp_filter(locks=bash, mounts=hides_mounts)) is not None:
            options += ["--seccomp", file_with(rules)]
        shown, private = dict(read_only), [*self.private]
        if workspace is None:
            private.append(self.place)
        # Without sizes, only the monitor enforces the limit.
        size = ["--size", str(command.limits.disk)] if _knows_sizes(self.bwrap) else []
        for path in private:
            options += ["--perms", "0700", *size, "--tmpfs", path]
        # After the private folders, because the Python in use may be below one of them.
        for path in _interpreter():
            if os.path.islink(path):
                options += ["--symlink", os.readlink(path), path]
            elif os.path.isfile(path):  # a copy is faster than a mount
                options += ["--file", file_with(Path(path).read_bytes()), path]
            else:
                options += ["--ro-bind", path, path]
        for inside, outside in read_only.items():
            if not inside.startswith("/") or not os.path.exists(outside):
                raise SandboxError(
                    f"read_only must map an absolute path inside to an existing path; got {inside!r}: {outside!r}"
                )
            options += ["--ro-bind", os.path.abspath(outside), inside]
            for name in find_special_files(os.path.abspath(outside)):
                options += ["--ro-bind", os.devnull, os.path.normpath(os.path.join(inside, name))]
        if bash:
            options += ["--perms", "0111", "--file", file_with(_bash_itself()), _BASH]
        if workspace is not None:
            options += ["--bind", os.path.abspath(workspace), self.place]
            shown[self.place] = os.fspath(workspace)
        for path, is_folder in (*self._hidden, *_inside(self.hide, shown)):
            options += ["--tmpfs", path, "--remount-ro", path] if is_folder else ["--ro-bind", os.devnull, path]
        if bash or prepare_devices() is None:  # the folder of devices owned by nobody is not writable anyway
            options += ["--remount-ro", "/dev"]
        options += ["--remount-ro", "/", "--chdir", self.place]
        return options


def environment() -> dict[str, str]:
    """Return the environment variables of a program."""
    folders = dict.fromkeys(
        [os.path.join(prefix, "bin") for prefix in (sys.prefix, sys.base_prefix)]
        + ["/usr/local/bin", "/usr/bin", "/bin", "/usr/local/sbin", "/usr/sbin", "/sbin"]
    )
    return {
        "PATH": ":".join(folders), "HOME": HOME, "USER": "user", "LOGNAME": "user", "SHELL": "/bin/bash",
        "LANG": "C.UTF-8", "TERM": "dumb", "TMPDIR": "/tmp", "PYTHONDONTWRITEBYTECODE": "1",
    }  # fmt: skip


@cache
def _system(terminals: bool) -> tuple[str, ...]:
    """Return the options for the read-only system: shared libraries, programs, /proc and /dev.

    Arguments:
        terminals: whether programs can open pseudo-terminals, which takes more mounts.
    """
    options: list[str] = []
    for path in _SYSTEM:
        if os.path.islink(path):
            options += ["--symlink", os.readlink(path), path]
        elif os.path.isdir(path):
            options += ["--ro-bind", path, path]
    if os.path.exists("/etc/alternatives"):
        options += ["--ro-bind", os.path.realpath("/etc/alternatives"), "/etc/alternatives"]
    options += ["--proc", "/proc"]
    devices = prepare_devices()
    for path in _find_hidden_proc_paths():
        if devices is not None:
            options += ["--dev-bind", f"{devices}/{'shm' if os.path.isdir(path) else 'null'}", path]
        else:
            options += (
                ["--tmpfs", path, "--remount-ro", path] if os.path.isdir(path) else ["--ro-bind", os.devnull, path]
            )
    # If this process is root, the sandbox's user owns /proc/sys and could change kernel settings. Writing to the memory
    # of other processes must be impossible as well.
    options += ["--remount-ro", "/proc", *(["--tmpfs", "/proc/sys"] if _sysctls() else [])]
    if devices is not None and not terminals:  # one mount instead of eight
        return (*options, "--dev-bind", devices, "/dev")
    options += ["--dev", "/dev"]
    for name in DEVICES if devices is not None else ():
        options += ["--dev-bind", f"{devices}/{name}", f"/dev/{name}"]
    return tuple(options)


@cache
def _find_hidden_proc_paths() -> tuple[str, ...]:
    """Return paths in /proc that an ordinary user cannot read but their owner root can; and the keys."""
    hidden = [f"/proc/{name}" for name in _USERS_KEYS if os.path.exists(f"/proc/{name}")]
    folders = ["/proc"] if os.geteuid() == 0 else []
    while folders:
        with suppress(OSError), os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.name.isdigit() or entry.is_symlink() or entry.name in (*_GUARDED, "sys"):
                    continue
                if not entry.stat().st_mode & stat.S_IROTH:
                    hidden.append(entry.path)
                elif entry.is_dir():
                    folders.append(entry.path)
    return tuple(hidden)


@cache
def _sysctls() -> dict[str, bytes]:
    """Return the visible files of /proc/sys if this process is root: the kernel treats the sandbox's user as their owner."""
    if os.geteuid() != 0:
        return {}
    paths = (f"/proc/sys/{name}" for name in _SYSCTLS)
    return {path: Path(path).read_bytes() for path in paths if os.path.exists(path)}


@cache
def _interpreter() -> tuple[str, ...]:
    """Return the parts of the Python installation and virtual environment that are outside the system folders."""
    prefixes = dict.fromkeys(
        [sys.prefix, sys.base_prefix, sys.exec_prefix, str(Path(sys.executable).resolve().parents[1])]
    )
    outside = [prefix for prefix in prefixes if not Path(prefix).is_relative_to("/usr") and prefix != "/"]
    return tuple(
        path for prefix in outside for name in _INTERPRETER if os.path.lexists(path := os.path.join(prefix, name))
    )


def _inside(hide: Sequence[str], shown: Mapping[str, str]) -> list[tuple[str, bool]]:
    """Return where hidden paths of the host would be visible inside, and whether they are folders."""
    hidden = []
    for inside, outside in shown.items():
        above = os.path.realpath(outside)
        for path in hide:
            if os.path.commonpath([above, path]) == above and os.path.exists(path):
                place = os.path.normpath(os.path.join(inside, os.path.relpath(path, above)))
                hidden.append((place, os.path.isdir(path)))
    return hidden


@cache
def _knows_sizes(bwrap: str) -> bool:
    """Whether this version of bwrap can limit the size of a folder."""
    return b"--size" in subprocess.run([bwrap, "--help"], capture_output=True, check=False).stdout


@cache
def _can_hide_mounts(bwrap: str) -> bool:
    """Whether programs can have an empty mount table. It takes util-linux, and a kernel that grants the capabilities."""
    options = [*_NAMESPACES, *_MOUNT_CAPABILITIES, *_system(terminals=False), "--chdir", "/"]
    command = [bwrap, *options, "--", *_HIDE_MOUNTS, "cat", "/proc/self/mountinfo"]
    done = subprocess.run(command, env=environment(), capture_output=True, check=False, stdin=subprocess.DEVNULL)
    return done.returncode == 0 and not done.stdout


@cache
def _bash_itself() -> bytes:
    return Path(find_bash()).read_bytes()


def _explain(message: str) -> str:
    hint = next(
        (hint for words, hint in _HINTS.items() if words in message),
        "check the system's log, or use another sandbox: docker, podman",
    )
    return f"bubblewrap cannot create a sandbox here ({message or 'no error message'}); {hint}"
