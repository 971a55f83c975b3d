"""Register names for the time of one test."""

from __future__ import annotations

import pytest

from palaestra.core.registry import Registry


def isolate_registries(monkeypatch: pytest.MonkeyPatch, *registries: Registry) -> None:
    """Undo all later registrations when the test ends."""
    for registry in registries:
        registry.names()  # Loads the plugins, which register themselves once.
        for entries in ("_entries", "_descriptions"):
            monkeypatch.setattr(registry, entries, dict(getattr(registry, entries)))
