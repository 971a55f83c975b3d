"""Gymnasium spaces for text and for dataclasses.

`gymnasium.spaces.Text` has a fixed set of characters and rejects ordinary prose; `UnicodeText` contains any text.
`RecordSpace` has a space for each field of a dataclass, so that environments can return typed records.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from gymnasium import Space, spaces
from gymnasium.utils import seeding

from palaestra.core.records import Json

T = TypeVar("T")
_KINDS: tuple[type[Space[Any]], ...] = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
# Characters of samples: letters of several scripts, digits, signs, an emoji, a line break.
_SAMPLE_ALPHABET = "abcdefghijklmnopqrstuvwxyzABCXYZ0123456789 .,:;!?+-*/=%()\näéßçñøλπΣжд中文字🙂"


def space_to_data(space: Space[Any]) -> Json:
    """Convert a Box, Discrete, MultiDiscrete or MultiBinary, or a Dict or Tuple of them, to plain data for JSON.

    >>> space_to_data(spaces.Discrete(3))
    {'type': 'Discrete', 'n': 3, 'start': 0, 'dtype': 'int64'}
    >>> space_from_data(space_to_data(spaces.Box(-np.inf, 1, (2,))))
    Box(-inf, 1.0, (2,), float32)
    """
    if isinstance(space, spaces.Dict):
        return {"type": "Dict", "spaces": {name: space_to_data(part) for name, part in space.spaces.items()}}
    if isinstance(space, spaces.Tuple):
        return {"type": "Tuple", "spaces": [space_to_data(part) for part in space.spaces]}
    data: Json = {"type": next(kind.__name__ for kind in _KINDS if isinstance(space, kind))}
    if isinstance(space, spaces.Box):
        ends = {name: getattr(space, name) for name in ("low", "high")}
        # Images have the same bounds in every pixel.
        data |= {k: v.flat[0].item() if v.size and (v == v.flat[0]).all() else v.tolist() for k, v in ends.items()}
        return data | {"shape": list(space.shape), "dtype": str(space.dtype)}
    if isinstance(space, spaces.Discrete):
        return data | {"n": int(space.n), "start": int(space.start), "dtype": str(space.dtype)}
    if isinstance(space, spaces.MultiDiscrete):
        return data | {"nvec": space.nvec.tolist(), "start": space.start.tolist(), "dtype": str(space.dtype)}
    return data | {"n": list(space.shape or ())}


def space_from_data(data: Json) -> Space[Any]:
    """Make the space that `space_to_data` has converted. Raises `KeyError`, `TypeError` or `ValueError` for other data."""
    if data["type"] == "Dict":
        return spaces.Dict({name: space_from_data(part) for name, part in data["spaces"].items()})
    if data["type"] == "Tuple":
        return spaces.Tuple([space_from_data(part) for part in data["spaces"]])
    kind = {kind.__name__: kind for kind in _KINDS}[data["type"]]
    values = {name: value for name, value in data.items() if name != "type"}
    if kind is spaces.Box:
        for name in ("low", "high"):
            bound = np.array(values[name], dtype=values["dtype"])
            values[name] = bound if bound.ndim else bound[()]
        values["shape"] = tuple(values["shape"])
    if "dtype" in values:
        values["dtype"] = np.dtype(values["dtype"]).type
    return kind(**values)


class _PlainSpace(Space[T]):
    """Base of the spaces below: elements are plain Python values, not arrays.

    Arguments:
        parts: the values that define the space. Two spaces of a class with the same parts are equal.
    """

    def __init__(self, *parts: object, seed: int | np.random.Generator | None = None) -> None:
        self._parts = parts
        super().__init__(None, None, seed)

    is_np_flattenable = False

    def sample(self, mask: None = None, probability: None = None) -> T:
        if mask is not None or probability is not None:
            raise ValueError(f"{type(self).__name__} takes neither a mask nor probabilities")
        return self._sample()

    def _sample(self) -> T:
        raise NotImplementedError

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _PlainSpace) and type(other) is type(self) and self._parts == other._parts

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self._parts))})"


class UnicodeText(_PlainSpace[str]):
    """Any Unicode text of bounded length.

    Arguments:
        max_length: maximum number of characters.
        min_length: minimum number of characters.
        sample_length: maximum number of characters of a sample.
        seed: a seed or a generator for `sample`.

    Example:
        >>> "Grüße, 世界!" in UnicodeText(max_length=100)
        True
    """

    def __init__(
        self,
        max_length: int,
        *,
        min_length: int = 0,
        sample_length: int = 64,
        seed: int | np.random.Generator | None = None,
    ) -> None:
        if not 0 <= min_length <= max_length:
            raise ValueError(f"expected 0 <= min_length <= max_length; got {min_length} and {max_length}")
        self.min_length, self.max_length = min_length, max_length
        self.sample_length = max(min_length, min(max_length, sample_length))
        super().__init__(min_length, max_length, seed=seed)

    def _sample(self) -> str:
        """Sample a text of random length. Short texts are more likely."""
        length = min(self.sample_length, self.min_length + int(self.np_random.geometric(1 / 16)))
        return "".join(_SAMPLE_ALPHABET[i] for i in self.np_random.integers(len(_SAMPLE_ALPHABET), size=length))

    def contains(self, x: object) -> bool:
        """Whether `x` is a text of valid length without lone surrogates, which UTF-8 cannot encode."""
        if not isinstance(x, str) or not self.min_length <= len(x) <= self.max_length:
            return False
        try:
            x.encode()
        except UnicodeEncodeError:
            return False
        return True


class RecordSpace(_PlainSpace[Any]):
    """Instances of a dataclass whose fields each have a space.

    Fields without a space need a default and may have any value. Samples have the default.

    Example:
        >>> from palaestra.core.records import Message
        >>> space = RecordSpace(Message, {"role": Choice(("user",)), "content": UnicodeText(100)})
        >>> Message("user", "hello") in space, Message("tool", "hello") in space
        (True, False)
    """

    def __init__(
        self, record: type[Any], spaces: Mapping[str, Space[Any]], seed: int | np.random.Generator | None = None
    ) -> None:
        self.record, self.spaces = record, dict(spaces)
        super().__init__(record, self.spaces, seed=seed)

    def seed(self, seed: int | tuple[int, ...] | dict[str, Any] | None = None) -> dict[str, Any]:
        """Seed this space and the space of every field."""
        if isinstance(seed, dict):
            return {name: self.spaces[name].seed(value) for name, value in seed.items()}
        self._np_random, used = seeding.np_random(seed if isinstance(seed, int) else None)
        seeds = self._np_random.integers(2**31, size=len(self.spaces))
        return {"": used} | {name: self.spaces[name].seed(int(s)) for name, s in zip(self.spaces, seeds, strict=True)}

    def _sample(self) -> Any:
        return self.record(**{name: space.sample() for name, space in self.spaces.items()})

    def contains(self, x: object) -> bool:
        return isinstance(x, self.record) and all(getattr(x, name) in space for name, space in self.spaces.items())

    def to_jsonable(self, sample_n: Iterable[Any]) -> list[Any]:
        samples = list(sample_n)
        columns = {name: space.to_jsonable([getattr(x, name) for x in samples]) for name, space in self.spaces.items()}
        return [{"columns": columns, "count": len(samples)}]

    def from_jsonable(self, sample_n: list[Any]) -> list[Any]:
        packed = sample_n[0]
        columns = {name: list(space.from_jsonable(packed["columns"][name])) for name, space in self.spaces.items()}
        return [self.record(**{name: values[i] for name, values in columns.items()}) for i in range(packed["count"])]


class Choice(_PlainSpace[str]):
    """One of a fixed set of strings."""

    def __init__(self, words: Sequence[str], seed: int | np.random.Generator | None = None) -> None:
        self.words = tuple(words)
        super().__init__(self.words, seed=seed)

    def _sample(self) -> str:
        return self.words[int(self.np_random.integers(len(self.words)))]

    def contains(self, x: object) -> bool:
        return isinstance(x, str) and x in self.words


class Whole(_PlainSpace[int]):
    """A non-negative `int` without an upper bound. Gymnasium's `Discrete` needs a bound."""

    def _sample(self) -> int:
        return int(self.np_random.geometric(1 / 8)) - 1

    def contains(self, x: object) -> bool:
        return isinstance(x, int) and not isinstance(x, bool) and x >= 0


class Rate(_PlainSpace[float]):
    """A fraction from 0 to 1 as a `float`, or `None` if nothing was counted."""

    def _sample(self) -> float:
        return float(self.np_random.random())

    def contains(self, x: object) -> bool:
        return x is None or (isinstance(x, float) and 0.0 <= x <= 1.0)


class Several(_PlainSpace[tuple[Any, ...]]):
    """A tuple of at least `minimum` elements of one space.

    Gymnasium's `Sequence` has no minimum and may sample the empty tuple. Samples have at most `sample_up_to` elements.
    """

    def __init__(
        self, space: Space[Any], minimum: int = 0, sample_up_to: int = 32, seed: int | np.random.Generator | None = None
    ) -> None:
        self.space, self.minimum, self.sample_up_to = space, minimum, sample_up_to
        super().__init__(space, minimum, seed=seed)

    def seed(self, seed: int | tuple[int, ...] | None = None) -> tuple[int, ...]:
        self._np_random, used = seeding.np_random(seed if isinstance(seed, int) else None)
        self.space.seed(int(self._np_random.integers(2**31)))
        return (used,)

    def _sample(self) -> tuple[Any, ...]:
        count = min(self.sample_up_to, self.minimum + int(self.np_random.geometric(1 / 4)) - 1)
        return tuple(self.space.sample() for _ in range(count))

    def contains(self, x: object) -> bool:
        return isinstance(x, tuple) and len(x) >= self.minimum and all(item in self.space for item in x)

    def to_jsonable(self, sample_n: Iterable[tuple[Any, ...]]) -> list[Any]:
        return [self.space.to_jsonable(list(sample)) for sample in sample_n]

    def from_jsonable(self, sample_n: list[Any]) -> list[tuple[Any, ...]]:
        return [tuple(self.space.from_jsonable(sample)) for sample in sample_n]
