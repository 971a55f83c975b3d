"""`palaestra export`: write a run in the form that other libraries read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from palaestra.cli.terminal import quiet, say
from palaestra.core.errors import SettingsError, UnknownNameError

TARGETS = {
    "dataset": "trajectories, lessons and evaluations of a run as a Hugging Face dataset",
    "model": "the trained student or policy of a run as a folder for the Hugging Face hub",
}
"""The values of `--to`."""


def export(
    source: Annotated[str, typer.Argument(metavar="RUN", help="A run folder.")],
    to: Annotated[str, typer.Option("--to", help="; ".join(f"{name}: {text}" for name, text in TARGETS.items()) + ".")],
    out: Annotated[str, typer.Option("--out", help="The new folder; RUN/exported-TO if not given.")] = "",
    push: Annotated[
        str, typer.Option(help="Push it to this repository of the hub (owner/name); needs HF_TOKEN or a login.")
    ] = "",
    private: Annotated[bool, typer.Option("--private", help="Create the repository as a private one.")] = False,
    merge: Annotated[
        bool, typer.Option("--merge", help="Merge a LoRA adapter into its base model (--to model).")
    ] = False,
) -> None:
    """Export a run as a dataset or a model, and push it to the Hugging Face hub."""
    if to not in TARGETS:
        raise UnknownNameError("target", to, TARGETS)
    if private and not push:
        raise SettingsError("--private is for --push owner/name")
    from palaestra.recipes.export.dataset import export_dataset
    from palaestra.recipes.export.model import export_model
    from palaestra.recipes.export.push import check_push, push_folder

    quiet()
    if push:
        check_push(push)
    folder = Path(out) if out else Path(source) / f"exported-{to}"
    folder = export_dataset(source, folder) if to == "dataset" else export_model(source, folder, merge=merge)
    say(f"{to}: {folder}")
    if push:
        say(f"pushed: {push_folder(folder, push, 'dataset' if to == 'dataset' else 'model', private=private)}")
