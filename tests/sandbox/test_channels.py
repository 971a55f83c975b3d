"""A program cannot exhaust resources of the host's user or leave traces for a later program."""

from __future__ import annotations

import os
import socket
import stat
import sys
import threading
from pathlib import Path

import pytest

from palaestra.sandbox import Limits, SandboxCommand, SandboxResult
from palaestra.sandbox.bubblewrap import Bubblewrap
from palaestra.sandbox.files import DEVICE_FOLDER, DEVICES

PRELUDE = """
import ctypes, errno, fcntl, mmap, os, platform, resource, signal, socket, stat, struct, sys, time
C = ctypes.CDLL(None, use_errno=True)
X86 = platform.machine() == "x86_64"
def call(x86, arm, *arguments):
    answer = C.syscall(ctypes.c_long(x86 if X86 else arm), *arguments)
    if answer == -1: raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return answer
def refused(what, work):
    try: work()
    except OSError as error: print("refused", what, errno.errorcode[error.errno])
    else: print("ESCAPED", what)
"""
MAP = """
C.mmap.restype, C.mmap.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
shared = os.open(sys.executable, os.O_RDONLY)
at = C.mmap(None, 65536, 1, 1, shared, 0)
"""
COUNTERS = {
    "System V semaphores": "call(64, 190, 0, 100, 0o1600)",
    "System V messages": "call(68, 186, 0, 0o1600)",
    "System V shared memory": "call(29, 194, 0, ctypes.c_size_t(4096), 0o1600)",
    "POSIX message queues": "call(240, 180, b'q', os.O_CREAT | os.O_RDWR, 0o600, None)",
    "asynchronous I/O": "call(206, 0, 1, ctypes.byref(ctypes.c_ulong()))",
    "POSIX timers": "call(222, 107, 0, None, ctypes.byref(ctypes.c_int()))",
    "inotify": "call(294, 26, 0)",
    "fanotify": "call(300, 262, 0x200, 0)",
    "keys": "call(248, 217, b'user', b'a', b'b', ctypes.c_size_t(1), -2)",
    "keyrings": "call(250, 219, 1, None)",
    "keys for encryption": "fcntl.ioctl(os.open('/usr', os.O_RDONLY), 0xC0506617, bytearray(80))",
    "user namespaces": "call(272, 97, 0x10000000)",
    "user namespaces by clone": "call(56, 220, 0x10000011, None, None, None, None)",
    "io_uring": "call(425, 425, 4, (ctypes.c_char * 120)())",
    "BPF": "call(321, 280, 0, (ctypes.c_char * 72)(), 72)",
    "perf": "call(298, 241, struct.pack('II', 1, 112) + bytes(104), 0, -1, -1, 0)",
    "userfaultfd": "call(323, 282, 1)",
    "filters of its own": "call(317, 277, 1, 0, struct.pack('HxxxxxxP', 1, ctypes.addressof(ctypes.create_string_buffer(struct.pack('HBBI', 6, 0, 0, 0x7fff0000)))))",
    "filters of its own by prctl": "C.prctl(22, 2, struct.pack('HxxxxxxP', 1, ctypes.addressof(ctypes.create_string_buffer(struct.pack('HBBI', 6, 0, 0, 0x7fff0000))))) == 0 or call(-1, -1)",
    "Landlock": "call(444, 444, struct.pack('Q', 1), 8, 0)",
    "filters of sockets": "socket.socket().setsockopt(1, 26, struct.pack('HxxxxxxP', 1, ctypes.addressof(ctypes.create_string_buffer(struct.pack('HBBI', 6, 0, 0, 0)))))",
    "pages of the user's pipes": "fcntl.fcntl(os.pipe()[1], fcntl.F_SETPIPE_SZ, 1 << 20)",
    "vmsplice": "call(278, 75, os.pipe()[1], struct.pack('PN', ctypes.addressof(ctypes.create_string_buffer(4096)), 4096), 1, 8)",
    "memfd": "os.memfd_create('x')",
    "secret memory": "call(447, 447, 0)",
    "huge pages": "mmap.mmap(-1, 2 << 20, flags=0x40022)",
    "locked memory": "call(149, 228, ctypes.addressof(ctypes.create_string_buffer(8 << 20)), ctypes.c_size_t(8 << 20))",
    "merging of equal pages": "C.prctl(67, 1, 0, 0, 0) == 0 or call(-1, -1)",
    "modules for protocols": "socket.socket(socket.AF_INET, socket.SOCK_STREAM, 132)",
    "modules for families": "socket.socket(38, 5)",
    "pairs of other families": "socket.socketpair(30, socket.SOCK_STREAM)",
    "pairs of vsock": "call(53, 199, 40, 1, 0, (ctypes.c_int * 2)())",
}  # fmt: skip
MARKS = {
    "mincore": MAP + "refused('mincore', lambda: call(27, 232, ctypes.c_void_p(at), ctypes.c_size_t(65536), (ctypes.c_char * 16)()))",
    "cachestat": MAP + "refused('cachestat', lambda: call(451, 451, shared, struct.pack('QQ', 0, 65536), (ctypes.c_char * 40)(), 0))",
    "reading without waiting": MAP + "refused('RWF_NOWAIT', lambda: os.preadv(shared, [bytearray(9)], 0, os.RWF_NOWAIT))",
    "reading past the cache": MAP + "refused('RWF_DONTCACHE', lambda: os.preadv(shared, [bytearray(9)], 0, 128))",
    "pushing pages out": MAP + "for advice in 20, 21: refused('madvise', lambda: call(28, 233, ctypes.c_void_p(at), ctypes.c_size_t(65536), advice))",
    "hints": MAP + "for command in 1036, 1038: refused('hint', lambda: fcntl.fcntl(shared, command, struct.pack('Q', 3)))",
    "leases": MAP + "refused('lease', lambda: fcntl.fcntl(shared, fcntl.F_SETLEASE, fcntl.F_RDLCK))",
    "flags of files": MAP + "refused('flags', lambda: fcntl.ioctl(shared, 0x40086602, struct.pack('l', 0x10)))",
    "attributes": "refused('attribute', lambda: os.setxattr(sys.executable, 'user.x', b'y'))",
    "times": "refused('times', lambda: os.utime(sys.executable))",
    "modes of devices": "for name in 'null', 'zero', 'full', 'random', 'urandom', 'tty':\n  refused(name, lambda: os.chmod('/dev/' + name, 0o600))\n  refused(name, lambda: os.utime('/dev/' + name, (5, 5)))\n  refused(name, lambda: os.setxattr('/dev/' + name, 'system.posix_acl_access', struct.pack('I', 2) + struct.pack('HHI', 1, 6, 2**32 - 1) + struct.pack('HHI', 4, 6, 2**32 - 1) + struct.pack('HHI', 32, 0, 2**32 - 1)))",
    "names among devices": "for folder in '/dev', '/proc', '/proc/sys': refused(folder, lambda: open(folder + '/x', 'w')); refused(folder, lambda: os.chmod(folder, 0o777))",
    "handles of files": "refused('handle', lambda: call(303, 264, -100, b'/usr', struct.pack('Ii', 128, 0) + bytes(128), ctypes.byref(ctypes.c_int()), 0))",
}  # fmt: skip
SET_ID = """
def check(path): print("ESCAPED" if os.stat(path).st_mode & 0o6000 else "no bit", path)
def attempt(what, work):
    try: work()
    except OSError as error: print("refused", what)
for mode in 0o4755, 0o2755, 0o6755:
    def temporary():
        file = os.open(".", os.O_TMPFILE | os.O_RDWR, mode)
        os.link(f"/proc/self/fd/{file}", f"t{mode}", follow_symlinks=True)
        check(f"t{mode}")
    attempt("O_TMPFILE", temporary)
    attempt("open", lambda: check(f"/proc/self/fd/{os.open(f'o{mode}', os.O_CREAT | os.O_RDWR, mode)}"))
    attempt("mknod", lambda: (os.mknod(f"n{mode}", stat.S_IFREG | mode), check(f"n{mode}")))
    attempt("fifo", lambda: (os.mkfifo(f"f{mode}", mode), check(f"f{mode}")))
    attempt("openat2", lambda: call(437, 437, -100, b"p", struct.pack("QQQ", os.O_CREAT | os.O_RDWR, mode, 0), ctypes.c_size_t(24)))
    open("plain", "w").close()
    attempt("chmod", lambda: (os.chmod("plain", mode), check("plain")))
    attempt("fchmod", lambda: (os.fchmod(os.open("plain", os.O_RDONLY), mode), check("plain")))
    attempt("fchmodat2", lambda: (call(452, 452, -100, b"plain", mode, 0), check("plain")))
    attempt("mkdir", lambda: (os.mkdir(f"d{mode}", mode), check(f"d{mode}")))
attempt("whiteout", lambda: (os.mknod("w", stat.S_IFCHR, 0), print("ESCAPED whiteout")))
attempt("capability", lambda: (os.setxattr("plain", "security.capability", struct.pack("<IIIII", 0x02000001, 1 << 7, 0, 0, 0)), print("ESCAPED capability")))
print("over")
"""


def run(sandbox: Bubblewrap, program: str, **options: object) -> SandboxResult:
    files = {"main.py": PRELUDE + program}
    return sandbox.run(SandboxCommand([sys.executable, "-I", "-S", "main.py"], files, **options))  # type: ignore[arg-type]


def test_no_counter_of_the_host_can_be_used_up(bubblewrap: Bubblewrap) -> None:
    result = run(bubblewrap, "".join(f"refused({name!r}, lambda: {work})\n" for name, work in COUNTERS.items()))
    assert result.ok, result
    assert "ESCAPED" not in result.text, result.text
    assert result.text.count("refused") == len(COUNTERS)


def test_queued_signals_have_an_end(bubblewrap: Bubblewrap) -> None:
    """They are counted by user, and the host's user has as many as there are for all sandboxes."""
    program = """
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGRTMIN])
for _ in range(5000): os.kill(os.getpid(), signal.SIGRTMIN)
print(open("/proc/self/status").read().split("SigQ:")[1].split()[0])
"""
    queued, limit = run(bubblewrap, program).text.strip().split("/")
    assert int(queued) <= int(limit) <= 1024


@pytest.mark.parametrize("name", list(MARKS))
def test_no_mark_can_be_left_on_what_all_programs_see(bubblewrap: Bubblewrap, name: str) -> None:
    result = run(bubblewrap, MARKS[name])
    assert result.ok, result
    assert "ESCAPED" not in result.text, result.text
    assert "refused" in result.text


def test_pages_of_shared_files_stay_in_the_cache(bubblewrap: Bubblewrap, tmp_path: Path) -> None:
    """Or a later program could tell by the time that reading takes which of them an earlier one had dropped."""
    path = tmp_path / "file"
    path.write_bytes(bytes(1 << 20))
    os.sync()
    program = "file = os.open('/data/file', os.O_RDONLY)\nos.read(file, 1 << 20)\nos.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)\nprint('over')"
    assert run(bubblewrap, program, read_only={"/data": str(tmp_path)}).text == "over\n"
    assert cached_pages(path) == 256


def cached_pages(path: Path) -> int:
    import ctypes
    import mmap

    with (
        open(path, "rb") as file,
        mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE) as mapped,
    ):
        pages = (ctypes.c_ubyte * 256)()
        start = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
        assert ctypes.CDLL(None).mincore(ctypes.c_void_p(start), ctypes.c_size_t(1 << 20), pages) == 0
        return sum(page & 1 for page in pages)


def test_reading_leaves_no_time(bubblewrap: Bubblewrap, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("x")
    os.utime(path, (1, 2))  # so old that a read would set it
    assert run(bubblewrap, "print(open('/data/file').read())", read_only={"/data": str(tmp_path)}).text == "x\n"
    assert path.stat().st_atime == 1


def test_times_of_devices_tell_nothing_of_an_earlier_program(bubblewrap: Bubblewrap) -> None:
    """Everybody may set them to the present; a later program must not see when."""
    devices = list(DEVICES)
    touch = f"for name in {devices!r}:\n  try: os.utime('/dev/' + name)\n  except OSError: pass\nprint('over')"
    before = [os.stat(f"/dev/{name}").st_mode for name in DEVICES]
    assert run(bubblewrap, touch).text == "over\n"
    seen = run(
        bubblewrap,
        f"print({{int(time.time() - os.stat('/dev/' + name).st_mtime) > 10**6 or abs(time.time() - os.stat('/dev/' + name).st_mtime) < 5 for name in {devices!r}}})",
    )
    assert seen.text == "{True}\n"
    assert [os.stat(f"/dev/{name}").st_mode for name in DEVICES] == before
    if os.geteuid() == 0 and os.path.isdir(DEVICE_FOLDER):
        times = f"print({{os.stat('/dev/' + name).st_mtime for name in {devices!r}}})"
        assert run(bubblewrap, times).text == "{0.0}\n"


def test_no_file_that_runs_as_its_owner_is_left_in_a_workspace(bubblewrap: Bubblewrap, tmp_path: Path) -> None:
    result = run(bubblewrap, SET_ID, workspace=tmp_path)
    assert result.ok, result
    assert "ESCAPED" not in result.text, result.text
    for path in tmp_path.rglob("*"):
        assert not path.lstat().st_mode & 0o6000
        assert not stat.S_ISCHR(path.lstat().st_mode)


def test_fifos_and_sockets_in_read_only_folders_cannot_be_used(bubblewrap: Bubblewrap, tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "file").write_text("text")
    reached: list[bytes] = []
    fifos = [tmp_path / "fifo", tmp_path / "below" / "fifo"]
    for fifo in fifos:
        os.mkfifo(fifo)
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagrams:
        server.bind(str(tmp_path / "below" / "socket"))
        server.listen()
        datagrams.bind(str(tmp_path / "datagrams"))
        readers = [os.open(fifo, os.O_RDONLY | os.O_NONBLOCK) for fifo in fifos]
        program = """
def write(path):
    file = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    os.write(file, b"word")
    if not stat.S_ISFIFO(os.fstat(file).st_mode): raise OSError(errno.EINVAL, "another file")
for path in "/data/fifo", "/data/below/fifo": refused(path, lambda: write(path))
refused("stream", lambda: socket.socket(socket.AF_UNIX).connect("/data/below/socket"))
refused("datagram", lambda: socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b"word", "/data/datagrams"))
refused("alone", lambda: write("/alone"))
print(open("/data/file").read())
"""
        shown = {"/data": str(tmp_path), "/alone": str(fifos[0])}
        result = run(bubblewrap, program, read_only=shown)
        with bubblewrap.shell(read_only=shown) as shell:
            shell.execute("echo word >/data/fifo; echo word >/data/below/fifo", 2)
            os.mkfifo(tmp_path / "later")  # what comes later is not covered in this one, and is in the next
        readers.append(os.open(tmp_path / "later", os.O_RDONLY | os.O_NONBLOCK))
        later = run(
            bubblewrap,
            "refused('later', lambda: os.write(os.open('/data/later', os.O_WRONLY | os.O_NONBLOCK), b'word') and os.ttyname(0))",
            read_only=shown,
        )
        for reader in readers:
            try:
                reached.append(os.read(reader, 99))
            except BlockingIOError:
                continue
            finally:
                os.close(reader)
    assert result.ok, result
    assert "ESCAPED" not in result.text + later.text
    assert "text\n" in result.text
    assert not any(reached)


PROC = """
shown = []
for folder, below, names in os.walk("/proc"):
    if folder == "/proc": below[:] = [name for name in below if not name.isdigit() and name not in ("self", "thread-self", "net")]
    for name in names:
        path = folder + "/" + name
        try:
            if stat.S_ISREG(os.stat(path).st_mode):
                with open(path, "rb", 0, opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK)) as file:
                    if file.read(1): shown.append(path)
        except OSError: pass
print("\\n".join(shown))
"""


def test_proc_shows_only_what_an_ordinary_user_sees(bubblewrap: Bubblewrap) -> None:
    seen = run(bubblewrap, PROC, limits=Limits(wall_seconds=20.0)).text.split()
    assert {"/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/sys/kernel/ostype"} <= set(seen)
    assert [path for path in seen if not os.stat(path).st_mode & stat.S_IROTH] == []
    assert not {
        "/proc/keys",
        "/proc/key-users",
        "/proc/kcore",
        "/proc/kmsg",
        "/proc/timer_list",
        "/proc/slabinfo",
    } & set(seen)


def test_programs_find_what_they_need(bubblewrap: Bubblewrap) -> None:
    """What the filter and the hidden files must not break: a sample of what libraries do when they start."""
    program = """
import asyncio, multiprocessing, select, subprocess, tempfile, threading
async def main():
    process = await asyncio.create_subprocess_exec("timeout", "5", "cat", stdin=-1, stdout=-1, stderr=-1)
    return await process.communicate(b"words")
assert asyncio.run(main()) == (b"words", b"")
with tempfile.NamedTemporaryFile() as file, mmap.mmap(-1, 4096) as mapped:
    file.write(b"x"); file.flush(); os.fsync(file.fileno()); mapped.madvise(mmap.MADV_DONTNEED)
    fcntl.flock(file, fcntl.LOCK_EX); os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
    assert os.preadv(file.fileno(), [bytearray(1)], 0) == 1
signal.setitimer(signal.ITIMER_REAL, 60); signal.alarm(0)
server = socket.create_server(("127.0.0.1", 0)); socket.create_connection(server.getsockname()).close()
with multiprocessing.Pool(2) as pool, multiprocessing.Manager() as manager:
    shared = manager.dict(); shared["sum"] = sum(pool.map(abs, range(9)))
    assert dict(shared) == {"sum": 36}
assert os.sched_getaffinity(0) and os.cpu_count() and os.getloadavg() and os.sysconf("SC_PHYS_PAGES")
assert subprocess.run(["sync"]).returncode == 0 and open("/dev/urandom", "rb").read(4) and os.eventfd(0) and select.epoll()
assert os.path.samefile("/dev/stdin", "/proc/self/fd/0") and subprocess.run("echo x >/dev/null; cat <(echo y)", shell=True, executable="/bin/bash", capture_output=True).stdout == b"y\\n"
print("well")
"""
    result = run(bubblewrap, program)
    assert (result.text, result.error_text) == ("well\n", "")


def test_a_shell_has_pseudo_terminals(bubblewrap: Bubblewrap) -> None:
    with bubblewrap.shell() as shell:
        result = shell.execute(
            "python3 -c 'import os, pty; a, b = pty.openpty(); os.write(a, b\"x\"); print(os.isatty(b))'; echo x >/dev/null && ls /dev/full"
        )
        assert result.text == "True\n/dev/full\n"


def test_devices_are_prepared_by_many_at_once(bubblewrap: Bubblewrap) -> None:
    threads = [threading.Thread(target=run, args=(bubblewrap, "")) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert run(bubblewrap, "print(open('/dev/zero', 'rb').read(2))").text == "b'\\x00\\x00'\n"
