"""The parts of a card that datasets and models share: the title of a run, its results and its settings, in Markdown."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from palaestra.core.errors import RunError
from palaestra.core.secrets import mask_settings
from palaestra.recipes.summary import PERCENT
from palaestra.runs.provenance import read_provenance
from palaestra.runs.run import Run

PACKAGES = ("torch", "transformers", "trl", "peft", "vllm")
"""Packages whose version is part of a card."""


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


def format_results(summary: Mapping[str, Any] | None) -> list[str]:
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
    held_out = f"Measured on {count:.0f} held-out {'problems' if percent else 'episodes'}." if count else ""
    table = ["| | value | 95 % interval |", "|---|---|---|", *rows]
    return ["", "## Results", *([held_out, ""] if held_out else []), *table]


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


def clean_settings(run: Run) -> dict[str, Any]:
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


def read_summary(run: Run) -> Mapping[str, Any]:
    """The summary of a run that has ended.

    Raises:
        RunError: the run has not ended.
    """
    summary = run.summary
    if summary is None:
        raise RunError(f"the run {run.folder} has not ended; resume it: palaestra resume {run.folder}")
    return summary
