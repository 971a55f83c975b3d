"""Choose the tools that are offered for a request: those that it needs, and distractors."""

from __future__ import annotations

from collections.abc import Mapping

from palaestra.core.seeding import Seeds
from palaestra.tasks.tools.library import LIBRARY
from palaestra.tasks.tools.requests.recipe import ToolDraft

ARITHMETIC = "arithmetic"
"""The domain whose tools are never distractors, because they would allow a second plan for most requests."""
RIVALS: Mapping[str, frozenset[str]] = {
    "ratio": frozenset({"split_evenly"}),
    "product": frozenset({"scale"}),
    "add_percent": frozenset({"savings"}),
    "largest": frozenset({"top"}),
}
"""Tools that can replace a tool, and so are not offered as distractors with it."""


def offer(draft: ToolDraft, distractors: int) -> list[str]:
    """The names of the offered tools, shuffled. The same request always has the same tools; more distractors only add some.

    Every second distractor is from a domain of the plan, where confusion is most likely.
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
