"""No duplicated code: shared code is independent of single tasks, and functions have no near copies. The wheel has all files."""

import ast
import itertools
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "palaestra"
KINDS = ("math", "code", "vision", "tools")
LESSON_SCALE = ("teachers", "envs/lesson", "recipes", "rl", "students", "rewards", "tasks")
STEP = 4
"""Parts of a program in a row by which two functions are compared."""


@cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def modules(*folders: str) -> Iterator[tuple[str, ast.Module]]:
    for folder in folders:
        for path in sorted((SOURCE / folder).rglob("*.py")):
            yield str(path.relative_to(SOURCE)), parse(path)


def parts(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    """A function's program, part by part, whatever its constants and its documentation say."""
    documented = ast.get_docstring(function) is not None
    nodes = [node for statement in function.body[documented:] for node in ast.walk(statement)]
    return [str(getattr(node, "id", "") or getattr(node, "attr", "") or type(node).__name__) for node in nodes]


def test_no_teacher_knows_a_task() -> None:
    imports = []
    for name, tree in modules("teachers", "envs/lesson", "recipes"):
        if name.startswith("teachers/quality/"):
            continue  # Checks pose an example as its task would ask it.
        for node in ast.walk(tree):
            targets = (
                [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else []
            )
            for kind in KINDS:
                imports += [(name, t) for t in targets if t.startswith(f"palaestra.tasks.{kind}")]
    assert not [(name, target) for name, target in imports if name.startswith(("teachers/", "envs/lesson/"))]
    # The embedded students are trained from scratch on their own tasks; nothing else of the recipes knows one.
    assert {name for name, _ in imports} <= {"recipes/train/pretrain.py"}


def test_no_function_of_the_lesson_scale_is_a_near_copy() -> None:
    functions = []
    for name, tree in modules(*LESSON_SCALE):
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and len(own := parts(node)) >= 100:
                steps = frozenset(zip(*(own[k:] for k in range(STEP)), strict=False))
                functions.append((f"{name}: {node.name}", name, steps))
    assert len(functions) > 200
    functions.sort(key=lambda function: len(function[2]))
    copies = []
    for (first, file, steps), (second, other, more) in itertools.combinations(functions, 2):
        if file != other and len(steps) > 0.7 * len(more) and len(steps & more) > 0.7 * len(steps | more):
            copies.append((first, second))
    assert not copies


def test_no_file_is_a_catalogue_of_classes() -> None:
    for name, tree in modules(""):
        assert sum(isinstance(node, ast.ClassDef) for node in tree.body) <= 24, name


def test_a_lesson_environment_is_played_in_two_places() -> None:
    steps = {
        name
        for name, tree in modules("")
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "step"
        and any(isinstance(argument, ast.Name) and argument.id == "lesson" for argument in node.args)
    }
    assert steps == {"integrations/dataenvgym.py", "recipes/teach/recipe.py"}


def test_every_file_of_the_package_is_in_the_wheel() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    patterns = project["tool"]["setuptools"]["package-data"]["palaestra"]
    packed = {path for pattern in patterns for path in SOURCE.glob(pattern)}
    files = {path for path in SOURCE.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    assert {str(path.relative_to(SOURCE)) for path in files - packed if path.suffix != ".py"} == set()
