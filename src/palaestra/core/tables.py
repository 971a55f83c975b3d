"""Tables of data beside the modules that use them."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any


@cache
def load_table(module: str, name: str) -> Any:
    """Read `NAME.yaml`, which is in the folder of a module. The value is shared: it must not be changed.

    Arguments:
        module: the module's `__file__`.
    """
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return yaml.load((Path(module).parent / f"{name}.yaml").read_text(encoding="utf-8"), loader)
