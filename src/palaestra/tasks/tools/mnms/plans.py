"""Plans of m&m's (Ma et al., 2024): the tools, plans as JSON and as programs, and the metrics of the benchmark.

A node is `{"id": 0, "name": "image captioning", "args": {"image": "2327921.jpg"}}`; the text `<node-0>.text` in an argument
refers to the output `text` of node 0. As a program the same is `output0 = image_captioning(image="2327921.jpg")` and
`output0["text"]`. The names, arguments and outputs of the tools are those of the paper; the descriptions are our own.

The metrics compare pairs of a published and a predicted plan, as the evaluation code of the paper does. A plan is
converted to labels, and the labels are counted.

- tool F1: which tools a plan uses; the mean over those of the 33 tools that occur in any of the plans (macro);
- argument name F1, argument value F1: calls with the names, or the names and values, of their arguments;
- edge F1: pairs of consecutive calls;
- edit distance: of the sequence of tools, from 0 (the same) to 1;
- argument name accuracy, argument value accuracy: the fraction of plans in which all calls have the same ones, in order.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from palaestra.core.records import Json
from palaestra.core.statistics import Mean, rate_interval
from palaestra.tasks.code.extraction import PARSE_ERRORS, find_fenced
from palaestra.tasks.content import read_content
from palaestra.tasks.tools.extraction import MAX_TEXT, find_json

_MAX_NODES = 20
_REFERENCE = re.compile(r"<node-(\d+)>\.(\w+)")
_OUTPUT = re.compile(r"output_?(\d{1,4})\Z")


@dataclass(frozen=True, slots=True)
class PlanNode:
    """One call of a plan. Names of tools have spaces, as published."""

    id: int
    name: str
    args: Mapping[str, Any]

    def to_data(self) -> Json:
        return {"id": self.id, "name": self.name, "args": dict(self.args)}


Nodes = tuple[PlanNode, ...]


def read_nodes(value: object) -> Nodes:
    """The nodes of a plan from JSON: a list of them, or an object that contains the list as `nodes`.

    Raises:
        ValueError: it is no plan.
    """
    if isinstance(value, Mapping) and "nodes" in value:
        value = value["nodes"]
    if not isinstance(value, list) or not 0 < len(value) <= _MAX_NODES:
        raise ValueError(f"expected a list of 1 to {_MAX_NODES} nodes")
    return tuple(_read_node(node, place) for place, node in enumerate(value))


def _read_node(node: object, place: int) -> PlanNode:
    match node if isinstance(node, dict) else {}:
        case {"name": str(name), **rest}:
            number, args = rest.get("id", place), rest.get("args")
            if isinstance(number, int) and isinstance(args, dict | None):
                return PlanNode(number, tool_name(name), {str(key): value for key, value in (args or {}).items()})
    raise ValueError(f"expected a name, an object 'args' and a whole number as 'id' of node {place}")


def read_literal(value: Any) -> Any:
    """A value that a data set stores as text, as JSON or as a Python literal. Nothing is executed."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        try:
            return ast.literal_eval(value)
        except PARSE_ERRORS as error:
            raise ValueError(f"expected a list of nodes; got {value[:60]!r}") from error


def extract_plan(text: str, form: str = "json") -> Nodes:
    """The last plan in a response, as JSON or as a program. If the requested form is missing, the other one is accepted.

    The plan is empty if there is neither.
    """
    readers = (_plan_in_json, _plan_in_code) if form == "json" else (_plan_in_code, _plan_in_json)
    return next((plan for read in readers if (plan := read(text[-MAX_TEXT:]))), ())


def _plan_in_json(text: str) -> Nodes:
    """The last JSON value that is a plan; or all single nodes, if there is none."""
    values = find_json(text)
    alone = [value for value in values if isinstance(value, dict) and "name" in value]
    for value in (*reversed(values), alone):
        with suppress(ValueError):
            return read_nodes(value)
    return ()


def _plan_in_code(text: str) -> Nodes:
    for block in reversed(find_fenced(text) or [text]):
        with suppress(*PARSE_ERRORS):
            if nodes := _read_nodes(ast.parse(block)):
                return nodes
    return ()


def _read_nodes(tree: ast.Module) -> Nodes:
    """The assignments of a program whose values are calls, in their order."""
    nodes: list[PlanNode] = []
    names: dict[str, int] = {}
    assigned = [node for node in ast.walk(tree) if isinstance(node, ast.Assign)]
    for node in sorted(assigned, key=lambda node: node.lineno)[:_MAX_NODES]:
        target, call = node.targets[0], node.value
        if isinstance(target, ast.Name) and isinstance(call, ast.Call) and isinstance(call.func, ast.Name):
            number = _number(target.id, names)
            number = len(nodes) if number is None else number
            args = {keyword.arg: _value(keyword.value, names) for keyword in call.keywords if keyword.arg}
            nodes.append(PlanNode(number, tool_name(call.func.id), args))
            names[target.id] = number
    return tuple(nodes)


def _value(node: ast.expr, names: Mapping[str, int]) -> Any:
    """An argument of a program in the form of a plan: a literal, or a text with references."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
        output = node.slice.value if isinstance(node.slice, ast.Constant) else None
        number = _number(node.value.id, names)
        if isinstance(output, str) and number is not None:
            return f"<node-{number}>.{output}"
    if isinstance(node, ast.JoinedStr):
        parts = [part.value if isinstance(part, ast.FormattedValue) else part for part in node.values]
        return "".join(str(_value(part, names)) for part in parts)
    return ast.unparse(node)


def _number(variable: str, names: Mapping[str, int]) -> int | None:
    """The node that a variable of a program stands for: by its assignment, or by its number."""
    match = _OUTPUT.match(variable)
    return names.get(variable, int(match[1]) if match else None)


def write_plan(nodes: Sequence[PlanNode], form: str) -> str:
    """A plan in the form of a response, in a fenced block.

    >>> print(write_plan([PlanNode(0, "count", {"objects": "<node-0>.objects"})], "code"))
    ```python
    output0 = count(objects=output0["objects"])
    ```
    """
    if form == "json":
        return f"```json\n{json.dumps({'nodes': [node.to_data() for node in nodes]}, ensure_ascii=False)}\n```"
    lines = [
        f"output{node.id} = {node.name.replace(' ', '_')}({', '.join(f'{k}={_code(v)}' for k, v in node.args.items())})"
        for node in nodes
    ]
    return "\n".join(["```python", *lines, "```"])


def _code(value: object) -> str:
    if not isinstance(value, str) or not _REFERENCE.search(value):
        return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)
    if match := _REFERENCE.fullmatch(value):
        return f'output{match[1]}["{match[2]}"]'
    escaped = json.dumps(value.replace("{", "{{").replace("}", "}}"), ensure_ascii=False)
    return "f" + _REFERENCE.sub(lambda match: f"{{output{match[1]}['{match[2]}']}}", escaped)


def check_plan(nodes: Sequence[PlanNode]) -> None:
    """Raise `ValueError` for the first node whose tool, arguments or references do not exist."""
    earlier: dict[int, PlanNode] = {}
    for node in nodes:
        if node.name not in TOOLS:
            raise ValueError(f"there is no tool '{node.name}'")
        inputs = TOOLS[node.name].inputs
        if set(node.args) != set(inputs):
            raise ValueError(f"{node.name} takes {', '.join(inputs)}; got {', '.join(node.args) or 'nothing'}")
        for name, value in node.args.items():
            if not isinstance(value, str | int | float) or isinstance(value, bool):
                raise ValueError(f"the argument {name} of {node.name} is neither a text nor a number")
            for number, output in _REFERENCE.findall(str(value)):
                source = earlier.get(int(number))
                if source is None:
                    raise ValueError(f"{node.name} uses node {number}, which does not come before it")
                if output not in TOOLS[source.name].outputs:
                    raise ValueError(f"{source.name} has no output '{output}'")
        if node.id in earlier:
            raise ValueError(f"two nodes have the id {node.id}")
        earlier[node.id] = node


def tool_name(name: str) -> str:
    """The name of a tool as published: words in lower case with spaces."""
    return " ".join(name.replace("_", " ").split()).lower()


@dataclass(frozen=True, slots=True)
class PlannedTool:
    """A tool that a plan may name.

    Arguments:
        kind: `models`, `images` (image processing) or `services` (public APIs).
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    kind: str
    description: str

    @property
    def signature(self) -> str:
        return f"{self.name}({', '.join(self.inputs)}) -> {', '.join(self.outputs)}"


TOOLS: Mapping[str, PlannedTool] = {
    name: PlannedTool(name, tuple(inputs.split()), tuple(outputs.split()), kind, description)
    for kind, name, inputs, outputs, description in read_content("mnms")
}


_RESAMPLES = 500
Pair = tuple[Nodes, Nodes]
"""The published plan and the predicted one."""
_Labels = Callable[[Nodes], list[str]]


def tool_labels(nodes: Nodes) -> list[str]:
    return [node.name for node in nodes]


def name_labels(nodes: Nodes) -> list[str]:
    return ["--".join([node.name, *sorted(node.args)]) for node in nodes]


def value_labels(nodes: Nodes) -> list[str]:
    return ["--".join([n.name, *(f"{k}={str(v).lower()}" for k, v in sorted(n.args.items()))]) for n in nodes]


def _edge_labels(nodes: Nodes) -> list[str]:
    return [f"{node.name}--{other.name}" for node, other in pairwise(nodes)]


def _similarity(labels: Sequence[str], other: Sequence[str]) -> float:
    """The fraction of two sequences that they have in common, in order: 2 LCS / (sum of lengths).

    >>> _similarity(["a", "b", "c"], ["a", "c"])
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


def measure_plans(pairs: Sequence[Pair], clusters: Sequence[str]) -> dict[str, Mean]:
    """All metrics of `pairs`. The intervals of F1 are bootstrapped over clusters, so pairs of one problem stay together."""
    if not pairs:
        return {}
    distances = [1 - _similarity(tool_labels(gold), tool_labels(plan)) for gold, plan in pairs]
    names = [float(name_labels(gold) == name_labels(plan)) for gold, plan in pairs]
    values = [float(value_labels(gold) == value_labels(plan)) for gold, plan in pairs]
    return {
        "tool F1": _f1(pairs, clusters, tool_labels, by_label=True),
        "argument name F1": _f1(pairs, clusters, name_labels),
        "argument value F1": _f1(pairs, clusters, value_labels),
        "edge F1": _f1(pairs, clusters, _edge_labels),
        "edit distance": rate_interval(distances, clusters),
        "argument name accuracy": rate_interval(names, clusters),
        "argument value accuracy": rate_interval(values, clusters),
    }


def _f1(pairs: Sequence[Pair], clusters: Sequence[str], labels: _Labels, *, by_label: bool = False) -> Mean:
    """F1 of the label sets of plans: micro (all labels together) or macro (mean over the labels)."""
    sets = [(set(labels(gold)), set(labels(plan))) for gold, plan in pairs]
    names = sorted({name for gold, plan in sets for name in gold | plan} & set(TOOLS)) if by_label else [""]
    groups = {cluster: place for place, cluster in enumerate(dict.fromkeys(clusters))}
    counts = np.zeros((len(groups), len(names), 3))  # groups, labels, (hits, predicted, wanted)
    for (gold, plan), cluster in zip(sets, clusters, strict=True):
        for place, name in enumerate(names):
            counted = {name} if by_label else gold | plan
            hits = (gold & plan & counted, plan & counted, gold & counted)
            counts[groups[cluster], place] += list(map(len, hits))
    rng = np.random.default_rng(0)
    values = [_compute_f1(counts[rng.integers(len(groups), size=len(groups))].sum(axis=0)) for _ in range(_RESAMPLES)]
    value = _compute_f1(counts.sum(axis=0))
    low, high = np.quantile(values, [0.025, 0.975])
    return Mean(value, min(float(low), value), max(float(high), value), len(pairs))


def _compute_f1(counts: NDArray[np.float64]) -> float:
    """The mean F1 of rows of (hits, predicted, wanted), without rows that are neither predicted nor wanted."""
    hits, total = counts[:, 0], counts[:, 1] + counts[:, 2]
    there = total > 0
    return float(np.mean(2 * hits[there] / total[there])) if there.any() else 0.0
