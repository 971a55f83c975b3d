"""Export the model that a run has trained as a hub-ready folder.

A language model is a transformers checkpoint: weights in safetensors, tokenizer with its chat template, generation config,
and a model card. A LoRA adapter stays an adapter if its base model is on the hub, and is merged otherwise. A policy of a
classic environment is `policy.safetensors` with the settings that `palaestra.load_policy` needs.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from palaestra.core.errors import RunError
from palaestra.core.records import Json
from palaestra.models import registry as models
from palaestra.recipes.export.hub import clean_settings, describe_run, format_results, format_settings, read_summary
from palaestra.recipes.runs import PERCENT
from palaestra.rl.loop import POLICY, WEIGHTS
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
        if is_policy:
            write_folder(folder, lambda target: _write_policy(opened, summary, target))
        else:
            write_folder(folder, lambda target: _write_language_model(opened, summary, target, merge))
    return folder


def _write_policy(run: Run, summary: Json, target: Path) -> None:
    """Write the policy of a classic environment."""
    for name in (WEIGHTS, POLICY):
        check_own_file(run.folder / "model" / name, writable=False)
        shutil.copyfile(run.folder / "model" / name, target / name)
    write_json(target / "settings.json", {"format": FORMAT, "recipe": run.recipe, "settings": clean_settings(run)})
    use = ["from palaestra import load_policy", "", 'policy = load_policy("FOLDER")']
    write_text(target / "README.md", make_model_card(run, summary, use, "palaestra", "reinforcement-learning"))


def _write_language_model(run: Run, summary: Json, target: Path, merge: bool) -> None:
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
    library, kind, tag = "transformers", "AutoModelForCausalLM", "text-generation"
    if is_adapter:
        library, kind = "peft", "AutoPeftModelForCausalLM"
    elif "vision_config" in read_json(target / "config.json"):
        kind, tag = "AutoModelForImageTextToText", "image-text-to-text"
    tokenizer = [] if is_adapter else ['tokenizer = AutoTokenizer.from_pretrained("FOLDER")']
    imported = f"from {library} import {kind}{', AutoTokenizer' if tokenizer else ''}"
    use = [imported, "", f'model = {kind}.from_pretrained("FOLDER")', *tokenizer]
    write_text(target / "README.md", make_model_card(run, summary, use, library, tag, base or None))


def _find_base(run: Run, folder: Path) -> str:
    """The hub id of the base model; empty if the base model is not on the hub."""
    name = str(run.settings.get("model" if run.recipe == "train" else "student") or "")
    if (folder / models.ADAPTER).exists():
        name = str(read_json(folder / models.ADAPTER, follow_link=True).get("base_model_name_or_path") or name)
    name = name.partition("://")[2] or name
    is_hub_id = name.count("/") == 1 and not name.startswith((".", "/", "~")) and not Path(name).exists()
    return name if is_hub_id else ""


def make_model_card(
    run: Run, summary: Json, use: list[str], library_name: str, pipeline_tag: str, base_model: str | None = None
) -> str:
    """Make the `README.md` of a model: the YAML header with the result, how to load it, results and settings.

    Arguments:
        use: lines of Python that load the model.
    """
    from huggingface_hub import EvalResult, ModelCardData

    title, settings = describe_run(run), run.settings
    subject = str(settings.get("env") or settings.get("task") or "")
    split, measured = ("train", summary.get("return"))
    if summary.get("after") is not None:
        split, measured = "test", summary["after"]
    results = None
    if measured is not None:
        percent = summary.get("unit") == PERCENT
        metric, name = ("accuracy", "accuracy, percent") if percent else ("mean_reward", "mean return")
        dataset = {"dataset_type": subject, "dataset_name": subject, "dataset_split": split}
        results = [EvalResult(pipeline_tag, metric_type=metric, metric_name=name, metric_value=measured, **dataset)]
    method = str(settings.get("algorithm") or settings.get("teacher") or "")
    learning, what = "supervised-fine-tuning", "lessons of a teacher"
    if run.recipe == "train":
        learning, what = "reinforcement-learning", "reinforcement learning"
    tags, kind = ["palaestra", learning, method], {"library_name": library_name, "pipeline_tag": pipeline_tag}
    header = ModelCardData(base_model=base_model, **kind, tags=tags, model_name=title, eval_results=results)
    lines = [f"# {title}", "", f"Trained by {what} with [Palaestra](https://pypi.org/project/palaestra/)."]
    lines += ["", "```python", *use, "```", *format_results(summary), *format_settings(run), ""]
    return "\n".join(["---", header.to_yaml(), "---", *lines])
