"""What can be checked in Python, and the commands that show a fault again."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from broken_envs import AcceptsAnyAction, Walk

import palaestra
from palaestra.core.errors import EnvError
from palaestra.recipes.check.recipe import check
from palaestra.recipes.check.records import ENV_CHECKS, CheckStatus, EnvCheck, report_fail, report_pass, to_record
from palaestra.recipes.check.subjects import make_subject


@pytest.mark.parametrize("make", [lambda: Walk, Walk, lambda: Walk(), lambda: lambda: Walk()])
def test_objects_have_no_false_alarm_in_another_process(make: Any) -> None:
    report = check(make(), level=1, only="semantic.replayability")
    assert not report.with_status("fail", "warn"), report.results


def test_an_instance_keeps_its_options() -> None:
    subject = make_subject(gymnasium.make("FrozenLake-v1", is_slippery=False))
    assert subject.name == "FrozenLake-v1"
    assert shlex.split(subject.command)[:3] == ["palaestra", "check", "FrozenLake-v1"]
    assert "is_slippery=False" in shlex.split(subject.command)
    assert subject.env is not None
    with subject.env.open() as env:
        assert env.spec is not None
        assert env.spec.kwargs["is_slippery"] is False


def test_the_reproduction_of_an_instance_is_a_call() -> None:
    name = "runtime.rejects_bad_actions"
    result = check(AcceptsAnyAction(), level=1, only=name).get(name)
    assert result.status == "warn"
    report = eval(result.reproduction, {"palaestra": palaestra, "AcceptsAnyAction": AcceptsAnyAction()})
    assert report.get(name).summary == result.summary


def test_the_reproduction_of_a_class_is_a_command() -> None:
    name = "runtime.rejects_bad_actions"
    result = check(AcceptsAnyAction, level=1, only=name).get(name)
    program, command, env, *options = shlex.split(result.reproduction)
    assert (program, command, options) == ("palaestra", "check", ["--only", name])
    assert check(env, only=name).get(name).summary == result.summary


def test_a_reproduction_has_the_level_and_the_seed() -> None:
    costly = EnvCheck("statistical.x", "env", "a title", lambda part: report_pass("fine"), level=4, remedy="a remedy")
    fault = report_fail("wrong", seed=3)
    again = to_record(costly, fault, "palaestra check A", 0.0).reproduction
    assert again == "palaestra check A --level 4 --only statistical.x --seed 3"
    again = to_record(costly, fault, "palaestra.check(A)", 0.0).reproduction
    assert again == "palaestra.check(A, level=4, only='statistical.x', seed=3)"
    assert to_record(ENV_CHECKS[0], report_pass("fine"), "palaestra check A", 0.0).reproduction == ""
    assert to_record(ENV_CHECKS[0], fault, "palaestra check A", 0.0).status is CheckStatus.FAIL


def test_a_file_that_cannot_be_imported_is_named(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("class Env\n")
    for name, cause in (("broken.py", "SyntaxError"), ("missing.py", "does not exist")):
        with pytest.raises(EnvError, match=cause):
            make_subject(f"{tmp_path / name}:Env")
