"""Resume a stopped run of any recipe, and load the policy or model that a run has trained."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from palaestra.core.errors import RunError, SettingsError
from palaestra.core.process import read_launch_rank
from palaestra.core.records import Json, Listener, Values
from palaestra.core.registry import describe_error
from palaestra.core.text import is_masked
from palaestra.recipes.progress import RunProgress, TrainProgress, show_progress
from palaestra.recipes.settings import build, read_run_settings, read_values
from palaestra.recipes.train.settings import TrainSettings
from palaestra.runs.files import check_own_file, read_json
from palaestra.runs.run import Run

CHANGEABLE = {
    "teach": {"max_cost", "max_calls", "max_tokens", "categories", "executor"},
    "evaluate": {"max_cost", "executor"},
    "bench": {"executor"},
    "train": {"executor", "parallel", "device", "rollout_servers"},
}
"""The settings that a resumed run may change, by recipe."""


def resume(
    folder: str | Path,
    *,
    listener: Listener | None = None,
    progress: bool | Console = True,
    trust: bool = False,
    **changes: Any,
) -> Any:
    """Resume a run that was stopped or killed. The result is the same as without the interruption.

    A finished run returns its result at once.

    Arguments:
        folder: the folder of a run, or of a bench.
        listener: receives the progress events, instead of the display on stderr.
        progress: whether to display the progress; `PALAESTRA_PROGRESS=0` also turns the display off. Or the console of
            rich to display it on.
        trust: run the code that the run's settings name, and load its pickles, although this user has not started it on
            this machine; see `docs/security.md`.
        changes: settings to change: `max_cost` (teach, evaluate), `executor` (train, teach, evaluate, bench), `max_calls`,
            `max_tokens` and `categories` (teach), `parallel`, `device` and `rollout_servers` (train).

    Returns:
        The result of the run's recipe, for example a `TrainResult`.

    Raises:
        RunError: the folder contains no run, another process is using it, or it names code that is not this user's own.
        SettingsError: the recipe does not allow a change.

    Example:
        >>> from palaestra import resume                                 # doctest: +SKIP
        >>> resume("runs/train-20250101-120000").summary["gain"]         # doctest: +SKIP
    """
    from palaestra.recipes.evaluate import recipe as evaluate
    from palaestra.recipes.research import bench
    from palaestra.recipes.research import recipe as research
    from palaestra.recipes.teach import recipe as teach
    from palaestra.recipes.train import recipe as train

    folder = Path(folder)
    if (folder / bench.PLAN).exists():
        _check_changes(bench.RECIPE, changes)
        with show_progress(listener, progress, RunProgress) as listener:
            return bench.resume(folder, listener=listener, trust=trust, **changes)
    recipes: Json = {"teach": teach, "evaluate": evaluate, "train": train, "research": research}
    # Only rank 0 of several processes writes the run.
    with Run.open(folder, read_only=read_launch_rank() > 0, trust=trust) as run:
        if run.recipe not in recipes:
            raise RunError(f"the run folder is damaged: it names an unknown recipe '{run.recipe}'")
        _check_changes(run.recipe, changes)
        masked = [name for name, value in run.settings.items() if is_masked(value)]
        if masked and run.summary is None:
            raise RunError(f"the setting '{masked[0]}' of {folder} had a secret, which is not stored; start a new run")
        rounds = run.settings.get("rounds", 0) if run.recipe == "teach" else 0
        display = TrainProgress if run.recipe == "train" else lambda console: RunProgress(console, rounds)
        with show_progress(listener, False if read_launch_rank() else progress, display) as listener:
            return recipes[run.recipe].resume(run, listener=listener, **changes)


def _check_changes(recipe: str, changes: Values) -> None:
    for name in changes:
        if name not in CHANGEABLE.get(recipe, ()):
            raise SettingsError(f"a {recipe} run cannot be resumed with another {name}; leave it out")


def load_policy(folder: str | Path, *, device: str = "") -> Any:
    """Load the policy or model that a run has trained. Runs no code that the folder contains or names.

    Arguments:
        folder: the folder of a `train` or `teach` run, or the policy of one that `palaestra export` has written.
        device: for example `"cpu"`; empty: the run's device.

    Returns:
        For `train` the policy at its last checkpoint, as in `TrainResult.policy`. For `teach` the kept student, a
        `LoadedModel` with `weights`, `tokenizer` and `engine()`.

    Raises:
        RunError: the run has no checkpoint, or its recipe trains nothing.

    Example:
        >>> from palaestra import load_policy                            # doctest: +SKIP
        >>> policy = load_policy("runs/train-20250101-120000")           # doctest: +SKIP
    """
    from palaestra.models import registry as models
    from palaestra.rl.loop import WEIGHTS, find_newest_checkpoint

    folder = Path(folder)
    if (folder / WEIGHTS).exists():
        return _load_checkpoint(build(TrainSettings, read_values(folder / "settings.json")), folder, device)
    with Run.open(folder, read_only=True) as run:
        if run.recipe == "teach":
            return models.load(str(folder), device=device or str(run.settings.get("device", "")))
        if run.recipe != "train":
            raise RunError(f"{folder} is a {run.recipe} run, which trains nothing; expected a train or teach run")
        newest = find_newest_checkpoint(run.checkpoints)
        if newest is None:
            raise RunError(f"the run {folder} has no checkpoint yet; resume it first: palaestra resume {folder}")
        return _load_checkpoint(read_run_settings(TrainSettings, run), newest, device)


def _load_checkpoint(settings: TrainSettings, checkpoint: Path, device: str) -> Any:
    """Build the policy of a checkpoint from data alone, and load its weights."""
    from safetensors import SafetensorError

    from palaestra.recipes.train.build import build_policy
    from palaestra.rl.loop import POLICY, SHARDS, WEIGHTS, load_weights, read_weights

    for file in (checkpoint / SHARDS).glob("*") if (checkpoint / SHARDS).is_dir() else [checkpoint / WEIGHTS]:
        check_own_file(file, writable=False)
    try:
        policy = build_policy(replace(settings, device=device or settings.device), read_json(checkpoint / POLICY))
        load_weights(policy, read_weights(checkpoint, policy), str(checkpoint))
    except (KeyError, TypeError, ValueError, AssertionError, OSError, SafetensorError) as error:
        raise RunError(f"the policy in {checkpoint} is damaged: {describe_error(error)}") from error
    return policy
