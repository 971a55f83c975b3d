"""Planted faults of research tasks, each for one check, and sound tasks without an alarm."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from broken_research import FAULTS, SOUND, write_task
from planted import list_faults, list_sound

from palaestra.recipes.check import research
from palaestra.recipes.check.recipe import check, describe_plan, plan_checks
from palaestra.recipes.check.records import CheckStatus
from palaestra.recipes.check.subjects import make_subject
from palaestra.recipes.check.submissions import _spoil_json

ALARMS = (CheckStatus.FAIL, CheckStatus.WARN)
IN_ANOTHER_PROCESS = {"data in the order of hashes", "hash as a seed"}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PALAESTRA_CACHE", str(tmp_path / "cache"))


def call_here(function: Callable[..., Any], *arguments: Any, **_: float) -> Any:
    """A new process takes seconds, and only two of the faults are about it."""
    return function(*arguments)


@pytest.mark.parametrize("name", list_faults({name: check_id for name, (check_id, *_) in FAULTS.items()}))
def test_a_planted_fault_is_found(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_id, files, changes = FAULTS[name]
    if name not in IN_ANOTHER_PROCESS:
        monkeypatch.setattr(research, "call_elsewhere", call_here)
    report = check(write_task(tmp_path, files, changes), only=check_id)
    result = report.get(check_id)
    assert result.status in ALARMS, result
    assert report.with_status(*ALARMS) == [result]
    assert result.remediation
    assert "palaestra check" in result.reproduction


@pytest.mark.parametrize("name", list_sound(*SOUND))
def test_a_sound_task_passes(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(research, "call_elsewhere", call_here)
    report = check(write_task(tmp_path, SOUND[name]))
    assert not report.with_status(*ALARMS)
    assert len(report.with_status(CheckStatus.PASS)) >= 13


def test_the_plan_counts_evaluations(tmp_path: Path) -> None:
    subject = make_subject(write_task(tmp_path, SOUND["doubles"]))
    plan = describe_plan(plan_checks(subject, 3), subject)
    assert len(plan) == 3
    assert all("evaluations of submissions, with a limit of 2 s each" in line for line in plan)


@pytest.mark.parametrize("content", [b'{"a": "text", "b": ["word"]}', b'{"a": 1.5, "b": [2]}'])
def test_no_malformed_submission_is_the_solution_itself(content: bytes) -> None:
    variants = dict(_spoil_json("answers.json", content))
    assert len(variants) == (2 if b"text" in content else 6)
    assert all(json.loads(variant) != json.loads(content) for variant in variants.values())
