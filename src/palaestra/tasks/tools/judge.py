"""Run the answer of a model and record its tool calls.

A program runs in a sandbox. Most programs consist of calls only, such as `a = add_days("2024-01-01", 5)` and `answer(a)`. They are
interpreted here, up to the first name that is not defined, which is about forty times as fast. Every call passes through this
module, which checks its arguments, executes and records it, and returns the result. So a program cannot forge the record, and the
sandbox does not contain the plan or the expected answer. The tools are pure functions of our own with bounded arguments, so
they need no sandbox.
"""

from __future__ import annotations

import ast
import builtins
import json
import math
import warnings
from collections.abc import Callable, Collection, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from palaestra.core.errors import TaskError, suggest
from palaestra.core.records import Json
from palaestra.sandbox.base import KIB, MIB, Limits, SandboxResult, Status, make_sandbox
from palaestra.sandbox.rpc import Script, ScriptSession, last_error_line
from palaestra.tasks.tools.extraction import Asked, CallReference
from palaestra.tasks.tools.library import LIBRARY
from palaestra.tasks.tools.library.tool import ArgumentError
from palaestra.tasks.tools.matching import MAX_CALLS, PlanOutcome, Record
from palaestra.tasks.tools.plans import ExecutedCall, iterate_leaves, map_leaves

if TYPE_CHECKING:
    from palaestra.sandbox.base import Sandbox

_MAX_BYTES = 64 * KIB
PROGRAM = Script("palaestra.tasks.tools.inside", ("program",), _MAX_BYTES, ascii=False)
_MAX_RESULT = 32 * KIB
"""Maximum size of a tool's result as JSON."""
_MAX_INTERPRETED = 4000
"""Maximum length of a program that is interpreted, so that no value is too large for a message."""
MakeCall = Callable[[str, list[object], Json], ExecutedCall]


class ToolJudge:
    """Runs programs and plans.

    Arguments:
        sandbox: where programs run; by default bubblewrap, started on first use.
        seconds: CPU time limit of a program.
    """

    def __init__(self, sandbox: Sandbox | None = None, seconds: float = 2.0) -> None:
        if sandbox is not None:
            self.sandbox = sandbox
        self.limits = Limits.for_work(seconds, memory=256 * MIB, processes=16, output=MIB, disk=16 * MIB)

    @cached_property
    def sandbox(self) -> Sandbox:
        """The sandbox, which is created on first use."""
        return make_sandbox()

    def run_program(self, code: str, offered: Sequence[str]) -> Record:
        """Run a program that calls tools and ends with `answer(value)`. A program of calls only is interpreted.

        Raises:
            SandboxError: a sandbox failed, which says nothing about the program.
            TaskError: a tool failed, which says nothing about the program.
        """
        record = interpret(code, offered, lambda tool, args, kwargs: self._make(tool, args, kwargs, offered))
        return record if record is not None else self.run_in_sandbox(code, offered)

    def run_in_sandbox(self, code: str, offered: Sequence[str]) -> Record:
        """Run any program in its own sandbox."""
        calls: list[ExecutedCall] = []
        session = PROGRAM.start(self.sandbox, self.limits)
        try:
            session.send({"code": code, "tools": list(offered)})
            last = self._serve(session, offered, calls)
        finally:
            result = session.close()
        if last is None:
            return _exit_record(session, result, calls)
        if len(calls) > MAX_CALLS:
            return _too_many(calls)
        if last.keys() == {"answer"}:
            return Record(tuple(calls), None, value=last["answer"])
        return _error_record(calls, last.get("error"))

    def run_calls(self, calls: Sequence[Asked], offered: Sequence[str]) -> Record:
        """Make calls in order, with references to earlier results. The result of the last call is the answer."""
        executed: list[ExecutedCall] = []
        results: Json = {}
        if len(calls) > MAX_CALLS:
            return _too_many(executed)
        for call in calls:
            names = {leaf.name for leaf in iterate_leaves(call.arguments) if isinstance(leaf, CallReference)}
            if unknown := sorted(names - results.keys()):
                later = unknown[0] in {other.name for other in calls}
                fault = PlanOutcome.WRONG_ORDER if later else PlanOutcome.WRONG_ARGUMENTS
                why = f"which {'comes later' if later else 'does not exist'}"
                return Record(tuple(executed), fault, f"{call.name} needs the result of {unknown[0]}, {why}")
            arguments = map_leaves(call.arguments, lambda x: results[x.name] if isinstance(x, CallReference) else x)
            executed.append(self._make(call.tool, (), arguments, offered))
            if executed[-1].error:
                fault = PlanOutcome.WRONG_ARGUMENTS if call.tool in offered else PlanOutcome.WRONG_CALLS
                return Record(tuple(executed), fault, executed[-1].error)
            results[call.name] = executed[-1].value
        return Record(tuple(executed), None, value=executed[-1].value)

    def _serve(self, session: ScriptSession, offered: Sequence[str], calls: list[ExecutedCall]) -> Json | None:
        """Answer the calls of a program. Returns the first message that is not a call, or the call above the limit."""
        while (message := session.receive()) is not None:
            tool, args, kwargs = message.get("call"), message.get("args"), message.get("kwargs")
            if not isinstance(tool, str) or not isinstance(args, list) or not isinstance(kwargs, dict):
                return message
            calls.append(self._make(tool, args, kwargs, offered))
            if len(calls) > MAX_CALLS:
                return message
            session.send({"error": calls[-1].error} if calls[-1].error else {"value": calls[-1].value})
        return None

    def _make(self, name: str, args: Sequence[object], kwargs: Json, offered: Sequence[str]) -> ExecutedCall:
        """Make a call. Invalid calls are recorded with their error."""
        raw = {**{str(place): value for place, value in enumerate(args)}, **kwargs}
        if name not in offered:
            error = f"no tool '{name[:60]}' was offered; {suggest(name[:60], offered)}"
            return ExecutedCall(name[:60], raw, error=error)
        try:
            arguments = LIBRARY[name].bind(args, kwargs)
        except ArgumentError as error:
            return ExecutedCall(name, raw, error=str(error))
        try:
            value = LIBRARY[name].function(**arguments)
        except (ValueError, OverflowError) as error:  # The tool rejects its arguments.
            return ExecutedCall(name, arguments, error=str(error)[:1000])
        except Exception as error:  # The arguments have the right types, so the tool is at fault.
            module, problem = LIBRARY[name].function.__module__, f"{type(error).__name__}: {error}"
            raise TaskError(f"the tool {name} raised an error: {problem}; fix it in {module}") from error
        size = len(json.dumps(value))
        too_large = f"the result is too large: {size} bytes, {_MAX_RESULT} at most" if size > _MAX_RESULT else ""
        return ExecutedCall(name, arguments, None if too_large else value, too_large)


def interpret(code: str, offered: Collection[str], make: MakeCall) -> Record | None:
    """Interpret a program of calls, values and names; None if it contains anything else before a name that is not defined.

    Arguments:
        make: makes a tool call.
    """
    if len(code) > _MAX_INTERPRETED:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # For example about invalid escapes in the program.
        try:
            compile(code, "program.py", "exec", dont_inherit=True)
            body = ast.parse(code).body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None
    try:
        return _Interpreter(offered, make).run(body)
    except _Stop as end:
        return end.record


class _Stop(Exception):
    """The program has ended with a record; or, without one, it must run in the sandbox."""

    def __init__(self, record: Record | None) -> None:
        self.record = record


class _Interpreter:
    def __init__(self, offered: Collection[str], make: MakeCall) -> None:
        self.offered, self.make = offered, make
        self.calls: list[ExecutedCall] = []
        self.names: Json = {}

    def run(self, body: list[ast.stmt]) -> Record:
        for line in body:
            match line:
                case ast.Expr(ast.Call(ast.Name("answer"), [value], [])):
                    answer = self.evaluate(value)
                    return Record(tuple(self.calls), None, value=answer)
                case ast.Expr(value):
                    self.evaluate(value)
                # Named lists could be nested in each other until they are huge.
                case ast.Assign([ast.Name(name)], value) if not isinstance(value, ast.List | ast.Tuple):
                    if name in self.offered or name == "answer":
                        raise _Stop(None)
                    self.names[name] = self.evaluate(value)
                case _:
                    raise _Stop(None)
        return _no_answer(self.calls)

    def evaluate(self, node: ast.expr) -> Any:
        match node:
            case ast.Name(name) if name in self.names:
                return self.names[name]
            case ast.Constant(str() | int() | None as value):
                return value
            case ast.Constant(float() as value) if math.isfinite(value):
                return value
            case ast.UnaryOp(ast.USub(), ast.Constant(value) as number) if type(value) in (int, float):
                return -self.evaluate(number)
            case ast.List(items) | ast.Tuple(items):
                return [self.evaluate(item) for item in items]
            case ast.Call(ast.Name(tool), args, keywords) if tool in self.offered and all(k.arg for k in keywords):
                given = [self.evaluate(argument) for argument in args]
                return self.call(tool, given, {k.arg or "": self.evaluate(k.value) for k in keywords})
            case ast.Name(name) | ast.Call(ast.Name(name)) if self.is_undefined(name):
                raise _Stop(_error_record(self.calls, f"NameError: name '{name}' is not defined"))
        raise _Stop(None)

    def is_undefined(self, name: str) -> bool:
        known = name in self.names or name in self.offered or name == "answer" or hasattr(builtins, name)
        return not known and not name.startswith("_")

    def call(self, tool: str, args: list[object], kwargs: Json) -> object:
        self.calls.append(self.make(tool, args, kwargs))
        if len(self.calls) > MAX_CALLS:
            raise _Stop(_too_many(self.calls))
        if self.calls[-1].error:
            raise _Stop(_error_record(self.calls, f"ToolError: {self.calls[-1].error}"))
        return self.calls[-1].value


def _exit_record(session: ScriptSession, result: SandboxResult, calls: list[ExecutedCall]) -> Record:
    """The record of a program that ended without an answer."""
    if session.too_long:
        return Record(tuple(calls), PlanOutcome.OUTPUT, "it sent a value that is too large")
    if session.garbled:
        return _error_record(calls, None)
    if overrun := result.status.overrun:
        return Record(tuple(calls), PlanOutcome(overrun), result.status.value)
    return _no_answer(calls) if result.status is Status.OK else _error_record(calls, last_error_line(result))


def _no_answer(calls: list[ExecutedCall]) -> Record:
    return Record(tuple(calls), PlanOutcome.NO_ANSWER, "the program ended without answer(value)")


def _too_many(calls: list[ExecutedCall]) -> Record:
    return Record(tuple(calls), PlanOutcome.TOO_MANY_CALLS, f"expected at most {MAX_CALLS} calls; got more")


def _error_record(calls: list[ExecutedCall], error: object) -> Record:
    """The record of a program that raised an exception, or sent an invalid message."""
    text = error if isinstance(error, str) else "it sent a message that is neither a call nor an answer"
    outcome = PlanOutcome.MEMORY if text.startswith("MemoryError") else PlanOutcome.RUNTIME_ERROR
    return Record(tuple(calls), outcome, text[:300])
