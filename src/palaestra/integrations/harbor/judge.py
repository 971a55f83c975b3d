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

from palaestra.core.errors import TaskError
from palaestra.core.records import Failure, FailureCause, Json
from palaestra.core.tables import load_table
from palaestra.integrations.harbor.files import resolve_variables
from palaestra.integrations.harbor.task import HarborTask
from palaestra.integrations.research_tasks import ForeignJudge
from palaestra.models.registry import cache_folder
from palaestra.research.judge.evaluation import make_judge, sandbox_environment
from palaestra.research.tasks.task import Grade, InvalidSubmission, Isolation, JudgeResult
from palaestra.research.workspace.workspace import load_baseline, measure
from palaestra.runs.files import storage_errors
from palaestra.sandbox.base import Limits, Sandbox, SandboxCommand, SandboxResult
from palaestra.sandbox.bubblewrap import Bubblewrap, environment

_TOOLS = "/opt/harbor"
_TESTS = f"{_TOOLS}/tests"
"""Where the tests are mounted. They are copied to /tests, which the verifier may write."""
_INSIDE = Path(__file__).parent / "inside"
_SCRIPT: str = load_table(__file__, "scripts")["verify"]


class HarborJudge(ForeignJudge):
    """Runs the verifier of a Harbor task."""

    task: HarborTask
    _last: tuple[dict[str, bytes], JudgeResult] | None = None

    def evaluate_files(self, files: Mapping[str, bytes]) -> JudgeResult:
        if self._last is None or self._last[0] != files:
            self._last = dict(files), self._verify(files)
        return self._last[1]

    def _verify(self, files: Mapping[str, bytes]) -> JudgeResult:
        start, limit = time.perf_counter(), self.task.limits
        wrong = self._wrong(files)
        if wrong:
            return InvalidSubmission(wrong)
        own = resolve_variables(self.task.file.verifier.env, self.task.folder / "task.toml")
        variables = {**sandbox_environment(self.task), **own}
        mounts = {_TESTS: str(self.task.folder / "tests")}
        if isinstance(self.sandbox, Bubblewrap):
            mounts[f"{_TOOLS}/bin"] = str(_INSIDE)
            variables.setdefault("PATH", f"{_TOOLS}/bin:{environment()['PATH']}")
        sizes = {"memory": limit.memory, "file_size": 1 << 30, "output": 1 << 20, "disk": 4 << 30}
        counts = {"processes": limit.processes, "open_files": 1024}
        cores = self.task.file.environment.cpus or 1
        limits = Limits.for_work(limit.evaluation_seconds, cores=cores, **sizes, **counts)
        argv = ["bash", "-c", _SCRIPT.format(tests=_TESTS, workdir=shlex.quote(self.task.workdir))]
        result = self.sandbox.run(SandboxCommand(argv, files, limits=limits, env=variables, read_only=mounts))
        return self._read(result, time.perf_counter() - start)

    def _read(self, result: SandboxResult, seconds: float) -> JudgeResult:
        """Convert the files of the verifier to a result. Its output stays hidden: it may quote the tests."""
        # The verifier works on an untouched workspace, so a limit is the agent's fault.
        self.exposed = result.status.is_limit
        try:
            scores = _read_rewards(result)
        except ValueError as error:
            return Failure(FailureCause.SCORER, f"the verifier {error}")
        metric = self.task.metric.name
        score = scores.get(metric, next(iter(scores.values())) if len(scores) == 1 else None)
        if score is None:
            reason = f"the verifier wrote {', '.join(scores)}; select one with --task-option metric=NAME"
            return Failure(FailureCause.SCORER, reason)
        return Grade(score, {**scores, metric: score}, seconds, Isolation.ONE_SANDBOX)


def _read_rewards(result: SandboxResult) -> dict[str, float]:
    """Read the rewards in the output of `_SCRIPT`. Raises `ValueError` if there are none."""
    if result.status.is_limit:
        raise ValueError(f"was ended by its limit of {result.status.value}")
    lines = dict(line.partition(" ")[::2] for line in result.text.splitlines())
    if "code" not in lines:
        raise ValueError(f"could not start (exit code {result.exit_code})")
    for name in ("reward.json", "reward.txt"):
        if name in lines:
            try:
                return _parse_rewards(base64.b64decode(lines[name]).decode(), name.endswith(".json"))
            except ValueError as error:
                raise ValueError(f"wrote an invalid {name}: {error}") from error
    raise ValueError(f"wrote no reward (exit code {lines['code']})")


def _parse_rewards(text: str, is_json: bool) -> dict[str, float]:
    """Read a reward file.

    Raises:
        ValueError: it is empty, or contains something else than finite numbers.

    >>> _parse_rewards("1\\n", False), _parse_rewards('{"speed": 0.5, "reward": 1}', True)
    ({'reward': 1.0}, {'speed': 0.5, 'reward': 1.0})
    """
    if not text.strip():
        raise ValueError("it is empty")
    values: object = json.loads(text) if is_json else float(text)
    rewards: Json = values if isinstance(values, dict) else {"reward": values}
    for name, value in rewards.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise ValueError(f"expected finite numbers; got {value!r} for {name}")
    if not rewards:
        raise ValueError("it has no numbers")
    return {str(name): float(value) for name, value in rewards.items()}


def _check_solution(task: HarborTask, sandbox: Sandbox, judge: HarborJudge) -> None:
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
    _check_solution(task, sandbox, judge)
    return judge
