"""The state of an environment as JSON, which cannot run code when it is read.

A state is loaded into a fresh environment of the same kind. Arrays, generators and containers are stored; other objects,
such as the environment, its wrappers and spaces, keep their classes and get the stored attributes. A class or a function is
never looked up by a name in the file.
"""

from __future__ import annotations

import base64
import copyreg
import json
import random
from collections import OrderedDict, deque
from enum import Enum
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from gymnasium.envs.registration import EnvSpec

Value = Any
"""A Python value that an environment holds, or its stored form."""
_GENERATOR_CLASSES = (np.random.PCG64, np.random.PCG64DXSM, np.random.MT19937, np.random.Philox, np.random.SFC64)
_BIT_GENERATORS: dict[str, Value] = {kind.__name__: kind for kind in _GENERATOR_CLASSES}
_SEQUENCES: dict[str, Value] = {kind.__name__: kind for kind in (list, tuple, set, frozenset)}
_MAPPINGS: dict[str, Value] = {kind.__name__: kind for kind in (dict, OrderedDict)}
_UNCHANGING = (type, ModuleType, EnvSpec, np.dtype, np.ufunc)
_MISSING = object()


class StateError(ValueError):
    """A state that cannot be stored as data, or does not fit the environment."""


def save_state(value: Value) -> str:
    """Convert an environment, alone or among plain values, to JSON.

    Raises:
        StateError: it contains an object whose state is not in its attributes, for example of a library in C.
    """
    return json.dumps(_Writer().write(value), separators=(",", ":"))


def load_state(text: str, fresh: Value) -> Value:
    """Return the value that `save_state` has converted. Objects in it are those of `fresh`, with the stored attributes.

    Raises:
        StateError: `fresh` has another structure.
    """
    return _Reader().read(json.loads(text), fresh)


class _Writer:
    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._alive: list[Value] = []  # The numbers are valid as long as the objects live.

    def write(self, value: Value) -> Value:
        kind = type(value)
        if value is None or kind in (bool, int, float, str):
            return value
        if id(value) in self._numbers:
            return {"same": self._numbers[id(value)]}
        self._numbers[id(value)] = len(self._alive)
        self._alive.append(value)
        if kind is bytes:
            return {"bytes": base64.b64encode(value).decode()}
        if kind is np.ndarray or isinstance(value, np.generic):
            return {"array" if kind is np.ndarray else "scalar": _write_array(np.asarray(value))}
        if kind is torch.Tensor:
            return {"tensor": _write_array(value.detach().cpu().numpy())}
        if kind.__name__ in _SEQUENCES and kind is _SEQUENCES[kind.__name__]:
            return {kind.__name__: [self.write(entry) for entry in value]}
        if kind.__name__ in _MAPPINGS and kind is _MAPPINGS[kind.__name__]:
            return {kind.__name__: [[self.write(key), self.write(entry)] for key, entry in value.items()]}
        if kind is deque:
            return {"deque": [self.write(entry) for entry in value], "maxlen": value.maxlen}
        if kind is np.random.Generator and type(value.bit_generator).__name__ in _BIT_GENERATORS:
            bits = value.bit_generator
            seeds = bits.seed_seq
            origin = [seeds.entropy, seeds.spawn_key, seeds.pool_size, seeds.n_children_spawned]
            return {"generator": self.write(bits.state), "seeds": self.write(origin)}
        if kind is np.random.RandomState:
            return {"random_state": self.write(value.get_state(legacy=False))}
        if kind is random.Random:
            return {"random": self.write(value.getstate())}
        if isinstance(value, Enum):
            return {"enum": _name(kind), "member": value.name}
        if isinstance(value, _UNCHANGING):
            return {"kept": _name(kind)}
        if kind is MethodType:
            return {"method": value.__qualname__, "self": self.write(value.__self__)}
        if kind is FunctionType:
            cells = [self.write(cell.cell_contents) for cell in value.__closure__ or ()]
            return {"function": value.__qualname__, "cells": cells}
        attributes = _get_attributes(value)
        return {"object": _name(kind), "attributes": {name: self.write(entry) for name, entry in attributes.items()}}


class _Reader:
    def __init__(self) -> None:
        self._values: list[Value] = []

    def read(self, node: Value, fresh: Value = _MISSING) -> Value:
        if not isinstance(node, dict):
            return node
        if "same" in node:
            return self._values[node["same"]]
        number = len(self._values)
        self._values.append(None)
        tag = next(iter(node))
        if tag in ("kept", "method", "function", "object"):
            self._values[number] = fresh  # Its parts may refer to it.
            self._restore(tag, node, fresh)
            return fresh
        self._values[number] = value = self._build(tag, node, fresh, number)
        return value

    def _restore(self, tag: str, node: dict[str, Value], fresh: Value) -> None:
        """Give an object of the fresh environment the stored attributes."""
        name = fresh.__qualname__ if isinstance(fresh, (FunctionType, MethodType)) else _name(type(fresh))
        if name != node[tag]:
            raise StateError(f"the state has a {tag} {node[tag]} where the environment has {fresh!r}")
        if tag == "method":
            self.read(node["self"], fresh.__self__)
        elif tag == "function":
            for cell, content in zip(fresh.__closure__ or (), node["cells"], strict=True):
                cell.cell_contents = self.read(content, cell.cell_contents)
        elif tag == "object":
            before: dict[str, Value] = fresh.__dict__
            after = {
                name: self.read(content, before.get(name, _MISSING)) for name, content in node["attributes"].items()
            }
            before.clear()
            before.update(after)

    def _build(self, tag: str, node: dict[str, Value], fresh: Value, number: int) -> Value:
        """Build a new value."""
        content = node[tag]
        if tag == "bytes":
            return base64.b64decode(content)
        if tag in ("array", "scalar", "tensor"):
            array = _read_array(content)
            return array if tag == "array" else array[()] if tag == "scalar" else torch.from_numpy(array)
        if tag in ("list", "deque"):
            value: Value = [] if tag == "list" else deque(maxlen=node["maxlen"])
            self._values[number] = value
            value.extend(self._read_entries(content, fresh))
            return value
        if tag in _SEQUENCES:
            return _SEQUENCES[tag](self._read_entries(content, fresh))
        if tag in _MAPPINGS:
            mapping = self._values[number] = _MAPPINGS[tag]()
            for key_node, entry in content:
                key = self.read(key_node)
                mapping[key] = self.read(entry, fresh.get(key, _MISSING) if isinstance(fresh, dict) else _MISSING)
            return mapping
        if tag == "generator":
            state = self.read(content)
            entropy, spawn_key, pool_size, spawned = self.read(node["seeds"])
            seeds = np.random.SeedSequence(
                entropy, spawn_key=spawn_key, pool_size=pool_size, n_children_spawned=spawned
            )
            bits = _BIT_GENERATORS[state["bit_generator"]](seeds)
            bits.state = state
            return np.random.Generator(bits)
        if tag == "random_state":
            legacy = np.random.RandomState()
            legacy.set_state(self.read(content))
            return legacy
        if tag == "random":
            generator = random.Random()
            generator.setstate(self.read(content))
            return generator
        if tag == "enum" and _name(type(fresh)) == content:
            return type(fresh)[node["member"]]
        raise StateError(f"the state has an unknown {tag}")

    def _read_entries(self, nodes: list[Value], fresh: Value) -> list[Value]:
        others = list(fresh) if isinstance(fresh, (list, tuple, deque)) and len(fresh) == len(nodes) else []
        return [self.read(node, others[k] if others else _MISSING) for k, node in enumerate(nodes)]


def _get_attributes(value: Value) -> dict[str, Value]:
    """Return the attributes of an object of Python code. Raises if it has any other state."""
    try:
        function, arguments, state, *rest = (*value.__reduce_ex__(2), None, None, None)[:5]
        attributes: dict[str, Value] = value.__dict__
        is_plain = function is copyreg.__newobj__ and arguments == (type(value),) and rest == [None, None]  # type: ignore[attr-defined]
        state = attributes if state is None else state
        if is_plain and [(k, id(v)) for k, v in state.items()] == [(k, id(v)) for k, v in attributes.items()]:
            return attributes
    except (TypeError, AttributeError, ValueError):
        pass  # Its class has another idea of its state.
    raise StateError(f"{_name(type(value))} has a state that cannot be stored as data")


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _write_array(array: np.ndarray) -> list[Value]:
    if array.dtype.hasobject or array.dtype.names:
        raise StateError(f"an array of {array.dtype} cannot be stored as data")
    return [array.dtype.str, list(array.shape), base64.b64encode(array.tobytes()).decode()]


def _read_array(content: list[Value]) -> np.ndarray:
    kind, shape, data = content
    return np.frombuffer(base64.b64decode(data), dtype=kind).reshape(shape).copy()
