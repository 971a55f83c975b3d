"""The metrics of m&m's for pairs of a published and a predicted plan, as in the paper and its evaluation code.

A plan is converted to labels, and the labels are counted.

- tool F1: which tools a plan uses; the mean over those of the 33 tools that occur in any of the plans (macro);
- argument name F1, argument value F1: calls with the names, or the names and values, of their arguments;
- edge F1: pairs of a call and the one after it;
- edit distance: of the sequence of tools, from 0 (the same) to 1;
- argument name accuracy, argument value accuracy: of plans, all calls with the same, in order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from palaestra.core.statistics import Mean, rate_interval
from palaestra.tasks.tools.mnms.plans import Nodes, PlanNode
from palaestra.tasks.tools.mnms.tools import TOOLS

RESAMPLES = 500
Pair = tuple[Nodes, Nodes]
"""The published plan and the predicted one."""
Labels = Callable[[Nodes], list[str]]


def tool_labels(nodes: Nodes) -> list[str]:
    return [node.name for node in nodes]


def name_labels(nodes: Nodes) -> list[str]:
    return ["--".join([node.name, *sorted(node.args)]) for node in nodes]


def value_labels(nodes: Nodes) -> list[str]:
    return ["--".join([node.name, *(_argument(node, name) for name in sorted(node.args))]) for node in nodes]


def edge_labels(nodes: Nodes) -> list[str]:
    names = tool_labels(nodes)
    return [f"{name}--{other}" for name, other in pairwise(names)]


def _argument(node: PlanNode, name: str) -> str:
    return f"{name}={str(node.args[name]).lower()}"


def similarity(labels: Sequence[str], other: Sequence[str]) -> float:
    """The fraction of two sequences that they have in common, in order: 2 LCS / (sum of lengths).

    >>> similarity(["a", "b", "c"], ["a", "c"])
    0.8
    """
    if not labels and not other:
        return 1.0
    row = [0] * (len(other) + 1)
    for a in labels:
        before, row = row, [0]
        for place, b in enumerate(other, 1):
            row.append(before[place - 1] + 1 if a == b else max(before[place], row[-1]))
    return 2 * row[-1] / (len(labels) + len(other))


def measure(pairs: Sequence[Pair], clusters: Sequence[str]) -> dict[str, Mean]:
    """All metrics of `pairs`. The intervals of F1 are bootstrapped over clusters, so pairs of one problem stay together."""
    if not pairs:
        return {}
    metrics = {
        "tool F1": _f1(pairs, clusters, tool_labels, by_label=True),
        "argument name F1": _f1(pairs, clusters, name_labels),
        "argument value F1": _f1(pairs, clusters, value_labels),
        "edge F1": _f1(pairs, clusters, edge_labels),
    }
    same = [similarity(tool_labels(gold), tool_labels(plan)) for gold, plan in pairs]
    metrics["edit distance"] = rate_interval([1 - value for value in same], clusters)
    for name, labels in (("argument name accuracy", name_labels), ("argument value accuracy", value_labels)):
        right = [float(labels(gold) == labels(plan)) for gold, plan in pairs]
        metrics[name] = rate_interval(right, clusters)
    return metrics


def _f1(pairs: Sequence[Pair], clusters: Sequence[str], labels: Labels, *, by_label: bool = False) -> Mean:
    """F1 of the label sets of plans: micro (all labels together) or macro (mean over the labels)."""
    sets = [(set(labels(gold)), set(labels(plan))) for gold, plan in pairs]
    names = sorted({name for gold, plan in sets for name in gold | plan} & set(TOOLS)) if by_label else [""]
    groups = {cluster: place for place, cluster in enumerate(dict.fromkeys(clusters))}
    counts = np.zeros((len(groups), len(names), 3))  # groups, labels, (hits, predicted, wanted)
    for (gold, plan), cluster in zip(sets, clusters, strict=True):
        row = counts[groups[cluster]]
        if by_label:
            for place, name in enumerate(names):
                row[place] += (name in gold and name in plan, name in plan, name in gold)
        else:
            row[0] += (len(gold & plan), len(plan), len(gold))
    rng = np.random.default_rng(0)
    values = [_compute_f1(counts[rng.integers(len(groups), size=len(groups))].sum(axis=0)) for _ in range(RESAMPLES)]
    value = _compute_f1(counts.sum(axis=0))
    low, high = np.quantile(values, [0.025, 0.975])
    return Mean(value, min(float(low), value), max(float(high), value), len(pairs))


def _compute_f1(counts: NDArray[np.float64]) -> float:
    """The mean F1 of rows of (hits, predicted, wanted), without rows that are neither predicted nor wanted."""
    hits, total = counts[:, 0], counts[:, 1] + counts[:, 2]
    there = total > 0
    return float(np.mean(2 * hits[there] / total[there])) if there.any() else 0.0
