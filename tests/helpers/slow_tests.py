"""Write `tests/slow.txt`, the tests that `make test-fast` leaves out, from the times of a whole run:

make test PYTEST_ADDOPTS=--junitxml=FILE      # each of its two parts writes a file, so run them one by one
python -m tests.helpers.slow_tests FILE
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path
from xml.etree import ElementTree

SLOW = Path(__file__).parents[1] / "slow.txt"
SECONDS = 50.0
"""Of the tests that stay, on one core, without the start of pytest."""


def read_times(report: Path) -> dict[str, float]:
    """The seconds of each test function, over its parameters, by `module::function`."""
    times: dict[str, float] = defaultdict(float)
    for case in ElementTree.parse(report).iter("testcase"):
        times[f"{case.get('classname')}::{str(case.get('name')).partition('[')[0]}"] += float(case.get("time", 0))
    return times


def select_slow(times: dict[str, float], seconds: float) -> list[str]:
    """The slowest tests, so many that the others take `seconds`."""
    slow, left = [], sum(times.values())
    for name in sorted(times, key=times.__getitem__, reverse=True):
        if left <= seconds:
            break
        slow.append(name)
        left -= times[name]
    return sorted(slow)


if __name__ == "__main__":
    SLOW.write_text("\n".join(select_slow(read_times(Path(sys.argv[1])), SECONDS)) + "\n", encoding="utf-8")
