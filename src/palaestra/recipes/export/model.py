"""Export the model that a run has trained as a hub-ready folder.

A language model is a transformers checkpoint: weights in safetensors, tokenizer with its chat template, generation config,
and a model card. A LoRA adapter stays an adapter if its base model is on the hub, and is merged otherwise. A policy of a
classic environment is `policy.safetensors` with the settings that `palaestra.load_policy` needs.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from palaestra.core.errors import RunError
from palaestra.engines import models
from palaestra.recipes.export.cards import clean_settings, describe_run, format_results, format_settings, read_summary
from palaestra.recipes.summary import PERCENT
from palaestra.recipes.train.loop import POLICY, WEIGHTS
from palaestra.runs.files import (
    check_empty_folder,
    check_own_file,
    read_json,
    refuse_links,
    write_folder,
    write_json,
    write_text,
)
from palaestra.runs.run import FORMAT, Run


def export_model(run: Path | str, out: Path | str, *, merge: bool = False) -> Path:
    """Write the trained model of a `train` or `teach` run as a folder for the hub. Returns the folder.

    Arguments:
        merge: merge a LoRA adapter into its base model even if the base model is on the hub.

    Raises:
        RunError: the folder is not a run that has ended and trained something, or `out` is not empty.
        ModelError: the run has trained no model.
    """
    source, folder = Path(run), Path(out)
    check_empty_folder(folder)
    with Run.open(source, read_only=True) as opened:
        summary = read_summary(opened)
        if opened.recipe not in ("train", "teach"):
            raise RunError(f"{source} is a run of {opened.recipe}, which trains nothing; expected a train or teach run")
        is_policy = opened.recipe == "train" and opened.settings.get("policy") != "lm"
        write_folder(
            folder,
            lambda target: (_write_policy if is_policy else _write_language_model)(opened, summary, target, merge),
        )
    return folder


def _write_policy(run: Run, summary: Mapping[str, Any], target: Path, merge: bool) -> None:
    """Write the policy of a classic environment."""
    for name in (WEIGHTS, POLICY):
        check_own_file(run.folder / "model" / name, writable=False)
        shutil.copyfile(run.folder / "model" / name, target / name)
    write_json(target / "settings.json", {"format": FORMAT, "recipe": run.recipe, "settings": clean_settings(run)})
    use = ["from palaestra import load_policy", "", 'policy = load_policy("FOLDER")']
    card = make_model_card(run, summary, use, library_name="palaestra", pipeline_tag="reinforcement-learning")
    write_text(target / "README.md", card)


def _write_language_model(run: Run, summary: Mapping[str, Any], target: Path, merge: bool) -> None:
    """Copy the checkpoint of the run, or merge its adapter."""
    where = Path(models.locate_run_model(run.folder))
    base = _find_base(run, where)
    is_adapter = (where / models.ADAPTER).exists() and not (where / "config.json").exists()
    if is_adapter and (merge or not base):
        with models.export_merged(str(where)) as merged:
            shutil.copytree(merged, target, dirs_exist_ok=True)
        is_adapter = False
    else:
        if where.is_relative_to(run.folder):  # A link there could publish any file of the user.
            for path in (where, *where.rglob("*")):
                refuse_links(path)
        shutil.copytree(where, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.partial", "*.bin", "*.pt"))
    if is_adapter:
        library, use = "peft", ["from peft import AutoPeftModelForCausalLM", ""]
        use += ['model = AutoPeftModelForCausalLM.from_pretrained("FOLDER")']
    else:
        library, use = "transformers", ["from transformers import AutoModelForCausalLM, AutoTokenizer", ""]
        use += ['model = AutoModelForCausalLM.from_pretrained("FOLDER")']
        use += ['tokenizer = AutoTokenizer.from_pretrained("FOLDER")']
    sees = not is_adapter and "vision_config" in read_json(target / "config.json")
    if sees:
        use = [line.replace("AutoModelForCausalLM", "AutoModelForImageTextToText") for line in use]
    tag = "image-text-to-text" if sees else "text-generation"
    card = make_model_card(run, summary, use, library_name=library, pipeline_tag=tag, base_model=base or None)
    write_text(target / "README.md", card)


def _find_base(run: Run, folder: Path) -> str:
    """The hub id of the base model; empty if the base model is not on the hub."""
    name = str(run.settings.get("model" if run.recipe == "train" else "student") or "")
    if (folder / models.ADAPTER).exists():
        name = str(read_json(folder / models.ADAPTER, follow_link=True).get("base_model_name_or_path") or name)
    name = name.partition("://")[2] or name
    is_hub_id = name.count("/") == 1 and not name.startswith((".", "/", "~")) and not Path(name).exists()
    return name if is_hub_id else ""


def make_model_card(
    run: Run,
    summary: Mapping[str, Any],
    use: list[str],
    *,
    library_name: str,
    pipeline_tag: str,
    base_model: str | None = None,
) -> str:
    """Make the `README.md` of a model: the YAML header with the result, how to load it, results and settings.

    Arguments:
        use: lines of Python that load the model.
    """
    from huggingface_hub import EvalResult, ModelCardData

    title, settings = describe_run(run), run.settings
    subject = str(settings.get("env") or settings.get("task") or "")
    measured = summary.get("after") if summary.get("after") is not None else summary.get("return")
    percent = summary.get("unit") == PERCENT
    results = None
    if measured is not None:
        metric = ("accuracy", "accuracy, percent") if percent else ("mean_reward", "mean return")
        split = "test" if summary.get("after") is not None else "train"
        results = [
            EvalResult(
                task_type=pipeline_tag, dataset_type=subject, dataset_name=subject, dataset_split=split,
                metric_type=metric[0], metric_name=metric[1], metric_value=measured,
            )
        ]  # fmt: skip
    method = str(settings.get("algorithm") or settings.get("teacher") or "")
    header = ModelCardData(
        base_model=base_model,
        library_name=library_name,
        pipeline_tag=pipeline_tag,
        tags=["palaestra", "reinforcement-learning" if run.recipe == "train" else "supervised-fine-tuning", method],
        model_name=title,
        eval_results=results,
    )
    what = "reinforcement learning" if run.recipe == "train" else "lessons of a teacher"
    lines = [f"# {title}", "", f"Trained by {what} with [Palaestra](https://pypi.org/project/palaestra/)."]
    lines += ["", "```python", *use, "```", *format_results(summary), *format_settings(run), ""]
    return "\n".join(["---", header.to_yaml(), "---", *lines])
