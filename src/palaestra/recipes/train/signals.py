"""Detect runs without a learning signal: all returns are equal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from palaestra.learn.rollouts import Rollout


def measure_spread(rollout: Rollout, returns: Sequence[float], prefix: str = "") -> dict[str, float]:
    """The minimum and maximum return of some episodes, and the number of truncated episodes."""
    if not returns:
        return {}
    if rollout.truncated_B is not None:
        cut = int(rollout.truncated_B.sum())
    else:
        cut = int((rollout.ended_BT & ~rollout.terminated_BT & rollout.mask_BT).sum())
    spread = {"reward_min": min(returns), "reward_max": max(returns), "cut_episodes": float(cut)}
    return {f"{prefix}{name}": value for name, value in spread.items()}


def describe_no_signal(table: Mapping[int, Mapping[str, float]]) -> str:
    """Describe that nothing was learned if all episodes of a run had the same return; an empty string otherwise.

    Arguments:
        table: the metrics of the run by iteration.
    """
    spreads = [
        (row[f"{prefix}reward_min"], row[f"{prefix}reward_max"], row[f"{prefix}cut_episodes"], row[count])
        for row in table.values()
        for prefix, count in (("", "episodes"), ("test_", "test_count"))
        if f"{prefix}reward_min" in row and count in row
    ]
    values = {value for low, high, _, _ in spreads for value in (low, high)}
    episodes = sum(count for *_, count in spreads)
    if len(values) != 1 or episodes < 2:
        return ""
    (value,) = values
    every = f"every return was {value:g}"
    if all(cut >= count for _, _, cut, count in spreads):
        every = (
            f"no episode reached the goal; {every}" if value <= 0 else f"every episode was cut at its limit; {every}"
        )
    return f"nothing was learned: {every}"
