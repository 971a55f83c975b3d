import re
from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from palaestra.core.errors import SandboxError, UnknownNameError
from palaestra.sandbox import SANDBOXES, SHELL_LIMITS, Limits, Sandbox, SandboxResult, Status, make_sandbox
from palaestra.sandbox.bubblewrap import Bubblewrap


@pytest.mark.parametrize(
    ("limit", "value"),
    [("memory", 0), ("memory", 1.5), ("processes", -1), ("wall_seconds", 0.0), ("wall_seconds", float("inf")), ("output", True), ("disk", "1G")],
)  # fmt: skip
def test_a_limit_that_makes_no_sense_is_refused_in_one_line(limit: str, value: Any) -> None:
    with pytest.raises(SandboxError, match=f"{limit} .*{re.escape(repr(value))}") as caught:
        Limits(**{limit: value})
    assert "\n" not in str(caught.value)


def test_limits_and_results_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        SHELL_LIMITS.memory = 1  # type: ignore[misc]


def test_bytes_that_are_not_utf8_survive_as_bytes_and_as_text() -> None:
    result = SandboxResult(Status.OK, 0, b"a\xffb", b"\xc3(", 0.0)
    assert (result.stdout, result.text, result.error_text) == (b"a\xffb", "a�b", "�(")
    assert (result.ok, result.signal, SandboxResult(Status.SIGNAL, 139, b"", b"", 0.0).signal) == (True, None, 11)


def test_every_kind_of_sandbox_is_known_by_name() -> None:
    assert SANDBOXES.names() == ["bubblewrap", "docker", "none", "podman"]
    with pytest.raises(UnknownNameError, match="'bubblewrap'"):
        make_sandbox("bublewrap")


def test_without_linux_the_error_names_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("os.pidfd_open")
    with pytest.raises(SandboxError, match=r"needs Linux; .* WSL"):
        make_sandbox("docker")


def test_the_default_is_bubblewrap(bubblewrap: Bubblewrap) -> None:
    created = make_sandbox()
    assert isinstance(created, Bubblewrap)
    assert isinstance(created, Sandbox)
