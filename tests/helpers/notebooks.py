"""Execute the tutorials in `docs/tutorials/` and store their outputs.

Run it with `python -m tests.helpers.notebooks [NAME ...]` after a change of a tutorial; it needs `palaestra[docs]`.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.ipynb"))
_BARS, _CODES = re.compile(r"^.*━.*\n?", re.MULTILINE), re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
"""Progress bars and colors: Jupyter makes commands believe that they write to a terminal."""


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
            # Warnings of libraries name files of this machine.
            cell.outputs = [output for output in _join_streams(cell.outputs) if output.get("name") != "stderr"]
    notebook.metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    return notebook


def _join_streams(outputs: list[Any]) -> list[Any]:
    """Join the pieces in which a command has printed."""
    joined: list[Any] = []
    for output in outputs:
        if joined and "name" in output and output.get("name") == joined[-1].get("name"):
            joined[-1].text += output.text
        else:
            joined.append(output)
    for output in joined:
        if "name" in output:
            output.text = _CODES.sub("", _BARS.sub("", output.text))
    return joined


def main(names: list[str]) -> None:
    import nbformat

    for path in TUTORIALS:
        if not names or path.stem in names:
            with tempfile.TemporaryDirectory() as folder:
                nbformat.write(clean(execute(path, Path(folder))), path)


if __name__ == "__main__":
    main(sys.argv[1:])
