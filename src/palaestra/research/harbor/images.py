"""Images of Harbor tasks: pulled or built with an engine, with the files of their working directory."""

from __future__ import annotations

import hashlib
import io
import shutil
import subprocess
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from palaestra.core.errors import SandboxError, TaskError
from palaestra.research.harbor.files import list_files

PULL_SECONDS = 1800.0


@dataclass(frozen=True)
class ContainerImage:
    """An image on this machine.

    Arguments:
        workdir: its working directory.
        files: the regular files in it, which every workspace starts with.
    """

    name: str
    workdir: str
    files: Mapping[str, bytes] = field(repr=False)


def load_image(engine: str, folder: Path, image: str | None, build_seconds: float, workdir: str) -> ContainerImage:
    """Pull or build the image of a task.

    Arguments:
        engine: docker or podman.
        folder: the folder of the Dockerfile.
        image: the name of a published image; it takes precedence over the Dockerfile.
        workdir: the working directory if the image does not set one.

    Raises:
        TaskError: there is neither an image nor a Dockerfile, or the engine fails.
        SandboxError: the engine is not installed.
    """
    program = shutil.which(engine)
    if program is None:
        raise SandboxError(f"the sandbox '{engine}' needs {engine}, which is not on PATH")
    if image is None and not (folder / "Dockerfile").is_file():
        raise TaskError(f"{folder} needs a Dockerfile, or task.toml a docker_image")
    name = image or f"palaestra-harbor-{_hash_folder(folder)}"
    if _run(program, ["image", "inspect", name], PULL_SECONDS, check=False).returncode:
        command = ["pull", name] if image else ["build", "-t", name, str(folder)]
        _run(program, command, PULL_SECONDS if image else build_seconds)
    configured = _run(program, ["image", "inspect", "-f", "{{.Config.WorkingDir}}", name], PULL_SECONDS).stdout
    workdir = configured.decode().strip() or workdir
    archive = _run(
        program,
        ["run", "--rm", "--network=none", "--entrypoint", "tar", name, "-cf", "-", "-C", workdir, "."],
        PULL_SECONDS,
    ).stdout
    return ContainerImage(name, workdir, _unpack(archive))


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


def _hash_folder(folder: Path) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for name, content in list_files(folder).items():
        digest.update(f"{len(name)}:{name}:{len(content)}:".encode() + content)
    return digest.hexdigest()
