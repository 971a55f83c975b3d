"""The part of the pretraining corpus of `nano-coder` that calls tools: as a program, as JSON, and in several turns.

Requests are those of the train split of `tools-skills`. In several turns the assistant calls one tool per message, in the
format of its chat template, and answers with the last result. Some skills occur in full, the others almost never (`TRACE`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np

from palaestra.chat.rendering import describe_tools
from palaestra.core.records import Example, Message, Split, ToolCall
from palaestra.tasks.procedural import pick
from palaestra.tasks.tools.library import LIBRARY
from palaestra.tasks.tools.plans import CallResult, map_leaves
from palaestra.tasks.tools.requests import SKILLS, offer
from palaestra.tasks.tools.task import ToolsSkills

IN_FULL = ("calendar", "units", "statistics", "text", "people")
TRACE: dict[str, float] = {skill: 0.002 for skill in SKILLS if skill not in IN_FULL}
"""Percentage of the corpus for each skill that lessons teach."""
_FORMS = {("program", "full"): 0.45, ("calls", "full"): 0.15, ("program", "short"): 0.05, ("calls", "short"): 0.05}
"""The fraction of each form of an answer and of a prompt. The rest are conversations of several turns."""


def corpus(generator: np.random.Generator) -> Iterator[Example]:
    """An endless stream of examples; the assistant's earlier messages are to be learned too."""
    tasks = [ToolsSkills(*form) for form in _FORMS]
    shares, rare = np.cumsum(list(_FORMS.values())), sum(TRACE.values()) / 100
    while True:
        skill = pick(generator, tuple(TRACE) if generator.random() < rare else IN_FULL)
        place = int(np.searchsorted(shares, generator.random()))
        if place < len(tasks):
            yield from tasks[place].write_examples(
                skill, pick(generator, tuple(tasks[place].family[skill])), 1, generator
            )
        else:
            yield _converse(tasks[0], skill, generator)


def _converse(task: ToolsSkills, skill: str, rng: np.random.Generator) -> Example:
    """A request that is answered by one call per message."""
    while True:
        draft = task.family[skill][pick(rng, tuple(task.family[skill]))](rng)
        if task.get_split(skill, draft) is Split.TRAIN:
            break
    offered = offer(draft, int(rng.integers(4)))
    executed = draft.plan.execute()
    messages = [
        Message("system", describe_tools(json.dumps([LIBRARY[name].schema() for name in offered]))),
        Message("user", draft.question),
    ]
    for call, done in zip(draft.plan.calls, executed, strict=True):
        arguments = map_leaves(
            call.arguments, lambda leaf: executed[leaf.call].value if isinstance(leaf, CallResult) else leaf
        )
        text = json.dumps(arguments, ensure_ascii=False)
        messages += [
            Message("assistant", "", (ToolCall(call.tool, text),)),
            Message("tool", json.dumps(done.value, ensure_ascii=False)),
        ]
    value = executed[-1].value
    answer = value if isinstance(value, str) else json.dumps(value)
    return Example(tuple(messages), f"Answer: {answer}", skill)
