"""Does `nano-vlm` learn from a few hundred pictures what it cannot do?

For each skill of `vision-skills` that its pretraining left out: a whole `teach` episode with 300 examples of that skill, without
rehearsal, three seeds. Each gain is measured on 100 problems of the test split, paired, with a 95 % interval. The ratio is
the accuracy after over that before, all episodes together.
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path
from typing import Any

from _common import arguments, finish

from palaestra.recipes.teach.recipe import teach
from palaestra.recipes.teach.settings import TeachSettings

WEAK = (
    "bar_values", "count_arithmetic", "count_logic", "extreme", "line_chart", "majority", "odd_one_out", "pattern",
    "relation",
)  # fmt: skip


def main() -> None:
    options = arguments(__doc__ or "", skill="only this skill of the nine")
    skills = (options.skill,) if options.skill else WEAK[:2] if options.quick else WEAK
    seeds = range(1) if options.quick else range(3)
    size: dict[str, Any] = {"lesson_size": 60, "test": 20} if options.quick else {"lesson_size": 300, "test": 100}
    summaries: dict[str, list[dict[str, Any]]] = {skill: [] for skill in skills}
    for skill in skills:
        for seed in seeds:
            with tempfile.TemporaryDirectory() as folder:
                settings = TeachSettings(
                    task="vision-skills",
                    student="nano-vlm",
                    teacher="no_state",
                    skills=(skill,),
                    rounds=1,
                    rehearsal=0.0,
                    validation=2,
                    optimizer="adamw",
                    batch_size=8,
                    freeze_vision=False,
                    seed=seed,
                    threads=options.threads,
                    device="cpu",
                    **size,
                )
                s = teach(settings, out=Path(folder) / "run").summary
            summaries[skill].append(s)
            print(
                f"{skill:<18}seed {seed}  {s['before']:.0f} -> {s['after']:.0f} %  "
                f"{s['gain']:+.0f} [{s['gain_low']:+.0f}, {s['gain_high']:+.0f}]  {s['seconds']:.0f} s",
                flush=True,
            )
    every = [s for several in summaries.values() for s in several]
    finish(
        "vision_learning",
        statistics.mean(s["after"] for s in every) / statistics.mean(s["before"] for s in every),
        seeds=len(seeds),
        examples=every[0]["examples"],
        problems=every[0]["problems"],
        gains={skill: [s["gain"] for s in several] for skill, several in summaries.items()},
        gain_low={skill: [s["gain_low"] for s in several] for skill, several in summaries.items()},
        before={skill: [s["before"] for s in several] for skill, several in summaries.items()},
        after={skill: [s["after"] for s in several] for skill, several in summaries.items()},
    )


if __name__ == "__main__":
    main()
