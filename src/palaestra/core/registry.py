"""Registries of names and the objects behind them.

Entries may be import strings (`"package.module:attribute"`), so listing the names imports nothing. Other packages add
entries through entry points, for example

    [project.entry-points."palaestra.tasks"]
    my-task = "my_package.tasks:MyTask"
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any

from palaestra.core.errors import PalaestraError, UnknownNameError
from palaestra.core.plugins import is_reference, load_reference


class Registry:
    """Names of one kind (task, teacher, ...) and the objects behind them.

    Arguments:
        kind: the word for an entry in messages, for example `"teacher"`.
        group: the entry point group that plugins use, for example `"palaestra.teachers"`.
    """

    def __init__(self, kind: str, group: str) -> None:
        self.kind, self.group = kind, group
        self._entries: dict[str, Any] = {}
        self._prefixes: dict[str, Any] = {}
        self._descriptions: dict[str, str] = {}
        self._plugins_loaded = False

    def register(self, name: str, target: Any, description: str = "") -> None:
        """Register `target`, an object or an import string, under `name`.

        Raises:
            PalaestraError: the name is already registered for another target.
        """
        if name in self._entries and self._entries[name] != target:
            raise PalaestraError(
                f"{self.kind} '{name}' is already registered as {self._entries[name]!r}; give {target!r} another name"
            )
        self._entries[name] = target
        self._descriptions[name] = description

    def register_prefix(self, prefix: str, target: Any, description: str = "") -> None:
        """Register all names `prefix:NAME`, for example of another package.

        Arguments:
            target: a function, or its import string, that returns the object of `NAME`.
        """
        self._prefixes[prefix] = target
        self._descriptions[f"{prefix}:NAME"] = description

    def get(self, name: str) -> Any:
        """Return the object behind `name`. An import string is imported now.

        Raises:
            UnknownNameError: the name is not registered; the message suggests the nearest one.
        """
        self.check(name)
        if name in self._entries:
            return _load(self._entries[name])
        prefix, _, rest = name.partition(":")
        return _load(self._prefixes[prefix])(rest) if prefix in self._prefixes else load_reference(name)

    def check(self, name: str) -> str:
        """Return `name` if it is registered, without importing anything."""
        self._load_plugins()
        if name in self._entries or (name.partition(":")[0] in self._prefixes and ":" in name):
            return name
        if not is_reference(name):
            raise UnknownNameError(self.kind, name, [*self._entries, *(f"{prefix}:NAME" for prefix in self._prefixes)])
        load_reference(name)
        return name

    def names(self) -> list[str]:
        self._load_plugins()
        return sorted(self._entries)

    def descriptions(self) -> Mapping[str, str]:
        self._load_plugins()
        return {name: self._descriptions[name] for name in sorted(self._descriptions)}

    def _load_plugins(self) -> None:
        if self._plugins_loaded:
            return
        self._plugins_loaded = True
        for point in entry_points(group=self.group):
            self.register(point.name, point.value, f"plugin from {point.dist.name}" if point.dist else "plugin")


def _load(target: Any) -> Any:
    """Return a registered object. An import string is imported."""
    if not isinstance(target, str):
        return target
    module, _, attribute = target.partition(":")
    return getattr(importlib.import_module(module), attribute)
