"""A Harbor task folder as a research task: its environment, limits, solution and verifier, with our protections."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field, PrivateAttr

from palaestra.core.errors import TaskError
from palaestra.research.harbor.files import (
    HarborFile,
    ImagePlan,
    find_outside_path,
    list_files,
    read_environment,
    read_task_file,
    resolve_variables,
)
from palaestra.research.harbor.images import ContainerImage, load_image
from palaestra.research.tasks.collecting import collect_workspace
from palaestra.research.tasks.records import InvalidSubmission
from palaestra.research.tasks.task import Direction, Metric, ResearchTask, Submission, TaskLimits
from palaestra.sandbox.base import Shell

SOLUTION = ".solution"
"""The folder of the solution in the workspace of the agent `reference`."""
WRITABLE = ("/logs", "/tests")
"""Folders that a verifier writes."""
LARGEST = 1 << 30
MAX_SECONDS = 3600.0


class HarborTask(ResearchTask):
    """A task folder of Harbor or Terminal-Bench; made by `load_harbor`.

    The agent works in the working directory of the task's image, or in a folder with the copied files if the task needs
    no image. It submits a copy of this folder. The copy is judged in a fresh sandbox: `tests/` is copied to /tests, and
    `test.sh` writes the reward to /logs/verifier. Tests and solution are in no agent's sandbox.
    """

    name: str = Field(pattern=r"^\w+$")
    check: bool = True
    _file: HarborFile = PrivateAttr()
    _plan: ImagePlan = PrivateAttr()
    _image: ContainerImage | None = PrivateAttr(default=None)

    @property
    def file(self) -> HarborFile:
        """The task file."""
        return self._file

    @property
    def place(self) -> str:
        return self._image.workdir if self._image is not None else self._plan.place

    @property
    def workdir(self) -> str:
        """The working directory of the agent's commands and of the verifier."""
        return self._image.workdir if self._image is not None else self._plan.workdir

    def prepare_sandbox(self, name: str) -> Mapping[str, Any]:
        if name not in ("docker", "podman"):
            if self._plan.needs:
                raise TaskError(
                    f"task '{self.name}' needs its image ({self._plan.needs}); run it with --sandbox docker or podman"
                )
            self._check_paths()
            return {"place": self.place, "private": WRITABLE}
        if self._image is None:
            environment = self._file.environment
            self._image = load_image(
                name, self.folder / "environment", environment.docker_image, environment.build_timeout_sec, self.workdir
            )
        self._check_paths()
        return {"image": self._image.name, "place": self.place, "private": WRITABLE}

    def _check_paths(self) -> None:
        """Reject a task without a solution whose tests read files that are not submitted. Others are judged once."""
        outside = find_outside_path(self.folder / "tests", self.place)
        if outside and self.check and not self.reference:
            raise TaskError(
                f"the tests of task '{self.name}' name {outside}, but only files below {self.place} are submitted; "
                "--task-option check=false skips this check"
            )

    def starter_files(self) -> dict[str, bytes]:
        if self._image is not None:
            return dict(self._image.files)
        return {name: path.read_bytes() for name, path in self._plan.files.items()}

    def reference_files(self) -> dict[str, bytes]:
        files = list_files(self.folder / "solution")
        here = f"{self.place}/{SOLUTION}/".encode()
        return {f"{SOLUTION}/{name}": content.replace(b"/solution/", here) for name, content in files.items()}

    def variables(self) -> Mapping[str, str]:
        return {**self._plan.variables, **resolve_variables(self._file.environment.env, self.folder / "task.toml")}

    def collect(self, shell: Shell) -> dict[str, bytes] | InvalidSubmission:
        return collect_workspace(shell, self.submission.largest)

    def digest(self) -> str:
        digest = hashlib.blake2b(digest_size=12)
        for name, content in list_files(self.folder).items():
            digest.update(f"{len(name)}:{name}:{len(content)}:".encode() + content)
        return digest.hexdigest()


def load_harbor(
    folder: str | Path, *, metric: str = "reward", steps: int = 50, validations: int = 0, check: bool = True
) -> HarborTask:
    """Load a task folder of Harbor, unmodified.

    Arguments:
        folder: a folder with `instruction.md`, `task.toml`, `tests/test.sh` and mostly `environment` and `solution`.
        metric: the reward that counts, of a verifier that writes several.
        steps, validations: limits, which the files do not contain. Harbor's agents see no reward before the end.
        check: judge the task's own solution once before the first episode. A task whose verifier does not work here is
            rejected, rather than giving every agent 0.

    Raises:
        TaskError: a file is missing or invalid, or the task has a part that is not supported.
    """
    root = Path(folder).resolve()
    file = read_task_file(root / "task.toml")
    for name in ("instruction.md", "tests/test.sh"):
        if not (root / name).is_file():
            raise TaskError(f"{root} needs the file {name}")
    plan = read_environment(root / "environment", file.environment)
    seconds = file.agent.timeout_sec or MAX_SECONDS
    solve = root / "solution" / "solve.sh"
    task = HarborTask(
        name=re.sub(r"\W+", "_", root.name),
        title=root.name,
        description=(root / "instruction.md").read_text(encoding="utf-8").strip() or root.name,
        metric=Metric(name=metric, direction=Direction.HIGHER, floor=0.0),
        submission=Submission(files=("*",), largest=LARGEST),
        limits=TaskLimits(
            steps=steps, seconds=seconds, command_seconds=seconds, validations=validations,
            evaluation_seconds=file.verifier.timeout_sec, memory=(file.environment.memory_mb or 4096) << 20,
        ),
        check=check,
    )  # fmt: skip
    task._file, task._plan, task._folder = file, plan, root
    if not solve.is_file():
        return task
    variables = resolve_variables(file.solution.env, root / "task.toml")
    setting = " ".join(f"{name}={shlex.quote(value)}" for name, value in variables.items())
    inner = shlex.quote(os.path.relpath(plan.workdir, plan.place))
    command = f'(cd {inner} && {setting} bash "$OLDPWD/{SOLUTION}/solve.sh") && rm -r {SOLUTION}'
    return task.model_copy(update={"reference": " ".join(command.split())})
