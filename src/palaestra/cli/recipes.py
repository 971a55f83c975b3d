"""The commands that run a recipe: train, train-reward, teach, evaluate and pretrain.

A command imports its settings and its recipe when it is called, not when the command line starts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from palaestra.cli.options import TrainCommand, from_settings, split_examples
from palaestra.cli.terminal import LEARN, MEASURE, add_lazy_command, announce_loading, console, quiet, say
from palaestra.core.errors import RunError
from palaestra.core.process import read_launch_rank
from palaestra.core.records import Json, ignore
from palaestra.core.registry import load_reference
from palaestra.recipes.progress import RunProgress, TrainProgress
from palaestra.recipes.settings import INLINE
from palaestra.runs.run import Run

if TYPE_CHECKING:
    from palaestra.recipes.evaluate.recipe import EvaluateResult
    from palaestra.recipes.teach.recipe import TeachResult
    from palaestra.recipes.train.recipe import TrainResult

Out = Annotated[str, typer.Option(help="The run folder; a new one below runs/ if not given.", rich_help_panel="Run")]
Seeds = Annotated[int, typer.Option(help="Run a study of this many seeds.", rich_help_panel="Run")]
Learners = Annotated[
    int,
    typer.Option(
        help="Train with this many processes on a Ray cluster (RAY_ADDRESS, or this machine).",
        rich_help_panel="Cluster",
    ),
]


def register(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    train, teach = "palaestra.recipes.train", "palaestra.recipes.teach.settings"
    _add(app, "train", LEARN, _train, f"{train}.settings:TrainSettings", f"{train}.presets:make_settings", TrainCommand)
    _add(app, "train-reward", LEARN, _train_reward, f"{train}.reward_model:RewardSettings")
    _add(app, "teach", LEARN, _teach, f"{teach}:TeachSettings", several=f"{teach}:STUDY_SETTINGS")
    _add(app, "evaluate", MEASURE, _evaluate, "palaestra.recipes.evaluate.settings:EvaluateSettings")
    _add(app, "pretrain", LEARN, _pretrain, f"{train}.pretrain:PretrainSettings")


def _add(
    app: typer.Typer,
    name: str,
    panel: str,
    function: Callable[..., None],
    settings: str,
    make: str = "",
    kind: type[TyperCommand] = TyperCommand,
    several: str = "",
) -> None:
    """Add a command whose options are the fields of a settings class.

    Arguments:
        settings: the class, as `module:name`.
        make: what builds the settings from the options, as `module:name`; empty: the settings class.
        several: the names of the options that take several values, as `module:name`.
    """

    text, examples = split_examples(function)

    def build() -> TyperCommand:
        single = typer.Typer(add_completion=False)
        names = load_reference(several) if several else ()
        build_settings = load_reference(make) if make else None
        call = from_settings(load_reference(settings), function, names, build_settings=build_settings)
        single.command(name, cls=kind, epilog=examples)(call)
        command = typer.main.get_command(single)
        assert isinstance(command, TyperCommand)
        return command

    add_lazy_command(app, name, panel, text, build)


def _train(settings: Any, out: Out = "", learners: Learners = 0) -> None:
    """Train a policy in an environment by reinforcement learning: PPO, GRPO, RLOO or REINFORCE.

    Examples:
        palaestra train --env palaestra/CoT-v0 --model nano
        palaestra train --prompts data.jsonl --reward my_rewards.py:length
        palaestra train --env CartPole-v1 --iterations 40
    """
    from palaestra.recipes.train import recipe as train

    quiet()
    if read_launch_rank() > 0:
        train.train(settings, listener=ignore)
        return
    train.check(settings)
    with TrainProgress(console) as progress:
        if learners:
            from palaestra.recipes.train.learners import train_on_ray

            result = train_on_ray(settings, learners, out=out, listener=progress)
        else:
            result = train.train(settings, out=out, listener=progress)
    finish_train(result)


def print_warnings(run: Run) -> bool:
    """Print what is wrong with a run. Returns whether anything is."""
    from palaestra.recipes.diagnosis import diagnose

    diagnoses = diagnose(run)
    for diagnosis in diagnoses:
        say(f"warning: {diagnosis}")
    return bool(diagnoses)


def finish_train(result: TrainResult) -> None:
    """Print the result of a train run and write its report."""
    from palaestra.cli.terminal import outcome_table
    from palaestra.report import write_report

    s = result.summary
    console.print(outcome_table(s))
    say(
        f"{s['iterations']} iterations, {s['episodes']} episodes, {s['actions']} {'tokens' if s['policy'] == 'lm' else 'steps'}, "
        f"{sum(s['failures'].values())} failures, {s['seconds']:.0f} s; report: {write_report(result.folder)}"
    )
    with Run.open(result.folder, read_only=True) as run:
        print_warnings(run)
    say(f"model: {result.folder / 'model'}")
    say(f"run: {result.folder}")


def _train_reward(settings: Any) -> None:
    """Train a reward model on comparisons and measure its accuracy and calibration."""
    from palaestra.cli.terminal import reward_table
    from palaestra.recipes.train.reward_model import train_reward

    quiet()
    announce_loading()
    with RunProgress(console) as progress:
        model = train_reward(settings=settings, listener=progress)
    console.print(reward_table(model.metrics["report_before"], model.metrics["report_after"]))
    if model.folder is not None:
        say(f"model: {model.folder}")


def _teach(settings: Any, out: Out = "", seeds: Seeds = 1, grid: Mapping[str, list[str]] | None = None) -> None:
    """Teach a student in rounds and measure the gain on a test split.

    Several seeds, or several values separated by commas (--teacher a,b --state on,off), run a study. The runs of a
    study are distributed by --executor; in a single run, the workers score answers and write with a local writer.

    Examples:
        palaestra teach --task data.jsonl --student smollm2
        palaestra teach --teacher skill_tree --rounds 3 --seeds 5
        palaestra teach --writer openai:gpt-4o-mini --max-cost 2
    """
    from palaestra.recipes.teach import recipe as teach

    quiet()
    announce_loading()
    if seeds != 1 or grid:
        _study(settings, out, seeds, grid or {})
        return
    with RunProgress(console, settings.rounds) as progress:
        result = teach.teach(settings, out=out, listener=progress)
    finish_teach(result)


def finish_teach(result: TeachResult) -> None:
    """Print the result of a teach run and write its report."""
    from palaestra.cli.terminal import gain_table, test_rounds_table
    from palaestra.recipes.teach.summary import describe_changes, describe_lessons
    from palaestra.report import write_report

    s = result.summary
    console.print(gain_table(s))
    if "test_rounds" in s:
        console.print(test_rounds_table(s["test_rounds"]))
    page = write_report(result.folder)
    for line in filter(None, (describe_changes(s), *describe_lessons(s))):
        say(line)
    if s["kept_round"] != s["rounds"]:
        kept = f"round {s['kept_round']}" if s["kept_round"] else "the untaught student"
        say(f"kept: {kept}, the best on validation")
    failures = sum(s["failures"].values())
    say(f"{s['rounds']} rounds, {s['examples']} examples, {failures} failures, {s['seconds']:.0f} s; report: {page}")
    with Run.open(result.folder, read_only=True) as run:
        print_warnings(run)
    say(f"run: {result.folder}")
    if s["gain"] is None:
        raise RunError(f"no gain could be measured: {_describe_failures(s)}")


def _study(settings: Any, out: str, seeds: int, grid: Mapping[str, list[str]]) -> None:
    from palaestra.cli.terminal import study_table
    from palaestra.recipes.teach.study import study
    from palaestra.report import write_report
    from palaestra.runs.run import new_folder

    folder = Path(out) if out else new_folder("study")
    # The executor distributes the runs; each run by itself is inline.
    shared = {"executor": settings.executor, "resources": settings.resources}
    try:
        with RunProgress(console, settings.rounds) as progress:
            result = study(replace(settings, executor=INLINE), grid, seeds, out=folder, listener=progress, **shared)
    except KeyboardInterrupt as error:
        error.add_note(f"the same command, with --out {folder}")
        raise
    console.print(study_table(result))
    for note in result.notes:
        say(f"note: {note}")
    say(f"report: {write_report(result.folder)}")
    say(f"study: {result.folder}")
    if result.failed:
        total = sum(len(row.runs) for row in result.rows)
        again = f"the same command with --out {result.folder} tries them again"
        raise RunError(f"{result.failed} of {total} runs failed; {again}")


def _evaluate(settings: Any, out: Out = "") -> None:
    """Measure the accuracy of a model on a task, by skill, with intervals.

    Examples:
        palaestra evaluate --task data.jsonl --model smollm2
        palaestra evaluate --model runs/my-run --limit 100
        palaestra evaluate --model openai:gpt-4o-mini --max-cost 1
    """
    from palaestra.recipes.evaluate import recipe as evaluate

    quiet()
    with RunProgress(console) as progress:
        result = evaluate.evaluate(settings, out=out, listener=progress)
    finish_evaluate(result)


def finish_evaluate(result: EvaluateResult) -> None:
    """Print the result of an evaluate run and write its report."""
    from palaestra.cli.terminal import further_metrics, report_table
    from palaestra.report import write_report
    from palaestra.runs.provenance import describe_cost

    s = result.summary
    console.print(report_table(result.report, "answers" if s["samples"] > 1 else "problems"))
    for line in further_metrics(s):
        say(line)
    say(
        f"{s['problems']} problems, {s['prompt_tokens']} tokens in, {s['completion_tokens']} out, {s['seconds']:.0f} s, "
        f"{describe_cost(s)}; report: {write_report(result.folder)}"
    )
    say(f"run: {result.folder}")
    if result.report.accuracy is None:
        raise RunError(f"no answer could be scored: {_describe_failures(s)}")


def _describe_failures(summary: Json) -> str:
    """Describe the failures by cause: the count, and the message of the first."""
    messages = summary["first_failures"]
    return "; ".join(f"{count} x {cause}: {messages.get(cause, '')}" for cause, count in summary["failures"].items())


def _pretrain(settings: Any) -> None:
    """Train an embedded model from scratch."""
    from palaestra.cli.terminal import report_table
    from palaestra.recipes.train.pretrain import pretrain

    quiet()
    announce_loading()
    with RunProgress(console) as progress:
        report = pretrain(settings, listener=progress)
    console.print(report_table(report))
    say(f"checkpoint: {settings.out}")
