"""Runs an external evaluator inside a sandbox, with the submission's code in the same process.

The output of the evaluator is separated from the output of the submission. The evaluator's module gets its own `print`;
all other output goes to stderr. If the evaluator prints no object that way, its other writes to stdout count, unless
the submission's code, or a module that builds objects from its files, is among the callers. The output is passed on
only after the evaluator has finished, in one line with a seal. The key of the seal comes through stdin and is in no
argument, environment variable, file or other process. A submission that writes to every open file, prints such lines or
ends the process does not have the key. This file is outside the workspace, and the workspace comes last in the module
search path, so that a submission cannot shadow a library.
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

# Imported by name, so that a submission cannot replace them later.
from collections.abc import Callable
from hashlib import blake2b
from io import StringIO
from os import _exit, getpid, write
from types import CodeType, FrameType, ModuleType, TracebackType
from typing import Any

KEY_BYTES = 32
MAX_OUTPUT = 1 << 17
"""Characters of output that are passed on, from the end."""
MARK = b"sealed by the runner of the evaluator:"
MAKERS = frozenset({"pickle", "yaml.constructor"})
"""Modules that can call any function that a file names."""


def main() -> None:
    script, *arguments = sys.argv[1:]
    given = b""
    while part := os.read(0, 1 << 16):
        given += part
    key, trusted = given[:KEY_BYTES], frozenset(json.loads(given[KEY_BYTES:]))
    output = fcntl.fcntl(1, fcntl.F_DUPFD_CLOEXEC, 128 + os.urandom(1)[0])
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    here, process = os.getcwd(), getpid()
    ours = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if path not in ("", here, ours)] + [here]
    sys.argv = [script, *arguments]
    printed, otherwise, plain = TextTail(), TextTail(), print

    def tell(
        *values: object, sep: str | None = " ", end: str | None = "\n", file: object = None, flush: bool = False
    ) -> None:
        elsewhere = file is not None and file not in (sys.stdout, sys.__stdout__)
        if not elsewhere and not is_trusted(sys._getframe(1)):
            file, elsewhere = sys.stderr, True
        if elsewhere:
            plain(*values, sep=sep, end=end, file=file, flush=flush)  # type: ignore[call-overload]
            return
        text = StringIO()
        plain(*values, sep=sep, end=end, file=text)
        printed.add(text.getvalue())

    module, own = ModuleType("__main__"), set[CodeType]()

    def is_trusted(frame: FrameType | None) -> bool:
        return is_called_by(own, frame, here, trusted)

    sys.stdout = EvaluatorStdout(is_trusted, otherwise)
    watch_unpicklers()
    code = run(script, module, {"print": tell}, own)
    # A process that the submission forked may get here as well.
    if code == 0 and getpid() == process:
        line = seal(printed.text if "{" in printed.text else otherwise.text, key)
        while line:
            line = line[write(output, line) :]
    _exit(code)  # Threads of the submission must not keep it alive.


class TextTail:
    """The end of a growing text."""

    text = ""

    def add(self, text: str) -> None:
        self.text = (self.text + text)[-MAX_OUTPUT:]


class EvaluatorStdout(io.TextIOWrapper):
    """A stdout that keeps what the evaluator writes; everything else goes to stderr."""

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
    """Whether all callers are this code, this file, libraries, or trusted files of the workspace.

    Checked by the code object and by the module that a function belongs to: a submission controls the file name and
    module name of code that it compiles.
    """
    reached = False
    while frame is not None:
        scope = frame.f_globals
        if frame.f_code in UNPICKLING or scope.get("__name__") in MAKERS:
            return False
        ours = frame.f_code in own
        reached = reached or ours
        if not ours and scope is not globals():
            module = sys.modules.get(str(scope.get("__name__")))
            origin = str(getattr(getattr(module, "__spec__", None), "origin", None) or "")
            if module is None or vars(module) is not scope or not origin:
                return False
            if origin.startswith(f"{workspace}/") and origin.removeprefix(f"{workspace}/") not in trusted:
                return False
        frame = frame.f_back
    return reached


class Unpickler(pickle.Unpickler):
    """An unpickler that leaves a frame among the callers."""

    def load(self) -> Any:
        return super().load()


def load(file: Any, **options: Any) -> Any:
    return Unpickler(file, **options).load()


def loads(data: Any, /, **options: Any) -> Any:
    return Unpickler(io.BytesIO(data), **options).load()


EXIT = _sitebuiltins.Quitter.__call__.__code__
UNPICKLING = frozenset({Unpickler.load.__code__, load.__code__, loads.__code__})


def watch_unpicklers() -> None:
    """Replace the C unpicklers, which leave no frame among the callers."""
    pickle.Unpickler, pickle.load, pickle.loads = Unpickler, load, loads  # type: ignore[misc]


def codes_in(code: CodeType) -> set[CodeType]:
    """Return a code object and all code objects defined in it."""
    codes = {code}
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            codes |= codes_in(constant)
    return codes


def run(script: str, module: ModuleType, names: dict[str, object], own: set[CodeType]) -> int:
    """Run a file as `__main__` with extra names and return its exit code. Its code objects are added to `own`."""
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
    """Whether an exception was raised by this code itself, or by an `exit` that it called."""
    codes = []
    while trace is not None:
        codes.append(trace.tb_frame.f_code)
        trace = trace.tb_next
    if codes and codes[-1] is EXIT:
        codes.pop()
    return bool(codes) and codes[-1] in own


def seal(text: str, key: bytes) -> bytes:
    """Build a line that can only be written with the key."""
    payload = text.encode("utf-8", "replace")
    seal = blake2b(payload, key=key, digest_size=32).hexdigest()
    return b"\n" + MARK + f"{seal}:{payload.hex()}\n".encode()


if __name__ == "__main__":
    main()
