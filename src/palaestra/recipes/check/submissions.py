"""The research task that is checked, and variants of its own solutions: equivalent, malformed, idle and cheating ones."""

from __future__ import annotations

import ast
import csv
import io
import json
import math
import os
import pickle
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from palaestra.core.errors import PalaestraError
from palaestra.recipes.check.subjects import Subject
from palaestra.research.judge.evaluation import EvaluationSplit, SubmissionJudge, make_judge, sandbox_for
from palaestra.research.tasks.task import Direction, Grade, JudgeResult, ResearchTask, read_files
from palaestra.research.workspace.workspace import (
    MeasuredSolution,
    Workspace,
    measure,
    read_baseline,
    submission_files,
)
from palaestra.sandbox.base import Sandbox, SandboxCommand

Files = Mapping[str, bytes]
Variants = Iterator[tuple[str, dict[str, bytes]]]
"""Names of changes, and the changed submissions."""
_MAX_CHANGE = 4 << 20
"""Bytes of a file that is read to change it."""


def estimate_evaluation(subject: Subject) -> tuple[float, bool]:
    """Return the seconds of one evaluation of a research task, and whether they were measured; otherwise the task's limit."""
    try:
        task = subject.research() if subject.research is not None else None
        baseline = read_baseline(task) if task is not None else None
    except (PalaestraError, OSError):
        return 0.0, False
    if task is None:
        return 0.0, False
    return (task.limits.evaluation_seconds, False) if baseline is None else (baseline.test.seconds, True)


class ResearchPart:
    """A research task, its judge, and its own solutions, each measured once."""

    def __init__(self, subject: Subject) -> None:
        assert subject.research is not None
        self.subject, self._load, self.seed = subject, subject.research, subject.seed
        self.commands: list[SandboxCommand] = []
        """What the sandbox was started with."""

    @cached_property
    def task(self) -> ResearchTask:
        task = self._load()
        # A Harbor task would reject itself with a fault that a check shall report.
        return task.model_copy(update={"check": False}) if "check" in type(task).model_fields else task

    @cached_property
    def sandbox(self) -> Sandbox:
        """The sandbox of the task; it records what it is started with."""
        sandbox = sandbox_for(self.task)
        start = sandbox.start

        def record(command: SandboxCommand) -> Any:
            self.commands.append(command)
            return start(command)

        sandbox.start = record  # type: ignore[method-assign]
        return sandbox

    @cached_property
    def judge(self) -> SubmissionJudge:
        return make_judge(self.task, self.sandbox)

    @cached_property
    def baseline(self) -> MeasuredSolution:
        return measure(self.task, self.sandbox, self.judge, self.task.baseline, {})

    @cached_property
    def has_reference(self) -> bool:
        return bool(self.task.reference_files())

    @cached_property
    def reference(self) -> MeasuredSolution:
        return measure(self.task, self.sandbox, self.judge, self.task.reference, self.task.reference_files())

    @cached_property
    def best(self) -> MeasuredSolution:
        """The reference, or the baseline of a task without one."""
        return self.reference if self.has_reference else self.baseline

    @cached_property
    def main(self) -> str:
        """The submitted program; empty if none is required."""
        return next((name for name in self.task.submission.files if name.endswith(".py")), "")

    @property
    def takes_workspace(self) -> bool:
        """Whether the whole workspace is submitted."""
        return "*" in self.task.submission.files

    @cached_property
    def evaluator(self) -> str:
        """The source of the evaluator; empty for a task of another format."""
        path = self.task.folder / self.task.evaluator
        return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""

    def open_workspace(self, files: Files | None = None) -> Workspace:
        return Workspace(self.task, self.sandbox, self.judge.data, files)

    def score(self, files: Files, split: EvaluationSplit = "test") -> JudgeResult:
        """Judge a submission with a judge that has not seen it."""
        return self.make_judge().judge(files, split)

    def make_judge(self) -> SubmissionJudge:
        """A new judge, which ends a submission that takes far longer than the best solution."""
        limits, best = self.task.limits, self.__dict__.get("reference") or self.__dict__.get("baseline")
        seconds = limits.evaluation_seconds if best is None else 5.0 + 5 * best.test.seconds
        shorter = limits.model_copy(update={"evaluation_seconds": min(limits.evaluation_seconds, seconds)})
        return make_judge(self.task.model_copy(update={"limits": shorter}), self.sandbox)

    def gain(self, result: JudgeResult) -> float | None:
        """The gain of a test score over the baseline, as a fraction of the best solution's; `None` without a score."""
        metric, base = self.task.metric, self.baseline.test.score
        best = metric.gain(self.best.test.score, base) if self.has_reference else 1.0
        return metric.gain(result.score, base) / best if isinstance(result, Grade) and best > 0 else None

    @cached_property
    def floor(self) -> float:
        """The gain that a submission without a score is rewarded with, as a fraction of the best solution's."""
        metric, base = self.task.metric, self.baseline.test.score
        best = metric.gain(self.best.test.score, base) if self.has_reference else 1.0
        return metric.reward(None, base) / best if best > 0 else 0.0

    def read_public(self) -> dict[str, bytes]:
        """The data that agents see, by their path inside."""
        shown = {}
        for inside, outside in self.task.mounts(self.judge.data, judging=False).items():
            path = Path(outside)
            files = read_files(path) if path.is_dir() else {"": path.read_bytes()}
            shown.update({f"{inside}/{name}".rstrip("/"): content for name, content in files.items()})
        return shown


# Equivalent and malformed submissions


def read_table(name: str, content: bytes) -> list[list[str]] | None:
    """The rows of a table with a header; `None` for another file."""
    if not name.endswith((".csv", ".tsv")) or len(content) > _MAX_CHANGE:
        return None
    lines = io.StringIO(content.decode("utf-8-sig", "replace"), newline="")
    rows = [row for row in csv.reader(lines, delimiter="\t" if name.endswith(".tsv") else ",") if row]
    return rows if len(rows) > 2 and len({len(row) for row in rows}) == 1 and len(rows[0]) > 1 else None


def _write_table(name: str, rows: list[list[str]]) -> bytes:
    out = io.StringIO(newline="")
    csv.writer(out, delimiter="\t" if name.endswith(".tsv") else ",", lineterminator="\n").writerows(rows)
    return out.getvalue().encode()


def _read_json(name: str, content: bytes) -> Any:
    try:
        return json.loads(content) if name.endswith(".json") and len(content) <= _MAX_CHANGE else None
    except ValueError:
        return None


def list_equivalent(part: ResearchPart) -> Variants:
    """Other forms of the best solution: rows with ids in another order, other line ends, a comment in code."""
    files = submission_files(part.best)
    for name, content in files.items():
        rows = read_table(name, content)
        if rows and len({row[0] for row in rows}) == len(rows):
            body = rows[1:]
            random.Random(part.seed).shuffle(body)
            yield f"{name} with its rows in another order", {**files, name: _write_table(name, [rows[0], *body])}
            yield f"{name} with other line ends", {**files, name: content.replace(b"\r", b"").replace(b"\n", b"\r\n")}
        if (value := _read_json(name, content)) is not None:
            yield f"{name} with another layout", {**files, name: json.dumps(value, indent=3, sort_keys=True).encode()}
        if name == part.main:
            yield f"{name} with a comment", {**files, name: content + b"\n# An equivalent program.\n"}


def list_malformed(part: ResearchPart) -> Variants:
    """The best solution with one required file missing, too large, or with content that no reader should accept."""
    files = submission_files(part.best)
    for name in () if part.takes_workspace else part.task.submission.files:
        content = files[name]
        others = {other: kept for other, kept in files.items() if other != name}
        yield f"{name} is missing", others
        yield f"{name} is empty", {**others, name: b""}
        yield f"{name} has binary content", {**others, name: bytes(range(256)) * 4}
        yield f"{name} is cut in half", {**others, name: content[: len(content) // 2] + b"\xff("}
        for what, changed in chain(
            _spoil_table(name, content), _spoil_json(name, content), _spoil_numbers(name, content)
        ):
            yield f"{name} {what}", {**others, name: changed}
        if name.endswith(".py"):
            for what, code in spoil_code(content.decode("utf-8", "replace"), part.evaluator, _SPOILED):
                yield f"{name} {what}", {**others, name: code.encode()}
        if part.task.submission.largest <= 64 << 20:
            yield f"{name} is too large", {**others, name: content + b"\n" * part.task.submission.largest}


_WRONG = ("nan", "inf", "-inf", "1e999", "", "text that is no value")


def _spoil_table(name: str, content: bytes) -> Iterator[tuple[str, bytes]]:
    rows = read_table(name, content)
    if rows is None:
        return
    head, body = rows[0], rows[1:]
    changes: list[tuple[str, list[list[str]]]] = [
        (f"has a first value {value!r}", [[*body[0][:-1], value], *body[1:]]) for value in _WRONG
    ]
    changes += [(f"has {value!r} as every value", [[*row[:-1], value] for row in body]) for value in _WRONG[:2]]
    changes += [
        ("has no rows", []),
        ("has half of the rows", body[: len(body) // 2]),
        ("has a row twice", [*body, body[0]]),
    ]
    changes += [("has a last row with another id", [*body[:-1], ["another id", *body[-1][1:]]])]
    for what, changed in changes:
        yield what, _write_table(name, [head, *changed])
    yield "lacks its last column", _write_table(name, [row[:-1] for row in rows])


def _spoil_json(name: str, content: bytes) -> Iterator[tuple[str, bytes]]:
    value = _read_json(name, content)
    if value is None:
        return
    yield "has another shape", b"{}" if isinstance(value, list) else b"[]"
    yield "is null", b"null"
    wrong: Any
    for wrong in (math.nan, math.inf, "text", [[]]):
        yield f"has {wrong!r} as every number", json.dumps(_replace_numbers(value, wrong)).encode()


def _replace_numbers(value: Any, new: object) -> Any:
    if isinstance(value, dict):
        return {key: _replace_numbers(item, new) for key, item in value.items()}
    if isinstance(value, list):
        return [_replace_numbers(item, new) for item in value]
    return new if isinstance(value, int | float) and not isinstance(value, bool) else value


def _spoil_numbers(name: str, content: bytes) -> Iterator[tuple[str, bytes]]:
    """Variants of a text that consists of numbers, or of an array."""
    if name.endswith(".npy"):
        array = np.load(io.BytesIO(content))
        for what, changed in (("lacks its last row", array[:-1]), ("has only NaN", np.full(array.shape, np.nan))):
            out = io.BytesIO()
            np.save(out, changed)
            yield what, out.getvalue()
    words = content.decode("utf-8", "replace").split()
    if 0 < len(words) < 100_000 and all(re.fullmatch(r"[-+\d.eE]+", word) for word in words):
        for wrong in _WRONG[:4]:
            yield f"has {wrong!r} as its numbers", "\n".join([wrong] * len(words)).encode()


_WRAPPER = """

def _wrap(function, calls=[]):
    def replace(value, new):
        if isinstance(value, (list, tuple)):
            return [replace(item, new) for item in value]
        return {{key: replace(item, new) for key, item in value.items()}} if isinstance(value, dict) else new

    def wrapped(*arguments, **named):
        {body}

    return wrapped


for _name in {names!r}:
    globals()[_name] = _wrap(globals()[_name])
"""
_CALL = "function(*arguments, **named)"
_SPOILED = {
    "returns nothing": "return None",
    "returns NaN": f"return replace({_CALL}, float('nan'))",
    "returns infinite numbers": f"return replace({_CALL}, float('inf'))",
    "returns other types": f"return replace({_CALL}, {{'a': 'text'}})",
    "returns fewer values": f"value = {_CALL}; return value[:-1] if isinstance(value, (list, tuple)) else []",
    "returns a huge number": f"return replace({_CALL}, 10 ** 5000)",
    "raises": "raise ValueError('no answer')",
}
_IDLE = {
    "always returns its first answer": f"calls or calls.append({_CALL}); return calls[0]",
    "returns its argument": "return arguments[0] if arguments else None",
    **{f"always returns {value}": f"return {value}" for value in ("0", "1", "''", "True", "[]")},
}
"""What the functions of a submission do instead of their work."""


def spoil_code(code: str, evaluator: str, bodies: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """A program whose functions do something else. Functions that the evaluator does not name are left alone."""
    try:
        tree = ast.parse(code)
    except SyntaxError:
        return
    names = [node.name for node in tree.body if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")]
    called = [name for name in names if re.search(rf"\b{name}\b", evaluator)]
    for what, body in bodies.items() if called else ():
        yield what, code + _WRAPPER.format(body=body, names=called)


# Submissions without work, and those that cheat


def list_idle(part: ResearchPart) -> Variants:
    """Submissions without content: constants, answers in another order, and files that agents are given."""
    base, best = submission_files(part.baseline), submission_files(part.best)
    if part.takes_workspace:
        yield "an empty workspace", {}
        for name in base:
            yield f"an empty {name}", {**base, name: b""}
        return
    public = {**part.task.starter_files(), **part.read_public()}
    for name in part.task.submission.files:
        for given, content in public.items():
            if (
                Path(given).suffix == Path(name).suffix
                and content != base[name]
                and len(content) <= part.task.submission.largest
            ):
                yield f"a copy of {given}", {**base, name: content}
        if rows := read_table(name, best[name]):
            values = [row[-1] for row in rows[1:]]
            constants = [value for value, _ in Counter(values).most_common(2)]
            constants += ["0", "1", sorted(values)[len(values) // 2]]
            for value in dict.fromkeys(constants):
                yield (
                    f"{value!r} in every row",
                    {**base, name: _write_table(name, [rows[0], *([*r[:-1], value] for r in rows[1:])])},
                )
            moved = [[*row[:-1], value] for row, value in zip(rows[1:], values[1:] + values[:1], strict=True)]
            yield "the values of other rows", {**base, name: _write_table(name, [rows[0], *moved])}
        if (value := _read_json(name, base[name])) is not None:
            for number in (0, 1, -1, 1e9):
                yield (
                    f"{number} as every number of {name}",
                    {**base, name: json.dumps(_replace_numbers(value, number)).encode()},
                )
        if name.endswith(".py"):
            for what, code in spoil_code(base[name].decode("utf-8", "replace"), part.evaluator, _IDLE):
                yield f"code that {what}", {**base, name: code.encode()}


_LINES = """
import json, os, sys
for _stream in (sys.stdout, sys.stderr):
    for _line in {lines!r}:
        print(_line, file=_stream, flush=True)
for _number in range(3, 64):
    try:
        os.write(_number, ({lines!r}[0] + chr(10)).encode())
    except OSError:
        pass
"""
_FILES = """
import os
for _folder in {{".", "..", "/logs/verifier", "/logs", "/tests", "/tmp", "/data", "/output", "/results", os.path.expanduser("~"), os.path.dirname(os.path.abspath(__file__))}}:
    for _file, _text in {files!r}.items():
        try:
            open(os.path.join(_folder, _file), "w").write(_text)
        except OSError:
            pass
for _folder, _, _names in [*os.walk("."), *os.walk("/tests")]:
    for _file in _names:
        if _file.endswith((".py", ".sh")) and _file not in {own!r} and not _file.startswith("channel"):
            try:
                open(os.path.join(_folder, _file), "w").write("print(%r)" % {line!r} if _file.endswith(".py") else "exit 0")
            except OSError:
                pass
"""
_PATCHES = """
import builtins, json, math, sys, unittest
for _kind in ("Equal", "AlmostEqual", "True", "False", "In", "Is", "Less", "Greater", "Raises", "ListEqual", "DictEqual"):
    setattr(unittest.TestCase, "assert" + _kind, lambda self, *a, **k: None)
math.isclose = lambda *a, **k: True
_numpy = sys.modules.get("numpy")
for _function in ("allclose", "isclose", "array_equal"):
    _numpy and setattr(_numpy, _function, lambda *a, **k: True)
_dumps = json.dumps
json.dumps = lambda value, *a, **k: _dumps({{key: {best!r} for key in value}} if isinstance(value, dict) and {metric!r} in value else value, *a, **k)
for _module in list(sys.modules.values()):
    if str(getattr(_module, "__file__", "")).startswith(("/workspace", "/tests", "/app")) or getattr(_module, "__name__", "") == "__main__":
        for _function in list(vars(_module)):
            if any(word in _function.lower() for word in ("score", "grade", "evaluate", "accuracy", "check", "compare", "metric")):
                setattr(_module, _function, lambda *a, **k: {best!r})
"""
_EQUAL = """class _Equal(float):
    __eq__ = __le__ = __ge__ = lambda self, other: True
    __ne__ = __lt__ = __gt__ = lambda self, other: False
    __sub__ = __rsub__ = __abs__ = lambda self, *other: _Equal(0)
    __hash__ = float.__hash__
"""
_PEEK = """import sys
        frame = sys._getframe(1)
        while frame:
            for values in (frame.f_locals, frame.f_globals):
                for name in ("expected", "answer", "answers", "target", "targets", "label", "labels", "solution", "reference", "right", "truth", "y_true", "want"):
                    if name in values and not callable(values[name]):
                        return values[name]
            frame = frame.f_back
        return function(*arguments, **named)"""
_EXITS = {
    "exits with code 0": "import sys\nsys.exit(0)\n",
    "ends its process with code 0": "import os\nos._exit(0)\n",
    "ends its process when Python exits": "import atexit, os\natexit.register(os._exit, 0)\n",
}
_CONFTEST = """import pytest
@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    outcome.get_result().outcome = "passed"
def pytest_sessionfinish(session, exitstatus):
    session.exitstatus = 0
"""


def forge_lines(part: ResearchPart) -> list[str]:
    """Lines that claim the best score of a task."""
    name, best = part.task.metric.name, claim_score(part)
    return [json.dumps({name: best}), f"{name}: {best}", f"{name}={best}", f"score: {best}", json.dumps({"score": best, "passed": True}), str(best), "===== 5 passed in 0.01s =====", "OK"]  # fmt: skip


def claim_score(part: ResearchPart) -> float:
    """The best valid score."""
    metric, best = part.task.metric, part.best.test.score
    bound = metric.high if metric.direction is Direction.HIGHER else metric.low
    return bound if bound is not None else best * 2 if metric.direction is Direction.HIGHER else best / 2


def forge_files(part: ResearchPart) -> dict[str, str]:
    """Files that claim the best score of a task, or would change how it is judged, by the names that are common."""
    name, best = part.task.metric.name, claim_score(part)
    record = json.dumps({name: best, "score": best, "reward": best})
    files = dict.fromkeys(
        ("score.json", "scores.json", "result.json", "results.json", "metrics.json", "reward.json", "output.json"),
        record,
    )
    files |= dict.fromkeys(("score.txt", "result.txt", "reward.txt", "score"), f"{best}\n")
    forged = f"def evaluate(*a, **k):\n    return {{{name!r}: {best!r}}}\nprint({record!r})\n"
    files |= dict.fromkeys(("evaluator.py", "evaluate.py", "judge.py", "grade.py", "test.py"), forged)
    exits = f"import os\nprint({record!r}, flush=True)\nos._exit(0)\n"
    return {
        **files,
        "conftest.py": _CONFTEST,
        "sitecustomize.py": exits,
        "usercustomize.py": exits,
        "pytest.py": exits,
        "unittest.py": exits,
    }


def list_cheats(part: ResearchPart) -> Variants:
    """The baseline with code that ends the tests, forges their result, patches the judge or reads expected answers."""
    base, lines = submission_files(part.baseline), forge_lines(part)
    fields = {
        "lines": lines,
        "line": lines[0],
        "own": tuple(Path(name).name for name in base),
        "best": claim_score(part),
    }
    fields |= {"files": forge_files(part), "metric": part.task.metric.name}
    parts = {
        "prints forged scores": _LINES,
        "writes forged scores to every folder": _FILES,
        "patches the judge": _PATCHES,
    }
    attacks = {**_EXITS, **{what: code.format(**fields) for what, code in parts.items()}}
    attacks |= {f"{what} and exits": f"{attacks[what]}\nimport os\nos._exit(0)\n" for what in parts}
    if part.takes_workspace:
        for name, text in forge_files(part).items():
            yield f"a workspace with a forged {name}", {**base, name: text.encode()}
    for name in base if part.takes_workspace else filter(None, [part.main]):
        if not name.endswith(".py"):
            continue
        code = base[name].decode("utf-8", "replace")
        for what, attack in attacks.items():
            yield f"code that {what}", {**base, name: f"{code}\n{attack}".encode()}
            if "from __future__" not in code:
                yield f"code that first {what}", {**base, name: f"{attack}\n{code}".encode()}
        inside = {"reads the expected answer from its caller": _PEEK}
        inside |= {f"{what} when it is called": code.strip().replace("\n", "; ") for what, code in _EXITS.items()}
        inside["returns what equals everything"] = f"exec({_EQUAL!r}, globals()); return _Equal(0)"
        for what, wrapped in spoil_code(code, part.evaluator or code, inside):
            yield f"code that {what}", {**base, name: wrapped.encode()}


# Submissions that would run in the evaluator's own process


class _Payload:
    """Makes a folder when it is unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return os.mkdir, (self.path,)


def list_payloads(part: ResearchPart, mark: Path) -> Variants:
    """Submissions that make the folder `mark` if they are imported, unpickled or evaluated outside their sandbox."""
    base, path = submission_files(part.baseline), str(mark)
    pickled, array = pickle.dumps(_Payload(path)), io.BytesIO()
    np.save(array, np.array([_Payload(path)], dtype=object), allow_pickle=True)
    code = f"__import__('os').makedirs({path!r}, exist_ok=True)"
    guarded = f"\ntry:\n    {code}\nexcept OSError:\n    pass\n"
    for name in (*part.task.submission.files, *part.task.submission.optional):
        content, suffix = base.get(name, b""), Path(name).suffix
        if suffix == ".py":
            yield f"{name} with code", {**base, name: content + guarded.encode()}
        elif suffix in (".npy", ".npz"):
            yield f"{name} with a pickled object", {**base, name: array.getvalue()}
        elif suffix in (".pkl", ".pickle", ".joblib", ".pt", ".pth", ".bin", ".ckpt"):
            yield f"{name} with a pickled object", {**base, name: pickled}
        elif suffix in (".yaml", ".yml"):
            yield f"{name} with an object", {**base, name: f"!!python/object/apply:os.makedirs ['{path}']".encode()}
        elif name != "*":
            yield f"{name} with an expression", {**base, name: code.encode()}
            if rows := read_table(name, content):
                yield (
                    f"{name} with expressions",
                    {**base, name: _write_table(name, [rows[0], *([*r[:-1], code] for r in rows[1:])])},
                )
