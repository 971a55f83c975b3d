"""Which tools are offered for a request: those that it needs, and some that it does not."""

from __future__ import annotations

from collections.abc import Mapping

from palaestra.core.seeding import Seeds
from palaestra.tasks.tools.library import LIBRARY
from palaestra.tasks.tools.requests.recipe import ToolDraft

ARITHMETIC = "arithmetic"
"""The domain whose tools are never offered unless they are needed: with them almost everything has a second way."""
RIVALS: Mapping[str, frozenset[str]] = {
    "ratio": frozenset({"split_evenly"}),
    "product": frozenset({"scale"}),
    "add_percent": frozenset({"savings"}),
    "largest": frozenset({"top"}),
}
"""What could be bent to do the work of a tool, and so is not offered beside it unless it is needed too."""


def offer(draft: ToolDraft, distractors: int) -> list[str]:
    """The names of the tools that are offered, mixed. The same request has the same, and with more there are those too.

    Every second one that is not needed is of a domain of the plan, where it is easiest to take the wrong one.
    """
    rng = Seeds(0).derive("tools", draft.plan.canonical()).generator()
    needed = list(dict.fromkeys(call.tool for call in draft.plan.calls))
    shut = {*needed, *draft.without}.union(*(RIVALS.get(name, ()) for name in needed))
    open_ = [tool for tool in LIBRARY.values() if tool.name not in shut and tool.domain != ARITHMETIC]
    shuffled = [open_[int(place)] for place in rng.permutation(len(open_))]
    domains = {LIBRARY[name].domain for name in needed}
    near = [tool.name for tool in shuffled if tool.domain in domains]
    others = [tool.name for tool in shuffled]
    chosen: list[str] = []
    while len(chosen) < distractors:
        rest = near if near and len(chosen) % 2 == 0 else others
        chosen.append(rest[0])
        near, others = ([name for name in names if name != chosen[-1]] for names in (near, others))
    offered = needed + chosen
    return [offered[int(place)] for place in rng.permutation(len(offered))]
