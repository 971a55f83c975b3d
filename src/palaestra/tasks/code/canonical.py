"""A canonical form of programs, which does not depend on names, layout and intermediate variables."""

from __future__ import annotations

import ast
import json
import warnings

from palaestra.tasks.code.extraction import MAX_CODE, PARSE_ERRORS, find_fenced

_MAX_NODES = 2000
"""Larger programs keep their intermediate variables."""


def find_programs(text: str) -> set[str]:
    """The canonical forms of the Python programs and tool calls (JSON) in a response.

    >>> find_programs("```python\\na = f(3)\\nanswer(a)\\n```") == find_programs("answer(f(x=3))")
    True
    """
    if "(" not in text and "{" not in text:
        return set()
    blocks = [block for block in find_fenced(text) if block.strip()] if "```" in text or "~~~" in text else [text]
    forms = {canonicalize(block) for block in blocks if len(block) <= MAX_CODE}
    return forms - {""}


def canonicalize(code: str) -> str:
    """The canonical form of a program or of JSON calls; empty if the text is neither."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # For example about invalid escapes.
            tree = ast.parse(code.strip())
            if not any(isinstance(node, ast.Call | ast.FunctionDef) for node in ast.walk(tree)):
                return _canonicalize_json(code)
            for node in list(ast.walk(tree)):
                if isinstance(node, ast.Module | ast.FunctionDef):
                    _inline(node)
            return ast.dump(_Renamer().visit(tree))
    except PARSE_ERRORS:
        return _canonicalize_json(code)


def _canonicalize_json(code: str) -> str:
    try:
        calls = json.loads(code)
    except (ValueError, RecursionError):
        return ""
    several = calls if isinstance(calls, list) else [calls]
    is_plan = several and all(isinstance(call, dict) and "name" in call for call in several)
    return json.dumps(several, sort_keys=True) if is_plan else ""


def _inline(block: ast.Module | ast.FunctionDef) -> None:
    """Replace variables of straight-line code that are assigned once by their values."""
    assigned = [node.id for node in ast.walk(block) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    values: dict[str, ast.expr] = {}
    nodes, body = 0, list[ast.stmt]()
    for statement in block.body:
        replaced = _Substitution(values).visit(statement)
        nodes += sum(1 for _ in ast.walk(replaced))
        if nodes > _MAX_NODES:
            return
        match replaced:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if assigned.count(name) == 1:
                values[name] = value
            case ast.Expr(value=ast.Constant()):
                pass  # A docstring.
            case _:
                body.append(replaced)
    block.body = body or block.body


class _Substitution(ast.NodeTransformer):
    def __init__(self, values: dict[str, ast.expr]) -> None:
        self.values = values

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self.values.get(node.id, node) if isinstance(node.ctx, ast.Load) else node


class _Renamer(ast.NodeTransformer):
    """Names functions, parameters and variables of the program by their order; names from outside are kept."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}

    def visit_Module(self, node: ast.Module) -> ast.AST:
        for inner in ast.walk(node):
            match inner:
                case ast.FunctionDef(name=name) | ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()):
                    self.names.setdefault(name, "")
        return self.generic_visit(node)

    def _rename(self, name: str) -> str:
        if self.names.get(name) == "":
            self.names[name] = f"_{sum(map(bool, self.names.values()))}"
        return self.names.get(name, name)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Name(self._rename(node.id), node.ctx)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        return ast.arg(self._rename(node.arg))

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.name, node.returns = self._rename(node.name), None
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        # Arguments by keyword count as positional.
        node.args, node.keywords = [*node.args, *(keyword.value for keyword in node.keywords)], []
        return self.generic_visit(node)
