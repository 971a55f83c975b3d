"""Read the published formats of programming problems.

A problem asks for a program that reads and prints (`Stdio`), or for functions and classes that tests call
(`Functions`). Missing fields such as a limit or a name are derived from the others, or the row is rejected.
"""

from __future__ import annotations

import ast
import base64
import builtins
import hashlib
import json
import pickletools
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime
from typing import Any

from palaestra.core.errors import TaskError
from palaestra.core.records import Json, Split
from palaestra.core.settings import short_repr
from palaestra.tasks.code.comparison import admits_any_case, why_undecided
from palaestra.tasks.code.extraction import parse_program
from palaestra.tasks.sources import Row as Row
from palaestra.tasks.sources import get_text

MAX_TESTS = 256 << 20
"""Maximum bytes of the decompressed test cases of a problem."""
_TEXT_OPERATIONS = frozenset({"UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"})
_FRAMING_OPERATIONS = frozenset({"PROTO", "FRAME", "PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE", "STOP"})
"""The pickle operations of a single text."""


@dataclass(frozen=True, slots=True)
class Stdio:
    """Inputs and expected outputs of a program.

    Arguments:
        any_case: letters may be printed in either case.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    any_case: bool = False


@dataclass(frozen=True, slots=True)
class Functions:
    """Tests in Python that call functions of the program.

    Arguments:
        code: statements with assertions; each assertion is a test.
        wanted: the function or class that the program must define.
        takes_function: `code` defines `check(candidate)`, as in HumanEval, which is called with the wanted function.
        given: definitions that the tests use, such as helper functions of the question.
    """

    code: str
    wanted: str
    takes_function: bool = False
    given: str = ""


@dataclass(frozen=True, slots=True)
class CodeProblem:
    """A programming problem.

    Arguments:
        question: the question in the words of the data set.
        begun: the start of the program that the model continues; empty if it writes a whole program.
        seconds, memory: the limits of the problem; 0 for the default.
        solution: the published solution, for lessons and to check the tests.
        origin: the platform of the problem, if known.
        undecided: why the tests cannot decide whether a program is correct; empty if they can.
    """

    id: str
    question: str
    tests: Stdio | Functions
    split: Split = Split.TEST
    begun: str = ""
    skill: str = ""
    subskill: str = ""
    seconds: float = 0.0
    memory: int = 0
    solution: str = ""
    undecided: str = ""
    origin: str = ""

    @property
    def wanted(self) -> str:
        return self.tests.wanted if isinstance(self.tests, Functions) else ""


def human_eval(row: Row, split: Split) -> CodeProblem:
    """OpenAI's HumanEval: a function to complete, and `check(candidate)`."""
    prompt, entry, tests = get_text(row, "prompt"), get_text(row, "entry_point"), get_text(row, "test")
    solution = prompt + str(row.get("canonical_solution", ""))
    given = solution if _uses_definitions(tests, solution) else ""
    return CodeProblem(
        id=get_text(row, "task_id"),
        question="Complete the function.",
        begun=prompt,
        tests=Functions(tests, entry, takes_function=True, given=given),
        split=split,
        skill="functions",
        solution=solution,
    )


def mbpp(row: Row, split: Split) -> CodeProblem:
    """Google's MBPP, the whole (`text`) or the sanitised part (`prompt`): assertions; the first ones are shown."""
    number, tests = row.get("task_id"), row.get("test_list")
    if not isinstance(number, int) or not isinstance(tests, list) or not tests:
        raise TaskError(f"expected task_id and test_list; got {sorted(row)}")
    setup = [*(row.get("test_imports") or []), str(row.get("test_setup_code") or "")]
    assertions = [*tests, *(row.get("challenge_test_list") or [])]
    code = str(row.get("code", "")).replace("\r\n", "\n")
    question = str(row.get("text") or row.get("prompt") or "").strip()
    published = (
        Split.VALIDATION if 511 <= number <= 600 else Split.TRAIN
    )  # The ten few-shot problems are train problems.
    return CodeProblem(
        id=f"mbpp/{number}",
        question=f"{question}\nYour code should pass this test: {tests[0]}",
        tests=Functions("\n".join([*setup, *assertions]), find_called(code, assertions)),
        split=Split.TEST if 11 <= number <= 510 else published,
        skill="functions",
        solution=code,
    )


def code_contests(row: Row, split: Split) -> CodeProblem:
    """DeepMind's CodeContests as published, or as one `problem` with its `tests`."""
    if "tests" in row:
        published, text = row["tests"], get_text(row, "problem")
        seconds, memory = _limits_in(text)
        inputs = published.get("inputs", published.get("input"))
        outputs = published.get("outputs", published.get("output"))
        name = str(row.get("name") or row.get("id") or hashlib.blake2b(text.encode(), digest_size=6).hexdigest())
    else:
        text, name = get_text(row, "description"), get_text(row, "name")
        parts = [row.get(kind) or {} for kind in ("public_tests", "private_tests", "generated_tests")]
        inputs = [case for part in parts for case in part.get("input", [])]
        outputs = [case for part in parts for case in part.get("output", [])]
        limit = row.get("time_limit") or {}
        seconds = float(limit.get("seconds") or 0) + float(limit.get("nanos") or 0) / 1e9
        memory = int(row.get("memory_limit_bytes") or 0)
    tests = replace(_stdio(inputs, outputs, name), any_case=admits_any_case(text))
    return CodeProblem(
        id=f"code-contests/{name}",
        question=text.strip(),
        tests=tests,
        undecided=why_undecided(text, tests.inputs, tests.outputs),
        split=split,
        skill="competition",
        subskill=_difficulty(row),
        seconds=seconds,
        memory=memory,
        solution=_python_solution(row),
    )


def live_code_bench(row: Row, split: Split, *, hidden: bool = True) -> CodeProblem:
    """LiveCodeBench: programs and `Solution` classes, with public and hidden tests.

    Arguments:
        hidden: whether to unpack the hidden tests, which may be megabytes. Without them the problem can be
            asked, but not scored.
    """
    name, text = get_text(row, "question_id"), get_text(row, "question_content")
    starter = str(row.get("starter_code") or "")
    cases = _cases(row.get("public_test_cases"), name)
    if hidden or not cases:
        cases = [*cases, *_cases(row.get("private_test_cases"), name)]
    if not cases:
        raise TaskError(f"problem {name} of LiveCodeBench has no test cases")
    metadata = row.get("metadata") or {}
    metadata = json.loads(metadata) if isinstance(metadata, str) else metadata
    if str(cases[0].get("testtype")) == "functional":
        method = str(metadata.get("func_name") or "")
        if not method:
            raise TaskError(f"problem {name} of LiveCodeBench calls a function, but its metadata names none")
        tests: Stdio | Functions = Functions("\n".join(_format_call(method, case) for case in cases), "Solution")
        text = f"{text}\n\nComplete this class:\n{starter}" if starter else text
    else:
        tests = _stdio([case["input"] for case in cases], [case["output"] for case in cases], name)
    return CodeProblem(
        id=f"livecodebench/{name}",
        question=text.strip(),
        tests=tests,
        split=split,
        skill=str(row.get("platform") or "competition"),
        subskill=str(row.get("difficulty") or ""),
        origin=str(row.get("platform") or ""),
    )


def contest_day(row: Row) -> date | None:
    """The publication date of a problem of LiveCodeBench; `None` if unknown."""
    given = row.get("contest_date")
    try:
        return datetime.fromisoformat(str(given)).date() if given else None
    except ValueError as error:
        raise TaskError(f"expected a date such as 2024-01-31 as 'contest_date'; got {given!r}") from error


FORMATS: Mapping[str, Callable[[Row, Split], CodeProblem]] = {
    "humaneval": human_eval,
    "mbpp": mbpp,
    "code-contests": code_contests,
    "livecodebench": live_code_bench,
}


def _stdio(inputs: object, outputs: object, name: str) -> Stdio:
    if not isinstance(inputs, list) or not isinstance(outputs, list) or len(inputs) != len(outputs) or not inputs:
        raise TaskError(f"problem {name}: expected as many outputs as inputs, and at least one of each")
    return Stdio(tuple(map(str, inputs)), tuple(map(str, outputs)))


def find_called(code: str, assertions: Sequence[str]) -> str:
    """The function of the solution that the assertions call."""
    try:
        tree = ast.parse("\n".join(assertions))
    except SyntaxError as error:
        raise TaskError(f"the tests are not valid Python: {error}") from None
    defined = _definitions(code)
    called = [n.func.id for n in ast.walk(tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)]
    other = next((name for name in called if not hasattr(builtins, name)), "")
    return next((name for name in called if name in defined), other)


def _definitions(code: str) -> set[str]:
    return {node.name for node in parse_program(code).body if isinstance(node, ast.FunctionDef | ast.ClassDef)}


def _uses_definitions(tests: str, solution: str) -> bool:
    """Whether the tests use a function of the solution by name, for example a helper of the prompt."""
    return bool(
        {node.id for node in ast.walk(parse_program(tests)) if isinstance(node, ast.Name)} & _definitions(solution)
    )


def _limits_in(text: str) -> tuple[float, int]:
    """The limits at the end of a question."""
    seconds = re.search(r"Time Limit: \{'seconds': (\d+), 'nanos': (\d+)\}", text)
    memory = re.search(r"Memory Limit: (\d+) Bytes", text)
    time_limit = float(seconds[1]) + float(seconds[2]) / 1e9 if seconds else 0.0
    return time_limit, int(memory[1]) if memory else 0


def _difficulty(row: Row) -> str:
    rating = row.get("cf_rating")
    return f"rating {rating // 400 * 400}" if isinstance(rating, int) and rating > 0 else ""


def _python_solution(row: Row) -> str:
    """The first published solution in Python 3 (language 3)."""
    solutions = row.get("solutions") or {}
    pairs = zip(solutions.get("language", []), solutions.get("solution", []), strict=False)
    return next((str(text) for language, text in pairs if language == 3), "")


def _cases(given: Any, name: str) -> list[Json]:
    """Test cases as a list, as JSON, or as base64 of a compressed pickle of JSON."""
    if not given:
        return []
    try:
        cases = given if isinstance(given, list) else json.loads(given if given.lstrip()[:1] == "[" else _unpack(given))
    except (ValueError, RecursionError, zlib.error) as error:
        expected = "test cases as JSON, or as a compressed pickle of JSON"
        raise TaskError(f"problem {name}: expected {expected}; {error}") from None
    if not isinstance(cases, list):
        raise TaskError(f"problem {name}: expected a list of test cases; got {short_repr(cases)}")
    return cases


def _unpack(given: str) -> str:
    """The text of a compressed pickle. The pickle is parsed without being loaded: loading it could run code or reserve
    any amount of memory.

    Raises:
        ValueError: it is too large, or something else than one text.
    """
    inflate = zlib.decompressobj()
    content = inflate.decompress(base64.b64decode(given), MAX_TESTS)
    if inflate.unconsumed_tail or not inflate.eof:
        raise ValueError(f"they are cut, or have more than {MAX_TESTS >> 20} MiB when decompressed")
    texts = []
    for operation, argument, _ in pickletools.genops(content):
        if operation.name in _TEXT_OPERATIONS:
            texts.append(str(argument))
        elif operation.name not in _FRAMING_OPERATIONS:
            raise ValueError(f"the pickle contains {operation.name}; only text is supported")
    if len(texts) != 1:
        raise ValueError(f"the pickle contains {len(texts)} texts instead of one")
    return texts[0]


def _format_call(method: str, case: Json) -> str:
    """An assertion that calls a method of `Solution`: arguments are JSON, one per line."""
    arguments = [json.loads(line) for line in str(case["input"]).split("\n") if line.strip()]
    expected = json.loads(str(case["output"]))
    return f"assert Solution().{method}({', '.join(map(repr, arguments))}) == {expected!r}"
