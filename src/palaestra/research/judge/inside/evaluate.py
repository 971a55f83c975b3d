"""Runs a foreign evaluator inside a sandbox, with the submission's code in the same process.

What the evaluator itself prints is told apart from what the submission prints: the evaluator's module has a `print` of its
own, everything else goes to stderr. Where it prints no object by that, what it wrote to stdout in other ways counts, unless
code of the submission is among the callers, or whatever makes objects out of its files. It is passed on when the evaluator has come to its end, and no earlier, in one line with
a seal. The key to the seal comes by stdin, and is in no argument, variable of the environment, file or other process: who
writes to every open file, reads what others wrote there, prints such lines, or ends the process, has none. Our file lies
outside the workspace, which comes last where modules are looked for, so that a file of the submission stands in for no library.
"""

from __future__ import annotations

import _sitebuiltins
import fcntl
import io
import json
import os
import pickle
import sys
import traceback

# By name: what the submission puts into these modules later is not called.
from collections import deque
from collections.abc import Callable
from hashlib import blake2b
from io import StringIO
from os import _exit, getpid, write
from types import CodeType, FrameType, ModuleType, TracebackType
from typing import Any

KEY_BYTES = 32
KEPT = 1 << 17
"""Characters that are passed on: the last ones."""
MARK = b"sealed by the runner of the evaluator:"
MAKERS = frozenset({"pickle", "yaml.constructor"})
"""Modules that call whatever a file names."""


def main() -> None:
    script, *arguments = sys.argv[1:]
    given = b""
    while part := os.read(0, 1 << 16):
        given += part
    key, trusted = given[:KEY_BYTES], frozenset(json.loads(given[KEY_BYTES:]))
    told = fcntl.fcntl(1, fcntl.F_DUPFD_CLOEXEC, 128 + os.urandom(1)[0])
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    here, process = os.getcwd(), getpid()
    ours = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if path not in ("", here, ours)] + [here]
    sys.argv = [script, *arguments]
    said, otherwise, plain = TextTail(), TextTail(), print

    def tell(
        *values: object, sep: str | None = " ", end: str | None = "\n", file: object = None, flush: bool = False
    ) -> None:
        elsewhere = file is not None and file not in (sys.stdout, sys.__stdout__)
        if not elsewhere and not heard(sys._getframe(1)):
            file, elsewhere = sys.stderr, True
        if elsewhere:
            plain(*values, sep=sep, end=end, file=file, flush=flush)  # type: ignore[call-overload]
            return
        text = StringIO()
        plain(*values, sep=sep, end=end, file=text)
        said.add(text.getvalue())

    module, own = ModuleType("__main__"), set[CodeType]()

    def heard(frame: FrameType | None) -> bool:
        return is_called_by(own, frame, here, trusted)

    sys.stdout = EvaluatorStdout(heard, otherwise)
    watch_unpicklers()
    code = run(script, module, {"print": tell}, own)
    # A process that the submission forked may come here as well.
    if code == 0 and getpid() == process:
        line = seal(said.text if "{" in said.text else otherwise.text, key)
        while line:
            line = line[write(told, line) :]
    _exit(code)  # Threads that a submission left do not keep it alive.


class TextTail:
    """The end of a text that grows."""

    def __init__(self) -> None:
        self.parts: deque[str] = deque()
        self.size = 0

    def add(self, text: str) -> None:
        self.parts.append(text[-KEPT:])
        self.size += len(self.parts[-1])
        while self.size - len(self.parts[0]) >= KEPT:
            self.size -= len(self.parts.popleft())

    @property
    def text(self) -> str:
        return "".join(self.parts)[-KEPT:]


class EvaluatorStdout(io.TextIOWrapper):
    """Stdout: what the evaluator writes is kept, everything else goes to stderr."""

    def __init__(self, ours: Callable[[FrameType | None], bool], kept: TextTail) -> None:
        raw = io.FileIO(2, "wb", closefd=False)
        super().__init__(io.BufferedWriter(raw), encoding="utf-8", errors="replace", line_buffering=True)
        self._ours, self._kept = ours, kept

    def write(self, text: str) -> int:
        if not self._ours(sys._getframe(1)):
            return super().write(text)
        self._kept.add(text)
        return len(text)


def is_called_by(own: set[CodeType], frame: FrameType | None, workspace: str, trusted: frozenset[str]) -> bool:
    """Whether all callers are this code, this file, libraries, or files of the workspace that are trusted.

    By the code itself, and by the module that a function belongs to: the name of its file, and the module that it is
    run in, are what whoever compiled it says.
    """
    found = False
    while frame is not None:
        scope = frame.f_globals
        if frame.f_code in UNPICKLING or scope.get("__name__") in MAKERS:
            return False
        ours = frame.f_code in own
        found = found or ours
        if not ours and scope is not globals():
            module = sys.modules.get(str(scope.get("__name__")))
            origin = str(getattr(getattr(module, "__spec__", None), "origin", None) or "")
            if module is None or vars(module) is not scope or not origin:
                return False
            if origin.startswith(f"{workspace}/") and origin.removeprefix(f"{workspace}/") not in trusted:
                return False
        frame = frame.f_back
    return found


class Unpickler(pickle.Unpickler):
    """Python's, whose calls can be seen among the callers."""

    def load(self) -> Any:
        return super().load()


def load(file: Any, **options: Any) -> Any:
    return Unpickler(file, **options).load()


def loads(data: Any, /, **options: Any) -> Any:
    return Unpickler(io.BytesIO(data), **options).load()


EXIT = _sitebuiltins.Quitter.__call__.__code__
UNPICKLING = frozenset({Unpickler.load.__code__, load.__code__, loads.__code__})


def watch_unpicklers() -> None:
    """Put ours in the place of those that leave no trace among the callers."""
    pickle.Unpickler, pickle.load, pickle.loads = Unpickler, load, loads  # type: ignore[misc]


def codes_in(code: CodeType) -> set[CodeType]:
    """A code and all that are defined in it."""
    found = {code}
    for one in code.co_consts:
        if isinstance(one, CodeType):
            found |= codes_in(one)
    return found


def run(script: str, module: ModuleType, names: dict[str, object], own: set[CodeType]) -> int:
    """Run a file as Python would, as this module with these names in it; its exit code. Its codes are added to `own`."""
    vars(module).update(names, __file__=os.path.abspath(script))
    sys.modules["__main__"] = module
    try:
        with open(script, "rb") as source:
            compiled = compile(source.read(), script, "exec", dont_inherit=True)
        own |= codes_in(compiled)
        exec(compiled, vars(module))
    except SystemExit as error:
        if not error.code and is_raised_by(own, error.__traceback__):
            return 0
        traceback.print_exc()
        return error.code if isinstance(error.code, int) and 0 < error.code < 256 else 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def is_raised_by(own: set[CodeType], trace: TracebackType | None) -> bool:
    """Whether something was raised in this code itself, or in the `exit` that it called."""
    codes = []
    while trace is not None:
        codes.append(trace.tb_frame.f_code)
        trace = trace.tb_next
    if codes and codes[-1] is EXIT:
        codes.pop()
    return bool(codes) and codes[-1] in own


def seal(text: str, key: bytes) -> bytes:
    """A line that only who has the key can write."""
    payload = text.encode("utf-8", "replace")
    seal = blake2b(payload, key=key, digest_size=32).hexdigest()
    return b"\n" + MARK + f"{seal}:{payload.hex()}\n".encode()


if __name__ == "__main__":
    main()
