"""What do the agent's commands, resets and many workspaces cost?

Each command's round trip beside that of `true` in the same shell, measured in turn, on a program of 101 lines, about as
long as the longest that our tasks start from. Then the reset of a game's environment, whose baseline is known; and 16
workspaces side by side, each writing a word of its own and finding no other. The ratio is the slowest command's time over the bare shell, in the median,
to the 10 ms that it may take: below 1 it holds.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable

from _common import arguments, finish, median, seconds

from palaestra.envs.turn import TurnVectorEnv
from palaestra.research.workspace.commands import Session
from palaestra.research.workspace.env import ResearchEnv
from palaestra.sandbox import make_sandbox

GAME, WORKSPACES = "prisoners_dilemma", 16
MAY_TAKE = 0.010
"""Seconds that a command may take over the bare shell, in the median."""
PROGRAM = "import math\n\n" + "".join(f"def step_{k}(x):\n    return math.sin(x) + {k}\n\n" for k in range(33))
TABLE = "x,y\n" + "".join(f"{k},{k * k % 97}\n" for k in range(2000))


class Hooks:
    """Nothing is evaluated here."""

    def validate(self) -> str:
        return "validated"

    def submit(self) -> str:
        return "submitted"


def commands(session: Session) -> dict[str, Callable[[], str]]:
    """A text for each command, another each time where it changes a file."""
    number = itertools.count()
    fixed = {
        "bash": "true", "open": "open program.py", "goto": "goto 60", "scroll_down": "scroll_down", "scroll_up": "scroll_up",
        "search_dir": "search_dir step_7", "search_file": "search_file step_7 program.py", "find_file": "find_file '*.py'",
        "memory_write": "memory_write best 0.5", "memory_read": "memory_read best", "validate": "validate",
    }  # fmt: skip
    texts: dict[str, Callable[[], str]] = {name: (lambda text=text: text) for name, text in fixed.items()}
    texts |= {
        "edit": lambda: f"edit 4:4\n    return math.cos(x) + {next(number)}\nend_of_edit",
        "insert": lambda: f"insert 4\n# {next(number)}\nend_of_insert",
        "undo": lambda: "undo",
        "create": lambda: f"create new_{next(number)}.py\nprint({next(number)})\nend_of_file",
    }
    return texts


def round_trips(rounds: int) -> tuple[list[float], dict[str, list[float]]]:
    """Seconds of the bare shell's `true`, and of each command, in turn so that a slow spell of the machine hits all alike."""
    files = {"program.py": PROGRAM, "table.csv": TABLE}
    with make_sandbox().shell(files=files) as shell:
        session = Session(shell, Hooks())
        session.run("open program.py")
        texts = commands(session)
        for text in texts.values():
            session.run(text())
        bare: list[float] = []
        times: dict[str, list[float]] = {name: [] for name in texts}
        for _ in range(rounds):
            for name, text in texts.items():
                session.run("open program.py")  # what create and search leave open is another
                command = text()
                bare.append(seconds(lambda: shell.execute("true")))
                times[name].append(seconds(lambda command=command: _must(session, command)))  # type: ignore[misc]
    return bare, times


def _must(session: Session, text: str) -> None:
    outcome = session.run(text)
    assert outcome.ok, outcome


def resets(rounds: int) -> list[float]:
    """Seconds of a reset, each of which closes a workspace and opens another."""
    env = ResearchEnv(GAME)
    env.reset(seed=0)  # The baseline is measured once for each machine.
    durations = [seconds(lambda: env.reset(seed=0)) for _ in range(rounds)]
    env.close()
    return durations


def side_by_side(rounds: int) -> tuple[float, list[float]]:
    """Seconds until all workspaces are open, and of each step of all of them."""
    envs = TurnVectorEnv(lambda: ResearchEnv(GAME), WORKSPACES)
    opened = seconds(lambda: envs.reset(seed=0))
    envs.step([f"```\necho word-{k} > mine.txt\n```" for k in range(WORKSPACES)])
    durations = []
    for _ in range(rounds):
        look = ["```\ncat mine.txt; ls | wc -l; ps aux | wc -l\n```"] * WORKSPACES
        answers: list[tuple[str, ...]] = []
        durations.append(seconds(lambda: answers.append(tuple(o.messages[-1].text for o in envs.step(look)[0]))))  # noqa: B023
        for k, text in enumerate(answers[0]):
            assert f"word-{k}\n" in text, (k, text)
    envs.close()
    return opened, durations


def main() -> None:
    options = arguments(__doc__ or "")
    bare, times = round_trips(20 if options.quick else 100)
    floor = median(bare)
    over = {name: median(durations) - floor for name, durations in times.items()}
    print(f"the bare shell: {floor * 1e3:.2f} ms; over that, in the median:")
    for name, extra in sorted(over.items(), key=lambda item: item[1]):
        print(f"  {name:12} {extra * 1e3:6.2f} ms")
    times_of_resets = resets(5 if options.quick else 20)
    print(f"reset of {GAME}: {statistics.median(times_of_resets):.3f} s, at most {max(times_of_resets):.3f} s")
    opened, steps = side_by_side(5 if options.quick else 20)
    print(f"{WORKSPACES} workspaces: opened in {opened:.2f} s, a step of all {statistics.median(steps) * 1e3:.1f} ms")
    finish(
        "research",
        max(over.values()) / MAY_TAKE,
        bare_shell_ms=round(floor * 1e3, 3),
        over_ms={name: round(extra * 1e3, 2) for name, extra in over.items()},
        reset_seconds=median(times_of_resets),
        workspaces_seconds=round(opened, 3),
        workspaces_step_seconds=median(steps),
    )


if __name__ == "__main__":
    main()
