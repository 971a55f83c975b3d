"""Judging as MLGym does, by running its evaluator; on a copy, in a fresh sandbox, with the original files put over it."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from importlib.resources import files as package_files
from typing import Any

from palaestra.core.errors import SandboxError
from palaestra.core.records import Failure, FailureCause
from palaestra.research.data import TaskData
from palaestra.research.evaluation import EvaluationSplit, Judge
from palaestra.research.mlgym.files import EntryPoint
from palaestra.research.mlgym.task import WORKSPACE, MLGymTask
from palaestra.research.places import read_only_of
from palaestra.research.records import Grade, Outcome, Unusable
from palaestra.sandbox.base import Limits, Result, Sandbox

RUNNER = "_palaestra_evaluate.py"


class MLGymJudge(Judge):
    """Runs the evaluator of a task of MLGym."""

    task: MLGymTask

    def __init__(self, task: MLGymTask, sandbox: Sandbox) -> None:
        self.task, self.sandbox, self.seed, self.data = task, sandbox, 0, TaskData()

    def judge(self, files: Mapping[str, bytes], split: EvaluationSplit) -> Outcome:
        """What a submission is worth; the same for both splits, as there is one set of data."""
        start = time.perf_counter()
        file = self.task.file
        wrong = self._wrong(files)
        if wrong:
            return Unusable(wrong)
        originals = self.task.evaluator_files()
        evaluator = next((name for name in file.evaluation_paths if name in originals), None)
        if evaluator is None:
            said = f"the evaluator {', '.join(file.evaluation_paths)} is not among the starter code of the task"
            return Failure(FailureCause.SCORER, said)
        try:
            argv = self._command(evaluator, files)
        except ValueError as error:
            return Unusable(str(error))
        # The agent's copies of what judges it do not count.
        kept = {name: content for name, content in files.items() if name not in file.evaluation_paths}
        judges = {name: originals[name] for name in originals if name in file.evaluation_paths or name not in kept}
        runner = (package_files("palaestra.research") / "inside" / "evaluate.py").read_text(encoding="utf-8")
        try:
            result = self.sandbox.run(
                argv, {**kept, **judges, **self._secrets(originals), RUNNER: runner}, limits=self._limits(),
                read_only=read_only_of(self.task, self.data, judging=True), env={"HF_HUB_OFFLINE": "1"},
            )  # fmt: skip
        except SandboxError as error:
            return Failure(FailureCause.SANDBOX, str(error))
        return self._read(result, time.perf_counter() - start)

    def _wrong(self, files: Mapping[str, bytes]) -> str:
        if self.task.submission.files != ("*",):
            return super()._wrong(files)
        total = sum(len(content) for content in files.values())
        return f"the workspace has {total} bytes" if total > self.task.submission.largest else ""

    def _secrets(self, originals: Mapping[str, bytes]) -> dict[str, bytes]:
        names = {name.rsplit("/", 1)[-1] for name in self.task.file.secret_files}
        return {name: content for name, content in originals.items() if name.rsplit("/", 1)[-1] in names}

    def _command(self, evaluator: str, files: Mapping[str, bytes]) -> list[str]:
        run = ["python3", "-B", RUNNER, evaluator]
        match self.task.file.task_entrypoint:
            case EntryPoint.CSV:
                return [*run, "--submission_file", f"{WORKSPACE}/submission.csv"]
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

    def _read(self, result: Result, seconds: float) -> Outcome:
        said = " ".join(result.error_text.split())[-600:]
        found = scores_in(result.text)
        if found is None:
            if result.status.is_limit:
                return Unusable(f"the evaluator was ended by its limit of {result.status.value}; {said}")
            return Unusable(f"the evaluator could not read the submission (exit code {result.exit_code}): {said}")
        metric = self.task.metric
        value = found.get(metric.name)
        if value is None:
            by_name = {name.lower(): one for name, one in found.items()}
            value = by_name.get(metric.name.lower(), next(iter(found.values())) if len(found) == 1 else None)
        if value is None or not math.isfinite(value):
            return Failure(FailureCause.SCORER, f"the evaluator gave no finite '{metric.name}'; got {found}")
        return Grade(value, {**found, metric.name: value}, seconds)


def scores_in(text: str) -> dict[str, float] | None:
    """The scores in what an evaluator printed: its last JSON object, on one line or on several.

    >>> scores_in("loading\\n{'not': 'json'}\\n{\\"Score\\": 1.5}\\n")
    {'Score': 1.5}
    """
    found: dict[str, float] | None = None
    decoder, at = json.JSONDecoder(), text.find("{")
    while at >= 0:
        try:
            value, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            end = at + 1
        else:
            numbers = _numbers(value)
            found = numbers or found
        at = text.find("{", end)
    return found


def _numbers(value: Any) -> dict[str, float]:
    if not isinstance(value, Mapping):
        return {}
    return {
        str(name): float(one)
        for name, one in value.items()
        if isinstance(one, int | float) and not isinstance(one, bool)
    }
