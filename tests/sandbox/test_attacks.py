"""Hostile programs are contained, get their status, and do not affect the next run.

A program prints ESCAPED if it succeeds. The targets are real: a file, a process, an environment and listening sockets of
the host, with addresses that the program knows.
"""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from palaestra.sandbox import Limits, SandboxCommand, SandboxResult, Status
from palaestra.sandbox.base import MIB
from palaestra.sandbox.bubblewrap import Bubblewrap
from palaestra.sandbox.shell import Shell

SMALL = Limits(
    wall_seconds=3.0,
    cpu_seconds=3.0,
    memory=96 * MIB,
    processes=24,
    open_files=64,
    file_size=4 * MIB,
    output=64 * 1024,
    disk=8 * MIB,
)
BRIEF = Limits(**{**{name: getattr(SMALL, name) for name in SMALL.__dataclass_fields__}, "wall_seconds": 0.6})
ENDED = {Status.OK, Status.EXIT}

PRELUDE = """
import ctypes, errno, os, platform, signal, socket, sys, time
C = ctypes.CDLL(None, use_errno=True)
X86 = platform.machine() == "x86_64"
def call(x86, arm, *arguments):
    "A system call by its number; the error's name, or None if it worked."
    if C.syscall(ctypes.c_long(x86 if X86 else arm), *arguments) != -1: return None
    return errno.errorcode[ctypes.get_errno()]
def refused(what, work):
    try: work()
    except OSError as error: print("refused", what, error.errno)
    else: print("ESCAPED", what)
def refused_call(what, *arguments):
    error = call(*arguments)
    print("ESCAPED" if error is None else "refused", what, error)
"""


MAP = """
place = C.mmap
place.restype, place.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
"""


@dataclass(frozen=True)
class Attack:
    name: str
    program: str
    verdicts: set[Status] = field(default_factory=lambda: ENDED)
    limits: Limits = SMALL
    says: bytes = b""
    read_back: tuple[str, ...] = ()


ATTACKS = [
    # words from one sandbox to another, by the files that both see
    Attack("watching files", "refused_call('inotify_init1', 294, 26, 0)\nwith open('f', 'w+b') as f:\n  f.write(b'x' * 9); f.flush()\n  refused('RWF_NOWAIT', lambda: os.preadv(f.fileno(), [bytearray(9)], 0, os.RWF_NOWAIT))\n"
           "  print('reads' if os.preadv(f.fileno(), [bytearray(9)], 0) == 9 else 'ESCAPED')", says=b"reads"),
    Attack("being told who opens a file", "import fcntl\nfolder, own = os.open('.', os.O_RDONLY), os.open('own', os.O_CREAT | os.O_RDWR)\n"
           "refused('F_NOTIFY', lambda: fcntl.fcntl(folder, fcntl.F_NOTIFY, fcntl.DN_ACCESS))\n"
           "refused('F_SETLEASE', lambda: fcntl.fcntl(own, fcntl.F_SETLEASE, fcntl.F_WRLCK))"),
    # more than its share
    # Bombs end at a thousand processes by themselves: a sandbox that fails here must not take the machine with it.
    Attack("fork bomb", "for _ in range(10):\n  try: os.fork()\n  except OSError: pass\ntime.sleep(9)", {Status.PROCESSES}),
    Attack("fork bomb of short lives", "for _ in range(1000):\n  if os.fork() == 0:\n    if os.fork() == 0: time.sleep(9)\n    os._exit(0)", {Status.PROCESSES, Status.EXIT}),
    Attack("thread bomb", "import threading\nfor _ in range(500): threading.Thread(target=time.sleep, args=(9,)).start()", {Status.PROCESSES, Status.EXIT}),
    Attack("memory bomb, page by page", "x = []\nwhile True: x.append(b'x' * 1000000)", {Status.MEMORY}),
    Attack("memory bomb at once", "x = bytearray(10**12)", {Status.MEMORY}),
    Attack("memory bomb of many processes", "for _ in range(12):\n  if os.fork() == 0: break\nx = bytearray(30_000_000)\nfor i in range(0, len(x), 4096): x[i] = 1\ntime.sleep(9)", {Status.MEMORY}),
    Attack("memory bomb that is shared", "import mmap\nx = mmap.mmap(-1, 10**9)\nfor i in range(0, 10**9, 4096): x[i] = 1", {Status.MEMORY}),
    Attack("memory bomb in page tables", MAP + "size = 600 << 30\nat = place(None, size, 1, 0x4022, -1, 0)\nfor here in range(at, at + size, 2 << 20): ctypes.string_at(here, 1)\ntime.sleep(9)", {Status.MEMORY}),
    Attack("memory bomb in page tables, of many places", MAP + "for n in range(1, 60000): ctypes.string_at(place((1 << 40) + (n << 30), 4096, 1, 0x4022, -1, 0), 1)\ntime.sleep(9)", {Status.MEMORY}),
    Attack("memory without a process: memfd", "refused('memfd', lambda: os.memfd_create('x'))"),
    Attack("memory without a process: System V", "refused_call('shmget', 29, 194, 0, ctypes.c_size_t(10**9), 0o1600)"),
    Attack("filling the workspace", "total = 0\ntry:\n  for i in range(100):\n    with open(f'f{i}', 'wb', 0) as f: total += f.write(b'x' * 1000000)\nexcept OSError as e: print('full', e.errno)\nprint('ESCAPED' if total > 9e6 else 'bounded', total)", says=b"bounded"),
    Attack("filling every other folder", "for root in '/tmp', os.environ['HOME'], '/dev/shm':\n  total = 0\n  try:\n    for i in range(100):\n      with open(f'{root}/f{i}', 'wb', 0) as f: total += f.write(b'x' * 1000000)\n  except OSError: pass\n  print('ESCAPED' if total > 9e6 else 'bounded', root, total)\nfor root in '/', '/dev', '/run', '/etc', '/home', '/usr', '/proc':\n  refused(root, lambda: open(root + '/f', 'w'))", says=b"bounded"),
    Attack("files without end", "i = 0\nwhile True:\n  open(f'/tmp/{i}', 'w').close(); i += 1", {Status.DISK}),
    Attack("one huge file", "with open('f', 'wb', 0) as f:\n  while True: f.write(b'x' * 1000000)", {Status.DISK, Status.EXIT}),
    Attack("a huge file with holes", "signal.signal(signal.SIGXFSZ, signal.SIG_DFL)\nos.truncate(os.open('f', os.O_CREAT | os.O_RDWR), 10**12)", {Status.DISK}),
    Attack("endless output", "while True: os.write(1, b'x' * 65536)", {Status.OUTPUT}),
    Attack("endless errors", "while True: os.write(2, b'x' * 65536)", {Status.OUTPUT}),
    Attack("endless work", "while True: pass", {Status.CPU_TIME}, Limits(wall_seconds=5.0, cpu_seconds=0.4)),
    Attack("endless work, shared out", "os.fork(); os.fork()\nwhile True: pass", {Status.CPU_TIME}, Limits(wall_seconds=5.0, cpu_seconds=0.4)),
    Attack("sleeping", "time.sleep(99)", {Status.WALL_TIME}, BRIEF),
    Attack("ignoring SIGTERM and all others", "for s in range(1, 65):\n  try: signal.signal(s, signal.SIG_IGN)\n  except (OSError, ValueError): pass\nwhile True: time.sleep(99)", {Status.WALL_TIME}, BRIEF),
    Attack("stopping itself by SIGSTOP", "os.kill(os.getpid(), signal.SIGSTOP)", {Status.WALL_TIME}, BRIEF),
    Attack("never reading its input", "time.sleep(99)", {Status.WALL_TIME}, BRIEF),
    Attack("deep recursion", "sys.setrecursionlimit(10**9)\ndef f(n): return f(n + 1) + f(n)\ntry: f(0)\nexcept RecursionError: pass", {Status.SIGNAL, Status.EXIT, Status.MEMORY}),
    Attack("deep recursion in C", "sys.setrecursionlimit(10**9)\nx = '(' * 10**6\nimport json\njson.loads('[' * 10**7)", {Status.SIGNAL, Status.EXIT, Status.MEMORY}),
    Attack("huge argument lists", "refused('arguments', lambda: os.execv('/bin/true', ['x' * 100000] * 300))"),
    Attack("open files without end", "x = []\nrefused('open', lambda: [x.append(open('/dev/null')) for _ in range(1000)])"),
    Attack("raising its limits", "import resource\nfor name in dir(resource):\n  if name.startswith('RLIMIT_') and name not in ('RLIMIT_MSGQUEUE',):\n    kind = getattr(resource, name); _, hard = resource.getrlimit(kind)\n    if hard != resource.RLIM_INFINITY:\n      try: resource.setrlimit(kind, (hard + 1, hard + 1))\n      except (OSError, ValueError): print('refused', name)\n      else: print('ESCAPED', name)"),
    Attack("killing everything", "os.kill(1, 9)\ntry: os.kill(-1, 9)\nexcept OSError: pass\nprint('alone')", says=b"alone"),
    # escaping its death
    Attack("double fork and an early end", "if os.fork() == 0:\n  os.setsid()\n  if os.fork() == 0:\n    for f in 0, 1, 2: os.close(f)\n    os.execvp('sleep', ['sleep', '77' + TOKEN])\n  os._exit(0)\ntime.sleep(.1)"),
    Attack("double fork and a time-out", "if os.fork() == 0:\n  os.setsid()\n  if os.fork() == 0: os.execvp('sleep', ['sleep', '77' + TOKEN])\n  os._exit(0)\nos.execvp('sleep', ['sleep', '77' + TOKEN])", {Status.WALL_TIME}, BRIEF),
    Attack("a child that holds the output open", "if os.fork() == 0: os.execvp('sleep', ['sleep', '77' + TOKEN])"),
    # reading what is the host's
    Attack("the host's home", "for root in HOST_HOME, REAL_HOME, '/root', '/home':\n  for name in 'secret.txt', '.bashrc', '.profile', '.netrc', '.ssh', '.bash_history', '.config', '.cache':\n    if os.path.lexists(root + '/' + name): print('ESCAPED', root, name)\nrefused('home', lambda: open(HOST_HOME + '/secret.txt'))"),
    Attack("the host's environment", "text = repr(dict(os.environ))\nfor pid in os.listdir('/proc'):\n  if pid.isdigit():\n    try: text += open(f'/proc/{pid}/environ').read()\n    except OSError: pass\nprint('ESCAPED' if SECRET in text else 'nothing', len(text))", says=b"nothing"),
    Attack("the host's processes", "pids = [p for p in os.listdir('/proc') if p.isdigit()]\nprint('ESCAPED' if len(pids) > 4 else 'alone', pids)\nrefused('signal', lambda: os.kill(HOST_PID, 9))\nrefused('look', lambda: open(f'/proc/{HOST_PID}/cmdline'))", says=b"alone"),
    Attack("the host's sockets", "import glob\nfound = [p for root in ('/run', '/var/run', '/tmp', '/var') for p in glob.glob(root + '/**', recursive=True) if os.path.exists(p) and not os.path.isdir(p) and 'sock' in p]\nprint('ESCAPED' if found else 'nothing', found)\nprint('ESCAPED' if len(open('/proc/net/unix').readlines()) > 1 else 'nothing')", says=b"nothing"),
    Attack("the grader", "sys.path += GRADER_PATHS\ntry: import palaestra.sandbox.base\nexcept ImportError: print('nothing')\nelse: print('ESCAPED')\nfor path in GRADER_PATHS: refused(path, lambda: open(path + '/palaestra/sandbox/base.py'))", says=b"nothing"),
    Attack("the references and hidden tests", "refused('reference', lambda: open(REFERENCE))\nfor folder, below, files in os.walk('/'):\n  below[:] = [name for name in below if name not in ('proc', 'usr', 'site-packages') and not name.startswith('python3')]\n  if 'reference.json' in files: print('ESCAPED', folder)", says=b"refused"),
    Attack("files that we left open", "fds = sorted(int(f) for f in os.listdir('/proc/self/fd'))\ntargets = []\nfor f in fds:\n  try: targets.append(os.readlink(f'/proc/self/fd/{f}'))\n  except OSError: pass\nbad = [t for t in targets if not t.startswith(('pipe:', '/proc/', '/dev/null'))]\nprint('ESCAPED' if bad else 'nothing', targets)", says=b"nothing"),
    Attack("the kernel's memory", "for path in '/dev/mem', '/dev/kmem', '/dev/port', '/dev/kmsg', '/proc/kmsg':\n  refused(path, lambda: os.read(os.open(path, os.O_RDONLY), 1))\nfor path in '/proc/kcore', '/proc/kpagecount', '/proc/keys':\n  try: data = open(path, 'rb').read(8)\n  except OSError: data = b''\n  print('ESCAPED' if data else 'nothing', path)", says=b"nothing"),
    # writing outside
    Attack("writing by path", "for path in HOST_HOME + '/secret.txt', REFERENCE, '/usr/bin/true', '/etc/passwd', '/etc/new', sys.executable: refused(path, lambda: os.open(path, os.O_WRONLY | (os.O_CREAT if 'new' in path else 0)))"),
    Attack("writing by a symbolic link", "os.symlink(HOST_HOME, 'home'); os.symlink(REFERENCE, 'ref')\nrefused('link', lambda: os.open('home/secret.txt', os.O_WRONLY | os.O_CREAT))\nrefused('link', lambda: os.open('ref', os.O_WRONLY))", read_back=("home/secret.txt", "ref")),
    Attack("reading back by a symbolic link", "os.symlink('/etc', 'folder'); os.symlink('/etc/passwd', 'file'); os.mkfifo('fifo'); os.mkdir('dir'); print('done')", says=b"done", read_back=("folder/passwd", "file", "fifo", "dir", "missing")),
    Attack("writing by a hard link", "for path in '/usr/bin/env', '/etc/passwd', REFERENCE, '/proc/self/exe': refused(path, lambda: os.link(path, 'hard'))"),
    Attack("writing by ..", "up = '/workspace' + '/..' * 40\nrefused('..', lambda: open(up + HOST_HOME + '/secret.txt', 'w'))\nrefused('..', lambda: open('../x', 'w'))\nos.chdir('..'); os.chdir('..'); print(os.getcwd())"),
    Attack("setting up the kernel", "for path in '/proc/sys/kernel/core_pattern', '/proc/sys/kernel/hostname', '/proc/sysrq-trigger', '/proc/sys/vm/overcommit_memory', '/proc/sys/kernel/panic', '/proc/self/mem', '/proc/1/mem', '/proc/irq/default_smp_affinity', '/sys/power/state': refused(path, lambda: os.open(path, os.O_WRONLY))"),
    Attack("deleting its own workspace", "import shutil\nopen('f', 'w').close()\nshutil.rmtree('/workspace', ignore_errors=True)\nprint(os.listdir('/workspace'))\nrefused('rmdir', lambda: os.rmdir('/workspace'))", says=b"[]", read_back=("f",)),
    Attack("touching the system", "for path in '/usr/bin/env', '/usr', '/', '/etc', sys.executable: refused(path, lambda: os.utime(path, (0, 0)))\nrefused('rmdir', lambda: os.rmdir('/usr'))\nrefused('rename', lambda: os.rename('/etc/passwd', '/etc/passwd-'))"),
    # the network
    Attack("TCP", "for host in '127.0.0.1', '1.1.1.1', '::1', '169.254.169.254':\n  s = socket.socket(socket.AF_INET6 if ':' in host else socket.AF_INET); s.settimeout(.3)\n  refused(host, lambda: s.connect((host, TCP if host[0] in '1:' else 80)))"),
    Attack("UDP", "s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\nfor host in '1.1.1.1', '255.255.255.255', '10.0.0.1': refused(host, lambda: s.sendto(b'x', (host, 53)))\ntry: s.sendto(SECRET.encode(), ('127.0.0.1', UDP))\nexcept OSError: pass"),
    Attack("DNS", "refused('dns', lambda: socket.getaddrinfo('example.com', 80))"),
    Attack("unix sockets", "s = socket.socket(socket.AF_UNIX)\nfor path in UNIX, '/var/run/docker.sock', '/run/dbus/system_bus_socket', '/run/systemd/private': refused(path, lambda: s.connect(path))"),
    Attack("abstract sockets", "s = socket.socket(socket.AF_UNIX)\nrefused('abstract', lambda: s.connect('\\0' + ABSTRACT))"),
    Attack("other sockets", "for family, kind in (40, 1), (17, 3), (2, 3), (38, 5), (16, 3), (31, 3):\n  if family == 16: continue\n  refused(family, lambda: socket.socket(family, kind))"),
    Attack("listening to the host's network", "import struct, fcntl\nnames = [n for _, n in socket.if_nameindex()]\nprint('ESCAPED' if set(names) - {'lo'} - {n for n in names if n.endswith('0') and not n.startswith(('eth', 'en', 'wl', 'docker', 'br', 'veth'))} else 'alone', names)", says=b"alone"),
    # more rights
    Attack("ptrace", "refused_call('attach', 101, 117, 16, 1, 0, 0)\nrefused_call('trace me', 101, 117, 0, 0, 0, 0)\nrefused_call('seize', 101, 117, 0x4206, 1, 0, 0)"),
    Attack("memory of other processes", "refused_call('read', 310, 270, 1, 0, 0, 0, 0, 0)\nrefused_call('write', 311, 271, 1, 0, 0, 0, 0, 0)\nrefused_call('getfd', 438, 438, 0, 0, 0)"),
    Attack("mounting", "C.mount.restype = ctypes.c_int\nfor kind in b'tmpfs', b'proc', b'sysfs', b'overlay':\n  refused_call(kind, 165, 40, kind, b'/tmp', kind, 0, 0)\nrefused_call('bind', 165, 40, b'/', b'/tmp', 0, 4096, 0)\nrefused_call('writable', 165, 40, 0, b'/', 0, 32, 0)\nrefused_call('umount', 166, 39, b'/usr', 2)\nrefused_call('fsopen', 430, 430, b'tmpfs', 0)\nrefused_call('pivot', 155, 41, b'.', b'.')\nrefused_call('chroot', 161, 51, b'/tmp')"),
    Attack("new namespaces", "refused_call('unshare', 272, 97, 0x10000000)\nrefused_call('clone', 56, 220, 0x10000000 | 17, 0, 0, 0, 0)\nrefused_call('clone3', 435, 435, 0, 0)\nrefused('setns', lambda: [None][call(308, 268, os.open('/proc/self/ns/user', 0), 0) is not None and (_ for _ in ()).throw(OSError(1, ''))])"),
    Attack("keyctl", "refused_call('add_key', 248, 217, b'user', b'x', b'y', 1, -4)\nrefused_call('keyctl', 250, 219, 0, -4, 0)\nrefused_call('request_key', 249, 218, b'user', b'x', 0, 0)"),
    Attack("programs in the kernel", "refused_call('bpf', 321, 280, 0, 0, 0)\nrefused_call('perf', 298, 241, 0, 0, -1, -1, 0)\nrefused_call('userfaultfd', 323, 282, 0)\nrefused_call('io_uring', 425, 425, 1, 0)\nrefused_call('module', 175, 105, 0, 0, b'')\nrefused_call('kexec', 246, 104, 0, 0, 0, 0)\nrefused_call('reboot', 169, 142, 0xfee1dead, 672274793, 0x01234567, 0)\nrefused_call('clock', 227, 112, 0, 0)"),
    Attack("setuid", "refused('root', lambda: os.setuid(0))\nrefused('group', lambda: os.setgid(0))\nrefused('groups', lambda: os.setgroups([0]))\nopen('f', 'w').close()\nrefused('bit', lambda: os.chmod('f', 0o4755))\nrefused('create', lambda: os.open('g', os.O_CREAT | os.O_WRONLY, 0o4755))\nrefused('chown', lambda: os.chown('f', 0, 0))\nimport subprocess\nfor program in '/usr/bin/su', '/usr/bin/sudo', '/usr/bin/mount', '/usr/bin/passwd':\n  if os.path.exists(program): print('ESCAPED' if subprocess.run([program, '--version'], capture_output=True).returncode == 0 and os.geteuid() == 0 else 'refused', program)"),
    Attack("capabilities", "status = open('/proc/self/status').read()\nimport re\nprint('ESCAPED' if set(re.findall(r'^Cap(?:Prm|Eff|Bnd|Amb):\\s*(\\w+)', status, re.M)) != {'0' * 16} else 'none')\nprint('ESCAPED' if 'NoNewPrivs:\\t1' not in status else 'none')", says=b"none"),
    Attack("device nodes", "import stat\nfor number in (8, 0), (1, 1), (10, 200), (254, 0):\n  for kind in stat.S_IFBLK, stat.S_IFCHR: refused(number, lambda: os.mknod('node', kind | 0o666, os.makedev(*number)))\nfor path in '/dev/sda', '/dev/vda', '/dev/kvm', '/dev/fuse', '/dev/net/tun', '/dev/loop-control': refused(path, lambda: open(path))"),
    # what it says
    Attack("binary garbage", "os.write(1, bytes(range(256)) * 100); os.write(2, os.urandom(1000))", {Status.OK}, says=bytes(range(256))),
    Attack("invalid UTF-8", "os.write(1, b'\\xff\\xfe\\xc3\\x28\\xed\\xa0\\x80 end')", {Status.OK}, says=b"\xff\xfe\xc3\x28\xed\xa0\x80 end"),
    Attack("pretending to be the sandbox", "print('bwrap: No permissions to create new namespace', file=sys.stderr); sys.exit(125)", {Status.EXIT}),
    Attack("talking to the doorkeeper", "for f in range(3, 1024):\n  try: os.write(f, b'\\n' * 100)\n  except OSError: pass\nfor name in os.listdir('/proc/1/fd'):\n  try: os.write(os.open('/proc/1/fd/' + name, os.O_WRONLY | os.O_NONBLOCK), b'0\\n')\n  except OSError: pass\nsys.exit(7)", {Status.EXIT}),
]  # fmt: skip


@dataclass(frozen=True)
class Host:
    """What there is to get."""

    folder: Path
    secret: str
    names: str
    """The attackers' knowledge, as Python."""
    reached: list[str]
    """What came through to the host's sockets."""
    victim: subprocess.Popen[bytes]

    def assert_unharmed(self) -> None:
        assert not self.reached
        assert self.victim.poll() is None
        assert (self.folder / "secret.txt").read_text() == self.secret
        assert (self.folder / "reference.json").read_text() == self.secret
        assert {path.name for path in self.folder.iterdir()} == {"secret.txt", "reference.json", "socket"}


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    folder, secret, token = tmp_path_factory.mktemp("host"), secrets.token_hex(16), f"{secrets.randbelow(10**8):08}"
    for name in ("secret.txt", "reference.json"):
        (folder / name).write_text(secret)
    os.environ["PALAESTRA_TEST_SECRET"] = secret
    reached: list[str] = []
    tcp, udp = socket.create_server(("127.0.0.1", 0)), socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    udp.bind(("127.0.0.1", 0))
    unix, abstract = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
    unix.bind(str(folder / "socket"))
    abstract.bind("\0" + secret)
    victim = subprocess.Popen(["sleep", "600"], env={"PALAESTRA_TEST_SECRET": secret})
    closing = threading.Event()

    def listen(server: socket.socket) -> None:
        server.settimeout(0.1)
        while not closing.is_set():
            try:
                reached.append(str(server.recv(99) if server is udp else server.accept()))
            except TimeoutError:
                continue

    for server in (unix, abstract):
        server.listen()
    threads = [threading.Thread(target=listen, args=(item,)) for item in (tcp, udp, unix, abstract)]
    for thread in threads:
        thread.start()
    paths = [str(Path(sys.modules["palaestra"].__file__ or "").parents[1])]
    paths += [path for path in sys.path if "site-packages" in path]
    names = (
        f"SECRET = {secret!r}\nTOKEN = {token!r}\nHOST_HOME, REAL_HOME = {str(folder)!r}, {os.path.expanduser('~')!r}\nREFERENCE = {str(folder / 'reference.json')!r}\n"
        f"HOST_PID = {victim.pid}\nTCP, UDP = {tcp.getsockname()[1]}, {udp.getsockname()[1]}\n"
        f"UNIX, ABSTRACT = {str(folder / 'socket')!r}, {secret!r}\nGRADER_PATHS = {paths!r}\n"
    )
    yield Host(folder, secret, names, reached, victim)
    closing.set()
    for thread in threads:
        thread.join()
    for server in (tcp, udp, unix, abstract):
        server.close()
    victim.kill()
    victim.wait()
    del os.environ["PALAESTRA_TEST_SECRET"]


def attack(sandbox: Bubblewrap, host: Host, item: Attack) -> SandboxResult:
    stdin = b"x" * 10**6 if "input" in item.name else b""
    files = {"attack.py": PRELUDE + host.names + item.program}
    argv = [sys.executable, "-I", "-S", "attack.py"]
    return sandbox.run(SandboxCommand(argv, files, stdin, item.limits, read_back=item.read_back))


@pytest.mark.parametrize("item", ATTACKS, ids=lambda item: item.name)
def test_an_attack_is_contained_and_the_next_run_is_unharmed(
    bubblewrap: Bubblewrap, host: Host, item: Attack, gone: Callable[..., bool]
) -> None:
    start = time.monotonic()
    result = attack(bubblewrap, host, item)
    assert result.status in item.verdicts, result
    assert b"ESCAPED" not in result.stdout, result.text
    assert item.says in result.stdout, result
    assert host.secret.encode() not in result.stdout + b"".join(result.files.values())
    assert set(result.files) <= {"f"}
    assert len(result.stdout) <= item.limits.output
    assert time.monotonic() - start < item.limits.wall_seconds + 3
    assert gone("attack.py")
    host.assert_unharmed()
    after = bubblewrap.run(SandboxCommand(["sh", "-c", "ls -A; cat; echo well"], stdin=b"and ", limits=SMALL))
    assert (after.status, after.stdout, after.stderr) == (Status.OK, b"and well\n", b"")


def test_there_are_at_least_thirty_attacks() -> None:
    assert len({item.name for item in ATTACKS}) == len(ATTACKS) >= 30


def test_what_a_double_fork_started_is_dead(bubblewrap: Bubblewrap, host: Host, gone: Callable[..., bool]) -> None:
    token = host.names.split("TOKEN = '")[1][:8]
    for item in ATTACKS:
        if "TOKEN" in item.program:
            attack(bubblewrap, host, item)
            assert gone("77" + token, 0.5)


HOLD = 'import fcntl; held = open("/shared/file"); fcntl.{}(held, fcntl.LOCK_SH); print("held", flush=True); input()'
LOCKS = {
    "flock": "fcntl.flock(open('/shared/file'), fcntl.LOCK_EX | fcntl.LOCK_NB)",
    # The lock of a writer wants a file that is open for writing, which nothing shared is; to ask for one does not.
    "lockf": "found = fcntl.fcntl(open('/shared/file'), fcntl.F_GETLK, struct.pack('hhqqi4x', fcntl.F_WRLCK, 0, 0, 0, 0)); "
    "assert struct.unpack('hhqqi4x', found)[0] == fcntl.F_UNLCK",
}


@pytest.mark.parametrize("kind", list(LOCKS))
def test_a_program_says_nothing_to_a_shell_by_locks(bubblewrap: Bubblewrap, tmp_path: Path, kind: str) -> None:
    (tmp_path / "file").touch()
    shared, hold, results = {"/shared": str(tmp_path)}, HOLD.format(kind), list[SandboxResult]()
    ours, theirs = socket.socketpair()
    program = threading.Thread(
        target=lambda: results.append(
            bubblewrap.run(
                SandboxCommand([sys.executable, "-I", "-c", hold], stdin=theirs, limits=SMALL, read_only=shared)
            )
        )
    )
    with ours, theirs, bubblewrap.shell(read_only=shared) as shell, bubblewrap.shell(read_only=shared) as other:

        def is_locked() -> bool:
            return shell.execute(f'python3 -c "import fcntl, struct; {LOCKS[kind]}"').exit_code != 0

        ours.settimeout(10)
        program.start()
        assert ours.recv(5) == b"held\n"
        assert not is_locked()
        ours.sendall(b"\n")
        program.join()
        assert results[0].ok, results[0]
        # Shells do have locks, and that is how one would be seen.
        other.execute(f"python3 -c '{hold}' < <(sleep 9) > said & until [ -s said ]; do :; done")
        assert is_locked()


# The persistent shell

SHELL_ATTACKS = [
    ("its end marker, guessed", r"printf '\0%s\0' 0123456789abcdef0123456789abcdef; printf '\0\0ended 0\n\0'; printf 'ended 0\n' >&2; (exit 3)", {3}, False),
    ("its end marker, by its files", "for f in {3..255}; do { printf 'ended 0\\n%s 0\\n' x >&$f; } 2>/dev/null; done; (exit 3)", {3}, False),
    ("its end marker, by /proc", "for f in /proc/$$/fd/* /proc/1/fd/*; do printf 'ended 0\\n' >$f; done 2>/dev/null; (exit 3)", {3}, False),
    ("its memory, by /proc", "python3 -c 'open(\"/proc/1/mem\", \"r+b\")'; python3 -c \"import os; open(f'/proc/{os.getppid()}/mem', 'r+b')\" && echo ESCAPED; (exit 3)", {3}, False),
    ("the word that ends it, by variables", "set; declare -p; env; (exit 3)", {3}, False),
    ("exit", "exit 3", {3}, True),
    ("exec", "exec sh -c 'exit 3'", {3}, True),
    ("set -e", "set -e; (exit 3); echo ESCAPED", {3}, True),
    ("set -u", "set -u; echo $undefined", {1, 127}, True),
    ("SIGSTOP", "kill -STOP $$", {137}, True),
    ("SIGKILL", "kill -KILL $$", {137}, True),
    ("interrupting the keeper", "trap - INT; kill -INT 1; kill -INT $$; sleep 0.2; (exit 3)", {3, 130}, None),
    ("SIGTERM to all", "trap '' TERM; kill -TERM -1; (exit 3)", {3}, False),
    ("SIGKILL to all", "kill -KILL -1; (exit 3)", {3}, False),
    ("new builtins", "read() { :; }; printf() { :; }; eval() { :; }; source() { :; }; (exit 3)", {3}, False),
    ("closing everything", "for f in {0..255}; do eval \"exec $f>&-\"; done 2>/dev/null; (exit 3)", {0, 1, 3, 137, 141}, None),
    ("waiting for input", "cat; read line; python3 -c 'input()' 2>/dev/null; (exit 3)", {3}, False),
    ("a quote that never ends", "echo 'abc", {2}, False),
    ("a here-document that never ends", "cat <<END\nx", {0}, False),
    ("sleeping", "sleep 99; echo ESCAPED", {124}, False),
    ("a loop without end", "while :; do :; done; echo ESCAPED", {124}, None),
    ("ignoring the interrupt", "trap '' INT TERM; while :; do sleep 1; done", {124}, True),
    ("fork bomb", "f() { [ $1 = 0 ] || { f $(($1 - 1)) | f $(($1 - 1)) & }; sleep 5; }; f 9; sleep 5", {124}, None),
    ("memory bomb", "python3 -c 'x = []\nwhile True: x.append(bytes(1000000) + b\"x\")'", {1, 124, 137}, None),
    ("memory bomb of many", "for i in {1..12}; do python3 -c 'x = b\"x\" * 30000000; import time; time.sleep(9)' & done; wait", {124}, None),
    ("endless output", "yes", {124}, None),
    ("deleting the workspace", "rm -rf /workspace 2>/dev/null; (exit 3)", {3}, False),
    ("filling the workspace", "for i in {1..40}; do head -c 1000000 /dev/zero >f$i; done 2>/dev/null; du -sm . | cut -f1 | (read n; [ $n -le 9 ] || echo ESCAPED); rm -f f*; (exit 3)", {3}, False),
    ("lowering its own limits", "ulimit -n 20; ulimit -f 0; (exit 3)", {0, 1, 2, 3, 124, 153}, None),
    ("a NUL byte", "echo a\0b", {2}, False),
]  # fmt: skip


@pytest.fixture
def shell(bubblewrap: Bubblewrap) -> Iterator[Shell]:
    limits = Limits(
        wall_seconds=1.0,
        cpu_seconds=5.0,
        memory=96 * MIB,
        processes=40,
        open_files=256,
        file_size=4 * MIB,
        output=16 * 1024,
        disk=8 * MIB,
    )
    with bubblewrap.shell(limits, files={"keep.txt": "kept"}) as shell:
        shell.execute("sleep 600 & background=$!")
        yield shell


@pytest.mark.parametrize(
    ("command", "codes", "restarts"), [a[1:] for a in SHELL_ATTACKS], ids=[a[0] for a in SHELL_ATTACKS]
)
def test_a_shell_survives(shell: Shell, command: str, codes: set[int], restarts: bool | None) -> None:
    result = shell.execute(command)
    assert result.exit_code in codes, result
    assert b"ESCAPED" not in result.output
    assert restarts is None or result.restarted == restarts, result
    assert len(result.output) <= 16 * 1024 + 100
    assert result.seconds < 8
    if result.restarted:
        assert "a new shell was started" in result.note
    after = shell.execute("echo well; exec 3>&1; cd /tmp && cd /workspace && (exit 5)", 5)
    assert (after.exit_code, after.restarted) == (5, False), after
    assert b"well\n" in after.output, after
    if "rm -rf" not in command:
        assert shell.execute("cat /workspace/keep.txt", 5).output.startswith(b"kept")
        assert shell.read_files(["keep.txt"]) == {"keep.txt": b"kept"}


def replace_builtin(code: str) -> str:
    """A function that runs in the shell itself, where it would tell an exit code."""
    return f"""builtin() {{ if [[ $1 == printf && $2 == '%s %d\\n' ]]; then {code}; else command builtin "$@"; fi; }}"""


def run_in_background(work: str) -> str:
    """What runs beside the shell and has its files."""
    return f"trap 'trap - DEBUG; {work} &' DEBUG"


BREAKS = {
    "a flood": run_in_background("yes x >&59 & yes x >&59"),
    "a flood that is no line": run_in_background("cat /dev/zero >&59"),
    "a flood of its own": "trap 'while :; do printf x >&59; done' DEBUG",
    "a flood of exit codes": replace_builtin('while :; do printf "%s 0\\n" 0123456789abcdef0123456789abcdef >&59; done'),
    "an exit code that is none": replace_builtin('printf "%s nonsense\\n" "$3" >&59'),
    "an exit code that is too large": replace_builtin('printf "%s 99999999999999999999999\\n" "$3" >&59'),
    "an exit code below zero": replace_builtin('printf "%s -1\\n" "$3" >&59'),
    "no exit code": replace_builtin('printf "%s \\n" "$3" >&59'),
    "words of its keeper": run_in_background('while printf "hello x\nhello 7\nended x\nended 0\nswept\n" >&59; do sleep .002; done'),
    "what its keeper is told": run_in_background("cat <&59 >/dev/null"),
    "output behind the end": replace_builtin("yes >&58"),
    "killing whoever comes": "while :; do kill -KILL -1; done &",
}  # fmt: skip


@pytest.mark.parametrize("line", BREAKS.values(), ids=BREAKS.keys())
def test_code_with_the_files_of_its_shell_breaks_only_that(shell: Shell, line: str) -> None:
    for command in (line, "true", "kill -KILL $$", "true"):
        result = shell.execute(command)
        assert 0 <= result.exit_code <= 255, result
        assert result.seconds < shell.limits.wall_seconds + 3, result
        assert not result.restarted or "a new shell was started" in result.note
    after = shell.execute("echo well", 5)
    assert (after.exit_code, after.restarted, after.output[-5:]) == (0, False, b"well\n"), after
    assert shell.read_files(["keep.txt"]) == {"keep.txt": b"kept"}


@pytest.mark.parametrize("work", ["cat <&57 >/dev/null", "yes true >/proc/self/fd/57"], ids=["less", "more"])
def test_meddling_with_commands_costs_only_their_time(shell: Shell, work: str) -> None:
    for command in (run_in_background(work), "true", "kill -KILL $$", "true", "true"):
        result = shell.execute(command, 0.3)
        assert 0 <= result.exit_code <= 255, result
        assert result.seconds < 3, result
    if "cat" in work:  # two that never came back
        assert shell.execute("pgrep -c cat").text == "0\n"


@pytest.mark.parametrize("signal", ["KILL", "TERM", "STOP"])
def test_a_process_that_signals_every_shell_costs_one_shell(shell: Shell, signal: str) -> None:
    signals = f"mkfifo never; while :; do read -t .05 <>never; kill -{signal} -1; done &"
    results = [shell.execute(command) for command in (signals, *["read -t .2 <>never; true"] * 3)]
    (restart,) = (result for result in results if result.restarted)
    assert restart.note.endswith("; the background processes were ended")
    assert results[-1].ok, results
    assert shell.read_files(["keep.txt"]) == {"keep.txt": b"kept"}


def test_a_flood_of_the_status_descriptor_ends_the_shell(shell: Shell) -> None:
    results = [shell.execute(BREAKS["a flood"]), shell.execute("sleep 5")]
    (result,) = (item for item in results if item.restarted)  # whichever was there when it came
    assert (result.status, result.exit_code) == (Status.SIGNAL, 137)
    assert "descriptor for exit codes" in result.note
    assert result.note.endswith("; the background processes were ended")
    assert result.seconds < 5
    assert shell.execute("pgrep -c yes").text == "0\n"


def test_a_flood_does_not_keep_a_shell_from_being_closed(shell: Shell) -> None:
    shell.execute(BREAKS["a flood"])
    start = time.monotonic()
    shell.close()
    assert time.monotonic() - start < 3


def test_a_memory_bomb_between_commands_is_ended(shell: Shell) -> None:
    shell.execute(
        "(sleep .1; for i in 1 2 3 4 5 6; do python3 -c 'x = b\"x\" * 40000000; import time; time.sleep(60)' & done; wait) &"
    )
    end = time.monotonic() + 30  # six interpreters start first, on a machine that may be busy
    while "background processes were ended" not in shell.execute("true").text and time.monotonic() < end:
        time.sleep(0.2)
    assert time.monotonic() < end
    assert shell.execute("pgrep -c python3").output.startswith(b"0\n")


def test_a_fork_bomb_in_the_background_is_ended(shell: Shell) -> None:
    shell.execute("f() { [ $1 = 0 ] || { f $(($1 - 1)) | f $(($1 - 1)) & }; sleep 9; }; f 9 &")
    end, notices = time.monotonic() + 10, ""
    while "background processes were ended" not in notices and time.monotonic() < end:
        time.sleep(0.1)
        notices += shell.execute("true", 5).text + shell.execute("true", 5).note
        if "more processes than allowed" in notices:
            break
    assert "more processes than allowed" in notices
    assert b"well\n" in shell.execute("echo well", 5).output
    assert shell.execute("cat keep.txt", 5).output == b"kept"
