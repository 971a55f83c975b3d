"""Plans of m&m's: read from JSON or from a program, and check against the tools.

A node is `{"id": 0, "name": "image captioning", "args": {"image": "2327921.jpg"}}`; the text `<node-0>.text` in an argument refers to
the output `text` of node 0. As a program the same is `output0 = image_captioning(image="2327921.jpg")` and `output0["text"]`.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from palaestra.tasks.code.extraction import find_fenced
from palaestra.tasks.tools.extraction import MOST_TEXT, find_json
from palaestra.tasks.tools.mnms.tools import TOOLS

MOST_NODES = 20
REFERENCE = re.compile(r"<node-(\d+)>\.(\w+)")
_OUTPUT = re.compile(r"output_?(\d{1,4})\Z")


@dataclass(frozen=True, slots=True)
class PlanNode:
    """One call of a plan. Names of tools have spaces, as published."""

    id: int
    name: str
    args: Mapping[str, Any]

    def to_data(self) -> dict[str, Any]:
        return {"id": self.id, "name": self.name, "args": dict(self.args)}


Nodes = tuple[PlanNode, ...]


def read_nodes(value: Any) -> Nodes:
    """The nodes of a plan from JSON: a list of them, or an object that holds the list as `nodes`.

    Raises:
        ValueError: it is no plan.
    """
    if isinstance(value, Mapping) and "nodes" in value:
        value = value["nodes"]
    if not isinstance(value, list) or not 0 < len(value) <= MOST_NODES:
        raise ValueError(f"a plan is a list of 1 to {MOST_NODES} nodes")
    nodes = []
    for place, node in enumerate(value):
        if not isinstance(node, Mapping) or not isinstance(node.get("name"), str):
            raise ValueError(f"node {place} has no name")
        args = node.get("args")
        if args is not None and not isinstance(args, Mapping):
            raise ValueError(f"the arguments of node {place} are no object")
        number = node.get("id", place)
        if not isinstance(number, int):
            raise ValueError(f"the id of node {place} is no whole number")
        nodes.append(
            PlanNode(number, tool_name(node["name"]), {str(name): argument for name, argument in (args or {}).items()})
        )
    return tuple(nodes)


def read_published(value: Any) -> Nodes:
    """The nodes of a published plan: a list, or a text with a list as JSON or as Python writes it.

    Raises:
        ValueError: it is no plan.
    """
    return read_nodes(read_literal(value))


def read_literal(value: Any) -> Any:
    """A value that a data set stores as text, as JSON or as Python writes it. Nothing is executed."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        try:
            return ast.literal_eval(value)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise ValueError(f"expected a list of nodes; got {value[:60]!r}") from error


def extract_plan(text: str, form: str = "json") -> Nodes:
    """The last plan in a response, as JSON or as a program. If the requested form is missing, the other one is accepted.

    The plan is empty if there is neither.
    """
    readers = (_plan_in_json, _plan_in_code) if form == "json" else (_plan_in_code, _plan_in_json)
    return next((plan for read in readers if (plan := read(text[-MOST_TEXT:]))), ())


def _plan_in_json(text: str) -> Nodes:
    alone: list[Any] = []
    for value in reversed(find_json(text)):
        try:
            return read_nodes(value)
        except ValueError:
            alone.insert(0, value)
    try:
        return read_nodes([value for value in alone if isinstance(value, dict) and "name" in value])
    except ValueError:
        return ()


def _plan_in_code(text: str) -> Nodes:
    for block in reversed([*find_fenced(text)] or [text]):
        try:
            tree = ast.parse(block)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        if nodes := _read_nodes(tree):
            return nodes
    return ()


def _read_nodes(tree: ast.Module) -> Nodes:
    """The assignments of a program whose values are calls, in their order."""
    nodes: list[PlanNode] = []
    names: dict[str, int] = {}
    assigned = [node for node in ast.walk(tree) if isinstance(node, ast.Assign)]
    for node in sorted(assigned, key=lambda node: node.lineno)[:MOST_NODES]:
        target, call = node.targets[0], node.value
        if isinstance(target, ast.Name) and isinstance(call, ast.Call) and isinstance(call.func, ast.Name):
            number = _number(target.id, names)
            number = len(nodes) if number is None else number
            args = {keyword.arg: _value(keyword.value, names) for keyword in call.keywords if keyword.arg}
            nodes.append(PlanNode(number, tool_name(call.func.id), args))
            names[target.id] = number
    return tuple(nodes)


def _value(node: ast.expr, names: Mapping[str, int]) -> Any:
    """An argument of a program as the plan has it: a literal, or a text with references."""
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
    """A plan as a response gives it, in a fenced block.

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


def _code(value: Any) -> str:
    if not isinstance(value, str) or not REFERENCE.search(value):
        return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)
    if match := REFERENCE.fullmatch(value):
        return f'output{match[1]}["{match[2]}"]'
    escaped = json.dumps(value.replace("{", "{{").replace("}", "}}"), ensure_ascii=False)
    return "f" + REFERENCE.sub(lambda match: f"{{output{match[1]}['{match[2]}']}}", escaped)


def check_plan(nodes: Sequence[PlanNode]) -> None:
    """Raise `ValueError` for the first node whose tool, arguments or references do not exist."""
    earlier: dict[int, PlanNode] = {}
    for node in nodes:
        tool = TOOLS.get(node.name)
        if tool is None:
            raise ValueError(f"there is no tool '{node.name}'")
        if set(node.args) != set(tool.inputs):
            raise ValueError(f"{node.name} takes {', '.join(tool.inputs)}; got {', '.join(node.args) or 'nothing'}")
        for name, value in node.args.items():
            if not isinstance(value, str | int | float) or isinstance(value, bool):
                raise ValueError(f"the argument {name} of {node.name} is neither a text nor a number")
            for number, output in REFERENCE.findall(str(value)):
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
