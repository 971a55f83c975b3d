"""Checkpoints of a training run: weights, optimizer, environment and counters, written atomically."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path

from palaestra.core.errors import RunError
from palaestra.recipes.train.loop import Loop
from palaestra.runs.files import write_folder


def save(folder: Path, iteration: int, loop: Loop, last: bool) -> None:
    """Write the checkpoint of an iteration. The last one needs no state of the environment."""

    def write(target: Path) -> None:
        from safetensors.torch import save_file

        save_file(loop.weights(), target / "policy.safetensors")
        save_file({k: v.clone() for k, v in loop.algorithm.optimizer.state().items()}, target / "optimizer.safetensors")
        (target / "counters.json").write_text(json.dumps(loop.counters()), encoding="utf-8")
        if not last:
            state = loop.environment_state()
            if state is not None:
                (target / "environment.pkl").write_bytes(state)

    write_folder(folder / f"iteration-{iteration}", write)


def load_newest(folder: Path, loop: Loop) -> int:
    """Load the newest checkpoint into `loop` and return its iteration; 0 if there is none."""
    iterations = _list_iterations(folder)
    if not iterations:
        return 0
    load(folder / f"iteration-{iterations[-1]}", loop)
    return iterations[-1]


def load(folder: Path, loop: Loop) -> None:
    """Load a checkpoint into `loop`.

    Raises:
        RunError: a file is missing or damaged, or the checkpoint does not fit the policy.
    """
    from safetensors.torch import load_file

    try:
        loop.load_weights(load_file(folder / "policy.safetensors"), str(folder))
        loop.algorithm.optimizer.load_state(load_file(folder / "optimizer.safetensors"))
        loop.load_counters(json.loads((folder / "counters.json").read_text(encoding="utf-8")))
        if (folder / "environment.pkl").exists():
            loop.load_environment_state((folder / "environment.pkl").read_bytes())
    except RunError:
        raise
    except (OSError, ValueError, KeyError, EOFError, pickle.UnpicklingError, RuntimeError) as error:
        cause = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise RunError(
            f"the checkpoint {folder} is damaged: {cause}; delete it to resume from the previous checkpoint"
        ) from error
    except Exception as error:  # safetensors has its own exception class.
        raise RunError(f"the checkpoint {folder} cannot be read: {error}; delete it and resume") from error


def tidy(folder: Path, iteration: int, keep: int = 2) -> None:
    """Remove all but the newest checkpoints."""
    for old in _list_iterations(folder)[:-keep]:
        if old != iteration:
            shutil.rmtree(folder / f"iteration-{old}", ignore_errors=True)


def _list_iterations(folder: Path) -> list[int]:
    if not folder.is_dir():
        return []
    names = [entry.name for entry in folder.iterdir() if entry.is_dir() and entry.name.startswith("iteration-")]
    return sorted(int(name.removeprefix("iteration-")) for name in names if name.removeprefix("iteration-").isdigit())
