"""How much does the sandbox cost?

Measured beside plain `subprocess`, which isolates nothing, and beside a container engine where one works: a shell
command's round trip, a program that does nothing (`true`), and small Python programs, generated, each in a sandbox of
its own, on all cores. The ratio is that of the programs a second: the sandbox's to `subprocess`'s.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from _common import arguments, finish, median, seconds

from palaestra.core.errors import SandboxError
from palaestra.sandbox import Limits, Sandbox, SandboxCommand, make_sandbox

ISOLATED = ("-I", "-S")
"""How Python is asked to start: without the user's settings, and without looking for packages, which takes long."""
PROGRAM = """
def solve(values, k):
    best, window = None, 0
    for i, value in enumerate(values):
        window += value - (values[i - k] if i >= k else 0)
        if i >= k - 1 and (best is None or window > best):
            best = window
    return best

for _ in range(int(input())):
    k, *values = map(int, input().split())
    print(solve(values, k))
"""


def program(number: int) -> tuple[str, bytes, str]:
    """A small program of the kind that models write, its input, and what it must print."""
    generator = random.Random(number)
    lines, answers = [], []
    for _ in range(20):
        values = [generator.randrange(-99, 99) for _ in range(30)]
        k = generator.randrange(1, 9)
        lines.append(" ".join(map(str, (k, *values))))
        answers.append(max(sum(values[i : i + k]) for i in range(len(values) - k + 1)))
    text = "\n".join([str(len(lines)), *lines])
    return PROGRAM, text.encode(), "\n".join(map(str, answers)) + "\n"


def sandboxed(sandbox: Sandbox, python: str = sys.executable) -> Callable[[int], str]:
    def run(number: int) -> str:
        source, stdin, _ = program(number)
        return sandbox.run(SandboxCommand([python, *ISOLATED, "main.py"], {"main.py": source}, stdin, Limits())).text

    return run


def plain(number: int) -> str:
    source, stdin, _ = program(number)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "main.py").write_text(source)
        return subprocess.run(
            [sys.executable, *ISOLATED, "main.py"], input=stdin, cwd=folder, capture_output=True, check=True
        ).stdout.decode()


def programs_a_second(run: Callable[[int], str], count: int) -> float:
    def check(number: int) -> None:
        assert run(number) == program(number)[2]

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        return count / seconds(lambda: list(pool.map(check, range(count))))


def times_of_true(sandbox: Sandbox, count: int) -> list[float]:
    return [seconds(lambda: sandbox.run(SandboxCommand(["true"]))) for _ in range(count)]


def engines() -> dict[str, Sandbox]:
    """The container engines that work here."""
    sandboxes = {}
    for name in ("docker", "podman"):
        try:
            sandboxes[name] = make_sandbox(name)
            sandboxes[name].run(SandboxCommand(["true"], limits=Limits(wall_seconds=60.0)))
        except SandboxError as error:
            sandboxes.pop(name, None)
            print(f"{name}: not measured ({error})")
    return sandboxes


def main() -> None:
    options = arguments(__doc__ or "")
    sandbox = make_sandbox()
    few, many, rounds = (100, 60, 3) if options.quick else (500, 200, 5)
    with sandbox.shell() as shell:
        shell.execute("true")
        trips = [seconds(lambda: shell.execute("true")) for _ in range(few * 2)]
        listing = [seconds(lambda: shell.execute("ls /usr")) for _ in range(few // 2)]
    true = times_of_true(sandbox, few)
    bare = [seconds(lambda: subprocess.run(["true"], capture_output=True, check=True)) for _ in range(few)]
    opened = [seconds(lambda: sandbox.shell().close()) for _ in range(few // 10)]
    print(
        f"shell: a round trip of `true` {median(trips) * 1e3:.2f} ms, of `ls /usr` {median(listing) * 1e3:.2f} ms; opening and closing one {median(opened) * 1e3:.1f} ms"
    )
    print(f"`true`: sandboxed {median(true) * 1e3:.1f} ms, subprocess {median(bare) * 1e3:.2f} ms")
    # In turn, so that a slow spell of the machine hits both.
    inside, outside = [], []
    for _ in range(rounds):
        inside.append(programs_a_second(sandboxed(sandbox), many))
        outside.append(programs_a_second(plain, many))
    cores = len(os.sched_getaffinity(0))
    print(
        f"Python programs a second on {cores} cores: sandboxed {median(inside):.1f}, subprocess {median(outside):.1f}"
    )
    others = {}
    for name, engine in engines().items():
        others[f"{name}_true_ms"] = round(median(times_of_true(engine, 5)) * 1e3, 1)
        others[f"{name}_programs_a_second"] = round(programs_a_second(sandboxed(engine, "python3"), many // 10), 2)
        print(f"{name}: `true` {others[f'{name}_true_ms']} ms, {others[f'{name}_programs_a_second']} programs a second")
    finish(
        "sandbox",
        median(inside) / median(outside),
        shell_round_trip_ms=round(median(trips) * 1e3, 3),
        true_ms=round(median(true) * 1e3, 2),
        subprocess_true_ms=round(median(bare) * 1e3, 2),
        programs_a_second=round(median(inside), 1),
        subprocess_programs_a_second=round(median(outside), 1),
        cores=cores,
        **others,
    )


if __name__ == "__main__":
    main()
