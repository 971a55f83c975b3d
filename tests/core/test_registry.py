from importlib.metadata import EntryPoint, EntryPoints

import pytest

from palaestra.core import registry as module
from palaestra.core.errors import PalaestraError, UnknownNameError
from palaestra.core.registry import Registry


def test_an_import_string_is_imported_only_when_asked_for() -> None:
    registry = Registry("thing", "palaestra.things")
    registry.register("broken", "no.such.module:Thing")
    assert registry.names() == ["broken"]
    assert registry.check("broken") == "broken"
    with pytest.raises(ModuleNotFoundError):
        registry.get("broken")


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    registry = Registry("thing", "palaestra.things")
    registry.register("ordered", "collections:OrderedDict")
    with pytest.raises(UnknownNameError, match="'ordered'"):
        registry.get("orderd")


def test_a_name_cannot_be_taken_twice() -> None:
    registry = Registry("thing", "palaestra.things")
    registry.register("a", "collections:OrderedDict")
    registry.register("a", "collections:OrderedDict")
    with pytest.raises(PalaestraError, match="already registered"):
        registry.register("a", "collections:Counter")


def test_plugins_come_through_entry_points(monkeypatch: pytest.MonkeyPatch) -> None:
    points = EntryPoints([EntryPoint("counter", "collections:Counter", "palaestra.things")])
    monkeypatch.setattr(module, "entry_points", lambda group: points.select(group=group))
    from collections import Counter

    assert Registry("thing", "palaestra.things").get("counter") is Counter


def test_a_prefix_covers_all_names_of_another_package() -> None:
    registry = Registry("task", "palaestra.nothing")
    registry.register("plain", int)
    registry.register_prefix("other", lambda name: name.upper(), "names of another package")
    assert registry.get("other:one+two") == "ONE+TWO"
    assert registry.check("other:one") == "other:one"
    assert registry.names() == ["plain"]
    assert registry.descriptions() == {"other:NAME": "names of another package", "plain": ""}
    with pytest.raises(UnknownNameError, match="'plain'"):
        registry.get("plane")
    with pytest.raises(UnknownNameError, match="other:NAME"):
        registry.get("other")
