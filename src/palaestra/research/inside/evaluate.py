"""Runs a foreign evaluator inside a sandbox, with the submission's code in the same process.

What the evaluator itself prints is told apart from what the submission prints: the evaluator's module has a `print` of its
own, everything else goes to stderr. The workspace comes last where modules are looked for, so that a file of the submission
stands in for no library.
"""

from __future__ import annotations

import builtins
import os
import runpy
import sys


def main() -> None:
    script, *arguments = sys.argv[1:]
    told = os.dup(1)
    os.dup2(2, 1)
    plain = builtins.print
    said: list[str] = []

    def tell(
        *values: object, sep: str | None = " ", end: str | None = "\n", file: object = None, flush: bool = False
    ) -> None:
        if file is not None and file not in (sys.stdout, sys.__stdout__):
            plain(*values, sep=sep, end=end, file=file, flush=flush)  # type: ignore[call-overload]
            return
        text = (" " if sep is None else sep).join(map(str, values)) + ("\n" if end is None else end)
        said.append(text)
        data = text.encode("utf-8", "replace")
        while data:
            data = data[os.write(told, data) :]

    here = os.getcwd()
    sys.path[:] = [path for path in sys.path if path not in ("", here)] + [here]
    sys.argv = [script, *arguments]
    code = 0
    try:
        runpy.run_path(script, {"print": tell}, "__main__")
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 0 if error.code is None else 1
    sys.stdout.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
