"""Conventions of names and imports, in the package, tests, benchmarks and examples."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "palaestra"
TOOLS = "tasks/tools/library/"
"""Tools are named as the models see them, such as `birthday_of`."""
VAGUE = {"found", "told", "said", "one", "made", "got"}
"""Names that do not say what a variable holds."""
MAX_TEST_NAME = 59
"""Characters in the name of a test."""
PARTICIPLE = re.compile(
    "begun|built|brought|chosen|done|drawn|found|given|gone|got|held|hidden|kept|known|left|lost|made|said|seen|sent|shown"
    "|spoken|taken|told|won|written|.*ed"
)
VERBS = {"speed", "embed", "exceed", "feed", "need", "proceed", "seed"}
"""Verbs and nouns that end like a participle."""
MODULES = {
    path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
    for path in sorted(PACKAGE.rglob("*.py"))
    if not re.search(r"research/tasks/\w+/", path.as_posix())  # scripts of single tasks, not modules
}

SCRIPTS = {
    path.relative_to(ROOT).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
    for folder in ("tests", "benchmarks", "examples")
    for path in sorted((ROOT / folder).rglob("*.py"))
}
Function = ast.FunctionDef | ast.AsyncFunctionDef


def to_module_name(path: str) -> str:
    return ".".join(["palaestra", *Path(path).with_suffix("").parts]).removesuffix(".__init__")


def read_imports(tree: ast.Module, names: set[str]) -> Iterator[str]:
    """Yield the imported modules among `names`, wherever the import stands: in functions and for types as well."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                submodule = f"{node.module}.{alias.name}"
                if submodule in names:
                    yield submodule
                elif node.module in names:
                    yield node.module


def find_cycle(graph: dict[str, set[str]]) -> list[str]:
    """Return a cycle of `graph`, or an empty list: remove leaves until none is left."""
    graph = {name: set(targets) for name, targets in graph.items()}
    while leaves := {name for name, targets in graph.items() if not targets}:
        graph = {name: targets - leaves for name, targets in graph.items() if name not in leaves}
    path: list[str] = []
    while graph and (not path or path[-1] not in path[:-1]):
        path.append(min(graph[path[-1]] if path else graph))
    return path[path.index(path[-1]) :] if path else []


def is_participle(name: str) -> bool:
    words = name.strip("_").split("_")
    return words[-1] == "of" or (PARTICIPLE.fullmatch(words[0]) is not None and words[0] not in VERBS)


def is_property(function: Function) -> bool:
    return any(ast.unparse(decorator).endswith("property") for decorator in function.decorator_list)


def find_vague_names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the line and name of every vague parameter, variable and function."""
    for node in ast.walk(tree):
        match node:
            case ast.arg(arg=name) | ast.Name(id=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                if name.strip("_") in VAGUE:
                    yield node.lineno, name


def find_long_tests(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the line and name of every test with a long name."""
    for node in ast.walk(tree):
        if isinstance(node, Function) and node.name.startswith("test_") and len(node.name) > MAX_TEST_NAME:
            yield node.lineno, node.name


def test_a_cycle_is_found() -> None:
    assert find_cycle({"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set()}) == ["b", "c", "b"]
    assert find_cycle({"a": {"b"}, "b": set()}) == []


def test_no_modules_import_each_other() -> None:
    names = {to_module_name(path) for path in MODULES}
    graph = {to_module_name(p): set(read_imports(tree, names)) - {to_module_name(p)} for p, tree in MODULES.items()}
    assert sum(map(len, graph.values())) > 1000
    assert find_cycle(graph) == []


def test_every_class_name_is_used_once() -> None:
    places = defaultdict(list)
    for path, tree in MODULES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(path)
    assert {name: paths for name, paths in places.items() if len(paths) > 1} == {}


def test_functions_are_named_by_verbs() -> None:
    assert is_participle("_told")
    assert is_participle("loss_of")
    assert not is_participle("seed_run")
    participles = [
        f"{path}:{node.lineno} {node.name}"
        for path, tree in MODULES.items()
        if not path.startswith(TOOLS)
        for node in ast.walk(tree)
        if isinstance(node, Function) and is_participle(node.name) and not is_property(node)
    ]
    assert participles == []


def test_variables_are_named_by_what_they_hold() -> None:
    assert list(find_vague_names(ast.parse("def _told(said): one = said; others = one.found"))) != []
    vague = [
        f"{path}:{line} {name}"
        for path, tree in {**MODULES, **SCRIPTS}.items()
        for line, name in find_vague_names(tree)
    ]
    assert vague == []


def test_names_of_tests_are_short() -> None:
    assert len(list(find_long_tests(ast.parse(f"def test_{'a' * 55}(): pass\ndef test_short(): pass")))) == 1
    long = [f"{path}:{line} {name}" for path, tree in SCRIPTS.items() for line, name in find_long_tests(tree)]
    assert long == []
