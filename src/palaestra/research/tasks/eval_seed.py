"""The seed of hidden evaluation data."""

from __future__ import annotations

import os
import secrets
from functools import cache
from pathlib import Path

from palaestra.core.errors import SettingsError
from palaestra.core.seeding import Seeds
from palaestra.engines.models import cache_folder
from palaestra.research.tasks.task import ResearchTask
from palaestra.runs.files import storage_errors

VARIABLE = "PALAESTRA_RESEARCH_SEED"
"""An environment variable with a number that replaces this machine's seed, to compare scores across machines."""


def eval_seed(task: ResearchTask) -> int:
    """Return the seed of an evaluator's random choices.

    It is 0, except for tasks whose agents can import this package: they could generate the hidden problems from a known
    seed. Those tasks use a secret seed, drawn once per machine and stored where no sandbox shows it, so that all
    submissions on this machine are judged alike.

    Raises:
        SettingsError: the environment variable is not a number.
    """
    if not task.palaestra:
        return 0
    given = os.environ.get(VARIABLE, "")
    if given and not given.isdecimal():
        raise SettingsError(f"{VARIABLE} is a whole number, 0 or more; got '{given}'")
    return int(given) if given else _machine_seed(cache_folder() / "research" / "secret")


def seed_mark(task: ResearchTask) -> str:
    """Return a fingerprint that distinguishes secret seeds without revealing them; empty for tasks without one."""
    return f"{Seeds(eval_seed(task)).derive('mark').integer():x}"[:8] if task.palaestra else ""


@cache
def _machine_seed(path: Path) -> int:
    with storage_errors(path, "keeping the secret of research tasks"):
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".secret-{secrets.token_hex(8)}")
        partial.write_text(str(secrets.randbits(62)), encoding="ascii")
        partial.chmod(0o600)
        try:
            os.link(partial, path)  # The first process wins.
        except FileExistsError:
            pass
        finally:
            partial.unlink()
        return int(path.read_text(encoding="ascii"))
