"""Run commands and scripts in their own processes without the import time of torch, transformers and Palaestra.

Each process is forked from one that has imported them and done nothing else. It starts in a tenth of a second instead
of nine. Other tests check what a fresh interpreter imports.
"""

from __future__ import annotations

import io
import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

MODULES = (
    "torch", "torch._dynamo", "transformers.modeling_utils", "transformers.models.auto.modeling_auto",
    "transformers.models.llama.modeling_llama", "transformers.generation", "peft",
    "typer", "importlib.metadata", "palaestra.cli.terminal", "palaestra.engines.openai", "palaestra.engines.transformers",
    "palaestra.envs.lesson", "palaestra.envs.token", "palaestra.students.student", "palaestra.recipes.evaluate.recipe",
    "palaestra.recipes.train.build", "palaestra.recipes.research.recipe", "palaestra.recipes.teach.recipe", "palaestra.recipes.train.recipe",
    "palaestra.report", "palaestra.teachers.model_writer", "palaestra.teachers.quality.base", "palaestra.teachers.skills.discovery",
)  # fmt: skip

Completed = subprocess.CompletedProcess[str]


def run_command(*arguments: str | Path, cwd: Path | None = None, env: Mapping[str, str] = {}) -> Completed:
    """Run `palaestra ARGUMENTS`, as `subprocess.run` with text would return it; `env` goes over this process's."""
    return _run(["palaestra.cli.main", *map(str, arguments)], cwd, env)


def run_script(path: Path, *arguments: str | Path, cwd: Path | None = None, env: Mapping[str, str] = {}) -> Completed:
    """Run `python PATH ARGUMENTS`."""
    return _run([str(path), *map(str, arguments)], cwd, env)


def _run(argv: list[str], cwd: Path | None, env: Mapping[str, str], seconds: float = 600.0) -> Completed:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*MODULES])
    with tempfile.TemporaryDirectory() as folder:
        outputs = [Path(folder) / name for name in ("stdout", "stderr")]
        process = context.Process(
            target=_work, args=(argv, str(cwd or Path.cwd()), {**os.environ, **env}, *map(str, outputs))
        )
        process.start()
        process.join(seconds)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise subprocess.TimeoutExpired(argv, seconds)
        code = process.exitcode
        process.close()
        return subprocess.CompletedProcess(argv, code, *(path.read_text() for path in outputs))


def _work(argv: list[str], cwd: str, env: dict[str, str], *outputs: str) -> None:
    for number, path in enumerate(outputs, 1):
        file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
        os.dup2(file, number)
        os.close(file)
    sys.stdout, sys.stderr = (
        io.TextIOWrapper(io.FileIO(n, "w", closefd=False), "utf-8", write_through=True) for n in (1, 2)
    )
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    sys.argv = argv
    if argv[0].endswith(".py"):
        sys.path.insert(0, str(Path(argv[0]).parent))
        runpy.run_path(argv[0], run_name="__main__")
    else:
        runpy.run_module(argv[0], run_name="__main__", alter_sys=True)
