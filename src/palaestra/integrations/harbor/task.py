"""A Harbor task folder as a research task: its environment, limits, solution and verifier, with our protections."""

from __future__ import annotations

import io
import os
import re
import shlex
import shutil
import subprocess
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import Field, PrivateAttr

from palaestra.core.errors import SandboxError, TaskError
from palaestra.core.records import Json
from palaestra.integrations.harbor.files import (
    EnvironmentSection,
    HarborFile,
    ImagePlan,
    find_outside_path,
    read_environment,
    read_task_file,
    resolve_variables,
)
from palaestra.research.tasks.task import (
    Direction,
    InvalidSubmission,
    Metric,
    ResearchTask,
    Submission,
    TaskLimits,
    collect_workspace,
    hash_contents,
    read_files,
)
from palaestra.sandbox.base import Shell

_SOLUTION = ".solution"
"""The folder of the solution in the workspace of the agent `reference`."""
_WRITABLE = ("/logs", "/tests")
"""Folders that a verifier writes."""
_MAX_BYTES = 1 << 30
_MAX_SECONDS = 3600.0
_PULL_SECONDS = 1800.0


@dataclass(frozen=True)
class _ContainerImage:
    """An image on this machine.

    Arguments:
        workdir: its working directory.
        files: the regular files in it, which every workspace starts with.
    """

    name: str
    workdir: str
    files: Mapping[str, bytes] = field(repr=False)


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
    _image: _ContainerImage | None = PrivateAttr(default=None)

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

    def prepare_sandbox(self, name: str) -> Json:
        if name not in ("docker", "podman"):
            if needs := self._plan.needs:
                raise TaskError(f"task '{self.name}' needs its image ({needs}); run it with --sandbox docker or podman")
        elif self._image is None:
            self._image = _load_image(name, self.folder / "environment", self._file.environment, self.workdir)
        self._check_paths()
        image = {} if self._image is None else {"image": self._image.name}
        return {**image, "place": self.place, "private": _WRITABLE}

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
        files = read_files(self.folder / "solution")
        here = f"{self.place}/{_SOLUTION}/".encode()
        return {f"{_SOLUTION}/{name}": content.replace(b"/solution/", here) for name, content in files.items()}

    def variables(self) -> Mapping[str, str]:
        return {**self._plan.variables, **resolve_variables(self._file.environment.env, self.folder / "task.toml")}

    def collect(self, shell: Shell) -> dict[str, bytes] | InvalidSubmission:
        return collect_workspace(shell, self.submission.largest)

    def digest(self) -> str:
        return hash_contents(read_files(self.folder))


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
    seconds = file.agent.timeout_sec or _MAX_SECONDS
    solve = root / "solution" / "solve.sh"
    task = HarborTask(
        name=re.sub(r"\W+", "_", root.name),
        title=root.name,
        description=(root / "instruction.md").read_text(encoding="utf-8").strip() or root.name,
        metric=Metric(name=metric, direction=Direction.HIGHER, floor=0.0),
        submission=Submission(files=("*",), largest=_MAX_BYTES),
        limits=TaskLimits(
            steps=steps,
            seconds=seconds,
            command_seconds=seconds,
            validations=validations,
            evaluation_seconds=file.verifier.timeout_sec,
            memory=(file.environment.memory_mb or 4096) << 20,
        ),
        check=check,
    )
    task._file, task._plan, task._folder = file, plan, root
    if not solve.is_file():
        return task
    variables = resolve_variables(file.solution.env, root / "task.toml")
    setting = " ".join(f"{name}={shlex.quote(value)}" for name, value in variables.items())
    inner = shlex.quote(os.path.relpath(plan.workdir, plan.place))
    command = f'(cd {inner} && {setting} bash "$OLDPWD/{_SOLUTION}/solve.sh") && rm -r {_SOLUTION}'
    return task.model_copy(update={"reference": " ".join(command.split())})


# Images


def _load_image(engine: str, folder: Path, section: EnvironmentSection, workdir: str) -> _ContainerImage:
    """Pull or build the image of a task.

    Arguments:
        engine: docker or podman.
        folder: the folder of the Dockerfile.
        section: a published image in it takes precedence over the Dockerfile.
        workdir: the working directory if the image does not set one.

    Raises:
        TaskError: there is neither an image nor a Dockerfile, or the engine fails.
        SandboxError: the engine is not installed.
    """
    program = shutil.which(engine)
    if program is None:
        raise SandboxError(f"the sandbox '{engine}' needs {engine}, which is not on PATH")
    image = section.docker_image
    if image is None and not (folder / "Dockerfile").is_file():
        raise TaskError(f"{folder} needs a Dockerfile, or task.toml a docker_image")
    name = image or f"palaestra-harbor-{hash_contents(read_files(folder), size=8)}"
    if _run(program, ["image", "inspect", name], _PULL_SECONDS, check=False).returncode:
        command = ["pull", name] if image else ["build", "-t", name, str(folder)]
        _run(program, command, _PULL_SECONDS if image else section.build_timeout_sec)
    configured = _run(program, ["image", "inspect", "-f", "{{.Config.WorkingDir}}", name], _PULL_SECONDS).stdout
    workdir = configured.decode().strip() or workdir
    command = ["run", "--rm", "--network=none", "--entrypoint", "tar", name, "-cf", "-", "-C", workdir, "."]
    return _ContainerImage(name, workdir, _unpack(_run(program, command, _PULL_SECONDS).stdout))


def _run(program: str, arguments: list[str], seconds: float, check: bool = True) -> subprocess.CompletedProcess[bytes]:
    try:
        completed = subprocess.run([program, *arguments], capture_output=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired as error:
        raise TaskError(f"{program} {arguments[0]} did not end within {seconds:g} s") from error
    if check and completed.returncode:
        message = " ".join(completed.stderr.decode("utf-8", "replace").split())[-500:]
        raise TaskError(f"{program} {' '.join(arguments[:2])} failed: {message or 'no error message'}")
    return completed


def _unpack(archive: bytes) -> dict[str, bytes]:
    files = {}
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:") as entries:
        for entry in entries:
            content = entries.extractfile(entry) if entry.isfile() else None
            if content is not None:
                files[entry.name.removeprefix("./")] = content.read()
    return files
