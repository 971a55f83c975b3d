"""The output of `palaestra check`."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from palaestra.cli.main import app
from palaestra.recipes import progress


def test_progress_does_not_mix_with_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "HEARTBEAT", 0.0)
    result = CliRunner().invoke(app, ["check", "CartPole-v1", "--only", "runtime.api", "--json"])
    assert json.loads(result.stdout)["verdict"] == "pass"
    assert "runtime.api" in result.stderr
