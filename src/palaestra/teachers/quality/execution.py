"""Checks that run or draw: `executes` runs programs and tool plans in the sandbox, `picture` compares images with scenes.

Other tasks support `executes` with one method, which runs the response of an example:

    def execute_example(self, example: Example) -> Score | Failure | None

A score of 1 is kept; `None` means that there is nothing to run.
"""

from __future__ import annotations

import ast
import builtins
import json
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from palaestra.core.errors import TaskError
from palaestra.core.records import Example, Failure, FailureCause, ImagePart, Score, Values
from palaestra.runs.files import from_json
from palaestra.tasks.base import Task, get_hooks
from palaestra.tasks.code.extraction import extract_code
from palaestra.tasks.code.formats import Functions, Stdio
from palaestra.tasks.code.judge import ProgramJudge
from palaestra.tasks.code.task import CodeTask
from palaestra.tasks.readings import to_figures
from palaestra.tasks.texts import words
from palaestra.tasks.tools.extraction import extract_calls, extract_program
from palaestra.tasks.tools.library import LIBRARY
from palaestra.tasks.tools.task import ToolsSkills
from palaestra.tasks.vision.scene import Scene
from palaestra.teachers.quality.answers import bare
from palaestra.teachers.quality.base import KEPT, CheckResult, Context, Ruling, drop, not_judged

_NO_PROGRAM, _NO_PLAN, _BAD_TESTS = "no program", "no plan", "invalid tests"
_FAILED, _STOPPED = "fails its tests", "does not run"
_FOREIGN_PLAN = "plan of another request"
_BY_EXECUTION = "executed"
"""The program passes its tests, or the calls of the plan run."""
_NO_TESTS, _NOTHING_TO_RUN = "no tests: parsed only", "nothing to run"

_WORKERS = 2
"""Number of programs that run concurrently."""
_DEFINED = re.compile(r"^(?:async def|def|class)\s+(\w+)", re.MULTILINE)
_Runner = Callable[[Example], CheckResult | Failure]


class Executes:
    """Drops programs that fail their tests (`tests` in the metadata), and plans whose calls do not run.

    Arguments:
        judge: runs programs; default: a new one.
    """

    name = "executes"
    rank = 40
    needed = True

    def __init__(self, judge: ProgramJudge | None = None) -> None:
        self._programs = judge

    def judge(self, examples: Sequence[Example], context: Context) -> list[CheckResult | Failure]:
        run = self._runner(bare(context.task))
        if run is None:
            return [not_judged(_NOTHING_TO_RUN)] * len(examples)

        def run_safely(example: Example) -> CheckResult | Failure:
            try:
                return run(example)
            except Exception as error:  # The error affects one example only.
                return Failure(FailureCause.SCORER, f"{type(error).__name__}: {error}")

        with ThreadPoolExecutor(_WORKERS) as pool:
            return list(pool.map(run_safely, examples))

    def _runner(self, task: Task) -> _Runner | None:
        hooks = get_hooks(task)
        if hooks.overrides("execute_example"):
            return lambda example: _to_result(hooks.execute_example(example))
        if isinstance(task, CodeTask):
            judge = self._programs or ProgramJudge()
            return lambda example: _program(example, judge)
        if isinstance(task, ToolsSkills):
            return lambda example: _plan(example, task)
        return None


def _to_result(outcome: Score | Failure | None) -> CheckResult | Failure:
    if outcome is None:
        return not_judged(_NOTHING_TO_RUN)
    if isinstance(outcome, Failure):
        return outcome
    evidence = "; ".join(f"{name}: {value}" for name, value in outcome.evidence.items() if value)
    if outcome.value < 1.0:
        return drop(_STOPPED, evidence[:300], verified=_BY_EXECUTION)
    return CheckResult(verified=_BY_EXECUTION)


def _program(example: Example, judge: ProgramJudge) -> CheckResult | Failure:
    brought = example.metadata
    wanted, tests = str(brought.get("name", "")), brought.get("tests")
    if not tests:
        likely = [wanted] if wanted else ["", *_DEFINED.findall(example.response)]
        return CheckResult(Ruling.KEPT, _NO_TESTS) if _find(example.response, likely)[0] else drop(_NO_PROGRAM, wanted)
    try:
        names = [""] if isinstance(tests, Mapping) else _read_calls(str(tests))
        code, tested = _find(example.response, [wanted] if wanted else names)
        if not code:
            return drop(_NO_PROGRAM, f"none that defines {wanted or ', '.join(names)}" if any(names) else "")
        if tested not in names:
            raise ValueError(f"they do not call {tested}")
        suite = _read_tests(tests) if isinstance(tests, Mapping) else Functions(str(tests), tested)
    except ValueError as error:
        return drop(_BAD_TESTS, str(error))
    verdict = judge.judge(suite, code)
    if isinstance(verdict, Failure):
        if verdict.cause is FailureCause.SANDBOX:
            return verdict
        return drop(_BAD_TESTS, verdict.message)  # The tests come with the example.
    if not verdict.passed:
        return drop(_FAILED, f"{verdict.outcome.value}: {verdict.detail}", verified=_BY_EXECUTION)
    return CheckResult(verified=_BY_EXECUTION)


def _find(response: str, names: Sequence[str]) -> tuple[str, str]:
    """Find the program in a response that defines one of `names`. Returns the code and the first such name."""
    programs = ((extract_code(response, name).code, name) for name in names)
    return next(((code, name) for code, name in programs if code), ("", names[0]))


def _read_tests(tests: Values) -> Stdio:
    """Read tests of `inputs` with the expected `outputs`. Raises `ValueError` if they are invalid."""
    given, printed = tests.get("inputs", ()), tests.get("outputs", ())
    if not given or len(given) != len(printed) or not all(isinstance(text, str) for text in (*given, *printed)):
        raise ValueError("expected as many outputs as inputs, all of them texts")
    return Stdio(tuple(given), tuple(printed))


def _read_calls(tests: str) -> list[str]:
    """List the names that assertions call, without builtins. Raises `ValueError` if the assertions are invalid.

    >>> _read_calls("assert sorted(f(3)) == g(4)")
    ['f', 'g']
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Invalid escapes in generated code only cause warnings.
            nodes = list(ast.walk(ast.parse(tests)))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"they do not parse: {error}") from error
    if not any(isinstance(node, ast.Assert) for node in nodes):
        raise ValueError("they assert nothing")
    called = [node.func for node in nodes if isinstance(node, ast.Call)]
    named = [node for node in called if isinstance(node, ast.Name) and not hasattr(builtins, node.id)]
    named.sort(key=lambda node: (node.lineno, node.col_offset))
    if not named:
        raise ValueError("they call nothing")
    return list(dict.fromkeys(node.id for node in named))


def _plan(example: Example, task: Any) -> CheckResult:
    """Run the calls of a plan. The scorer decides whether they are the right ones."""
    by_calls = task.answer_form == "calls"
    plan = (extract_calls if by_calls else extract_program)(example.response)
    if not plan:
        return drop(_NO_PLAN)
    record = (task.judge.run_calls if by_calls else task.judge.run_program)(plan, list(LIBRARY))
    if record.fault is not None:
        return drop(_STOPPED, f"{record.fault.value}: {record.detail}")
    if not record.calls:
        return drop(_NO_PLAN, "it calls no tool")
    values = [value for call in record.calls[:1] for value in _list_values(call.arguments)]
    request = " ".join(to_figures(words(example.messages[-1].text.partition("\n")[2])))
    if values and not any(" ".join(to_figures(words(value))) in request for value in values):
        return drop(_FOREIGN_PLAN, f"the request has none of {', '.join(values)}"[:300])
    return CheckResult(verified=_BY_EXECUTION)


def _list_values(arguments: Any) -> list[str]:
    """The texts and numbers in the arguments of a call."""
    parts = arguments.values() if isinstance(arguments, Mapping) else arguments
    if isinstance(arguments, Mapping | list | tuple):
        return [value for part in parts for value in _list_values(part)]
    return [str(arguments)] if arguments not in ("", None) and not isinstance(arguments, bool) else []


_UNREADABLE, _IMPOSSIBLE = "an image cannot be read", "the scene cannot be drawn"
_DIFFERENT, _BLANK = "the image is not the scene", "the image shows nothing"
_NO_IMAGE, _NO_SCENE = "no image", "no scene to compare with"
_IN_WORDS = "generated from words, which cannot be verified"


class Picture:
    """Drops an example whose image is damaged or differs from its scene (`scene` in the metadata).

    An image that was generated from a text (`description`) cannot be verified. It is dropped if it is damaged or has only
    one colour; otherwise it counts as not judged.
    """

    name = "picture"
    rank = 30
    needed = True

    def judge(self, examples: Sequence[Example], context: Context) -> list[CheckResult]:
        return [_judge(example) for example in examples]


def _judge(example: Example) -> CheckResult:
    described = example.metadata.get("scene")
    contents = [m.content for m in example.messages if not isinstance(m.content, str)]
    urls = [part.url for content in contents for part in content if isinstance(part, ImagePart)]
    if not urls:
        return drop(_DIFFERENT, "there is a scene and no image") if described else not_judged(_NO_IMAGE)
    from palaestra.models.images import ImageError, load_image
    from palaestra.tasks.vision.render import agrees

    if any(url.startswith(("http://", "https://")) for url in urls):
        return not_judged("an image is on the web")
    try:
        images = [load_image(url) for url in urls]
    except ImageError as error:
        return drop(_UNREADABLE, str(error))
    if described is None and example.metadata.get("description"):
        # The last image belongs to the question; earlier ones belong to worked problems.
        plain = all(low == high for low, high in images[-1].getextrema())  # type: ignore[misc]
        return drop(_BLANK) if plain else not_judged(_IN_WORDS)
    if described is None:
        return CheckResult(Ruling.KEPT, _NO_SCENE)
    try:
        scene = from_json(Scene, json.dumps(described))
        return KEPT if agrees(images[-1], scene) else drop(_DIFFERENT)
    except (TaskError, ValueError, TypeError) as error:
        return drop(_IMPOSSIBLE, str(error).splitlines()[0])
