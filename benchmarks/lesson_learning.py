"""Does the student learn, in every seed, and does a teacher that looks at it do better than one that does not?

Runs whole `teach` episodes with the embedded student: for each seed one with `skill_tree` and one
with `no_state`, at the same number of examples. The ratio is the mean gain of the first over that
of the second. The student does not rehearse. Each gain is measured on 450 test problems with a paired 95 % interval; the
difference between the teachers is paired by seed, with a t interval.
"""

from __future__ import annotations

import math
import statistics
import tempfile
from pathlib import Path
from typing import Any

from _common import arguments, finish

from palaestra.recipes.teach.recipe import teach
from palaestra.recipes.teach.settings import TeachSettings

TEACHERS = ("skill_tree", "no_state")
# Student's t at 97.5 % for 1 to 9 degrees of freedom.
T975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)


def main() -> None:
    options = arguments(__doc__ or "")
    seeds = range(1) if options.quick else range(5)
    size: dict[str, Any] = (
        {"rounds": 2, "lesson_size": 100, "validation": 8, "test": 12} if options.quick else {"lesson_size": 160}
    )
    gains: dict[str, list[dict[str, Any]]] = {name: [] for name in TEACHERS}
    for seed in seeds:
        for name in TEACHERS:
            with tempfile.TemporaryDirectory() as folder:
                settings = TeachSettings(teacher=name, seed=seed, rehearsal=0.0, threads=options.threads, **size)
                summary = teach(settings, out=Path(folder) / "run").summary
            gains[name].append(summary)
            print(
                f"seed {seed}  {name:<10}  {summary['before']:.1f} -> {summary['after']:.1f} %  "
                f"gain {summary['gain']:+.1f} [{summary['gain_low']:+.1f}, {summary['gain_high']:+.1f}]  "
                f"{summary['examples']} examples  {summary['seconds']:.0f} s",
                flush=True,
            )
    assert len({s["examples"] for several in gains.values() for s in several}) == 1, "the data are not equal"
    first, second = ([s["gain"] for s in gains[name]] for name in TEACHERS)
    differences = [a - b for a, b in zip(first, second, strict=True)]
    difference, half = statistics.mean(differences), float("nan")
    if len(differences) > 1:
        half = T975[len(differences) - 2] * statistics.stdev(differences) / math.sqrt(len(differences))
        print(
            f"skill_tree - no_state: {difference:+.1f} points [{difference - half:+.1f}, {difference + half:+.1f}], paired by seed"
        )
    finish(
        "lesson_learning",
        statistics.mean(first) / statistics.mean(second),
        seeds=len(seeds),
        examples=gains[TEACHERS[0]][0]["examples"],
        gains={name: [s["gain"] for s in gains[name]] for name in TEACHERS},
        gain_low={name: [s["gain_low"] for s in gains[name]] for name in TEACHERS},
        seconds={name: [s["seconds"] for s in gains[name]] for name in TEACHERS},
        difference=round(difference, 2),
        difference_low=_round_known(difference - half),
        difference_high=_round_known(difference + half),
    )


def _round_known(value: float) -> float | None:
    return None if math.isnan(value) else round(value, 2)


if __name__ == "__main__":
    main()
