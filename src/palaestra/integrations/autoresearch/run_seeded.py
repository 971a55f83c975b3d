"""Run train.py in its sandbox with a seed that it cannot choose, and record what prepare.py measures.

Every seed that the script sets is mixed with the given one: a constant in it selects no luck. Standard library only, because the
file is copied into the sandbox.
"""

import functools
import hashlib
import json
import random
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

RESULT = "_measured.json"


def mix_seed(*parts: object) -> int:
    """A seed of 32 bits."""
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=4).digest(), "big")


def patch_seeds(seed: int, libraries: set[str]) -> None:
    """Mix `seed` into all later calls that seed a generator, and seed the global generators."""

    def mix(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(given: object = None, **named: object) -> Any:
            return function(mix_seed(seed, given, sorted(named.items())))

        return call

    owners: list[tuple[Any, tuple[str, ...]]] = [(random, ("seed",))]
    if "numpy" in libraries:
        import numpy

        owners.append((numpy.random, ("seed", "default_rng")))
    if "torch" in libraries:
        import torch

        owners += [(torch, ("manual_seed",)), (torch.random, ("manual_seed",))]
        owners.append((torch.cuda, ("manual_seed", "manual_seed_all")))
    for owner, names in owners:
        for name in names:
            setattr(owner, name, mix(getattr(owner, name)))
        getattr(owner, names[0])(0)


def record_results(module: Any) -> dict[str, float]:
    """Replace the functions `evaluate...` of a module by ones that record what they return. Returns the record."""
    record: dict[str, float] = {}

    def keep(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*arguments: object, **named: object) -> Any:
            value = function(*arguments, **named)
            record[name] = float(value)
            return value

        return call

    for name in [name for name in dir(module) if name.startswith("evaluate") and callable(getattr(module, name))]:
        setattr(module, name, keep(name, getattr(module, name)))
    return record


def main() -> None:
    sources = [Path(name).read_text(encoding="utf-8") for name in ("prepare.py", "train.py")]
    sys.path.insert(0, ".")
    patch_seeds(int(sys.argv[1]), {name for name in ("numpy", "torch") if any(name in text for text in sources)})
    import prepare  # type: ignore[import-not-found]

    record = record_results(prepare)
    runpy.run_path("train.py", run_name="__main__")
    Path(RESULT).write_text(json.dumps(record), encoding="utf-8")


if __name__ == "__main__":
    main()
