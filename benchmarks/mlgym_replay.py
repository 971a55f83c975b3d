"""Do the published trajectories of MLGym get their published scores here?

`--checkout DIR` names a checkout of MLGym. Every trajectory of a game (`GAMES`) is replayed, one after the other: the other
tasks need data that the checkout does not contain, or a GPU. A game has random moves, so a replayed score counts as the
published one within 5 % or 0.005. `--out DIR` keeps the runs; those in it that are finished are not replayed again. `--select REGEX`
chooses trajectories by the names of their folders. The ratio is the share of published scores that were found again.
"""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path
from typing import Any

from _common import arguments, finish

from palaestra.recipes.research.recipe import run_research
from palaestra.research.agents.comparison import find_score_difference
from palaestra.runs.run import Run

GAMES = ("battleOfSexes", "blotto", "prisonersDilemma")
NAME = re.compile(r"(?:metagen-)?(?P<model>.+?)__(?P<task>\w+?)__.*run_(?P<run>\d+)")


def replay(checkout: Path, trajectory: Path, folder: Path) -> dict[str, Any]:
    """Replay a trajectory, unless its run is finished. Returns a row of the table."""
    summary = None
    if folder.exists():
        with Run.open(folder, read_only=True) as run:
            summary = run.summary
    if summary is None:
        summary = run_research(
            task=trajectory.stem,
            mlgym=str(checkout),
            agent=f"replay:{trajectory}",
            task_kwargs={"validations": 100},
            out=folder,
            progress=False,
        ).summary
    info, name = json.loads(trajectory.read_text())["info"], NAME.match(trajectory.parent.name)
    assert name is not None, trajectory.parent.name
    is_scored = str(info.get("exit_status")).startswith(("submitted", "autosubmission"))
    published = dict(info["score"][-1]) if is_scored and info.get("score") else {}
    return {
        "task": trajectory.stem,
        "model": name["model"],
        "run": int(name["run"]),
        "published": next(iter(published.values()), None),
        "replayed": summary["best_submission"],
        "is_same": not find_score_difference(published, summary["scores"]),
        **summary["replay"],
    }


def write_row(row: dict[str, Any]) -> str:
    scores = ["-" if row[name] is None else f"{row[name]:.4f}" for name in ("published", "replayed")]
    where = f"{row['first_departure']}: {row['reason']}" if row["first_departure"] else ""
    cells = [row["task"], row["model"], row["run"], *scores, f"{row['identical']}/{row['steps']}", where]
    return f"| {' | '.join(str(cell).replace('|', ' ') for cell in cells)} |"


def main() -> None:
    texts = {"checkout": "a checkout of MLGym", "out": "the folder of the runs", "select": "a regular expression"}
    options = arguments(__doc__ or "", **texts)
    if not options.checkout:
        print("give --checkout DIR; without it there is nothing to replay")
        print(json.dumps({"benchmark": "mlgym_replay", "skipped": "no --checkout"}))
        return
    checkout = Path(options.checkout).resolve()
    paths = [path for name in GAMES for path in sorted(checkout.glob(f"trajectories/*/*/{name}.traj"))]
    paths = [path for path in paths if re.search(options.select, path.parent.name)]
    if options.quick:
        paths = [next(path for path in paths if path.stem == name) for name in GAMES]
    print(
        "| task | model | run | published | replayed | as recorded | first departure |\n|---|---|---|---|---|---|---|"
    )
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        for path in paths:
            rows.append(replay(checkout, path, Path(options.out or temporary) / path.parent.name))
            print(write_row(rows[-1]), flush=True)
    scored = [row for row in rows if row["published"] is not None]
    finish(
        "mlgym_replay", sum(row["is_same"] for row in scored) / len(scored), trajectories=len(rows), scored=len(scored)
    )


if __name__ == "__main__":
    main()
