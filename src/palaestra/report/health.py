"""The health of reinforcement learning: what goes wrong before the reward shows it, by iteration."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from markupsafe import Markup

from palaestra.report.lines import Metrics, multiple, plain, readings, share

SHARES = ("clip_fraction", "groups_without_variance", "truncated")
"""Metrics from 0 to 1 that are shown in percent."""


@dataclass(frozen=True, slots=True)
class Health:
    """One figure of the health panel."""

    name: str
    last: str
    meaning: str
    picture: Markup


def health_panel(trained: Metrics, settings: Mapping[str, Any]) -> tuple[Health, ...]:
    """The metrics that there are; one that the last iteration lacks says at which iteration it was taken."""
    language = settings.get("policy") == "lm"
    hyperparameters: Mapping[str, Any] = settings.get("hyperparameters", {})
    unit = "token" if language else "decision"
    shown = [
        ("approx_kl", "KL of the update", f"nats a {unit}, new policy from the one that collected", "target_kl"),
        ("reference_kl", "KL to the reference", "nats a response", ""),
        ("clip_fraction", "Clip fraction", "% of ratios outside the clipping range", ""),
        ("entropy", "Entropy", f"nats a {unit}", ""),
        ("explained_variance", "Explained variance", "of returns by the critic; 1 is all, below 0 worse than none", ""),
        (
            "groups_without_variance",
            "Groups without variance",
            "% whose rewards are all alike: nothing to learn from",
            "",
        ),
        ("length", "Response length" if language else "Episode length", "tokens" if language else "steps", ""),
        ("turns", "Turns", "messages of the model an episode", ""),
        ("truncated", "Cut at the limit", f"% of {'messages' if readings(trained, 'turns') else 'responses'}", ""),
        ("grad_norm", "Gradient norm", "before clipping", "max_grad_norm"),
    ]
    last, found = max(trained, default=0), []
    for name, title, meaning, level in shown:
        values = readings(trained, name)
        if not values:
            continue
        shares = name in SHARES
        limit = hyperparameters.get(level)
        limit = float(limit) if isinstance(limit, int | float) and limit > 0 else math.nan
        if not math.isnan(limit):
            meaning += f"; limit {plain(limit)}"
        drawn = [replace(r, value=100 * r.value) for r in values] if shares else values
        written = (share if shares else plain)(values[-1].value)
        if values[-1].iteration < last:
            written += f" at {values[-1].iteration}"
        found.append(Health(title, written, meaning, multiple(drawn, last, title, limit)))
    return tuple(found)
