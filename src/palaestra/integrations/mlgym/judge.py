"""Judges submissions by running MLGym's evaluator on a copy, in a fresh sandbox, with the original files over it.

A submitted Python file runs in its own sandbox without hidden files (see `apart`) if its functions take and return
plain data. The task's own file is tested for this. Otherwise, and for metrics that measure time, both run in one
process. The grade states which.
"""

from __future__ import annotations

import builtins
import json
import math
import re
import secrets
import time
from collections.abc import Collection, Mapping, Sequence
from hmac import compare_digest
from pathlib import Path, PurePosixPath
from typing import ClassVar

from palaestra.core.records import Failure, FailureCause
from palaestra.integrations.mlgym.apart import ApartResult, SandboxFiles, run_apart, stub_source
from palaestra.integrations.mlgym.files import EntryPoint, is_time, public_names
from palaestra.integrations.mlgym.task import TORCHRUN, UNNAMED, WORKSPACE, MLGymTask
from palaestra.integrations.research_tasks import ForeignJudge
from palaestra.research.judge.evaluation import make_judge, read_only_mounts
from palaestra.research.judge.inside import evaluate
from palaestra.research.judge.inside.evaluate import KEY_BYTES, MARK, MAX_OUTPUT, seal
from palaestra.research.tasks.task import Grade, InvalidSubmission, Isolation, JudgeResult
from palaestra.sandbox.base import Limits, Sandbox, SandboxCommand, SandboxResult

_RUNNER = "/opt/runner/evaluate.py"
"""The path of the runner. It has its own folder, because Python searches that folder for modules first."""
_MAX_QUOTE = 600
"""Characters of the evaluator's output that the agent sees if none of its code ran."""


class MLGymJudge(ForeignJudge):
    """Runs the evaluator of an MLGym task."""

    task: MLGymTask
    separable: ClassVar[dict[str, bool]] = {}
    """Whether a task's own file can be judged in its own sandbox, by the digest of the task."""

    def __init__(self, task: MLGymTask, sandbox: Sandbox) -> None:
        super().__init__(task, sandbox)
        (self._file,) = task.submission.files
        self.entry = task.file.task_entrypoint
        self.together = (
            self.entry is not EntryPoint.PYTHON
            or is_time(task.metric.name)  # Messages between sandboxes would be measured as well.
            or self._file
            not in task.starter_files()  # Without a starter version it is unknown whether it can be judged apart.
        )
        """Whether the agent's code runs in the evaluator's process from the start."""

    def evaluate_files(self, files: Mapping[str, bytes]) -> JudgeResult:
        start, self.exposed = time.perf_counter(), False
        evaluator, table = self.task.evaluator_place, self.entry is EntryPoint.CSV
        if table:  # No other file of the agent may be present, because it could be code.
            files = {name: content for name, content in files.items() if name in self.task.submission.files}
        originals = self.task.evaluator_files()
        fixed = {evaluator, *(originals.keys() - self.task.starter_files().keys())}
        if self.entry is EntryPoint.PYTHON:
            # Other files that the evaluator imports belong to the evaluator.
            fixed |= originals.keys() - set(self.task.submission.files)
        wrong = self._wrong({**dict.fromkeys(originals.keys() & fixed, b""), **files})
        configurations = [name for name in files if name.endswith((".yaml", ".yml"))]
        if self.entry is EntryPoint.MODEL and not configurations:
            wrong = wrong or "the evaluator needs a configuration as a .yaml file in the workspace; it has none"
        if wrong:
            return InvalidSubmission(wrong)
        self.exposed = not table
        if not self.together and self.separable.get(self.task.digest(), True):
            ended = self._run_apart(files)
            outcome = self._read_apart(ended, start)
            # A missing score or a modified argument may be normal for the task, so its own file is tested.
            if (isinstance(outcome, Grade) and not ended.changed) or self._is_separable():
                return outcome
        shown = read_only_mounts(self.task, self.data, judging=True)
        key = secrets.token_bytes(KEY_BYTES)
        # Files that the agent did not change are as trusted as the evaluator.
        same = {name for name, content in originals.items() if name in fixed or files.get(name, content) == content}
        trusted = json.dumps(sorted(same)).encode()
        command = SandboxCommand(
            self._command(evaluator, configurations),
            _overlay(originals, files, fixed, shown).files,
            stdin=b"" if table else key + trusted,
            limits=self._limits(),
            env={"HF_HUB_OFFLINE": "1", **self.task.variables()},
            read_only={**shown, _RUNNER: str(Path(evaluate.__file__))},
        )
        result = self.sandbox.run(command)
        text = (result.text if result.ok else None) if table else unseal(result.stdout, key)
        isolation = Isolation.NOT_RUN if table else Isolation.SHARED
        return self._read(result, text, time.perf_counter() - start, isolation)

    def _is_separable(self) -> bool:
        """Whether the task's own file gets a score in its own sandbox without modifying its arguments.

        A run that ends at a limit does not count, so that an agent gains nothing by keeping the machine busy.
        """
        digest = self.task.digest()
        if digest not in self.separable:
            ended = self._run_apart({self._file: self.task.starter_files()[self._file]})
            if ended.result.status.is_limit:
                return True
            self.separable[digest] = isinstance(self._read_apart(ended, 0.0), Grade) and not ended.changed
        return self.separable[digest]

    def _run_apart(self, files: Mapping[str, bytes]) -> ApartResult:
        """Run the evaluator, and the submission in a sandbox with the agent's view of the task, without the evaluator."""
        originals, evaluator = self.task.evaluator_files(), self.task.evaluator_place
        hidden, shown = (read_only_mounts(self.task, self.data, judging=judging) for judging in (True, False))
        stub = {self._file: stub_source(public_names(self.task.starter_files()[self._file]))}
        judge = _overlay(originals, stub, originals.keys() - stub.keys(), hidden)
        starter = {name: content for name, content in self.task.starter_files().items() if name != evaluator}
        own = {name: content for name, content in files.items() if name != evaluator}
        submission = _overlay(starter, own, starter.keys() - stub.keys(), shown)
        return run_apart(self.sandbox, evaluator, judge, self._file, submission, self._limits(), self.task.variables())

    def _read_apart(self, ended: ApartResult, start: float) -> JudgeResult:
        text = ended.result.text if ended.result.ok else None
        return self._read(ended.result, text, time.perf_counter() - start, Isolation.SEPARATE)

    def _command(self, evaluator: str, configurations: Sequence[str]) -> list[str]:
        match self.entry:
            case EntryPoint.CSV:
                # No code of the agent runs there: everything printed comes from the evaluator.
                return ["python3", "-B", evaluator, "--submission_file", f"{WORKSPACE}/submission.csv"]
            case EntryPoint.MODEL:
                first = min(configurations, key=lambda name: (name.count("/"), name))
                return ["python3", "-B", _RUNNER, evaluator, "--config_fname", first]
            case EntryPoint.LANGUAGE_MODEL:
                return ["torchrun", *TORCHRUN, _RUNNER, evaluator]
            case EntryPoint.PYTHON:
                return ["python3", "-B", _RUNNER, evaluator]

    def _limits(self) -> Limits:
        limit = self.task.limits
        sizes = {"memory": limit.memory, "file_size": 4 << 30, "output": 1 << 22, "disk": 8 << 30}
        counts = {"processes": limit.processes, "open_files": 1024}
        return Limits.for_work(limit.evaluation_seconds, cores=8 if self.entry.has_model else 1, **sizes, **counts)

    def _read(self, result: SandboxResult, text: str | None, seconds: float, isolation: Isolation) -> JudgeResult:
        """Convert the evaluator's output to a result. `text` is `None` if it did not finish."""
        if text is None:
            return InvalidSubmission(self._describe_end(result), self.exposed)
        name, unknown = self.task.metric.name, self.task.metric.name == UNNAMED
        scores = scores_in(text, "" if unknown else name, first=self.entry.has_model)
        if scores is None:
            reason = "the evaluator came to its end and printed no scores, or several that differ"
            return InvalidSubmission(reason, self.exposed)
        if unknown:
            scores = {UNNAMED: next(iter(scores.values())), **scores}
        by_name = {key.lower(): score for key, score in scores.items()}
        value = scores.get(name, by_name.get(name.lower()))
        if value is None:
            listing = "" if self.exposed else f"; got {sorted(scores)}"
            return Failure(FailureCause.SCORER, f"expected '{name}' among the evaluator's scores{listing}")
        if not math.isfinite(self.task.metric.gain(value, 0.0)):
            # Not a failure, because the submission caused it. It counts, because answers could be probed this way.
            return InvalidSubmission(f"its {name} is {value}, which is not a score", exposed=True)
        finite_scores = {key: score for key, score in scores.items() if math.isfinite(score)}
        return Grade(value, {**finite_scores, name: value}, seconds, isolation)

    def _describe_end(self, result: SandboxResult) -> str:
        """Describe how an evaluator without scores ended. Output of the agent's code is left out: it could be hidden
        data.
        """
        limit = f"was ended by its limit of {result.status.value}" if result.status.is_limit else ""
        if not self.exposed:
            note = " ".join(result.error_text.split())[-_MAX_QUOTE:]
            return f"the evaluator {limit or f'could not read the submission (exit code {result.exit_code})'}: {note}"
        raised = "" if limit else exception_in(result.error_text)
        ended = f"did not come to its end (exit code {result.exit_code}{raised and f', {raised}'})"
        note = "what was printed there is not told, as it may hold hidden data. More is told by a trial of your own"
        return f"the evaluator {limit or ended}; {note}"


@make_judge.register
def _make_mlgym_judge(task: MLGymTask, sandbox: Sandbox) -> MLGymJudge:
    return MLGymJudge(task, sandbox)


def _overlay(
    originals: Mapping[str, bytes], files: Mapping[str, bytes], fixed: Collection[str], mounts: Mapping[str, str]
) -> SandboxFiles:
    """Build the content of a sandbox with these mounts; see `overlay_files`."""
    occupied = {path.removeprefix(f"{WORKSPACE}/") for path in mounts if path.startswith(f"{WORKSPACE}/")}
    return SandboxFiles(overlay_files(originals, files, fixed, occupied), mounts)


def overlay_files(
    originals: Mapping[str, bytes], files: Mapping[str, bytes], fixed: Collection[str], occupied: Collection[str]
) -> dict[str, bytes]:
    """Build the workspace in which a submission is judged.

    Arguments:
        originals: files of the checkout.
        files: files of the agent, which take precedence over the originals.
        fixed: names of originals that take precedence over the agent's files.
        occupied: names that mounts already occupy.

    Anything that conflicts with something of higher precedence, such as a file where that needs a folder, is left out.
    """
    first = _exclude_conflicts({name: content for name, content in originals.items() if name in fixed}, occupied)
    kept = _exclude_conflicts(files, {*occupied, *fixed})
    return {**_exclude_conflicts(originals, {*occupied, *first, *kept}), **kept, **first}


def _exclude_conflicts(files: Mapping[str, bytes], names: Collection[str]) -> dict[str, bytes]:
    """Return the files that are not among the names, not below one, and not where one needs a folder."""
    needed = {folder for name in names for folder in _folders(name)}
    return {
        name: content
        for name, content in files.items()
        if name not in names and name not in needed and not any(folder in names for folder in _folders(name))
    }


def _folders(name: str) -> list[str]:
    return [folder.as_posix() for folder in PurePosixPath(name).parents][:-1]


# The output of an evaluator

MAX_SEARCHED = MAX_OUTPUT
"""Characters at the end of the output in which scores are searched."""
_MAX_EFFORT = 32 * MAX_SEARCHED
"""Characters that are parsed without success before the search stops."""
_OBJECT = re.compile(r'(?=\{\s*")')
_LINE = re.compile(r'^[ \t]*(?=\{\s*")', re.M)
_LINE_END = re.compile(r"[ \t\r]*(?:\n|\Z)")
_ANYWHERE = re.compile("")
_MAX_LINES = 200
_SEALED = re.compile(re.escape(MARK) + rb"[0-9a-f]{64}:([0-9a-f]*)\n")
_RAISED = re.compile(r"(?:\[rank\d+\]: ?)?(\w+)(?::|\s*$)")


def unseal(stdout: bytes, key: bytes) -> str | None:
    """Return the sealed output of an evaluator; `None` unless it finished exactly once."""
    texts = []
    for line in _SEALED.finditer(stdout):
        text = bytes.fromhex(line[1][: len(line[1]) // 2 * 2].decode()).decode("utf-8", "replace")
        if compare_digest(seal(text, key).strip(), line[0].strip()):
            texts.append(text)
    return texts[0] if len(texts) == 1 else None


def scores_in(text: str, metric: str = "", first: bool = False) -> dict[str, float] | None:
    """Find the scores in an evaluator's output: the JSON object with the metric, or with any number if none has it.

    An evaluator may also print words of the submission. So an object on lines of its own takes precedence over one
    within a line, and if two of them differ in the metric, neither is taken.

    Arguments:
        first: take the first object that begins a line, regardless of the others.

    Only the end of a long text is searched, and the search stops early in a text full of unterminated objects.

    >>> scores_in("loading\\n{'not': 'json'}\\n{\\"Score\\": 1.5}\\nrow 1: {\\"Score\\": 9}\\n", "Score")
    {'Score': 1.5}
    """
    for begins, ends in ((_LINE, _LINE_END), *(() if first else ((_OBJECT, _ANYWHERE),))):
        objects = _objects(text[-MAX_SEARCHED:], begins, _ANYWHERE if first else ends)
        if objects is None:
            return None
        fits = [numbers for numbers in objects if metric in numbers] if metric else objects
        fits = fits or [numbers for numbers in objects if metric.lower() in map(str.lower, numbers)]
        if first and fits:
            return fits[0]
        if len({_value(numbers, metric) for numbers in fits}) > 1:
            return None
        if fits:
            return fits[-1]
        if objects:
            return objects[-1]
    return None


def _value(numbers: Mapping[str, float], metric: str) -> object:
    """Return the value of the metric, or all values without one."""
    return next((repr(value) for name, value in numbers.items() if name.lower() == metric.lower()), repr(numbers))


def _objects(text: str, begins: re.Pattern[str], ends: re.Pattern[str]) -> list[dict[str, float]] | None:
    """Return the objects with numbers that match both patterns; `None` if the search takes too long."""
    objects: list[dict[str, float]] = []
    decoder, start, effort = json.JSONDecoder(), begins.search(text), 0
    while start is not None:
        rest = text[start.end() :]  # A copy, because errors count lines from the beginning.
        try:
            value, end = decoder.raw_decode(rest)
        except (ValueError, RecursionError) as error:
            end = 1
            effort += error.pos if isinstance(error, json.JSONDecodeError) else len(rest)
            if effort > _MAX_EFFORT:
                return None
        else:
            numbers = _numbers(value)
            if numbers and ends.match(rest, end):
                objects.append(numbers)
        start = begins.search(text, start.end() + end)
    return objects


def exception_in(stderr: str) -> str:
    """Return the name of the built-in exception that ended a program, without its message."""
    for line in reversed(stderr.splitlines()[-_MAX_LINES:]):
        name = raised[1] if (raised := _RAISED.match(line)) else ""
        kind = getattr(builtins, name, None)
        if isinstance(kind, type) and issubclass(kind, BaseException):
            return name
    return ""


def _numbers(value: object) -> dict[str, float]:
    """Return the numbers of an object. Integers that exceed a float are infinite."""
    numbers = {}
    for name, number in value.items() if isinstance(value, dict) else ():
        if isinstance(number, int | float) and not isinstance(number, bool):
            try:
                numbers[name] = float(number)
            except OverflowError:
                numbers[name] = math.inf if number > 0 else -math.inf
    return numbers
