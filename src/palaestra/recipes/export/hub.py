"""Cards and uploads for the Hugging Face hub: the title, results and settings of a run in Markdown, and the push of a folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any, Literal

from palaestra.core.errors import RunError
from palaestra.core.records import Json
from palaestra.core.text import mask_settings
from palaestra.recipes.runs import PERCENT
from palaestra.runs.provenance import read_provenance
from palaestra.runs.run import Run

PACKAGES = ("torch", "transformers", "trl", "peft", "vllm")
"""Packages whose version is part of a card."""
Kind = Literal["dataset", "model"]


def describe_run(run: Run) -> str:
    """The title of a run.

    For example `grpo with nano on palaestra/Guess-v0`.
    """
    settings, recipe = run.settings, run.recipe
    model = _shorten(str(settings.get("model") or settings.get("student") or settings.get("agent") or ""))
    if recipe == "train" and settings.get("policy") != "lm":
        model = f"the policy {settings.get('policy')}"
    subject = str(settings.get("env") or settings.get("task") or "")
    method = str(settings.get("algorithm") or settings.get("teacher") or recipe)
    return f"{method} with {model} on {subject}"


def format_results(summary: Json | None) -> list[str]:
    """The results of a run as lines of Markdown: before, after and the paired gain, with 95 % intervals."""
    if not summary:
        return ["", "## Results", "The run has not ended."]
    percent = summary.get("unit") == PERCENT
    rows = []
    for name in ("before", "after", "gain"):
        value, low, high = (summary.get(f"{name}{end}") for end in ("", "_low", "_high"))
        if value is not None:
            unit = "" if not percent else " points" if name == "gain" else " %"
            interval = "" if low is None or high is None else f"[{low:.4g}, {high:.4g}]"
            rows.append(f"| {name} | {value:.4g}{unit} | {interval} |")
    if not rows and summary.get("return") is not None:
        rows = [f"| return of the last iteration | {summary['return']:.4g} | |"]
    if not rows:
        return []
    count = summary.get("problems") or summary.get("gain_episodes") or summary.get("after_episodes")
    held_out = [f"Measured on {count:.0f} held-out {'problems' if percent else 'episodes'}.", ""] if count else []
    return ["", "## Results", *held_out, "| | value | 95 % interval |", "|---|---|---|", *rows]


def format_settings(run: Run) -> list[str]:
    """The command, versions and settings of a run as lines of Markdown. Secrets are masked, and local folders shortened."""
    lines = ["", "## Settings"]
    started = (read_provenance(run.folder) or {}).get("started", {})
    versions = {"palaestra": started.get("palaestra", {}).get("version")}
    versions |= {name: started.get("packages", {}).get(name) for name in PACKAGES}
    if known := [f"{name} {version}" for name, version in versions.items() if version]:
        lines += [f"Recorded with {', '.join(known)}.", ""]
    settings = json.dumps(clean_settings(run), indent=2, ensure_ascii=False)
    return [*lines, f"The settings of `palaestra {run.recipe}`:", "", "```json", settings, "```"]


def clean_settings(run: Run) -> Json:
    """The settings of a run for readers elsewhere: secrets are masked, and paths shortened to their last part."""
    return {name: _shorten(value) for name, value in mask_settings(run.settings).items()}


def _shorten(value: Any) -> Any:
    """Shorten paths of this machine to their last part."""
    if isinstance(value, Mapping):
        return {key: _shorten(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_shorten(part) for part in value]
    is_path = isinstance(value, str) and value.startswith(("/", "~", "./", "../"))
    return PurePath(value).name if is_path else value


def read_summary(run: Run) -> Json:
    """The summary of a run that has ended.

    Raises:
        RunError: the run has not ended.
    """
    summary = run.summary
    if summary is None:
        raise RunError(f"the run {run.folder} has not ended; resume it: palaestra resume {run.folder}")
    return summary


def check_push(repository: str) -> None:
    """Raise before any work if a push cannot succeed.

    Raises:
        RunError: the name is not that of a repository, or there is no token.
    """
    from huggingface_hub import get_token
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(repository)
    except HFValidationError as error:
        reason = str(error).splitlines()[0]
        raise RunError(f"expected --push owner/name; got '{repository}': {reason}") from error
    if not get_token():
        raise RunError("no Hugging Face token; set HF_TOKEN, or log in with: hf auth login")


def push_folder(folder: Path, repository: str, kind: Kind, *, private: bool = False) -> str:
    """Upload a folder to a repository, which is created if needed. Returns its address.

    Raises:
        RunError: there is no token, the hub cannot be reached, or it rejects the upload.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HTTPError  # Of the HTTP client that this version of the hub's library uses.

    check_push(repository)
    api = HfApi()
    try:
        url = api.create_repo(repository, repo_type=kind, private=private, exist_ok=True)
        api.upload_folder(
            repo_id=url.repo_id, folder_path=folder, repo_type=kind, commit_message="Export from Palaestra"
        )
    except (HTTPError, OSError) as error:
        reason = " ".join(str(error).split())[:300]
        raise RunError(f"the hub did not accept {repository}: {reason}; the folder is {folder}") from error
    return str(url)
