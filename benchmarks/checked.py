"""Which faults does `palaestra check` find in the environments, tasks and research tasks of this package and of others?

Each is checked up to level 3, for at most 5 minutes. `--groups ours,research,gymnasium` chooses the groups; one whose package is
missing is left out. `--data FOLDER` adds tasks of published data, which lie in folders of their names. `--out FILE` writes the
table as Markdown. Ratio: the fraction of the subjects without a failed check.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from _common import arguments, finish

from palaestra.core.errors import PalaestraError
from palaestra.recipes.check.recipe import check
from palaestra.recipes.settings import parse_options
from palaestra.research.tasks.task import task_names

POPGYM = (
    "AutoencodeEasy", "BattleshipEasy", "ConcentrationEasy", "CountRecallEasy", "HigherLowerEasy", "MineSweeperEasy",
    "MultiarmedBanditEasy", "NoisyPositionOnlyCartPoleEasy", "PositionOnlyCartPoleEasy", "PositionOnlyPendulumEasy",
    "RepeatFirstEasy", "RepeatPreviousEasy",
)  # fmt: skip
TEXTARENA = (
    "Bandit-v0", "Blackjack-v0", "Countdown-v0", "FifteenPuzzle-v0", "FrozenLake-v0", "GuessTheNumber-v0", "LightsOut-v0",
    "Mastermind-v0", "Minesweeper-v0", "TowerOfHanoi-v0",
)  # fmt: skip
REASONING = (
    "ab", "acre", "bitwise_arithmetic", "aiw", "base_conversion", "basic_arithmetic", "binary_alternation", "caesar_cipher",
    "calendar_arithmetic", "chain_sum", "color_cube_rotation", "count_bits", "countdown", "decimal_arithmetic", "fraction_simplification",
    "gcd", "knights_knaves", "lcm", "letter_counting", "spell_backward",
)  # fmt: skip
LESSON = 'skills=["addition"] validation=1 test=1 rehearsal=0 rounds=1 budget=200'
WRITER = 'skills=["long_multiplication"] students=1 copies=1 first_lesson=2 rehearsal=1 validation=4 examples=1'
"""Options with which an episode of a lesson environment takes seconds."""
DATA = {
    "gsm8k": "gsm8k", "humaneval": "humaneval", "mbpp": "mbpp", "code-contests": "code_contests_test", "easy-vqa": "easy_vqa",
    "nlvr": "nlvr",
}  # fmt: skip
"""Tasks of published data, and the names of their folders."""
REWARD = """import re


def is_right(completions, answer, **_):
    return [float(re.findall(r"-?\\d+", text)[-1:] == [right]) for text, right in zip(completions, answer)]
"""
"""The reward of the prompts that stand for a user's own."""
GROUPS: dict[str, tuple[str, Sequence[str]]] = {
    "ours": ("palaestra", (
        "palaestra/CoT-v0", "palaestra/Task-v0", "palaestra/Guess-v0", "palaestra/Calculator-v0", "text:FrozenLake-v1",
        "text:Taxi-v4", "palaestra/RLHF-v0", "palaestra/Research-v0", f"palaestra/Lesson-v0 {LESSON}",
        f"palaestra/Writer-v0 {WRITER}",
        "math-skills", "code-skills", "tools-skills", "vision-skills",
    )),
    "research": ("palaestra", tuple(task_names())),
    "gymnasium": ("gymnasium", (
        "CartPole-v1", "Acrobot-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Pendulum-v1", "Blackjack-v1",
        "CliffWalking-v1", "CliffWalkingSlippery-v1", "FrozenLake-v1", "FrozenLake8x8-v1", "Taxi-v4",
    )),
    "gem": ("gem", ("gem:game:GuessTheNumber-v0-easy", "gem:game:Mastermind-v0-easy", "gem:game:Sudoku-v0-easy")),
    "atari": ("ale_py", ("ale_py:ALE/Pong-v5", "ale_py:ALE/Breakout-v5")),
    "popgym": ("popgym", tuple(f"popgym:popgym-{name}-v0" for name in POPGYM)),
    "textarena": ("textarena", tuple(f"textarena:{name}" for name in TEXTARENA)),
    "reasoning-gym": ("reasoning_gym", tuple(f"reasoning_gym:{name}" for name in REASONING)),
}  # fmt: skip
HEAD = "| subject | verdict | checks passed | failed and warned | seconds |\n|---|---|---|---|---|"


def main() -> None:
    options = arguments(
        __doc__ or "", groups="comma-separated, of those above", out="Markdown file", data="folder of published data"
    )
    if options.data:
        GROUPS["data"] = "palaestra", [f"{task} path={options.data}/{folder}" for task, folder in DATA.items()]
    folder = Path(tempfile.mkdtemp(prefix="palaestra-checked-"))
    sums = [{"prompt": f"What is {n} + {7 * n % 90}?", "answer": str(n + 7 * n % 90)} for n in range(11, 211)]
    (folder / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in sums))
    (folder / "reward.py").write_text(REWARD)
    own = f"palaestra/Prompts-v0 prompts={folder}/sums.jsonl reward={folder}/reward.py:is_right"
    GROUPS["ours"] = "palaestra", [own, *GROUPS["ours"][1]]
    names = options.groups.split(",") if options.groups else list(GROUPS)
    rows, verdicts = list[str](), list[str]()
    for group in names:
        package, subjects = GROUPS[group]
        if find_spec(package) is None:
            print(f"{group}: {package} is not installed", flush=True)
            continue
        rows += ["", f"## {group}", HEAD]
        for subject in subjects[: 2 if options.quick else None]:
            name, *pairs = subject.split()
            try:
                report = check(
                    name, level=1 if options.quick else 3, budget=300, options=parse_options(pairs, "option")
                )
            except PalaestraError as error:
                rows.append(f"| `{subject}` | not made | | {error} | |")
                continue
            faults = report.with_status("fail", "warn")
            text = "; ".join(f"{fault.status} `{fault.check_id}`: {fault.summary}" for fault in faults)
            text += f"; {report.stopped}" if report.stopped else ""
            passes = len(report.with_status("pass"))
            shown = " ".join([name, *(pair for pair in pairs if not pair.startswith(("path=", "prompts=", "reward=")))])
            rows.append(
                f"| `{shown}` | {report.verdict} | {passes} | {text.replace('|', '/')} | {report.seconds:.0f} |"
            )
            verdicts.append(report.verdict)
            print(rows[-1], flush=True)
    if options.out:
        Path(options.out).write_text("\n".join(rows).strip() + "\n")
    failures = verdicts.count("fail")
    finish("checked", 1 - failures / len(verdicts), subjects=len(verdicts), failed=failures)


if __name__ == "__main__":
    main()
