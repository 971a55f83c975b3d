"""Run the answer of a model and record its tool calls.

A program runs in one sandbox, the tools run in another. A program that consists of calls only is interpreted instead.
Every call passes through this module, which checks its arguments, records it, has it made and returns the result. So a
program cannot forge the record, and no sandbox contains the plan or the expected answer.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from palaestra.core.errors import suggest
from palaestra.sandbox.base import MIB, Limits, SandboxResult, Status, make_sandbox
from palaestra.sandbox.rpc import Script, ScriptSession, last_error_line
from palaestra.tasks.tools.extraction import Asked, CallReference
from palaestra.tasks.tools.library import LIBRARY
from palaestra.tasks.tools.library.tool import ArgumentError
from palaestra.tasks.tools.matching import PlanOutcome
from palaestra.tasks.tools.plans import ExecutedCall
from palaestra.tasks.tools.records import MOST_CALLS, Record, with_error, with_too_many, without_answer
from palaestra.tasks.tools.straight_line import follow
from palaestra.tasks.tools.workers import MAX_BYTES, ToolWorkers

if TYPE_CHECKING:
    from palaestra.sandbox.base import Sandbox

PROGRAM = Script("palaestra.tasks.tools.inside", ("program",), MAX_BYTES, ascii=False)
NO_MESSAGE = "it sent something that is neither a call nor an answer"
OUTCOMES = {
    Status.WALL_TIME: PlanOutcome.TIME, Status.CPU_TIME: PlanOutcome.TIME, Status.MEMORY: PlanOutcome.MEMORY,
    Status.OUTPUT: PlanOutcome.OUTPUT,
}  # fmt: skip


class ToolJudge:
    """Runs programs and plans.

    Arguments:
        sandbox: where programs and tools run; by default bubblewrap, started on first use.
        seconds: CPU time limit of a program.
        memory: memory limit of a program in bytes.
    """

    def __init__(self, sandbox: Sandbox | None = None, seconds: float = 2.0, memory: int = 256 * MIB) -> None:
        self._sandbox, self._making = sandbox, threading.Lock()
        self.limits = Limits(
            wall_seconds=2 * seconds + 1, cpu_seconds=seconds, memory=memory, processes=16, output=MIB, disk=16 * MIB
        )
        self.workers = ToolWorkers(self.sandbox)

    def sandbox(self) -> Sandbox:
        """The sandbox, which is created on first use."""
        with self._making:
            if self._sandbox is None:
                self._sandbox = make_sandbox()
        return self._sandbox

    def run_program(self, code: str, offered: Sequence[str]) -> Record:
        """Run a program that calls tools and ends with `answer(value)`. A program of calls only is interpreted.

        Raises:
            SandboxError: a sandbox failed, which says nothing about the program.
            TaskError: a tool failed, which says nothing about the program.
        """
        read = follow(code, offered, lambda tool, args, kwargs: self._make(tool, args, kwargs, offered))
        return read if read is not None else self.run_in_sandbox(code, offered)

    def run_in_sandbox(self, code: str, offered: Sequence[str]) -> Record:
        """Run any program in its own sandbox."""
        calls: list[ExecutedCall] = []
        session = PROGRAM.start(self.sandbox(), self.limits)
        try:
            session.send({"code": code, "tools": list(offered)})
            last = self._serve(session, offered, calls)
        finally:
            result = session.close()
        if last is None:
            return _exit_record(session, result, calls)
        if len(calls) > MOST_CALLS:
            return with_too_many(calls)
        if last.keys() == {"answer"}:
            return Record(tuple(calls), None, value=last["answer"])
        error = last.get("error")
        return with_error(calls, error if isinstance(error, str) else NO_MESSAGE)

    def run_calls(self, calls: Sequence[Asked], offered: Sequence[str]) -> Record:
        """Make calls in order, with references to earlier results. The result of the last call is the answer.

        Raises:
            SandboxError: the sandbox of the tools failed.
        """
        executed: list[ExecutedCall] = []
        results: dict[str, Any] = {}
        if len(calls) > MOST_CALLS:
            return Record((), PlanOutcome.TOO_MANY_CALLS, f"expected at most {MOST_CALLS} calls; got more")
        for call in calls:
            unknown = sorted(_references(call.arguments) - results.keys())
            if unknown:
                later = unknown[0] in {other.name for other in calls}
                fault = PlanOutcome.WRONG_ORDER if later else PlanOutcome.WRONG_ARGUMENTS
                why = "is not made before it" if later else "is none of the calls"
                return Record(tuple(executed), fault, f"{call.name} needs the result of {unknown[0]}, which {why}")
            executed.append(self._make(call.tool, (), _resolve(call.arguments, results), offered))
            if executed[-1].error:
                known = call.tool in offered
                fault = PlanOutcome.WRONG_ARGUMENTS if known else PlanOutcome.WRONG_CALLS
                return Record(tuple(executed), fault, executed[-1].error)
            results[call.name] = executed[-1].value
        return Record(tuple(executed), None, value=executed[-1].value)

    def close(self) -> None:
        """Close the sandbox of the tools, which otherwise ends by itself after some time."""
        self.workers.close()

    def _serve(
        self, session: ScriptSession, offered: Sequence[str], calls: list[ExecutedCall]
    ) -> dict[str, Any] | None:
        """Answer the calls of a program. Returns the first message that is not a call, or the call above the limit."""
        while (message := session.receive()) is not None:
            tool, args, kwargs = message.get("call"), message.get("args"), message.get("kwargs")
            if not isinstance(tool, str) or not isinstance(args, list) or not isinstance(kwargs, dict):
                return message
            calls.append(self._make(tool, args, kwargs, offered))
            if len(calls) > MOST_CALLS:
                return message
            session.send({"error": calls[-1].error} if calls[-1].error else {"value": calls[-1].value})
        return None

    def _make(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], offered: Sequence[str]) -> ExecutedCall:
        raw = {**{str(place): value for place, value in enumerate(args)}, **kwargs}
        if name not in offered:
            return ExecutedCall(
                name[:60], raw, error=f"no tool '{name[:60]}' was offered; {suggest(name[:60], offered)}"
            )
        tool = LIBRARY[name]
        try:
            arguments = tool.bind(args, kwargs)
        except ArgumentError as error:
            return ExecutedCall(name, raw, error=str(error))
        return self.workers.call(tool, arguments)


def _exit_record(session: ScriptSession, result: SandboxResult, calls: list[ExecutedCall]) -> Record:
    """The record of a program that ended without an answer."""
    if session.channel.too_long:
        return Record(tuple(calls), PlanOutcome.OUTPUT, "it sent a value that is too large")
    if session.channel.garbled:
        return with_error(calls, NO_MESSAGE)
    if result.status in OUTCOMES:
        return Record(tuple(calls), OUTCOMES[result.status], result.status.value)
    if result.status is Status.OK:
        return without_answer(calls)
    return with_error(calls, last_error_line(result))


def _references(value: Any) -> set[str]:
    if isinstance(value, CallReference):
        return {value.name}
    inner: Collection[Any] = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return {name for item in inner for name in _references(item)}


def _resolve(value: Any, results: Mapping[str, Any]) -> Any:
    if isinstance(value, CallReference):
        return results[value.name]
    if isinstance(value, dict):
        return {name: _resolve(item, results) for name, item in value.items()}
    return [_resolve(item, results) for item in value] if isinstance(value, list) else value
