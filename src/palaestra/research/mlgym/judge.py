"""Judging as MLGym does, by running its evaluator; on a copy, in a fresh sandbox, with the original files put over it.

A Python file that is handed in runs apart from the evaluator, in a sandbox without anything that is hidden (see `apart`), if its
functions take and return plain data. Whether they do is decided by the task's own file. Otherwise, and where time is what is
measured, both run in one process. The grade says which of the two it was.
"""

from __future__ import annotations

import json
import math
import secrets
import time
from collections.abc import Collection, Mapping
from pathlib import Path, PurePosixPath
from typing import ClassVar

from palaestra.core.errors import SandboxError, TaskError
from palaestra.core.records import Failure, FailureCause
from palaestra.research.judge.evaluation import EvaluationSplit, Judge
from palaestra.research.judge.inside import evaluate
from palaestra.research.judge.inside.evaluate import KEY_BYTES
from palaestra.research.judge.sandboxing import read_only_of
from palaestra.research.mlgym.apart import Ended, Place, run_apart, stub_source
from palaestra.research.mlgym.directions import is_time
from palaestra.research.mlgym.files import EntryPoint
from palaestra.research.mlgym.roles import public_names
from palaestra.research.mlgym.scores import exception_in, scores_in, unsealed
from palaestra.research.mlgym.task import TORCHRUN, UNNAMED, WORKSPACE, MLGymTask
from palaestra.research.tasks.data import TaskData
from palaestra.research.tasks.records import Grade, Isolation, Outcome, Unusable
from palaestra.sandbox.base import Limits, Sandbox, SandboxResult

RUNNER = "/opt/runner/evaluate.py"
"""Where the runner lies: in a folder of its own, as Python looks there for modules first."""
QUOTED = 600
"""Characters of what an evaluator said that the agent is told, where none of its code ran."""


class MLGymJudge(Judge):
    """Runs the evaluator of a task of MLGym."""

    task: MLGymTask
    separable: ClassVar[dict[str, bool]] = {}
    """By the digest of a task: whether its own file can be judged in a sandbox of its own."""

    def __init__(self, task: MLGymTask, sandbox: Sandbox) -> None:
        self.task, self.sandbox, self.seed, self.data = task, sandbox, 0, TaskData()
        self.exposed = False
        (self._file,) = task.submission.files
        self.together = (
            task.file.task_entrypoint is not EntryPoint.PYTHON
            or is_time(task.metric.name)  # Messages from one sandbox to another would be measured too.
            or self._file not in task.starter_files()  # Nothing tells whether it can be judged apart.
        )
        """Whether code of the agent runs in the process of the evaluator from the start."""

    def judge(self, files: Mapping[str, bytes], split: EvaluationSplit) -> Outcome:
        """What a submission is worth; the same for both splits, as there is one set of data."""
        self.exposed = False
        try:
            return self._judged(files)
        except SandboxError as error:
            return Failure(FailureCause.SANDBOX, str(error))
        except (TaskError, OSError) as error:  # Somebody changed the checkout.
            return Failure(
                FailureCause.SCORER, f"the files of task '{self.task.name}' cannot be used any more: {error}"
            )

    def _judged(self, files: Mapping[str, bytes]) -> Outcome:
        start = time.perf_counter()
        evaluator, table = self.task.evaluator_place, self.task.file.task_entrypoint is EntryPoint.CSV
        if table:  # Nothing else of the agent's may be there, as it could be code.
            files = {name: content for name, content in files.items() if name in self.task.submission.files}
        originals = self.task.evaluator_files()
        fixed = {evaluator, *(originals.keys() - self.task.starter_files().keys())}
        if self.task.file.task_entrypoint is EntryPoint.PYTHON:
            # What the evaluator imports beside the one file that is handed in is its own.
            fixed |= originals.keys() - set(self.task.submission.files)
        wrong = self._wrong({**dict.fromkeys(originals.keys() & fixed, b""), **files})
        if wrong:
            return Unusable(wrong)
        try:
            argv = self._command(evaluator, files)
        except ValueError as error:
            return Unusable(str(error))
        self.exposed = not table
        if not self.together and self.separable.get(self.task.digest(), True):
            ended = self._run_apart(files)
            outcome = self._read_apart(ended, start)
            # A score that is missing, or an argument that was changed, may be the task's own way: its own file tells.
            if (isinstance(outcome, Grade) and not ended.changed) or self._is_separable():
                return outcome
        shown = read_only_of(self.task, self.data, judging=True)
        key = secrets.token_bytes(KEY_BYTES)
        # What the agent left as it was is as good as the evaluator.
        same = {name for name, content in originals.items() if name in fixed or files.get(name, content) == content}
        told = json.dumps(sorted(same)).encode()
        result = self.sandbox.run(
            argv, laid_over(originals, files, fixed, taken(shown)), stdin=b"" if table else key + told, limits=self._limits(),
            read_only={**shown, RUNNER: str(Path(evaluate.__file__))}, env={"HF_HUB_OFFLINE": "1", **self.task.variables()},
        )  # fmt: skip
        text = (result.text if result.ok else None) if table else unsealed(result.stdout, key)
        isolation = Isolation.NOT_RUN if table else Isolation.SHARED
        return self._read(result, text, time.perf_counter() - start, isolation)

    def _is_separable(self) -> bool:
        """Whether the task's own file gets a score in a sandbox of its own, without a change to its arguments.

        A limit that ends it says nothing: an agent that keeps the machine busy gains nothing by it.
        """
        digest = self.task.digest()
        if digest not in self.separable:
            ended = self._run_apart({self._file: self.task.starter_files()[self._file]})
            if ended.result.status.is_limit:
                return True
            self.separable[digest] = isinstance(self._read_apart(ended, 0.0), Grade) and not ended.changed
        return self.separable[digest]

    def _run_apart(self, files: Mapping[str, bytes]) -> Ended:
        """Run the evaluator, and the submission in a sandbox with what the agent saw, less the evaluator, and its own files."""
        originals, evaluator = self.task.evaluator_files(), self.task.evaluator_place
        hidden, shown = (read_only_of(self.task, self.data, judging=judging) for judging in (True, False))
        stub = {self._file: stub_source(public_names(self.task.starter_files()[self._file]))}
        judge = Place(laid_over(originals, stub, originals.keys() - stub.keys(), taken(hidden)), hidden)
        starter, own = ({name: one for name, one in some.items() if name != evaluator}
                        for some in (self.task.starter_files(), files))  # fmt: skip
        submission = Place(laid_over(starter, own, starter.keys() - stub.keys(), taken(shown)), shown)
        return run_apart(self.sandbox, evaluator, judge, self._file, submission, self._limits(), self.task.variables())

    def _read_apart(self, ended: Ended, start: float) -> Outcome:
        text = ended.result.text if ended.result.ok else None
        return self._read(ended.result, text, time.perf_counter() - start, Isolation.SEPARATE)

    def _wrong(self, files: Mapping[str, bytes]) -> str:
        wanted = self.task.submission
        if wanted.files != ("*",):
            return super()._wrong(files)
        total = sum(len(content) for content in files.values())
        return f"the workspace has {total} bytes; {wanted.largest} are the most" if total > wanted.largest else ""

    def _command(self, evaluator: str, files: Mapping[str, bytes]) -> list[str]:
        run = ["python3", "-B", RUNNER, evaluator]
        match self.task.file.task_entrypoint:
            case EntryPoint.CSV:
                # Nothing of the agent's runs there: whatever is printed, the evaluator printed it.
                return ["python3", "-B", evaluator, "--submission_file", f"{WORKSPACE}/submission.csv"]
            case EntryPoint.MODEL:
                found = [name for name in files if name.endswith((".yaml", ".yml"))]
                if not found:
                    raise ValueError(
                        "the evaluator needs a configuration as a .yaml file in the workspace; there is none"
                    )
                return [*run, "--config_fname", min(found, key=lambda name: (name.count("/"), name))]
            case EntryPoint.LANGUAGE_MODEL:
                return ["torchrun", *TORCHRUN, RUNNER, evaluator]
            case EntryPoint.PYTHON:
                return run

    def _limits(self) -> Limits:
        limit = self.task.limits
        return Limits(
            wall_seconds=limit.evaluation_seconds, cpu_seconds=8 * limit.evaluation_seconds, memory=limit.memory,
            processes=limit.processes, open_files=1024, file_size=4 << 30, output=1 << 22, disk=8 << 30,
        )  # fmt: skip

    def _read(self, result: SandboxResult, text: str | None, seconds: float, isolation: Isolation) -> Outcome:
        """What comes of an evaluator that ended so, and said this; nothing where it did not come to its end."""
        if text is None:
            return Unusable(self._ended(result), self.exposed)
        name, unknown = self.task.metric.name, self.task.metric.name == UNNAMED
        lines = self.task.file.task_entrypoint in (EntryPoint.MODEL, EntryPoint.LANGUAGE_MODEL)
        found = scores_in(text, "" if unknown else name, first=lines)
        if found is None:
            return Unusable("the evaluator came to its end and printed no scores, or several that differ", self.exposed)
        if unknown and found:
            found = {UNNAMED: next(iter(found.values())), **found}
        by_name = {one.lower(): score for one, score in found.items()}
        value = found.get(name, by_name.get(name.lower()))
        if value is None:
            got = "" if self.exposed else f"; got {sorted(found)}"
            return Failure(FailureCause.SCORER, f"the evaluator gave no '{name}'{got}")
        if not math.isfinite(self.task.metric.gain(value, 0.0)):
            # No failure, as the submission led to it; and it counts, as the answers may be guessed by it one after the other.
            return Unusable(f"its {name} is {value}, which is no score", exposed=True)
        scores = {one: score for one, score in found.items() if math.isfinite(score)}
        return Grade(value, {**scores, name: value}, seconds, isolation)

    def _ended(self, result: SandboxResult) -> str:
        """How an evaluator ended that gave no scores. What code of the agent had to say could be hidden data."""
        limit = f"was ended by its limit of {result.status.value}" if result.status.is_limit else ""
        if not self.exposed:
            said = " ".join(result.error_text.split())[-QUOTED:]
            return f"the evaluator {limit or f'could not read the submission (exit code {result.exit_code})'}: {said}"
        raised = "" if limit else exception_in(result.error_text)
        ended = f"did not come to its end (exit code {result.exit_code}{raised and f', {raised}'})"
        said = "what was printed there is not told, as it may hold hidden data. More is told by a trial of your own"
        return f"the evaluator {limit or ended}; {said}"


def taken(shown: Collection[str]) -> set[str]:
    """Names of the workspace at which something lies that is shown there."""
    return {path.removeprefix(f"{WORKSPACE}/") for path in shown if path.startswith(f"{WORKSPACE}/")}


def laid_over(
    originals: Mapping[str, bytes], files: Mapping[str, bytes], fixed: Collection[str], taken: Collection[str]
) -> dict[str, bytes]:
    """What is put into the workspace in which a submission is judged.

    Arguments:
        originals: of the checkout.
        files: of the agent, which come before the originals.
        fixed: names of originals that come before the files of the agent.
        taken: names at which something lies already.

    Whatever would be in the way of something that comes before it, as a file where that needs a folder, is left out.
    """
    first = beside({name: content for name, content in originals.items() if name in fixed}, taken)
    kept = beside(files, {*taken, *fixed})
    return {**beside(originals, {*taken, *first, *kept}), **kept, **first}


def beside(files: Mapping[str, bytes], names: Collection[str]) -> dict[str, bytes]:
    """Those of the files that are neither one of these, nor below one, nor in the place of a folder that one needs."""
    needed = {folder for name in names for folder in _folders(name)}
    return {
        name: content
        for name, content in files.items()
        if name not in names and name not in needed and not any(folder in names for folder in _folders(name))
    }


def _folders(name: str) -> list[str]:
    return [folder.as_posix() for folder in PurePosixPath(name).parents][:-1]
