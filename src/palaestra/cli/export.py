"""`palaestra export`: an environment as a package for another library, or a run as a dataset, a model or trajectories."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from palaestra.cli.options import document
from palaestra.cli.terminal import console, quiet, say
from palaestra.core.errors import SettingsError
from palaestra.core.records import Json
from palaestra.recipes.progress import RunProgress

if TYPE_CHECKING:
    from palaestra.recipes.check.records import SubjectReport

HUB = "For --to dataset and model"
PACKAGE = "For packages of environments"
RUN_TARGETS = ("dataset", "model")
"""The values of `--to` for runs. The others are the names of `EXPORTERS`."""


@document
def export(
    source: Annotated[str, typer.Argument(metavar="ENV|RUN")],
    to: Annotated[str, typer.Option(metavar="TARGET")],
    out: str = "",
    env_option: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", rich_help_panel=PACKAGE)] = None,
    name: Annotated[str, typer.Option(rich_help_panel=PACKAGE)] = "",
    check: Annotated[int | None, typer.Option(metavar="LEVEL", rich_help_panel=PACKAGE)] = None,
    push: Annotated[str, typer.Option(rich_help_panel=HUB)] = "",
    private: Annotated[bool, typer.Option("--private", rich_help_panel=HUB)] = False,
    merge: Annotated[bool, typer.Option("--merge", rich_help_panel=HUB)] = False,
) -> None:
    """Write a turn environment as a package for another library, or a run as a dataset, a model or trajectories.

    Arguments:
        source: A turn environment, as --env of `palaestra train`, or a run folder.
        to: For an environment a library, see `palaestra list exporters`. For a run: dataset (trajectories,
            lessons and evaluations) or model (the trained student or policy), as a folder for the Hugging Face
            hub; or its episodes as atif (Harbor) or otel (OpenTelemetry), one file each.
        out: The folder to write; by default the name of the package, or RUN/exported-TARGET.
        env_option: An option of the environment, several times.
        name: The name of the package; by default from the id.
        check: Run `palaestra check` up to this level first, and write nothing if a check fails; by default 3, 0
            skips it.
        push: Push it to this repository of the hub (owner/name); needs HF_TOKEN or a login.
        private: Create the repository as a private one.
        merge: Merge a LoRA adapter into its base model.
    """
    given = {
        "--env-option": env_option,
        "--name": name,
        "--check": check is not None,
        "--push": push,
        "--private": private,
        "--merge": merge,
    }
    from palaestra.integrations.export.trajectories import TRAJECTORY_FORMATS, export_trajectories

    is_format = to in TRAJECTORY_FORMATS.names()
    allowed: tuple[str, ...] = () if is_format else ("--env-option", "--name", "--check")
    if to in RUN_TARGETS:
        allowed = ("--push", "--private", "--merge")
    for option, value in given.items():
        if value and option not in allowed:
            raise SettingsError(
                f"{option} cannot be used with --to {to}; expected {', '.join(allowed) or 'only --out'}"
            )
    if private and not push:
        raise SettingsError("--private is for --push owner/name")
    quiet()
    if is_format:
        say(f"{to}: {export_trajectories(source, out or Path(source) / f'exported-{to}', to)}")
        return
    if to in RUN_TARGETS:
        _export_run(source, to, out, push, private, merge)
        return
    from palaestra.integrations.export.base import plan_export, write_texts
    from palaestra.recipes.check.records import DEFAULT_LEVEL
    from palaestra.recipes.settings import parse_options

    options = parse_options(env_option or (), "env_kwargs")
    folder, texts = plan_export(source, to, out, options, name)
    level = DEFAULT_LEVEL if check is None else check
    if level:
        texts["check.json"] = _check_source(source, options, level).to_json()
    write_texts(folder, texts)
    say(f"package: {folder}")
    say(f"install it with: pip install {folder.resolve()}")  # A bare name would be a package of PyPI.


def _check_source(source: str, options: Json, level: int) -> SubjectReport:
    """Check an environment before it is published. Prints the faults, and exits if a check fails."""
    from palaestra.cli.check import print_fault
    from palaestra.recipes.check.recipe import check_subject
    from palaestra.recipes.check.subjects import make_subject

    with RunProgress(console) as progress:
        report = check_subject(make_subject(source, options=options), level=level, budget=0, listener=progress)
    faults = report.with_status("fail", "warn")
    for result in faults:
        print_fault(result)
    failures = sum(result.status == "fail" for result in faults)
    if failures:
        say(f"not exported: {failures} of {len(report.results)} checks failed; --check 0 exports without them")
        raise typer.Exit(1)
    say(f"checked: {len(report.results)} checks up to level {level}, {len(faults)} warnings")
    return report


def _export_run(run: str, to: str, out: str, push: str, private: bool, merge: bool) -> None:
    from palaestra.recipes.export.dataset import export_dataset
    from palaestra.recipes.export.hub import check_push, push_folder
    from palaestra.recipes.export.model import export_model

    if push:
        check_push(push)
    folder = Path(out) if out else Path(run) / f"exported-{to}"
    folder = export_dataset(run, folder) if to == "dataset" else export_model(run, folder, merge=merge)
    say(f"{to}: {folder}")
    if push:
        say(f"pushed: {push_folder(folder, push, 'dataset' if to == 'dataset' else 'model', private=private)}")
