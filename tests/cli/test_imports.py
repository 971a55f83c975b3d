"""What a command imports: its own recipe, and none of the others."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
import json, sys
from palaestra.cli.main import main
try:
    main()
finally:
    names = {".".join(name.split(".")[:3]) for name in sys.modules if name.startswith("palaestra.recipes.")}
    print(json.dumps(sorted(names)), file=sys.__stderr__)
"""
RECIPES = {f"palaestra.recipes.{name}" for name in ("train", "teach", "evaluate", "research")}
TRAIN = ("train", "--env", "CartPole-v1", "--iterations", "1", "--num-envs", "2", "--n-steps", "8", "--evaluation", "0")


def list_imported_recipes(*arguments: str, cwd: Path) -> set[str]:
    """Run a command in a fresh interpreter and return the recipes that it has imported."""
    command = [sys.executable, "-c", CODE, *arguments]
    result = subprocess.run(command, capture_output=True, text=True, cwd=cwd, check=False)
    assert result.returncode == 0, result.stderr
    return RECIPES & set(json.loads(result.stderr.strip().splitlines()[-1]))


@pytest.mark.parametrize(
    ("arguments", "recipes"),
    [
        (("--help",), set()),
        (("train", "--help"), {"train"}),
        (("train", "--algorithm", "grpo", "--help"), {"train"}),
        (TRAIN, {"train"}),
        (("teach", "--help"), {"teach"}),
        (("evaluate", "--help"), {"evaluate"}),
        (("research", "bench", "--help"), {"research"}),
    ],
)
def test_a_command_imports_its_own_recipe_only(arguments: tuple[str, ...], recipes: set[str], tmp_path: Path) -> None:
    imported = list_imported_recipes(*arguments, cwd=tmp_path)
    assert imported == {f"palaestra.recipes.{name}" for name in recipes}
