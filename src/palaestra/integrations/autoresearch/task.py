"""A folder with `prepare.py`, `train.py` and `program.md` as a research task, accepted by paired seeds.

program.md   the instructions of the agent
prepare.py   the data, the time budget (`TIME_BUDGET`) and the evaluation (a function `evaluate...`); agents cannot change it
train.py     what the agent improves and submits

The judge runs the submitted train.py and the folder's own with the same unseen seeds. A change counts only if the interval of the paired
differences excludes 0, so neither a lucky run nor a picked seed is an improvement. Nor does a script count whose result is the same with
every seed, while the original's is not: it has found a way to keep its luck.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import Field, PrivateAttr

from palaestra.core.errors import SandboxError, TaskError
from palaestra.core.records import Failure, FailureCause
from palaestra.core.seeding import Seeds
from palaestra.core.statistics import mean_interval
from palaestra.integrations.autoresearch.run_seeded import RESULT
from palaestra.research.judge.evaluation import EvaluationSplit, SubmissionJudge, make_judge, sandbox_environment
from palaestra.research.tasks.data import eval_seed
from palaestra.research.tasks.task import (
    Direction,
    Grade,
    InvalidSubmission,
    Isolation,
    JudgeResult,
    Metric,
    ResearchTask,
    Submission,
    TaskData,
    TaskLimits,
    hash_contents,
    read_files,
)
from palaestra.sandbox.base import Limits, Sandbox, SandboxCommand

FILES = ("program.md", "prepare.py", "train.py")
_CACHE, _INSIDE = "~/.cache/autoresearch", "/home/user/.cache/autoresearch"
"""Where the published prepare.py stores its data, here and in the sandbox."""
_BUDGET = 300.0
"""Seconds of a training if prepare.py has no `TIME_BUDGET`."""
_SLACK = 120.0
"""Seconds of a run beside its training: start, compilation, evaluation."""
_RUNNER = Path(__file__).with_name("run_seeded.py")
_RULES = """

---
In this workspace: `train.py` is submitted; `prepare.py` is replaced by the original. It is judged with {seeds} unseen seeds, which are mixed
into every seed that the script sets, beside the original `train.py` with the same seeds. The score is the mean `{metric}`
({direction} is better) if the interval of the paired differences excludes 0, otherwise at most that of the original. `validate`
and `submit` use different seeds. There is no network.
"""


class AutoresearchTask(ResearchTask):
    """A folder of the autoresearch format; made by `load_autoresearch`."""

    name: str = Field(pattern=r"^\w+$")
    seeds: int = 3
    function: str = ""
    _cache: Path | None = PrivateAttr(default=None)

    @property
    def has_secret_seed(self) -> bool:
        return True

    def starter_files(self) -> dict[str, bytes]:
        files = read_files(self.folder)
        return {name: content for name, content in files.items() if not name.startswith((".git/", ".venv/"))}

    def reference_files(self) -> dict[str, bytes]:
        return {}

    def mounts(self, data: TaskData, judging: bool) -> Mapping[str, str]:
        return {} if self._cache is None else {_INSIDE: str(self._cache)}

    def digest(self) -> str:
        return hash_contents(self.starter_files())


def load_autoresearch(
    folder: str | Path,
    *,
    metric: str = "",
    direction: Literal["lower", "higher"] = "lower",
    seeds: int = 3,
    scale: float = 0.01,
    steps: int = 100,
    validations: int = 20,
    cache: str = "",
) -> AutoresearchTask:
    """Load a folder of the autoresearch format, unmodified.

    Arguments:
        folder: a folder with `program.md`, `prepare.py` and `train.py`. Run its `prepare.py` first if it downloads data.
        metric: the function of prepare.py whose result counts, such as `evaluate_bpb`, if it has several.
        direction: whether lower or higher results are better.
        seeds: runs of each side of the comparison.
        scale: the improvement that is worth a reward of 1.
        steps, validations: limits of the agent.
        cache: the folder of the prepared data, shown read-only; by default `~/.cache/autoresearch` if there is one.

    Raises:
        TaskError: a file is missing, or prepare.py does not measure anything.
    """
    root = Path(folder).resolve()
    if missing := [name for name in FILES if not (root / name).is_file()]:
        raise TaskError(f"{root} has a program.md; a folder of autoresearch also needs {', '.join(missing)}")
    if seeds < 2:
        raise TaskError(f"task option 'seeds': expected at least 2, to compare pairs of runs; got {seeds}")
    prepare = (root / "prepare.py").read_text(encoding="utf-8")
    functions = re.findall(r"^def (evaluate\w*)\(", prepare, re.MULTILINE)
    if not functions or (metric and metric not in functions) or (len(functions) > 1 and not metric):
        raise TaskError(
            f"{root}/prepare.py: expected one function whose name begins with evaluate, or --task-option metric=NAME for one of "
            f"several; got {', '.join(functions) or 'none'}"
        )
    function = metric or functions[0]
    budget = re.search(r"^TIME_BUDGET\s*=\s*([\d.]+)", prepare, re.MULTILINE)
    seconds = (float(budget[1]) if budget else _BUDGET) + _SLACK
    name = f"val_{function.removeprefix('evaluate').strip('_') or 'score'}"
    task = AutoresearchTask(
        name=re.sub(r"\W+", "_", root.name),
        title=root.name,
        description=(root / "program.md").read_text(encoding="utf-8").strip()
        + _RULES.format(seeds=seeds, metric=name, direction=direction),
        metric=Metric(name=name, direction=Direction(direction), scale=scale),
        submission=Submission(files=("train.py",), largest=1 << 20),
        limits=TaskLimits(
            steps=steps,
            seconds=max(3600.0, 2.0 * steps * seconds),
            command_seconds=seconds,
            validations=validations,
            evaluation_seconds=seconds,
        ),
        seeds=seeds,
        function=function,
    )
    data = Path(cache or _CACHE).expanduser()
    if cache and not data.is_dir():
        raise TaskError(f"task option 'cache': expected a folder; got {cache}")
    task._folder, task._cache = root, data if data.is_dir() else None
    return task


class AutoresearchJudge(SubmissionJudge):
    """Runs both trainings with the same seeds and compares them."""

    task: AutoresearchTask

    def __init__(self, task: AutoresearchTask, sandbox: Sandbox) -> None:
        self.task, self.sandbox, self.seed, self.data, self.exposed = task, sandbox, eval_seed(task), TaskData(), False
        self._originals: dict[EvaluationSplit, list[float]] = {}

    def judge(self, files: Mapping[str, bytes], split: EvaluationSplit) -> JudgeResult:
        start, self.exposed = time.perf_counter(), False
        if wrong := self._wrong(files):
            return InvalidSubmission(wrong)
        try:
            original = self.task.starter_files()
            if split not in self._originals:
                measured = self._measure(original["train.py"], original, split)
                if isinstance(measured, str):
                    return Failure(FailureCause.SCORER, f"the original train.py of '{self.task.name}' {measured}")
                self._originals[split] = measured
            same = files["train.py"] == original["train.py"]
            measured = self._originals[split] if same else self._measure(files["train.py"], original, split)
        except SandboxError as error:
            return Failure(FailureCause.SANDBOX, str(error))
        self.exposed = not same
        if isinstance(measured, str):
            return InvalidSubmission(f"train.py {measured}", exposed=True)
        return self._compare(measured, self._originals[split], time.perf_counter() - start)

    def _measure(self, train: bytes, original: Mapping[str, bytes], split: EvaluationSplit) -> list[float] | str:
        """The results of a train.py with the seeds of a split, or what went wrong."""
        results = []
        for number in range(self.task.seeds):
            seed = Seeds(self.seed).derive(self.task.name, split, number).integer()
            command = SandboxCommand(
                ["python3", "-B", "_run_seeded.py", str(seed)],
                {**original, "train.py": train, "_run_seeded.py": _RUNNER.read_bytes()},
                limits=Limits.for_work(
                    self.task.limits.evaluation_seconds, memory=self.task.limits.memory, output=1 << 24, disk=4 << 30
                ),
                env=sandbox_environment(self.task),
                read_back=(RESULT,),
                read_only=self.task.mounts(self.data, judging=True),
            )
            result = self.sandbox.run(command)
            if not result.ok:
                line = (result.error_text.strip().splitlines() or [""])[-1]
                return f"ended with {result.status.value}: {line[:300]}"
            value = self._read(result.files.get(RESULT, b""))
            if value is None:
                return f"did not call {self.task.function} of prepare.py, or its result is not a finite number"
            results.append(value)
        return results

    def _read(self, content: bytes) -> float | None:
        try:
            value = json.loads(content)[self.task.function]
        except (ValueError, KeyError, TypeError, RecursionError):
            return None
        return float(value) if type(value) in (int, float) and math.isfinite(value) else None

    def _compare(self, values: list[float], originals: list[float], seconds: float) -> Grade:
        metric = self.task.metric
        gains = [metric.gain(value, original) * metric.scale for value, original in zip(values, originals, strict=True)]
        gain, mean, original = mean_interval(gains), sum(values) / len(values), sum(originals) / len(originals)
        has_kept_luck = len(set(values)) == 1 < len(set(originals))
        accepted = gain.low > 0 and not has_kept_luck
        # An improvement that is not shown counts as none. A deterioration always counts.
        score = original if gain.value > 0 and not accepted else mean
        scores = {
            "measured": mean,
            "original": original,
            "gain": gain.value,
            "gain_low": gain.low,
            "gain_high": gain.high,
        }
        scores |= {"accepted": float(accepted), "ignores_seeds": float(has_kept_luck)}
        return Grade(score, {metric.name: score, **scores}, seconds, Isolation.SHARED)


@make_judge.register
def _make_autoresearch_judge(task: AutoresearchTask, sandbox: Sandbox) -> AutoresearchJudge:
    return AutoresearchJudge(task, sandbox)
