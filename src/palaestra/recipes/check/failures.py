"""Level 2: whether a failure of the scorer becomes a score."""

from __future__ import annotations

import ast
import builtins
import inspect
import io
import re
import socket
import subprocess
import textwrap
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FunctionType
from typing import Any, NoReturn

from palaestra.core.settings import short_repr
from palaestra.recipes.check.answers import Answers, EnvAnswers, TaskAnswers, TextReward
from palaestra.recipes.check.records import CheckFinding, env_check, report_fail, report_pass, report_warn
from palaestra.recipes.check.scorer import ScoringOverdueError, interrupt, list_solved, spread

_PATIENCE = 15.0
"""Seconds after which a score with an injected failure is given up."""
_OUTSIDE = re.compile(r"judge|client|engine|llm|sandbox|service|api|backend|remote", re.IGNORECASE)
"""Names of what a scorer calls outside itself."""


def _raise(error: Callable[[], BaseException], hits: list[str], name: str) -> Callable[..., NoReturn]:
    def fail(*_: object, **__: object) -> NoReturn:
        hits.append(name)
        raise error()

    return fail


@contextmanager
def break_functions(
    name: str, targets: Sequence[tuple[Any, str]], error: Callable[[], BaseException]
) -> Iterator[list[str]]:
    """Replace functions by one that raises. The value lists the calls."""
    hits: list[str] = []
    saved = [(owner, attribute, getattr(owner, attribute)) for owner, attribute in targets]
    try:
        for owner, attribute in targets:
            setattr(owner, attribute, _raise(error, hits, name))
        yield hits
    finally:
        for owner, attribute, value in saved:
            setattr(owner, attribute, value)


def _make_unavailable(hits: list[str]) -> Any:
    """A stand-in for a service: every use raises a connection error."""
    fail = _raise(lambda: ConnectionError("injected: the service does not answer"), hits, "service")
    return type("Unavailable", (), {"__getattr__": fail, "__call__": fail})()


_PROCESSES = ((subprocess, "run"), (subprocess, "Popen"), (subprocess, "check_output"), (subprocess, "call"))
INJECTIONS: tuple[tuple[str, Sequence[tuple[Any, str]], Callable[[], BaseException]], ...] = (
    ("a process cannot start", _PROCESSES, lambda: OSError(12, "injected: cannot allocate memory")),
    ("the network is down", ((socket.socket, "connect"), (urllib.request, "urlopen")), lambda: ConnectionError("injected")),
    ("a request times out", ((socket.socket, "connect"), (urllib.request, "urlopen")), lambda: TimeoutError("injected")),
    ("the disk is full", ((builtins, "open"), (io, "open")), lambda: OSError(28, "injected: no space left on device")),
)  # fmt: skip
"""Name, the functions that raise, the error. The time-out of a process is missing: the answer may be to blame."""


@env_check("answers", "runtime.failure_is_no_score")
def check_failures(answers: Answers) -> CheckFinding:
    """A failure of the scorer never becomes a score"""
    lowered, hits = dict[str, None](), set[str]()

    def note(name: str, calls: Sequence[str], reward: TextReward, value: float, text: str) -> None:
        hits.update(calls)
        if calls and reward.value is not None and reward.value < value - 1e-9:
            text = (
                f"{name}: the right answer {short_repr(text)} gets {reward.value:g} instead of {value:g} or a failure"
            )
            lowered[text] = None

    for case, texts, value in spread([entry for entry in list_solved(answers) if entry[2]], 4):
        for name, targets, error in INJECTIONS:
            with break_functions(name, targets, error) as calls, suppress(ScoringOverdueError), interrupt(_PATIENCE):
                note(name, calls, answers.score(case, texts), value, texts[-1])
        for owner, attribute in _list_services(answers):
            calls = []
            saved = getattr(owner, attribute)
            try:
                setattr(owner, attribute, _make_unavailable(calls))
                reward = answers.score(case, texts)
            except (AttributeError, TypeError):  # A read-only attribute.
                continue
            finally:
                with suppress(AttributeError, TypeError):
                    setattr(owner, attribute, saved)
            note(f"'{attribute}' raises a connection error", calls, reward, value, texts[-1])
    if lowered:
        return report_fail("a failure becomes a score", *lowered)
    swallowed = _find_swallowing(answers)
    if swallowed:
        return report_warn("a failure may become a score", *swallowed[:3])
    names = ", ".join(sorted(hits))
    return report_pass(
        f"injected failures ({names}) never become scores" if names else "it uses nothing that can be made to fail"
    )


def _list_services(answers: Answers) -> Iterator[tuple[Any, str]]:
    """The attributes of a task, its scorer or an environment, and functions of its module, that are named like services."""
    for holder, function in _list_holders(answers):
        for name in list(getattr(holder, "__dict__", {})):
            if _OUTSIDE.search(name) and not isinstance(getattr(holder, name, None), str | int | float | type(None)):
                yield holder, name
        for name in dir(type(holder)):
            method = inspect.getattr_static(type(holder), name, None)
            if _OUTSIDE.search(name) and not name.startswith("__") and isinstance(method, FunctionType):
                yield holder, name
        module = inspect.getmodule(function)
        if module is not None and not (module.__name__ or "").startswith("palaestra."):
            for name in function.__code__.co_names:
                if _OUTSIDE.search(name) and isinstance(getattr(module, name, None), FunctionType):
                    yield module, name


def _list_holders(answers: Answers) -> list[tuple[Any, FunctionType]]:
    """The objects whose code computes rewards, with that code."""
    if isinstance(answers, TaskAnswers):
        pairs: list[tuple[Any, Any]] = [(answers.task, getattr(type(answers.task), "score", None))]
        scorer = getattr(answers.task, "scorer", None)
        function = getattr(scorer, "function", None)
        pairs.append((scorer, function or vars(type(scorer)).get("__call__")))
    else:
        assert isinstance(answers, EnvAnswers)
        inside = answers.env.unwrapped
        pairs = [(inside, getattr(type(inside), name, None)) for name in ("step", "respond", "play", "answer")]
    return [(holder, function) for holder, function in pairs if isinstance(function, FunctionType)]


def _find_swallowing(answers: Answers) -> list[str]:
    """Broad `except` clauses in the code of the reward that return or assign a constant."""
    shown = []
    for _, function in _list_holders(answers):
        with suppress(OSError, TypeError):
            source = textwrap.dedent(inspect.getsource(function))
            shown += find_constant_handlers(source, function.__qualname__, function.__code__.co_firstlineno)
    return shown


def find_constant_handlers(source: str, name: str, first_line: int = 1) -> list[str]:
    """Broad `except` clauses of a source that return or assign a constant."""
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except SyntaxError:
        return []
    return [
        f"{name}, line {first_line + node.lineno - 1}: any exception becomes a constant"
        for node in nodes
        if isinstance(node, ast.ExceptHandler) and _is_broad(node.type) and _returns_constant(node)
    ]


def _is_broad(kind: ast.expr | None) -> bool:
    return kind is None or (isinstance(kind, ast.Name) and kind.id in ("Exception", "BaseException"))


def _returns_constant(handler: ast.ExceptHandler) -> bool:
    returns = [node for node in ast.walk(handler) if isinstance(node, ast.Return)]
    return any(_is_constant(node) for node in (*returns, handler.body[-1]))


def _is_constant(last: ast.stmt) -> bool:
    value = last.value if isinstance(last, ast.Return | ast.Assign) else None
    parts = [node for node in ast.walk(value) if isinstance(node, ast.Constant)] if value is not None else []
    names = [node.id for node in ast.walk(value) if isinstance(node, ast.Name)] if value is not None else []
    return (
        any(isinstance(part.value, int | float) for part in parts)
        and "Failure" not in names
        and "failure" not in ast.dump(last)
    )
