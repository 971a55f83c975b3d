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
from pathlib import Path, PurePosixPath

from pydantic import Field, ValidationError

from palaestra.core.errors import TaskError
from palaestra.core.tables import load_table
from palaestra.integrations.research_tasks import ForeignFile, is_package_installed
from palaestra.research.tasks.task import read_files

_DEFAULT_PLACE = "/app"
_SYSTEMS = re.compile(r"(?:.*/)?(?:ubuntu|debian|python|buildpack-deps)(?:[-:].*)?")
"""Base images whose programs a usual Linux system with Python has."""
_QUIET = {"WORKDIR", "ENV", "ARG", "LABEL", "CMD", "ENTRYPOINT", "EXPOSE", "USER", "SHELL", "MAINTAINER", "HEALTHCHECK"}
"""Instructions that need no image."""
_HARMLESS: Mapping[str, str] = load_table(__file__, "harmless")
"""Programs of a `RUN` instruction, with the arguments that change nothing in the working directory but folders."""
_SYSTEM_PATHS = ("/tests", "/logs", "/solution", "/usr", "/bin", "/sbin", "/lib", "/dev", "/proc", "/sys")
_PATH = re.compile(r"(?<![\w.:/~}-])/[A-Za-z][\w.-]*(?:/[\w.-]+)+")
_VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")


class EnvironmentSection(ForeignFile):
    docker_image: str | None = None
    workdir: str | None = None
    memory_mb: int | None = Field(default=None, gt=0)
    cpus: float | None = Field(default=None, gt=0)
    build_timeout_sec: float = Field(default=600.0, gt=0)
    env: dict[str, str] = Field(default_factory=dict)
    os: str = "linux"
    mcp_servers: tuple[object, ...] = ()


class VerifierSection(ForeignFile):
    timeout_sec: float = Field(default=600.0, gt=0)
    env: dict[str, str] = Field(default_factory=dict)
    environment_mode: str | None = None
    environment: dict[str, object] | None = None
    collect: tuple[object, ...] = ()


class AgentSection(ForeignFile):
    timeout_sec: float | None = Field(default=None, gt=0)


class SolutionSection(ForeignFile):
    env: dict[str, str] = Field(default_factory=dict)


class HarborFile(ForeignFile):
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
        place = ".".join(map(str, first["loc"]))
        raise TaskError(f"{path}: {place}: {first['msg']}; got {first['input']!r}") from error
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
    dockerfile = folder / "Dockerfile"
    instructions = list(parse_dockerfile(dockerfile.read_text(encoding="utf-8"))) if dockerfile.is_file() else []
    workdir, variables, copies = _DEFAULT_PLACE, dict[str, str](), dict[str, Path]()
    bases = [argument for name, argument in instructions if name == "FROM"]
    needs = ["FROM: several stages"] if len(bases) > 1 else []
    images = filter(None, (*bases, section.docker_image))
    needs += [f"FROM {image}" for image in images if not _SYSTEMS.fullmatch(image.split()[0].lower())]
    for name, argument in instructions:
        if name == "WORKDIR":
            workdir = str(PurePosixPath(workdir) / argument.strip("\"'"))
        elif name == "ENV":
            variables |= _parse_variables(argument)
        elif name in ("COPY", "ADD"):
            copied = _list_copies(folder, argument, workdir)
            if copied is None:
                needs.append(f"{name} {argument}")
            copies |= copied or {}
        elif name == "RUN":
            needs += [f"RUN {command}" for command in _list_changes(argument)]
        elif name not in {*_QUIET, "FROM"}:
            needs.append(f"{name} {argument}")
    workdir = section.workdir or workdir
    place = os.path.commonpath([workdir, *(str(PurePosixPath(path).parent) for path in copies)])
    if place in ("/", "/home", "/home/user", "/root", "/tmp", "/etc", "/usr", "/opt", "/var"):
        needs.append(f"files in {place}")
        place = workdir
    inside = [path for path in map(PurePosixPath, copies) if path.is_relative_to(place)]
    files = {path.relative_to(place).as_posix(): copies[str(path)] for path in inside}
    return ImagePlan(place, workdir, files, variables, " ".join(needs[0].split()) if needs else "")


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


def _parse_variables(argument: str) -> dict[str, str]:
    """The variables of an `ENV` instruction.

    >>> _parse_variables('A=1 B="two words"'), _parse_variables("NAME a value")
    ({'A': '1', 'B': 'two words'}, {'NAME': 'a value'})
    """
    if "=" not in argument.split()[0]:
        name, _, value = argument.partition(" ")
        return {name: value.strip()}
    pairs = (word.partition("=") for word in shlex.split(argument))
    return {name: value for name, _, value in pairs}


def _list_copies(folder: Path, argument: str, workdir: str) -> dict[str, Path] | None:
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


def _list_changes(command: str) -> Iterator[str]:
    """Yield the parts of a `RUN` instruction that need an image, because they have something to do on this machine."""
    for part in re.split(r"&&|;|\|\|", command):
        try:
            words = [word for word in shlex.split(part) if "=" not in word or word.startswith("-") or "==" in word]
        except ValueError:
            yield command
            return
        if words and not _is_done(words, has_redirection=">" in part):
            yield part.strip()


def _is_done(words: list[str], has_redirection: bool) -> bool:
    """Whether a command has nothing to do on this machine."""
    names = [word for word in words[1:] if not word.startswith("-")]
    match words:
        case ["apt-get" | "apt", *arguments] if "install" in arguments:
            return all(_is_system_package(name) for name in names if name != "install")
        case ["apt-get" | "apt", action, *_]:
            return action in ("update", "clean")
        case ["pip" | "pip3", "install", *arguments]:
            return all(is_package_installed(name) for name in names[1:]) and "-r" not in arguments
        case [program, *_] if program in _HARMLESS and not has_redirection:
            return re.fullmatch(_HARMLESS[program], " ".join(names)) is not None
    return False


@cache
def _is_system_package(name: str) -> bool:
    """Whether a package of the system, or a program with its name, is installed."""
    name = name.partition("=")[0]
    if shutil.which(name):
        return True
    if shutil.which("dpkg-query") is None:
        return False
    query = ["dpkg-query", "-W", "-f=${db:Status-Status}", name]
    return subprocess.run(query, capture_output=True, check=False).stdout == b"installed"


def find_outside_path(tests: Path, place: str) -> str:
    """The first path in the tests that is neither below `place` nor part of the system; empty if there is none.

    Only the files below `place` are submitted, so such a test would fail for every agent.
    """
    inside = (place, *_SYSTEM_PATHS)
    for content in read_files(tests).values():
        for path in _PATH.findall(content.decode("utf-8", "replace")):
            if not any(PurePosixPath(path).is_relative_to(folder) for folder in inside):
                return str(path)
    return ""
