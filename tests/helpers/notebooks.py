"""Execute the tutorials in `docs/tutorials/` and store their outputs.

Run it with `python -m tests.helpers.notebooks [NAME ...]` after a change of a tutorial; it needs `palaestra[docs]`.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.ipynb"))
_STREAMS = {"stderr"}
"""Outputs that are not stored: warnings of libraries, which name files of this machine."""


def execute(path: Path, folder: Path, seconds: int = 600) -> Any:
    """Execute a notebook in a folder and return it with its outputs. Raises if a cell raises."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    bins = (Path(sys.executable).parent, Path(sys.prefix) / "bin")
    env = {
        **os.environ,
        "PATH": os.pathsep.join([*map(str, bins), os.environ.get("PATH", "")]),
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]),
        "COLUMNS": "100",
    }
    client = NotebookClient(notebook, timeout=seconds, resources={"metadata": {"path": str(folder)}})
    client.execute(env=env)
    return notebook


def clean(notebook: Any) -> Any:
    """Remove what differs between two executions on two machines."""
    for number, cell in enumerate(notebook.cells):
        cell.id, cell.metadata = f"cell-{number}", {}
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if output.get("name") not in _STREAMS]
    notebook.metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    return notebook


def main(names: list[str]) -> None:
    import nbformat

    for path in TUTORIALS:
        if not names or path.stem in names:
            with tempfile.TemporaryDirectory() as folder:
                nbformat.write(clean(execute(path, Path(folder))), path)


if __name__ == "__main__":
    main(sys.argv[1:])
