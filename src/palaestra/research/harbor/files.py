"""The files of a Harbor task folder: the fields of `task.toml` that we read, and what a Dockerfile needs."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path, PurePosixPath

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from palaestra.core.errors import TaskError

DEFAULT_PLACE = "/app"
SYSTEMS = re.compile(r"(?:.*/)?(?:ubuntu|debian|python|buildpack-deps)(?:[-:].*)?")
"""Base images whose programs a usual Linux system with Python has."""
QUIET = {"WORKDIR", "ENV", "ARG", "LABEL", "CMD", "ENTRYPOINT", "EXPOSE", "USER", "SHELL", "MAINTAINER", "HEALTHCHECK"}
"""Instructions that need no image."""
HARMLESS = {
    "true": re.compile(""),
    "mkdir": re.compile(".*"),
    "chmod": re.compile(r"(?:\w*\+x|[0-7]?7[0-7][57]) .*"),
    "rm": re.compile(r"(?:(?:/var|/tmp|(?:~|/root)/\.cache)\S*\s*)+"),
    "ln": re.compile(r"\S+ /usr/\S+"),
}
"""Programs of a `RUN` instruction, with the arguments that change nothing in the working directory but folders."""
SYSTEM_PATHS = ("/tests", "/logs", "/solution", "/usr", "/bin", "/sbin", "/lib", "/dev", "/proc", "/sys")
_PATH = re.compile(r"(?<![\w.:/~}-])/[A-Za-z][\w.-]*(?:/[\w.-]+)+")
_VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")


class _Section(BaseModel):
    # Later versions may add fields; the ones that we read must be valid.
    model_config = ConfigDict(extra="ignore", frozen=True)


class EnvironmentSection(_Section):
    docker_image: str | None = None
    workdir: str | None = None
    memory_mb: int | None = Field(default=None, gt=0)
    cpus: float | None = Field(default=None, gt=0)
    build_timeout_sec: float = Field(default=600.0, gt=0)
    env: dict[str, str] = {}
    os: str = "linux"
    mcp_servers: tuple[object, ...] = ()


class VerifierSection(_Section):
    timeout_sec: float = Field(default=600.0, gt=0)
    env: dict[str, str] = {}
    environment_mode: str | None = None
    environment: dict[str, object] | None = None
    collect: tuple[object, ...] = ()


class AgentSection(_Section):
    timeout_sec: float | None = Field(default=None, gt=0)


class SolutionSection(_Section):
    env: dict[str, str] = {}


class HarborFile(_Section):
    """`task.toml`."""

    environment: EnvironmentSection = EnvironmentSection()
    verifier: VerifierSection = VerifierSection()
    agent: AgentSection = AgentSection()
    solution: SolutionSection = SolutionSection()
    steps: tuple[object, ...] | None = None


def read_task_file(path: Path) -> HarborFile:
    """Read a `task.toml`.

    Raises:
        TaskError: it is not TOML, a field is invalid, or the task has a part that is not supported.
    """
    try:
        file = HarborFile.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise TaskError(f"{path} cannot be read as TOML: {error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        raise TaskError(
            f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}; got {first['input']!r}"
        ) from error
    verifier = file.verifier
    unsupported = {
        "several steps": bool(file.steps),
        "MCP servers": bool(file.environment.mcp_servers),
        "a verifier with an environment of its own": verifier.environment_mode == "separate"
        or verifier.environment is not None,
        "collect commands": bool(verifier.collect),
        f"the operating system {file.environment.os}": file.environment.os.lower() != "linux",
        "services of docker-compose": any((path.parent / "environment").glob("docker-compose.y*ml")),
    }
    for what, is_needed in unsupported.items():
        if is_needed:
            raise TaskError(f"{path.parent.name} has {what}, which is not supported")
    return file


def resolve_variables(values: Mapping[str, str], where: Path) -> dict[str, str]:
    """Replace `${NAME}` and `${NAME:-default}` by variables of this process.

    Raises:
        TaskError: a variable without a default is not set.
    """

    def replace(match: re.Match[str]) -> str:
        value = os.environ.get(match[1], match[2])
        if value is None:
            raise TaskError(f"{where} needs the environment variable {match[1]}")
        return value

    return {name: _VARIABLE.sub(replace, value) for name, value in values.items()}


@dataclass(frozen=True)
class ImagePlan:
    """What the environment of a task consists of.

    Arguments:
        place: the folder that contains the working directory and all copied files.
        workdir: the working directory.
        files: the copied files by their paths below `place`.
        variables: environment variables.
        needs: why the task needs its image; empty if it does not.
    """

    place: str
    workdir: str
    files: Mapping[str, Path]
    variables: Mapping[str, str]
    needs: str = ""


def read_environment(folder: Path, section: EnvironmentSection) -> ImagePlan:
    """Read the `environment` folder of a task and find out whether it needs an image.

    It does not if the base is Ubuntu, Debian or Python, all files are copied below one folder, and the installed packages
    are installed on this machine. Versions of packages are not compared.
    """
    dockerfile, base = folder / "Dockerfile", section.docker_image or ""
    instructions = list(parse_dockerfile(dockerfile.read_text(encoding="utf-8"))) if dockerfile.is_file() else []
    workdir, variables, copies, needs = DEFAULT_PLACE, dict[str, str](), dict[str, Path](), ""
    bases = [argument for name, argument in instructions if name == "FROM"]
    if len(bases) > 1:
        needs = "FROM: several stages"
    for image in [*bases, *([base] if base else [])]:
        if not SYSTEMS.fullmatch(image.split()[0].lower()):
            needs = needs or f"FROM {image}"
    for name, argument in instructions:
        if name == "WORKDIR":
            workdir = str(PurePosixPath(workdir) / argument.strip("\"'"))
        elif name == "ENV":
            variables |= parse_variables(argument)
        elif name in ("COPY", "ADD"):
            copied = list_copies(folder, argument, workdir)
            needs = needs or ("" if copied is not None else f"{name} {argument}")
            copies |= copied or {}
        elif name == "RUN":
            needs = needs or explain_command(argument)
        elif name not in {*QUIET, "FROM"}:
            needs = needs or f"{name} {argument}"
    workdir = section.workdir or workdir
    place = os.path.commonpath([workdir, *(str(PurePosixPath(path).parent) for path in copies)])
    if place in ("/", "/home", "/home/user", "/root", "/tmp", "/etc", "/usr", "/opt", "/var"):
        needs = needs or f"files in {place}"
        place = workdir
    files = {
        PurePosixPath(path).relative_to(place).as_posix(): source
        for path, source in copies.items()
        if PurePosixPath(path).is_relative_to(place)
    }
    return ImagePlan(place, workdir, files, variables, " ".join(needs.split()))


def parse_dockerfile(text: str) -> Iterator[tuple[str, str]]:
    """Yield the instructions of a Dockerfile with their arguments.

    >>> list(parse_dockerfile("FROM ubuntu\\n# note\\nRUN apt-get update && \\\\\\n  apt-get install -y jq"))
    [('FROM', 'ubuntu'), ('RUN', 'apt-get update && apt-get install -y jq')]
    """
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    for line in re.sub(r"\\\s*\n\s*", "", "\n".join(lines)).splitlines():
        name, _, argument = line.strip().partition(" ")
        if name:
            yield name.upper(), argument.strip()


def parse_variables(argument: str) -> dict[str, str]:
    """The variables of an `ENV` instruction.

    >>> parse_variables('A=1 B="two words"'), parse_variables("NAME a value")
    ({'A': '1', 'B': 'two words'}, {'NAME': 'a value'})
    """
    if "=" not in argument.split()[0]:
        name, _, value = argument.partition(" ")
        return {name: value.strip()}
    pairs = (word.partition("=") for word in shlex.split(argument))
    return {name: value for name, _, value in pairs}


def list_copies(folder: Path, argument: str, workdir: str) -> dict[str, Path] | None:
    """The files of a `COPY` instruction by their paths inside; `None` if they are not all in the folder."""
    words = [word.strip("\"',[]") for word in argument.split()]
    if any(word.startswith("--from") for word in words):
        return None
    *sources, target = [word for word in words if word and not word.startswith("--")]
    destination = str(PurePosixPath(workdir) / target)
    copies: dict[str, Path] = {}
    for source in sources:
        paths = sorted(folder.glob(source.lstrip("./"))) if source.strip("./") else [folder]
        if not paths or "://" in source:
            return None
        for path in paths:
            if path.is_dir():
                copies |= {
                    f"{destination}/{file.relative_to(path).as_posix()}": file
                    for file in sorted(path.rglob("*"))
                    if file.is_file() and file != folder / "Dockerfile"
                }
            else:
                is_folder = target.endswith(("/", ".")) or len(sources) > 1 or len(paths) > 1
                copies[f"{destination}/{path.name}" if is_folder else destination] = path
    return {os.path.normpath(path): source for path, source in copies.items()}


def explain_command(command: str) -> str:
    """Why a `RUN` instruction needs an image; empty if it has nothing to do on this machine."""
    for part in re.split(r"&&|;|\|\|", command):
        try:
            words = [word for word in shlex.split(part) if "=" not in word or word.startswith("-") or "==" in word]
        except ValueError:
            return f"RUN {command}"
        if not words:
            continue
        program, arguments = words[0], words[1:]
        packages = [word for word in arguments[1:] if not word.startswith("-")]
        if program in ("apt-get", "apt") and "install" in arguments:
            is_fine = all(
                is_system_package(name) for name in arguments if not name.startswith("-") and name != "install"
            )
        elif program in ("pip", "pip3") and arguments[:1] == ["install"]:
            is_fine = all(is_python_package(name) for name in packages) and "-r" not in arguments
        elif program in ("apt-get", "apt"):
            is_fine = arguments[:1] in (["update"], ["clean"])
        elif program in HARMLESS:
            targets = [word for word in arguments if not word.startswith("-")]
            is_fine = ">" not in part and HARMLESS[program].fullmatch(" ".join(targets)) is not None
        else:
            is_fine = False
        if not is_fine:
            return f"RUN {part.strip()}"
    return ""


@cache
def is_system_package(name: str) -> bool:
    """Whether a package of the system, or a program with its name, is installed."""
    name = name.partition("=")[0]
    if shutil.which(name):
        return True
    if shutil.which("dpkg-query") is None:
        return False
    query = ["dpkg-query", "-W", "-f=${db:Status-Status}", name]
    return subprocess.run(query, capture_output=True, check=False).stdout == b"installed"


@cache
def is_python_package(requirement: str) -> bool:
    """Whether a package is installed in this Python, whatever its version."""
    name = re.match(r"[\w.-]+", requirement)
    try:
        return name is not None and bool(distribution(name[0]))
    except PackageNotFoundError:
        return False


def find_outside_path(tests: Path, place: str) -> str:
    """The first path in the tests that is neither below `place` nor part of the system; empty if there is none.

    Only the files below `place` are submitted, so such a test would fail for every agent.
    """
    inside = (place, *SYSTEM_PATHS)
    for content in list_files(tests).values():
        for path in _PATH.findall(content.decode("utf-8", "replace")):
            if not any(PurePosixPath(path).is_relative_to(folder) for folder in inside):
                return str(path)
    return ""


def list_files(folder: Path) -> dict[str, bytes]:
    """The contents of the files below a folder, by their relative paths."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }
