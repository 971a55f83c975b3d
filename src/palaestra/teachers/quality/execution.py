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
from typing import TYPE_CHECKING, Any

from palaestra.core.errors import TaskError
from palaestra.core.records import Example, Failure, FailureCause, ImagePart, Score
from palaestra.runs.files import from_json
from palaestra.tasks.base import Task, get_hooks
from palaestra.tasks.numerals import to_figures
from palaestra.tasks.texts import words
from palaestra.teachers.quality.answers import bare
from palaestra.teachers.quality.base import KEPT, CheckResult, Context, Ruling, drop, not_judged

if TYPE_CHECKING:
    from palaestra.tasks.code.formats import Functions, Stdio
    from palaestra.tasks.code.judge import ProgramJudge


NO_PROGRAM, NO_PLAN, BAD_TESTS = "no program", "no plan", "invalid tests"
FAILED, STOPPED = "fails its tests", "does not run"
FOREIGN_PLAN = "plan of another request"
BY_EXECUTION = "executed"
"""The program passes its tests, or the calls of the plan run."""
NO_TESTS, NOTHING_TO_RUN = "no tests: parsed only", "nothing to run"

WORKERS = 2
"""Number of programs that run concurrently."""
_DEFINED = re.compile(r"^(?:async def|def|class)\s+(\w+)", re.MULTILINE)
Runner = Callable[[Example], CheckResult | Failure]


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
            return [not_judged(NOTHING_TO_RUN)] * len(examples)

        def run_safely(example: Example) -> CheckResult | Failure:
            try:
                return run(example)
            except Exception as error:  # The error affects one example only.
                return Failure(FailureCause.SCORER, f"{type(error).__name__}: {error}")

        with ThreadPoolExecutor(WORKERS) as pool:
            return list(pool.map(run_safely, examples))

    def _runner(self, task: Task) -> Runner | None:
        from palaestra.tasks.code.judge import ProgramJudge
        from palaestra.tasks.code.task import CodeTask
        from palaestra.tasks.tools.task import ToolsSkills

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
        return not_judged(NOTHING_TO_RUN)
    if isinstance(outcome, Failure):
        return outcome
    evidence = "; ".join(f"{name}: {value}" for name, value in outcome.evidence.items() if value)
    if outcome.value < 1.0:
        return drop(STOPPED, evidence[:300], verified=BY_EXECUTION)
    return CheckResult(verified=BY_EXECUTION)


def _program(example: Example, judge: ProgramJudge) -> CheckResult | Failure:
    brought = example.metadata
    wanted, tests = str(brought.get("name", "")), brought.get("tests")
    if not tests:
        likely = [wanted] if wanted else ["", *_DEFINED.findall(example.response)]
        return CheckResult(Ruling.KEPT, NO_TESTS) if _find(example.response, likely)[0] else drop(NO_PROGRAM, wanted)
    names = [""] if isinstance(tests, Mapping) else read_calls(str(tests))
    if isinstance(names, str):
        return drop(BAD_TESTS, names)
    code, tested = _find(example.response, [wanted] if wanted else names)
    if not code:
        return drop(NO_PROGRAM, f"none that defines {wanted or ', '.join(names)}" if any(names) else "")
    if tested not in names:
        return drop(BAD_TESTS, f"they do not call {tested}")
    suite = read_tests(tests, tested)
    if isinstance(suite, str):
        return drop(BAD_TESTS, suite)
    judgement = judge.judge(suite, code)
    if isinstance(judgement, Failure):
        if judgement.cause is FailureCause.SANDBOX:
            return judgement
        return drop(BAD_TESTS, judgement.message)  # The tests come with the example.
    if not judgement.passed:
        return drop(FAILED, f"{judgement.outcome.value}: {judgement.detail}", verified=BY_EXECUTION)
    return CheckResult(verified=BY_EXECUTION)


def _find(response: str, names: Sequence[str]) -> tuple[str, str]:
    """Find the program in a response that defines one of `names`. Returns the code and the first such name."""
    from palaestra.tasks.code.extraction import extract_code

    programs = ((extract_code(response, name).code, name) for name in names)
    return next(((code, name) for code, name in programs if code), ("", names[0]))


def read_tests(brought: Any, tested: str) -> Functions | Stdio | str:
    """Read the tests of an example. Returns a message if they are invalid.

    Arguments:
        brought: assertions that call the program; or `inputs` with the expected `outputs`.
        tested: the function or class that the assertions call.
    """
    from palaestra.tasks.code.formats import Functions, Stdio

    if not isinstance(brought, Mapping):
        return Functions(str(brought), tested)
    given, printed = brought.get("inputs", ()), brought.get("outputs", ())
    if not given or len(given) != len(printed) or not all(isinstance(text, str) for text in (*given, *printed)):
        return "expected as many outputs as inputs, all of them texts"
    return Stdio(tuple(given), tuple(printed))


def read_calls(tests: str) -> list[str] | str:
    """List the names that assertions call, without builtins. Returns a message if the assertions are invalid.

    >>> read_calls("assert sorted(f(3)) == g(4)"), read_calls("assert 1 + 1 == 2")
    (['f', 'g'], 'they call nothing')
    """
    try:
        parsed = _parse(tests)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return f"they do not parse: {error}"
    if not any(isinstance(node, ast.Assert) for node in ast.walk(parsed)):
        return "they assert nothing"
    called = [node.func for node in ast.walk(parsed) if isinstance(node, ast.Call)]
    named = [node for node in called if isinstance(node, ast.Name) and not hasattr(builtins, node.id)]
    named.sort(key=lambda node: (node.lineno, node.col_offset))
    return list(dict.fromkeys(node.id for node in named)) or "they call nothing"


def _parse(source: str) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Invalid escapes in generated code only cause warnings.
        return ast.parse(source)


def _plan(example: Example, task: Any) -> CheckResult:
    """Run the calls of a plan. The scorer decides whether they are the right ones."""
    from palaestra.tasks.tools.extraction import extract_calls, extract_program
    from palaestra.tasks.tools.library import LIBRARY

    offered = list(LIBRARY)
    if task.answer_form == "calls":
        calls = extract_calls(example.response)
        record = task.judge.run_calls(calls, offered) if calls else None
    else:
        code = extract_program(example.response)
        record = task.judge.run_program(code, offered) if code else None
    if record is None:
        return drop(NO_PLAN)
    if record.fault is not None:
        return drop(STOPPED, f"{record.fault.value}: {record.detail}")
    if not record.calls:
        return drop(NO_PLAN, "it calls no tool")
    values = [value for call in record.calls[:1] for value in _list_values(call.arguments)]
    request = " ".join(to_figures(words(example.messages[-1].text.partition("\n")[2])))
    if values and not any(" ".join(to_figures(words(value))) in request for value in values):
        return drop(FOREIGN_PLAN, f"the request has none of {', '.join(values)}"[:300])
    return CheckResult(verified=BY_EXECUTION)


def _list_values(arguments: Any) -> list[str]:
    """The texts and numbers in the arguments of a call."""
    if isinstance(arguments, Mapping):
        return [value for part in arguments.values() for value in _list_values(part)]
    if isinstance(arguments, list | tuple):
        return [value for part in arguments for value in _list_values(part)]
    return [str(arguments)] if arguments not in ("", None) and not isinstance(arguments, bool) else []


UNREADABLE, IMPOSSIBLE, DIFFERENT = "an image cannot be read", "the scene cannot be drawn", "the image is not the scene"
BLANK = "the image shows nothing"
NO_IMAGE, NO_SCENE = "no image", "no scene to compare with"
IN_WORDS = "generated from words, which cannot be verified"


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
        return drop(DIFFERENT, "there is a scene and no image") if described else not_judged(NO_IMAGE)
    from palaestra.engines.images import ImageError, load_image
    from palaestra.tasks.vision.render import agrees
    from palaestra.tasks.vision.scene import Scene

    if any(url.startswith(("http://", "https://")) for url in urls):
        return not_judged("an image is on the web")
    try:
        images = [load_image(url) for url in urls]
    except ImageError as error:
        return drop(UNREADABLE, str(error))
    if described is None and example.metadata.get("description"):
        # The last image belongs to the question; earlier ones belong to worked problems.
        plain = all(low == high for low, high in images[-1].getextrema())  # type: ignore[misc]
        return drop(BLANK) if plain else not_judged(IN_WORDS)
    if described is None:
        return CheckResult(Ruling.KEPT, NO_SCENE)
    try:
        scene = from_json(Scene, json.dumps(described))
        return KEPT if agrees(images[-1], scene) else drop(DIFFERENT)
    except (TaskError, ValueError, TypeError) as error:
        return drop(IMPOSSIBLE, str(error).splitlines()[0])
