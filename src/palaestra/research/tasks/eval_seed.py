"""The seed of what is hidden, where the agent could draw the same by itself."""

from __future__ import annotations

import os
import secrets
from functools import cache
from pathlib import Path

from palaestra.core.errors import SettingsError
from palaestra.core.seeding import Seeds
from palaestra.engines.models import cache_folder
from palaestra.research.tasks.task import ResearchTask
from palaestra.runs.guard import storage_errors

VARIABLE = "PALAESTRA_RESEARCH_SEED"
"""A number that takes the place of this machine's secret, for scores that two machines are to compare."""


def seed_of(task: ResearchTask) -> int:
    """The seed of an evaluator's random choices: 0, but a secret of this machine for tasks whose agents have this package.

    Those could draw the hidden problems from a seed that they know. The secret is drawn once and lies where no sandbox
    shows it, so that all submissions on this machine are judged alike.

    Raises:
        SettingsError: the variable that takes its place is no number.
    """
    if not task.palaestra:
        return 0
    given = os.environ.get(VARIABLE, "")
    if given and not given.isdecimal():
        raise SettingsError(f"{VARIABLE} is a whole number, 0 or more; got '{given}'")
    return int(given) if given else _secret(cache_folder() / "research" / "secret")


def seed_mark(task: ResearchTask) -> str:
    """What tells the scores of one secret from those of another, and nothing of the secret; empty where there is none."""
    return f"{Seeds(seed_of(task)).derive('mark').integer():x}"[:8] if task.palaestra else ""


@cache
def _secret(path: Path) -> int:
    with storage_errors(path, "keeping the secret of research tasks"):
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".secret-{secrets.token_hex(8)}")
        partial.write_text(str(secrets.randbits(62)), encoding="ascii")
        partial.chmod(0o600)
        try:
            os.link(partial, path)  # The first one stays, whoever else begins now.
        except FileExistsError:
            pass
        finally:
            partial.unlink()
        return int(path.read_text(encoding="ascii"))
