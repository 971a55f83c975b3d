"""Checkpoints of a training run: weights, optimiser, environment and counters, whole or not at all."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from palaestra.core.errors import RunError
from palaestra.runs.files import write_folder

if TYPE_CHECKING:
    from palaestra.recipes.train.loop import Loop


def save(folder: Path, iteration: int, loop: Loop, last: bool) -> None:
    """Write the checkpoint of an iteration; the environment's state is not needed after the last."""

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
    """Bring `loop` to its newest checkpoint; returns the iteration, 0 where there is none."""
    found = _iterations(folder)
    if not found:
        return 0
    load(folder / f"iteration-{found[-1]}", loop)
    return found[-1]


def load(folder: Path, loop: Loop) -> None:
    """Bring `loop` to the state of a checkpoint.

    Raises:
        RunError: a file is missing or damaged, or the checkpoint is of a policy of another shape.
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
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise RunError(f"the checkpoint {folder} is damaged: {said}; delete it to go on from the one before") from error
    except Exception as error:  # safetensors raises its own.
        raise RunError(f"the checkpoint {folder} cannot be read: {error}; delete it and resume") from error


def tidy(folder: Path, iteration: int, keep: int = 2) -> None:
    """Remove all but the newest checkpoints."""
    for old in _iterations(folder)[:-keep]:
        if old != iteration:
            shutil.rmtree(folder / f"iteration-{old}", ignore_errors=True)


def check_shapes(wanted: dict[str, Any], found: dict[str, Any], where: str) -> None:
    """Raise in one line if the tensors of a checkpoint do not fit a policy."""
    missing, extra = sorted(set(wanted) - set(found)), sorted(set(found) - set(wanted))
    if missing or extra:
        raise RunError(
            f"the checkpoint {where} is of another policy: it lacks {missing[:2] or 'nothing'} and has {extra[:2] or 'nothing'} "
            f"beyond what this policy has"
        )
    for name, tensor in wanted.items():
        if tuple(tensor.shape) != tuple(found[name].shape):
            raise RunError(
                f"the checkpoint {where} is of another shape: {name} is {tuple(found[name].shape)} there and "
                f"{tuple(tensor.shape)} in this policy"
            )


def _iterations(folder: Path) -> list[int]:
    if not folder.is_dir():
        return []
    names = [entry.name for entry in folder.iterdir() if entry.is_dir() and entry.name.startswith("iteration-")]
    return sorted(int(name.removeprefix("iteration-")) for name in names if name.removeprefix("iteration-").isdigit())
