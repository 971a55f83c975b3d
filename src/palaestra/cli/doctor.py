"""`palaestra doctor`: whether this machine has what Palaestra needs, with the remedy of each problem."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from time import perf_counter
from typing import Annotated, NamedTuple

import typer

from palaestra.cli.options import document
from palaestra.cli.terminal import quiet, say
from palaestra.models.registry import cache_folder

OK, MISSING, FAILED = "ok", "missing", "failed"
_MIN_PYTHON = (3, 11)
_MIN_FREE = 2.0
"""GB of free disk space that a small run needs."""
_DEVELOPMENT = ("bench", "docs", "test")
"""Extras for the development of Palaestra."""


class MachineCheck(NamedTuple):
    """The result of one check.

    Arguments:
        status: `ok`, `missing` (something optional is not installed) or `failed`.
        remedy: what to do; empty if it is ok.
        needed: whether the base install needs it.
    """

    status: str
    name: str
    detail: str
    remedy: str = ""
    needed: bool = False


@document
def doctor(self_test: Annotated[bool, typer.Option("--self-test/--no-self-test")] = True) -> None:
    """Check Python, torch, GPU, sandbox, extras, disk and cache, and test them. Exit code 1 if something needed fails.

    Arguments:
        self_test: Sample, train and run a sandbox for about ten seconds.
    """
    quiet()
    broken = False
    for check in run_checks(self_test):
        remedy = f"; {check.remedy}" if check.remedy else ""
        say(f"{check.status:<9}{check.name:<21}{check.detail}{remedy}")
        broken |= check.needed and check.status == FAILED
    if broken:
        raise typer.Exit(1)


def run_checks(self_test: bool) -> Iterator[MachineCheck]:
    """Run the checks in order, the quick ones first."""
    version = ".".join(map(str, sys.version_info[:3]))
    status = OK if sys.version_info >= _MIN_PYTHON else FAILED
    yield MachineCheck(status, "Python", version, "" if status == OK else "install Python 3.11 or later", needed=True)
    requirements = _read_requirements()
    for extra in ("", *sorted(set(requirements) - {""})):
        yield _check_packages(extra, requirements[extra])
    yield _check_disk()
    yield _check_cache()
    yield _check_bubblewrap()
    yield _measure("torch", _describe_torch, "install it again: pip install --force-reinstall torch")
    yield _check_gpu()
    if self_test:
        again = "repeat it with the option --traceback and the command"
        yield _measure("sampling", _sample, f"{again} palaestra evaluate --limit 4")
        yield _measure("training", _train, f"{again} palaestra train --iterations 1")
        if shutil.which("bwrap"):
            yield _measure("sandbox", _run_sandbox, "see docs/security.md", needed=False)


def _measure(name: str, test: Callable[[], str], remedy: str, *, needed: bool = True) -> MachineCheck:
    """Run a test that returns what it has found."""
    start = perf_counter()
    try:
        detail = test()
    except Exception as error:  # Whatever is wrong with the machine.
        return MachineCheck(FAILED, name, " ".join(f"{type(error).__name__}: {error}".split()), remedy, needed)
    return MachineCheck(OK, name, f"{detail} ({perf_counter() - start:.1f} s)", needed=needed)


def _read_requirements() -> dict[str, list[str]]:
    """Read the requirements of each extra from the installed package; those of the base install have the key ``."""
    requirements: dict[str, list[str]] = defaultdict(list)
    try:
        texts = metadata.requires("palaestra") or []
    except metadata.PackageNotFoundError:
        texts = ["palaestra"]  # A copy of the source without an installation.
    for text in texts:
        extra = re.search(r"extra == ['\"]([\w-]+)", text)
        if extra is None or extra[1] not in _DEVELOPMENT:
            requirements[extra[1] if extra else ""].append(text)
    return requirements


def _check_packages(extra: str, requirements: list[str]) -> MachineCheck:
    """Check that the packages of an extra are installed in the required versions."""
    from packaging.requirements import Requirement

    versions, absent = [], []
    for requirement in map(Requirement, requirements):
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            continue
        try:
            version = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            absent.append(f"no {requirement.name}")
            continue
        versions.append(f"{requirement.name} {version}")
        if not requirement.specifier.contains(version, prereleases=True):
            absent.append(f"{requirement.name} is {version}; expected {requirement.specifier}")
    name, target = (f"extra {extra}", f"palaestra[{extra}]") if extra else ("packages", "palaestra")
    if not absent:
        return MachineCheck(OK, name, ", ".join(versions), needed=not extra)
    return MachineCheck(
        MISSING if extra else FAILED, name, ", ".join(absent), f"pip install '{target}'", needed=not extra
    )


def _check_disk() -> MachineCheck:
    free = shutil.disk_usage(Path.cwd()).free / 1e9
    short = free < _MIN_FREE
    remedy = f"free at least {_MIN_FREE:.0f} GB, or write runs elsewhere with --out" if short else ""
    return MachineCheck(FAILED if short else OK, "disk", f"{free:.0f} GB free in {Path.cwd()}", remedy, needed=True)


def _check_cache() -> MachineCheck:
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            used = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    except OSError as error:
        return MachineCheck(
            FAILED, "cache", f"{folder}: {error}", "set PALAESTRA_CACHE to a folder you can write", needed=True
        )
    return MachineCheck(OK, "cache", f"{folder}, {used / 1e6:.0f} MB")


def _check_bubblewrap() -> MachineCheck:
    from palaestra.sandbox import report_limits

    path = shutil.which("bwrap")
    if path is None:
        remedy = "apt install bubblewrap, or --sandbox docker or podman"
        return MachineCheck(MISSING, "bubblewrap", "not installed; research and tasks with code need a sandbox", remedy)
    return MachineCheck(OK, "bubblewrap", f"{path}; {report_limits()}")


def _describe_torch() -> str:
    import torch

    return f"{torch.__version__}, {torch.get_num_threads()} CPU threads"


def _check_gpu() -> MachineCheck:
    """Compare what the driver shows with what torch can use."""
    try:
        import torch
    except Exception:  # The check of torch says why.
        return MachineCheck(MISSING, "GPU", "unknown without torch", "install torch first")
    smi = shutil.which("nvidia-smi")
    driver = ""
    if smi is not None:
        query = [smi, "--query-gpu=driver_version", "--format=csv,noheader"]
        result = subprocess.run(query, capture_output=True, text=True, check=False)
        driver = result.stdout.partition("\n")[0] if result.returncode == 0 else "unknown (nvidia-smi failed)"
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        count = torch.cuda.device_count()
        detail = f"{count} x {properties.name}, {properties.total_memory / 2**30:.0f} GiB, CUDA {torch.version.cuda}"
        return MachineCheck(OK, "GPU", f"{detail}, driver {driver or 'unknown'}")
    if driver:
        built = f"torch is built for CUDA {torch.version.cuda}" if torch.version.cuda else "torch is built without CUDA"
        remedy = "install a build of torch for this driver: https://pytorch.org/get-started/locally"
        return MachineCheck(FAILED, "GPU", f"driver {driver}, but {built} and finds no GPU", remedy)
    return MachineCheck(MISSING, "GPU", "no NVIDIA driver; models run on the CPU", "install a driver if there is a GPU")


def _sample() -> str:
    from palaestra.recipes.evaluate.recipe import evaluate

    with tempfile.TemporaryDirectory() as folder:
        summary = evaluate(
            model="nano", limit=4, skills=("addition",), problems=4, out=f"{folder}/run", progress=False
        ).summary
    return f"nano answered {summary['problems']} problems with {summary['completion_tokens']} tokens"


def _train() -> str:
    from palaestra.recipes.train.recipe import train

    with tempfile.TemporaryDirectory() as folder:
        summary = train(
            model="nano",
            out=f"{folder}/run",
            progress=False,
            iterations=1,
            num_envs=8,
            episodes=8,
            max_tokens=16,
            evaluation=0,
        ).summary
    return f"{summary['iterations']} update of nano by GRPO on {summary['episodes']} episodes"


def _run_sandbox() -> str:
    from palaestra.sandbox import SandboxCommand, make_sandbox

    result = make_sandbox().run(SandboxCommand(["python3", "-c", "print(6 * 7)"]))
    if result.text.strip() != "42":
        raise RuntimeError(f"expected 42; got {result.text.strip()[:200]!r} ({result.status})")
    return "a program ran in bubblewrap"
