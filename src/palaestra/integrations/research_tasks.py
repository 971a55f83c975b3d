"""What the research tasks of other packages share: files with more fields than we read, and one set of data to judge with."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, distribution

from pydantic import BaseModel, ConfigDict

from palaestra.core.errors import SandboxError, TaskError
from palaestra.core.records import Failure, FailureCause
from palaestra.research.judge.evaluation import EvaluationSplit, SubmissionJudge
from palaestra.research.tasks.task import JudgeResult, ResearchTask, TaskData
from palaestra.sandbox.base import Sandbox


class ForeignFile(BaseModel):
    """A file of another package, or a part of one. Later versions may add fields; the ones that we read must be valid."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class ForeignJudge(SubmissionJudge):
    """Judges submissions with the evaluator of another package. Both splits use the same data, because it has one set."""

    def __init__(self, task: ResearchTask, sandbox: Sandbox) -> None:
        self.task, self.sandbox, self.seed, self.data, self.exposed = task, sandbox, 0, TaskData(), False

    def judge(self, files: Mapping[str, bytes], split: EvaluationSplit) -> JudgeResult:
        try:
            return self.evaluate_files(files)
        except SandboxError as error:
            return Failure(FailureCause.SANDBOX, str(error))
        except (TaskError, OSError) as error:  # The folder of the task has changed.
            self.exposed = False
            return Failure(FailureCause.SCORER, f"the files of task '{self.task.name}' cannot be used: {error}")

    @abstractmethod
    def evaluate_files(self, files: Mapping[str, bytes]) -> JudgeResult:
        """Judge a submission. May raise `SandboxError`, `TaskError` or `OSError`."""


def is_package_installed(requirement: str) -> bool:
    """Whether a package is installed in this Python, whatever its version."""
    name = re.match(r"[\w.-]+", requirement)
    try:
        return name is not None and bool(distribution(name[0]))
    except PackageNotFoundError:
        return False
