"""The research task that is checked, and variants of its own solutions: equivalent, malformed, idle and cheating ones."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import pickle
import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from palaestra.core.errors import PalaestraError
from palaestra.core.tables import load_table
from palaestra.recipes.check.subjects import Subject
from palaestra.research.judge.evaluation import EvaluationSplit, SubmissionJudge, make_judge, sandbox_for
from palaestra.research.tasks.task import Direction, JudgeResult, ResearchTask, read_files
from palaestra.research.workspace.workspace import (
    MeasuredSolution,
    Workspace,
    measure,
    measure_baseline,
    read_baseline,
    submission_files,
)
from palaestra.sandbox.base import Sandbox, SandboxCommand

Files = Mapping[str, bytes]
Variants = Iterator[tuple[str, dict[str, bytes]]]
"""Names of changes, and the changed submissions."""
_ATTACKS = load_table(__file__, "attacks")["submissions"]
"""What a submission does instead of its work, by kind."""
MAX_CHANGE = 4 << 20
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
        self.folder = os.getcwd()
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
        return measure_baseline(self.task, self.sandbox, self.judge)

    @property
    def has_reference(self) -> bool:
        return bool(self.task.reference_files())

    @cached_property
    def reference(self) -> MeasuredSolution:
        return measure(self.task, self.sandbox, self.judge, self.task.reference, self.task.reference_files())

    @property
    def best(self) -> MeasuredSolution:
        """The reference, or the baseline of a task without one."""
        return self.reference if self.has_reference else self.baseline

    @property
    def main(self) -> str:
        """The submitted program; empty if none is required."""
        return next((name for name in self.task.submission.files if name.endswith(".py")), "")

    @property
    def top(self) -> float:
        """The best valid score."""
        metric, best, is_higher = self.task.metric, self.best.test.score, self.task.metric.direction is Direction.HIGHER
        bound = metric.high if is_higher else metric.low
        return bound if bound is not None else best * 2 if is_higher else best / 2

    @property
    def takes_workspace(self) -> bool:
        """Whether the whole workspace is submitted."""
        return "*" in self.task.submission.files

    @cached_property
    def evaluator(self) -> str:
        """The source of the evaluator; empty for a task of another format."""
        path = self.task.folder / self.task.evaluator
        return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""

    def open_workspace(self) -> Workspace:
        return Workspace(self.task, self.sandbox, self.judge.data)

    def score(self, files: Files, split: EvaluationSplit = "test") -> JudgeResult:
        """Judge a submission with a judge that has not seen it."""
        return self.make_judge().judge(files, split)

    def make_judge(self) -> SubmissionJudge:
        """A new judge, which ends a submission that takes far longer than the best solution."""
        limits, best = self.task.limits, self.__dict__.get("reference") or self.__dict__.get("baseline")
        seconds = limits.evaluation_seconds if best is None else 5.0 + 5 * best.test.seconds
        shorter = limits.model_copy(update={"evaluation_seconds": min(limits.evaluation_seconds, seconds)})
        return make_judge(self.task.model_copy(update={"limits": shorter}), self.sandbox)

    def gain(self, score: float | None) -> float:
        """The gain of a test score over the baseline, as a fraction of the reference's. Without a score it is the floor."""
        metric, base = self.task.metric, self.baseline.test.score
        most = metric.gain(self.reference.test.score, base) if self.has_reference else 1.0
        return (metric.reward(None, base) if score is None else metric.gain(score, base)) / max(most, 1e-9)

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
    if not name.endswith(".csv") or len(content) > MAX_CHANGE:
        return None
    rows = [row for row in csv.reader(io.StringIO(content.decode("utf-8-sig", "replace"), newline="")) if row]
    return rows if len(rows) > 2 and len({len(row) for row in rows}) == 1 and len(rows[0]) > 1 else None


def _write_table(head: list[str], rows: Iterable[list[str]]) -> bytes:
    out = io.StringIO(newline="")
    csv.writer(out, lineterminator="\n").writerows([head, *rows])
    return out.getvalue().encode()


def _read_json(name: str, content: bytes) -> Any:
    try:
        return json.loads(content) if name.endswith(".json") and len(content) <= MAX_CHANGE else None
    except ValueError:
        return None


def list_equivalent(part: ResearchPart) -> Variants:
    """Other forms of the best solution: rows with ids in another order, other line ends, another layout."""
    files = submission_files(part.best)
    for name, content in files.items():
        rows = read_table(name, content)
        if rows and len({row[0] for row in rows}) == len(rows):
            body = rows[1:]
            random.Random(part.seed).shuffle(body)
            yield f"{name} with its rows in another order", {**files, name: _write_table(rows[0], body)}
            yield f"{name} with other line ends", {**files, name: content.replace(b"\r", b"").replace(b"\n", b"\r\n")}
        if (value := _read_json(name, content)) is not None:
            yield f"{name} with another layout", {**files, name: json.dumps(value, indent=3, sort_keys=True).encode()}


def list_malformed(part: ResearchPart, solution: MeasuredSolution) -> Variants:
    """A solution with one required file missing, too large, or with content that no reader should accept."""
    files = submission_files(solution)
    for name in () if part.takes_workspace else part.task.submission.files:
        content = files[name]
        others = {other: kept for other, kept in files.items() if other != name}
        yield f"{name} is missing", others
        changes = [("is empty", b""), ("has binary content", bytes(range(256)) * 4)]
        changes += [("is cut in half", content[: len(content) // 2] + b"\xff(")]
        for what, changed in chain(
            changes, _spoil_table(name, content), _spoil_json(name, content), _spoil_numbers(content)
        ):
            yield f"{name} {what}", {**others, name: changed}
        for what, code in spoil_code(content, part.evaluator, _ATTACKS["spoiled"]) if name.endswith(".py") else ():
            yield f"{name} {what}", {**others, name: code}
        if part.task.submission.largest <= 64 << 20:
            yield f"{name} is too large", {**others, name: content + b"\n" * part.task.submission.largest}


def list_incomplete(part: ResearchPart, solution: MeasuredSolution) -> Variants:
    """A solution with a table in which half of the answers are missing or wrong, or all values are given: some evaluators count them as wrong."""
    files = submission_files(solution)
    for name in () if part.takes_workspace else part.task.submission.files:
        head, *body = read_table(name, files[name]) or [[]]
        changes = {
            "half of the rows": body[: len(body) // 2],
            "ids that do not exist": [["no id", *row[1:]] if n % 2 else row for n, row in enumerate(body)],
        }
        changes |= {
            f"{value!r} in every second row": [[*row[:-1], value] if n % 2 else row for n, row in enumerate(body)]
            for value in _WRONG
        }
        if len(values := {row[-1] for row in body}) <= 10:
            changes["a row for each value of each id"] = [[*row[:-1], value] for row in body for value in values]
        for what, rows in changes.items() if body else ():
            yield f"{name} with {what}", {**files, name: _write_table(head, rows)}


_WRONG = ("nan", "inf", "-inf", "1e999", "", "text that is no value")


def _spoil_table(name: str, content: bytes) -> Iterator[tuple[str, bytes]]:
    rows = read_table(name, content)
    if rows is None:
        return
    head, *body = rows
    yield "lacks its last column", _write_table(head[:-1], [row[:-1] for row in body])
    yield "has no rows", _write_table(head, [])
    for value in _WRONG:
        yield f"has {value!r} as every value", _write_table(head, [[*row[:-1], value] for row in body])


def _spoil_json(name: str, content: bytes) -> Iterator[tuple[str, bytes]]:
    if name.endswith(".jsonl"):
        for line in (b"null", b"[]", b'{"another": "field"}', b"NaN"):
            yield f"has {line.decode()} in every line", (line + b"\n") * content.count(b"\n")
    value = _read_json(name, content)
    if value is None:
        return
    yield "has another shape", b"{}" if isinstance(value, list) else b"[]"
    yield "is null", b"null"
    wrong: Any
    for wrong in (math.nan, math.inf, "text", [[]]):
        if (spoiled := _replace_numbers(value, wrong)) != value:
            yield f"has {wrong!r} as every number", json.dumps(spoiled).encode()


def _replace_numbers(value: Any, new: object) -> Any:
    if isinstance(value, dict):
        return {key: _replace_numbers(item, new) for key, item in value.items()}
    if isinstance(value, list):
        return [_replace_numbers(item, new) for item in value]
    return new if isinstance(value, int | float) and not isinstance(value, bool) else value


def _spoil_numbers(content: bytes) -> Iterator[tuple[str, bytes]]:
    """Variants of a text that consists of numbers."""
    words = content.decode("utf-8", "replace").split()
    if 0 < len(words) < 100_000 and all(re.fullmatch(r"[-+\d.eE]+", word) for word in words):
        for wrong in _WRONG[:4]:
            yield f"has {wrong!r} as its numbers", "\n".join([wrong] * len(words)).encode()


def spoil_code(content: bytes, evaluator: str, bodies: Mapping[str, str]) -> Iterator[tuple[str, bytes]]:
    """A program whose functions do something else. Functions that the evaluator does not name are left alone."""
    code = content.decode("utf-8", "replace")
    names = [
        name for name in re.findall(r"^def ([a-zA-Z]\w*)\(", code, re.MULTILINE) if re.search(rf"\b{name}\b", evaluator)
    ]
    for what, body in bodies.items() if names else ():
        yield what, (code + _ATTACKS["wrapper"].format(body=body, names=names)).encode()


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
            head, *body = rows
            values = [row[-1] for row in body]
            common = [value for value, _ in Counter(values).most_common(2)]
            for value in dict.fromkeys([*common, "0", "1", sorted(values)[len(values) // 2]]):
                yield (
                    f"{value!r} in every row",
                    {**base, name: _write_table(head, [[*row[:-1], value] for row in body])},
                )
            moved = [[*row[:-1], value] for row, value in zip(body, values[1:] + values[:1], strict=True)]
            yield "the values of other rows", {**base, name: _write_table(head, moved)}
        if (value := _read_json(name, base[name])) is not None:
            for number in (0, 1, -1, 1e9):
                if (idle := _replace_numbers(value, number)) != value:
                    yield f"{number} as every number of {name}", {**base, name: json.dumps(idle).encode()}
        for what, code in spoil_code(base[name], part.evaluator, _ATTACKS["idle"]) if name.endswith(".py") else ():
            yield f"code that {what}", {**base, name: code}


def forge_files(part: ResearchPart) -> dict[str, str]:
    """Files that claim the best score of a task, or change how it is judged."""
    best, record = part.top, json.dumps({part.task.metric.name: part.top, "score": part.top, "reward": part.top})
    judge = f"def evaluate(*a, **k):\n    return {{{part.task.metric.name!r}: {best!r}}}\nprint({record!r})\n"
    files = {f"{name}.json": record for name in _ATTACKS["records"]} | {
        f"{name}.txt": f"{best}\n" for name in _ATTACKS["records"]
    }
    files |= dict.fromkeys([f"{name}.py" for name in _ATTACKS["judges"]], judge)
    files |= dict.fromkeys([f"{name}.py" for name in _ATTACKS["libraries"]], f"import os\n{judge}os._exit(0)\n")
    return {**files, "conftest.py": _ATTACKS["conftest"]}


def list_cheats(part: ResearchPart) -> Variants:
    """The baseline with code that ends the tests, forges their result, patches the judge or reads expected answers."""
    base, best, metric = submission_files(part.baseline), part.top, part.task.metric.name
    files = forge_files(part)
    if part.takes_workspace:
        for name, text in files.items():
            yield f"a workspace with a forged {name}", {**base, name: text.encode()}
    lines = [
        json.dumps({metric: best, "passed": True}),
        f"{metric}: {best}",
        f"{metric}={best}",
        f"score: {best}",
        str(best),
        "OK",
    ]
    fields = {"lines": lines, "line": lines[0], "own": tuple(base), "best": best, "files": files, "metric": metric}
    attacks = {what: code.format(**fields) for what, code in _ATTACKS["forgeries"].items()}
    attacks |= _ATTACKS["exits"] | {
        f"{what} and exits": f"{code}\nimport os\nos._exit(0)\n" for what, code in attacks.items()
    }
    inside = {f"{what} when it is called": code.strip().replace("\n", "; ") for what, code in _ATTACKS["exits"].items()}
    inside["reads the expected answer from its caller"] = _ATTACKS["peek"]
    inside["returns what equals everything"] = f"exec({_ATTACKS['equal']!r}, globals()); return _Equal(0)"
    for name in [name for name in base if name.endswith(".py") and name in (part.main or base)]:
        for what, attack in attacks.items():
            yield f"code that {what}", {**base, name: base[name] + b"\n" + attack.encode()}
            if b"from __future__" not in base[name]:
                yield f"code that first {what}", {**base, name: attack.encode() + b"\n" + base[name]}
        for what, code in spoil_code(base[name], part.evaluator or base[name].decode(), inside):
            yield f"code that {what}", {**base, name: code}


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
    by_suffix = {
        **dict.fromkeys((".pkl", ".pickle", ".joblib", ".pt", ".pth", ".bin", ".ckpt"), pickled),
        **dict.fromkeys((".npy", ".npz"), array.getvalue()),
        **dict.fromkeys((".yaml", ".yml"), f"!!python/object/apply:os.makedirs ['{path}']".encode()),
    }
    for name in (*part.task.submission.files, *part.task.submission.optional):
        content, suffix = base.get(name, b""), Path(name).suffix
        if suffix == ".py":
            yield f"{name} with code", {**base, name: content + guarded.encode()}
        elif name != "*":
            yield f"{name} with an object or an expression", {**base, name: by_suffix.get(suffix, code.encode())}
        if rows := read_table(name, content):
            table = _write_table(rows[0], [[*row[:-1], code] for row in rows[1:]])
            yield f"{name} with expressions", {**base, name: table}
