"""Judging as MLGym does, by running its evaluator; on a copy, in a fresh sandbox, with the original files put over it."""

from __future__ import annotations

import json
import math
import secrets
import time
from collections.abc import Collection, Mapping
from pathlib import Path, PurePosixPath

from palaestra.core.errors import SandboxError
from palaestra.core.records import Failure, FailureCause
from palaestra.research.data import TaskData
from palaestra.research.evaluation import EvaluationSplit, Judge
from palaestra.research.inside import evaluate
from palaestra.research.inside.evaluate import KEY_BYTES
from palaestra.research.mlgym.files import EntryPoint
from palaestra.research.mlgym.scores import exception_in, scores_in, unsealed
from palaestra.research.mlgym.task import WORKSPACE, MLGymTask
from palaestra.research.places import read_only_of
from palaestra.research.records import Grade, Outcome, Unusable
from palaestra.sandbox.base import Limits, Result, Sandbox

RUNNER = "/opt/runner/evaluate.py"
"""Where the runner lies: in a folder of its own, as Python looks there for modules first."""
QUOTED = 600
"""Characters of what an evaluator said that the agent is told, where none of its code ran."""


class MLGymJudge(Judge):
    """Runs the evaluator of a task of MLGym."""

    task: MLGymTask

    def __init__(self, task: MLGymTask, sandbox: Sandbox) -> None:
        self.task, self.sandbox, self.seed, self.data = task, sandbox, 0, TaskData()
        self.exposed = False

    def judge(self, files: Mapping[str, bytes], split: EvaluationSplit) -> Outcome:
        """What a submission is worth; the same for both splits, as there is one set of data."""
        start, self.exposed = time.perf_counter(), False
        names, table = self.task.file.evaluation_paths, self.task.file.task_entrypoint is EntryPoint.CSV
        if table:  # Nothing else of the agent's may be there, as it could be code.
            files = {name: content for name, content in files.items() if name in self.task.submission.files}
        originals = self.task.evaluator_files()
        fixed = {*names, *(originals.keys() - self.task.starter_files().keys())}
        if self.task.file.task_entrypoint is EntryPoint.PYTHON:
            # What the evaluator imports beside the one file that is handed in is its own.
            fixed |= originals.keys() - set(self.task.submission.files)
        wrong = self._wrong({**dict.fromkeys(originals.keys() & fixed, b""), **files})
        if wrong:
            return Unusable(wrong)
        evaluator = next((name for name in names if name in originals), None)
        if evaluator is None:
            said = f"the evaluator {', '.join(names)} is not among the starter code of the task"
            return Failure(FailureCause.SCORER, said)
        try:
            argv = self._command(evaluator, files)
        except ValueError as error:
            return Unusable(str(error))
        shown = read_only_of(self.task, self.data, judging=True)
        taken = {path.removeprefix(f"{WORKSPACE}/") for path in shown if path.startswith(f"{WORKSPACE}/")}
        key = secrets.token_bytes(KEY_BYTES)
        told = json.dumps(sorted(originals.keys() & fixed)).encode()
        self.exposed = not table
        try:
            result = self.sandbox.run(
                argv, laid_over(originals, files, fixed, taken), stdin=b"" if table else key + told, limits=self._limits(),
                read_only={**shown, RUNNER: str(Path(evaluate.__file__))}, env={"HF_HUB_OFFLINE": "1"},
            )  # fmt: skip
        except SandboxError as error:
            return Failure(FailureCause.SANDBOX, str(error))
        return self._read(result, key, time.perf_counter() - start)

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
                found = sorted(name for name in files if name.endswith((".yaml", ".yml")) and "/" not in name)
                if not found:
                    raise ValueError(
                        "the evaluator needs a configuration as a .yaml file in the workspace; there is none"
                    )
                return [*run, "--config_fname", found[0]]
            case EntryPoint.LANGUAGE_MODEL:
                return ["torchrun", "--nproc_per_node=1", "--standalone", RUNNER, evaluator]
            case EntryPoint.PYTHON:
                return run

    def _limits(self) -> Limits:
        limit = self.task.limits
        return Limits(
            wall_seconds=limit.evaluation_seconds, cpu_seconds=8 * limit.evaluation_seconds, memory=limit.memory,
            processes=limit.processes, open_files=1024, file_size=4 << 30, output=1 << 22, disk=8 << 30,
        )  # fmt: skip

    def _read(self, result: Result, key: bytes, seconds: float) -> Outcome:
        plain = result.text if result.ok else None
        text = unsealed(result.stdout, key) if self.exposed else plain
        if text is None:
            return Unusable(self._ended(result), self.exposed)
        name = self.task.metric.name
        lines = self.task.file.task_entrypoint in (EntryPoint.MODEL, EntryPoint.LANGUAGE_MODEL)
        found = scores_in(text, name, first=lines)
        if found is None:
            return Unusable("the evaluator came to its end and printed no scores", self.exposed)
        by_name = {one.lower(): score for one, score in found.items()}
        value = found.get(name, by_name.get(name.lower()))
        if value is None:
            got = "" if self.exposed else f"; got {sorted(found)}"
            return Failure(FailureCause.SCORER, f"the evaluator gave no '{name}'{got}")
        if not math.isfinite(self.task.metric.gain(value, 0.0)):
            # No failure, as the submission led to it; and it counts, as the answers may be guessed by it one after the other.
            return Unusable(f"its {name} is {value}, which is no score", exposed=True)
        return Grade(
            value, {**{one: score for one, score in found.items() if math.isfinite(score)}, name: value}, seconds
        )

    def _ended(self, result: Result) -> str:
        """How an evaluator ended that gave no scores. What code of the agent had to say could be hidden data."""
        limit = f"was ended by its limit of {result.status.value}" if result.status.is_limit else ""
        if not self.exposed:
            said = " ".join(result.error_text.split())[-QUOTED:]
            return f"the evaluator {limit or f'could not read the submission (exit code {result.exit_code})'}: {said}"
        raised = "" if limit else exception_in(result.error_text)
        ended = f"did not come to its end (exit code {result.exit_code}{raised and f', {raised}'})"
        said = "what was printed there is not told, as it may hold hidden data. More is told by a trial of your own"
        return f"the evaluator {limit or ended}; {said}"


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
