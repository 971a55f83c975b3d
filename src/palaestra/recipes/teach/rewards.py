"""The reward of every round and skill, written into a run's store and its summary."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from palaestra.core.records import Split
from palaestra.core.statistics import Gain, measure_gain

if TYPE_CHECKING:
    from palaestra.runs.run import Run


def store_rewards(run: Run, round_: int) -> None:
    """Add a round's rewards to the metrics of the store, as it is over: `reward`, and `reward/SKILL` for each skill.

    Each is the change of validation accuracy, from -1 to 1, beside it `_low`, `_high` and `_count`: its interval, and the
    problems that were scored both times. Where there are none, nothing is known and nothing stored.
    """
    if round_ in run.store.metrics():
        return
    metrics: dict[str, float] = {}
    for skill, (gain,) in rewards_of(run, round_ - 1, round_).items():
        name = f"reward/{skill}" if skill else "reward"
        if gain.count:
            metrics |= {
                name: gain.points / 100, f"{name}_low": gain.low / 100, f"{name}_high": gain.high / 100,
                f"{name}_count": gain.count,
            }  # fmt: skip
    run.store.add_metrics(round_, metrics)


def rewards_of(run: Run, first: int, last: int) -> dict[str, tuple[Gain, ...]]:
    """By skill the gain on validation problems of each round after `first`, in points; of all problems under `""`."""
    from palaestra.teachers.tree.rewards import skill_rewards

    rounds = [run.store.attempts(f"{round_}/{Split.VALIDATION}") for round_ in range(first, last + 1)]
    whole = tuple(measure_gain(before, after) for before, after in pairwise(rounds))
    return skill_rewards(rounds) | {"": whole}


def plain_rewards(gains: tuple[Gain, ...]) -> list[dict[str, Any]]:
    """Rewards for a summary: in points like a gain, without metrics where no problem was scored both times."""
    return [
        {
            "round": round_,
            "points": round(gain.points, 2) if gain.count else None,
            "low": round(gain.low, 2) if gain.count else None,
            "high": round(gain.high, 2) if gain.count else None,
            "problems": gain.count,
        }
        for round_, gain in enumerate(gains, 1)
    ]
