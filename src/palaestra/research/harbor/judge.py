"""Judges submissions with the verifier of a Harbor task: `tests/test.sh`, in a fresh sandbox with a copy of the workspace.

The verifier writes one number to /logs/verifier/reward.txt, or numbers by name to /logs/verifier/reward.json. A verifier
that writes neither, or something else, is a failure, never a reward of 0. If it exceeds a limit, the submission cannot be
judged (`exposed`).
"""

from __future__ import annotations

import base64
import json
import math
import shlex
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from palaestra.core.errors import SandboxError, TaskError
from palaestra.core.records import Failure, FailureCause
from palaestra.engines.models import cache_folder
from palaestra.research.harbor.files import resolve_variables
from palaestra.research.harbor.task import HarborTask
from palaestra.research.judge.evaluation import EvaluationSplit, SubmissionJudge, make_judge, sandbox_environment
from palaestra.research.tasks.records import Grade, InvalidSubmission, Isolation, JudgeResult, TaskData
from palaestra.research.workspace.workspace import load_baseline, measure
from palaestra.runs.files import storage_errors
from palaestra.sandbox.base import Limits, Sandbox, SandboxResult
from palaestra.sandbox.bubblewrap import Bubblewrap, environment

TOOLS = "/opt/harbor"
TESTS = f"{TOOLS}/tests"
"""Where the tests are mounted. They are copied to /tests, which the verifier may write."""
INSIDE = Path(__file__).parent / "inside"
SCRIPT = """
mkdir -p /logs/verifier /logs/agent /logs/artifacts && cp -r {tests}/. /tests/ && chmod +x /tests/test.sh && cd {workdir} || exit 99
/tests/test.sh >/logs/verifier/test-stdout.txt 2>&1 </dev/null
echo "code $?"
for name in reward.json reward.txt; do
  if [ -f /logs/verifier/$name ]; then echo "$name $(head -c 65536 /logs/verifier/$name | base64 -w0)"; break; fi
done
"""


class HarborJudge(SubmissionJudge):
    """Runs the verifier of a Harbor task."""

    task: HarborTask

    def __init__(self, task: HarborTask, sandbox: Sandbox) -> None:
        self.task, self.sandbox, self.seed, self.data = task, sandbox, 0, TaskData()
        self.exposed = False
        self._last: tuple[dict[str, bytes], JudgeResult] | None = None

    def judge(self, files: Mapping[str, bytes], split: EvaluationSplit) -> JudgeResult:
        """Judge a submission. Both splits give the same result, since a task has one verifier."""
        if self._last is None or self._last[0] != files:
            try:
                outcome = self._verify(files)
            except SandboxError as error:
                return Failure(FailureCause.SANDBOX, str(error))
            except (TaskError, OSError) as error:  # The folder has changed.
                return Failure(FailureCause.SCORER, f"the files of task '{self.task.name}' cannot be used: {error}")
            self._last = dict(files), outcome
        return self._last[1]

    def _verify(self, files: Mapping[str, bytes]) -> JudgeResult:
        start, limit = time.perf_counter(), self.task.limits
        wrong = self._wrong(files)
        if wrong:
            return InvalidSubmission(wrong)
        variables = {
            **sandbox_environment(self.task),
            **resolve_variables(self.task.file.verifier.env, self.task.folder / "task.toml"),
        }
        mounts = {TESTS: str(self.task.folder / "tests")}
        if isinstance(self.sandbox, Bubblewrap):
            mounts[f"{TOOLS}/bin"] = str(INSIDE)
            variables.setdefault("PATH", f"{TOOLS}/bin:{environment()['PATH']}")
        result = self.sandbox.run(
            ["bash", "-c", SCRIPT.format(tests=TESTS, workdir=shlex.quote(self.task.workdir))], files,
            limits=Limits.for_work(
                limit.evaluation_seconds, cores=self.task.file.environment.cpus or 1, memory=limit.memory,
                processes=limit.processes, open_files=1024, file_size=1 << 30, output=1 << 20, disk=4 << 30,
            ),
            read_only=mounts, env=variables,
        )  # fmt: skip
        return self._read(result, time.perf_counter() - start)

    def _read(self, result: SandboxResult, seconds: float) -> JudgeResult:
        """Convert the files of the verifier to a result. Its output stays hidden: it may quote the tests."""
        self.exposed = (
            result.status.is_limit
        )  # The verifier works on an untouched workspace, so this is the agent's fault.
        if self.exposed:
            return Failure(FailureCause.SCORER, f"the verifier was ended by its limit of {result.status.value}")
        lines = dict(line.partition(" ")[::2] for line in result.text.splitlines())
        if "code" not in lines:
            return Failure(FailureCause.SCORER, f"the verifier could not start (exit code {result.exit_code})")
        names = [name for name in ("reward.json", "reward.txt") if name in lines]
        if not names:
            return Failure(FailureCause.SCORER, f"the verifier wrote no reward (exit code {lines['code']})")
        try:
            scores = parse_rewards(base64.b64decode(lines[names[0]]).decode(), names[0].endswith(".json"))
        except ValueError as error:
            return Failure(FailureCause.SCORER, f"the verifier wrote an invalid {names[0]}: {error}")
        metric = self.task.metric.name
        score = scores.get(metric, next(iter(scores.values())) if len(scores) == 1 else None)
        if score is None:
            return Failure(
                FailureCause.SCORER,
                f"the verifier wrote {', '.join(scores)}; select one with --task-option metric=NAME",
            )
        return Grade(score, {**scores, metric: score}, seconds, Isolation.ONE_SANDBOX)

    def _wrong(self, files: Mapping[str, bytes]) -> str:
        total, largest = sum(len(content) for content in files.values()), self.task.submission.largest
        return f"the workspace has {total} bytes; {largest} are the most" if total > largest else ""


def parse_rewards(text: str, is_json: bool) -> dict[str, float]:
    """Read a reward file.

    Raises:
        ValueError: it is empty, or contains something else than finite numbers.

    >>> parse_rewards("1\\n", False), parse_rewards('{"speed": 0.5, "reward": 1}', True)
    ({'reward': 1.0}, {'speed': 0.5, 'reward': 1.0})
    """
    if not text.strip():
        raise ValueError("it is empty")
    values: Any = json.loads(text) if is_json else float(text)
    rewards = values if isinstance(values, dict) else {"reward": values}
    for name, value in rewards.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise ValueError(f"expected finite numbers; got {value!r} for {name}")
    if not rewards:
        raise ValueError("it has no numbers")
    return {str(name): float(value) for name, value in rewards.items()}


def check_solution(task: HarborTask, sandbox: Sandbox, judge: HarborJudge) -> None:
    """Judge the task's own solution, once per machine.

    Raises:
        TaskError: it gets no better reward than an untouched workspace.
    """
    mark = cache_folder() / "research" / f"harbor-{task.name}-{task.digest()}-{sandbox.name}"
    if not task.check or not task.reference or mark.exists():
        return
    untouched = load_baseline(task, sandbox, judge).test.score
    solved = measure(task, sandbox, judge, task.reference, task.reference_files()).test.score
    if not task.metric.better(solved, untouched):
        raise TaskError(
            f"the verifier of task '{task.name}' gives its own solution {solved:g} and an untouched workspace {untouched:g}: "
            "it does not work in this sandbox; it may need the network, or its image (--sandbox docker or podman). "
            "--task-option check=false skips this check"
        )
    with storage_errors(mark, "storing the check of a Harbor task"):
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()


@make_judge.register
def _make_harbor_judge(task: HarborTask, sandbox: Sandbox) -> HarborJudge:
    judge = HarborJudge(task, sandbox)
    check_solution(task, sandbox, judge)
    return judge
