"""Stands in for the module of a submission in the process of an evaluator: what is asked of it is asked of the submission.

The runner of the evaluator holds the line on which the submission is asked (see `run.py`). Every process that the evaluator
starts finds it there.
"""

from __future__ import annotations

import builtins
import json
import os
import socket
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from .changes import apply, can_change
from .marks import ASK, LONGEST_REQUEST, OPEN, SERVED_BY, UNSENDABLE
from .values import Decoder, Encoder, Garbled

ASKED_OF_IT = frozenset({"__name__", "__qualname__", "__code__", "__defaults__", "__annotations__", "__dict__"})
"""Names with underscores that are asked of a remote object; Python and libraries look for many others."""


class Unsendable(Exception):
    """The evaluator passes something to the submission that cannot leave its process."""


class Remote:
    """An object of the submission. It equals itself and nothing else, whatever it says."""

    __slots__ = ("__weakref__", "_palaestra_number")
    _palaestra_number: int

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("__", "_palaestra")) and name not in ASKED_OF_IT:
            raise AttributeError(name)
        return LINE.ask("get", self, name)

    def __setattr__(self, name: str, value: object) -> None:
        LINE.ask("set", self, name, value)

    def __delattr__(self, name: str) -> None:
        LINE.ask("drop", self, name)

    def __len__(self) -> int:
        found: int = LINE.ask("len", self)
        return found

    def __bool__(self) -> bool:
        found: bool = LINE.ask("bool", self)
        return found

    def __getitem__(self, place: object) -> Any:
        return LINE.ask("item", self, place)

    def __setitem__(self, place: object, value: object) -> None:
        LINE.ask("put", self, place, value)

    def __delitem__(self, place: object) -> None:
        LINE.ask("remove", self, place)

    def __iter__(self) -> Iterator[Any]:
        found: Iterator[Any] = LINE.ask("iter", self)
        return found

    def __next__(self) -> Any:
        return LINE.ask("next", self)

    def __instancecheck__(self, value: object) -> bool:
        return isinstance(value, Remote) and bool(LINE.ask("is", self, value))

    def __copy__(self) -> Any:
        return LINE.ask("copy", self)

    def __deepcopy__(self, _: object) -> Any:
        return LINE.ask("deepcopy", self)

    def __reduce__(self) -> tuple[Any, ...]:
        return remote, (self._palaestra_number, isinstance(self, RemoteCallable))

    def __repr__(self) -> str:
        return f"<object {self._palaestra_number} of the submission>"

    def __del__(self) -> None:
        LINE.dropped.add(self._palaestra_number)


class RemoteCallable(Remote):
    """One that can be called."""

    __slots__ = ()

    def __call__(self, /, *given: Any, **named: Any) -> Any:
        return LINE.ask("call", self, *given, **named)


class Line:
    """The line to the submission, of this process."""

    def __init__(self) -> None:
        self.known: weakref.WeakValueDictionary[int, Remote] = weakref.WeakValueDictionary()
        self.dropped: set[int] = set()
        self.broken = ""
        self.count, self.awaited = 0, deque[int]()
        self.decoder = Decoder(remote)
        self.process, self.turn = os.getpid(), threading.RLock()
        self._line: socket.socket | None = None
        self._rest = bytearray()
        os.register_at_fork(after_in_child=self._forked)

    def open(self) -> dict[str, Any]:
        """The names of the module; raises what it raises."""
        found = self._talk({"way": "open"}, OPEN, (), {})
        if type(found) is not dict or not all(type(name) is str for name in found):
            self._break("its module has no names")
        return found

    def ask(self, way: str, one: Remote, /, *given: Any, **named: Any) -> Any:
        """Do something with a remote object.

        Raises:
            Exception: the one that the submission raised, if Python has one of that name.
            RuntimeError: another; or the submission is no more.
        """
        return self._talk({"way": way, "object": one._palaestra_number}, ASK, given, named)

    def _talk(self, asked: dict[str, Any], mark: bytes, given: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
        try:
            encode = Encoder(sent).encode
            asked["given"] = [encode(one) for one in given]
            asked["named"] = {name: encode(one) for name, one in named.items()}
        except Unsendable as error:
            self.give_up(str(error))
        except ValueError as error:
            raise RuntimeError(str(error)) from None
        with self.turn:
            if self.broken:
                raise RuntimeError(self.broken)
            reply = self._reply(asked, mark)
            if "error" in reply:
                raise raised(reply["error"])
            try:
                found = self.decoder.decode(reply["value"])
                self._change(asked, given, named, reply.get("changed", {}))
            except (Garbled, KeyError, ValueError, RecursionError) as error:
                self._break(str(error) if isinstance(error, Garbled) else "an answer is none")
            way = asked["way"]
            wrong = (way == "len" and type(found) is not int) or (way in ("bool", "is") and type(found) is not bool)
            if wrong or (way == "iter" and not isinstance(found, Remote)):
                self._break("an answer is of another type")
            return found

    def _change(
        self, asked: dict[str, Any], given: tuple[Any, ...], named: Mapping[str, Any], changed: Mapping[str, Any]
    ) -> None:
        if type(changed) is not dict:
            raise Garbled("an answer is none")
        for place, new in changed.items():
            value, old = (named[place], asked["named"][place]) if place in named else _at(place, given, asked["given"])
            if not can_change(old):
                raise Garbled("an argument came back that cannot be changed")
            apply(value, old, new, self.decoder)

    def _reply(self, asked: dict[str, Any], mark: bytes) -> dict[str, Any]:
        self.count += 1
        asked["number"] = self.count
        # Only where they were made are they no longer needed by any process.
        asked["drop"] = drop = list(self.dropped) if os.getpid() == self.process else []
        data = mark + json.dumps(asked).encode() + b"\n"
        if len(data) > LONGEST_REQUEST:
            raise RuntimeError(f"a call of the submission has more than {LONGEST_REQUEST} bytes")
        self.dropped.difference_update(drop)
        self._send(data)
        self.awaited.append(self.count)
        while True:
            # Where a call was broken off, an answer comes first that nobody waits for any more.
            number, reply = self.awaited[0], self._message()
            if "ended" in reply:
                self._break(f"it ended ({reply['ended']})" if type(reply["ended"]) is str else "it ended")
            if reply.get("number") != number:
                self._break("an answer is none")
            self.awaited.popleft()
            if number == self.count:
                return reply

    def _message(self) -> dict[str, Any]:
        try:
            reply = json.loads(self._read())
        except (ValueError, RecursionError):
            reply = None
        if type(reply) is not dict:
            self._break("an answer is none")
        return reply

    def _send(self, data: bytes) -> None:
        try:
            if self._line is None:
                self._line = socket.socket(socket.AF_UNIX)
                self._line.connect(f"\0{os.environ[SERVED_BY]}")
            self._line.sendall(data)
        except (OSError, KeyError):
            self._break("nobody listens")

    def _read(self) -> bytearray:
        assert self._line is not None
        seen = 0
        while self._rest.find(b"\n", seen) < 0:
            seen = len(self._rest)
            try:
                data = self._line.recv(1 << 18)
            except ConnectionError:
                data = b""
            if not data:
                self._break("it ended")
            self._rest += data
        text, _, self._rest = self._rest.partition(b"\n")
        return text

    def _forked(self) -> None:
        """A process of its own has a line of its own."""
        self.turn, self._rest, self._line, self.awaited = threading.RLock(), bytearray(), None, deque()

    def _break(self, why: str) -> NoReturn:
        self.broken = f"target.py can be asked no more: {why[:200]}"
        raise RuntimeError(self.broken) from None

    def give_up(self, what: str) -> NoReturn:
        """Say that this cannot be judged apart, and come to an end."""
        with self.turn:
            self._send(UNSENDABLE + json.dumps(what).encode() + b"\n")
            while True:  # The runner ends, and everything with it.
                time.sleep(1.0)


def names_of(scope: Mapping[str, Any]) -> dict[str, Any]:
    """The names of the module, for the file that stands in for it.

    Arguments:
        scope: what that file sees. Where that is another file, which runs this one as a part of itself, nothing that it
            has, and nothing of Python's own, gets another meaning.
    """
    own = os.path.basename(str(scope.get("__file__", ""))) == "target.py"
    if scope.get("__name__") == "__main__" and own:
        LINE.give_up("target.py as a program")
    found = LINE.open()
    wanted = found.get("__all__")
    names = {name: one for name, one in found.items() if not name.startswith("__")}
    if not own:
        return {name: one for name, one in names.items() if name not in scope and not hasattr(builtins, name)}
    listed = [name for name in wanted if name in names] if type(wanted) is list else None
    public = [name for name in names if not name.startswith("_")]
    return {**names, "__all__": Starred(public if listed is None else listed)}


class Starred(list[str]):
    """What `from target import *` brings: nothing that would give another meaning to what the one who asks already has."""

    def __getitem__(self, place: Any) -> Any:
        if place == 0:
            scope = sys._getframe(1).f_globals
            self.brought = [name for name in self if name not in scope and not hasattr(builtins, name)]
        return self.brought[place]


def remote(number: int, called: bool) -> Remote:
    """The object of this number; always the same one."""
    one = LINE.known.get(number)
    if one is None:
        one = object.__new__(RemoteCallable if called else Remote)
        object.__setattr__(one, "_palaestra_number", number)
        LINE.known[number] = one
        LINE.dropped.discard(number)
    return one


def sent(value: object) -> list[Any]:
    if isinstance(value, Remote):
        return ["h", value._palaestra_number, isinstance(value, RemoteCallable)]
    kind = type(value)
    raise Unsendable(f"{kind.__module__}.{kind.__qualname__}")


def raised(error: object) -> Exception:
    """An exception of the submission, as one of Python's own."""
    if type(error) is not list or len(error) != 2 or not all(type(part) is str for part in error):
        return RuntimeError("target.py raised something")
    kind = getattr(builtins, error[0], None)
    try:
        if isinstance(kind, type) and issubclass(kind, Exception):
            return kind(error[1])
    except TypeError:  # It wants more than a text.
        pass
    return RuntimeError(f"{error[0]}: {error[1]}")


def _at(place: str, given: tuple[Any, ...], wires: list[Any]) -> tuple[Any, Any]:
    if not place.isdecimal() or len(place) > 6 or int(place) >= len(given):
        raise Garbled("an argument came back that was not given")
    return given[int(place)], wires[int(place)]


LINE = Line()
