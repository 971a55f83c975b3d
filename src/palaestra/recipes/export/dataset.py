"""Export a run as a Hugging Face dataset: Parquet files and a card. `datasets.load_dataset(FOLDER)` reads it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from palaestra.core.errors import MissingExtraError, RunError
from palaestra.recipes.export.hub import describe_run, format_results, format_settings
from palaestra.recipes.export.tables import TYPES, Row, list_tables
from palaestra.runs.files import check_empty_folder, write_folder, write_text
from palaestra.runs.run import Run

DESCRIPTIONS: Mapping[str, str] = {
    "trajectories": "episodes of the trained or evaluated agent. `token_ids` are the exact ids of an episode, `chosen` marks "
    "those that the model sampled, and `logprobs` are theirs. A failed episode has a `failure`; its reward is invalid",
    "lessons": "examples that the student was taught, by round, in TRL's conversational format",
    "evaluations": "one row per answer, with its score. `iteration` is the iteration or round of the evaluation. A failed "
    "attempt has a `failure`, and neither `score` nor `correct`",
}
SIZES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"))


def export_dataset(run: Path | str, out: Path | str) -> Path:
    """Write the trajectories, lessons and evaluations of a run as a dataset folder. Returns the folder.

    Each of them is a configuration of the dataset: `load_dataset(folder, "lessons")`. The first one that the run has is
    the default.

    Raises:
        MissingExtraError: pyarrow is not installed.
        RunError: the folder is not a run, the run has no such records, or `out` is not empty.
    """
    if find_spec("pyarrow") is None:
        raise MissingExtraError("pyarrow", "data", "the export of a dataset")
    folder = Path(out)
    check_empty_folder(folder)
    with Run.open(Path(run), read_only=True) as opened:
        tables = list_tables(opened)
        if not tables:
            raise RunError(f"the run {run} has no trajectories, lessons or evaluations to export")
        card = make_dataset_card(opened, tables)

    def write(target: Path) -> None:
        for name, splits in tables.items():
            (target / name).mkdir()
            for split, rows in splits.items():
                write_parquet(rows, target / name / f"{split}.parquet")
        write_text(target / "README.md", card)

    write_folder(folder, write)
    return folder


def write_parquet(rows: Sequence[Row], path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    arrays = {
        name: pyarrow.array([row[name] for row in rows], type=_parse_type(pyarrow, TYPES.get(name, "")))
        for name in rows[0]
    }
    pyarrow.parquet.write_table(pyarrow.table(arrays), path)


def _parse_type(pyarrow: Any, name: str) -> Any:
    """The Arrow type of a name such as `list<int32>`; `None`, which means inference, for an empty name."""
    if name.startswith("list<"):
        return pyarrow.list_(_parse_type(pyarrow, name[5:-1]))
    return pyarrow.type_for_alias(name) if name else None


def make_dataset_card(run: Run, tables: Mapping[str, Mapping[str, Sequence[Row]]]) -> str:
    """Make the `README.md` of a dataset: the YAML header that `load_dataset` reads, the tables, the results and settings."""
    from huggingface_hub import DatasetCardData

    total = sum(len(rows) for splits in tables.values() for rows in splits.values())
    header = DatasetCardData(
        pretty_name=describe_run(run),
        tags=["palaestra", run.recipe],
        size_categories=next((size for limit, size in SIZES if total < limit), "n>1M"),
        configs=[
            {
                "config_name": name,
                "data_files": [{"split": split, "path": f"{name}/{split}.parquet"} for split in splits],
                **({"default": True} if name == next(iter(tables)) else {}),
            }
            for name, splits in tables.items()
        ],
    )
    lines = [f"# {describe_run(run)}", "", "Exported from a run of [Palaestra](https://pypi.org/project/palaestra/)."]
    for name, splits in tables.items():
        counts = ", ".join(f"{len(rows)} rows in `{split}`" for split, rows in splits.items())
        lines += ["", f"**{name}** ({counts}): {DESCRIPTIONS[name]}."]
    first = next(iter(tables))
    lines += ["", "```python", "from datasets import load_dataset", "", f'load_dataset("FOLDER", "{first}")', "```"]
    return "\n".join(["---", header.to_yaml(), "---", *lines, *format_results(run.summary), *format_settings(run), ""])
