"""What a submission did to the arguments that it was given, done to the evaluator's own."""

from __future__ import annotations

import json
import sys
from typing import Any

from .values import Decoder, Garbled

MUTABLE = frozenset("ldsanT")
"""Tags of what can be changed in place."""


def can_change(wire: Any) -> bool:
    """Whether something in an argument can be changed in place."""
    return type(wire) is list and (wire[0] in MUTABLE or (wire[0] == "t" and any(map(can_change, wire[1:]))))


def same(one: Any, other: Any) -> bool:
    """Whether two values are the same on their way; 1, 1.0 and True are not."""
    return json.dumps(one) == json.dumps(other)


def apply(value: Any, old: Any, new: Any, decoder: Decoder) -> None:
    """Change an argument into what it became; what did not change in it stays the object that it is.

    Arguments:
        value: the argument.
        old, new: what was sent of it, and what came back.

    Raises:
        Garbled: it cannot have become this: another type, or another value where nothing can be changed.
    """
    if same(old, new):
        return
    if type(old) is not list or type(new) is not list or not new or old[0] != new[0]:
        raise Garbled("an argument came back as something else")
    match old[0]:
        case "l":
            _list(value, old[1:], new[1:], decoder)
        case "t":
            if len(old) != len(new):
                raise Garbled("a tuple came back with another length")
            for one, before, after in zip(tuple.__iter__(value), old[1:], new[1:], strict=True):
                apply(one, before, after, decoder)
        case "d":
            _dict(value, old[1:], new[1:], decoder)
        case "s":
            found = decoder.decode(new)
            value.intersection_update(found)
            value.update(found)
        case "f":  # Its order is no part of it.
            if decoder.decode(new) != value:
                raise Garbled("a frozen set came back as another")
        case "a":
            value[:] = decoder.decode(new)
        case "n" | "T":
            if old[1:3] != new[1:3]:
                raise Garbled("an array came back with another shape or type")
            _fill(value, decoder.decode(new))
        case _:
            raise Garbled("a value came back that cannot be changed")


def _list(value: list[Any], old: list[Any], new: list[Any], decoder: Decoder) -> None:
    for place, (before, after) in enumerate(zip(old, new, strict=False)):
        if _inner(before, after):
            apply(value[place], before, after, decoder)
        elif not same(before, after):
            value[place] = decoder.decode(after)
    del value[len(new) :]
    value.extend(decoder.decode(one) for one in new[len(old) :])


def _dict(value: dict[Any, Any], old: list[Any], new: list[Any], decoder: Decoder) -> None:
    before = dict(zip(map(json.dumps, old[::2]), zip(dict.keys(value), old[1::2], strict=True), strict=True))
    after = {json.dumps(key): (key, one) for key, one in zip(new[::2], new[1::2], strict=True)}
    for text in before.keys() - after.keys():
        del value[before[text][0]]
    for text, (wire, one) in after.items():
        if text not in before:
            value[decoder.decode(wire)] = decoder.decode(one)
            continue
        key, was = before[text]
        if _inner(was, one):
            apply(value[key], was, one, decoder)
        elif not same(was, one):
            value[key] = decoder.decode(one)


def _inner(old: Any, new: Any) -> bool:
    """Whether what lies in a container is the same one, and changed in itself."""
    if type(old) is not list or type(new) is not list or not new or old[0] != new[0]:
        return False
    if old[0] in ("n", "T"):
        return bool(old[1:3] == new[1:3])
    return old[0] in MUTABLE


def _fill(value: Any, found: Any) -> None:
    torch: Any = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        value.data.copy_(found)
    elif value.flags.writeable:
        value[...] = found
    else:
        raise Garbled("an array came back changed that cannot be changed")
