"""Weights from the learners to the samplers by broadcasts of torch.distributed. They do not pass through the driver.

Each learner stores its part of a version: its shard of a sharded model, or its share of a whole one. A `WeightSender` sends the
part to all samplers in a process group of this learner and the samplers; the learners send side by side. A sampler has a thread
that receives new versions while it samples. It joins with the first `SharedWeights.get`. A sampler that joins late, or has
dropped a version, receives it alone.

A TCPStore of rank 0 orders the transfers. Rank 0 answers requests (of samplers that join or miss a version, of learners that
lost a sampler) by numbered rounds; a round names a version, the samplers that receive it, and their group. If a process of a
group is lost, its samplers leave the group and join again. Neither the store nor the groups encrypt or authenticate, like those
of torchrun: they need a trusted network.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from functools import cache
from itertools import count, zip_longest
from math import prod
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from palaestra.core.errors import ExecutorError
from palaestra.core.records import Json
from palaestra.executors.workers import RELEASED, Shared

LOCAL_HOST = "127.0.0.1"
MAX_CHUNK = 1 << 26
"""Maximum number of bytes in one broadcast."""
_TIMEOUT = timedelta(minutes=2)
"""How long the processes of a group wait for each other. A killed process is noticed at once."""
_READY = timedelta(seconds=10)
"""How long a learner waits for the samplers of a new group; their threads only receive weights."""
_FOREVER = timedelta(days=365)
_CLOSE_SECONDS = 5.0
_MAX_KEPT = 2
"""Maximum number of received versions that a sampler keeps until it uses them."""
_MAX_FAILURES = 5
"""How often in a row a sampler joins again after a failed transfer."""
_MAX_ROUNDS = 1000
"""Number of rounds that the store keeps."""
_ALIGNMENT = 16
_REQUESTS = "requests"


class Piece(NamedTuple):
    """A range of the elements of a flattened tensor that a learner sends."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    length: int


@dataclass(frozen=True, slots=True)
class Meeting:
    """Where learners and samplers meet: the store of rank 0, and the backend of the groups (`gloo`, `nccl`)."""

    host: str
    port: int
    learners: int
    backend: str = "gloo"

    def connect(self) -> TCPStore:
        return TCPStore(self.host, self.port, timeout=_FOREVER, wait_for_workers=False)

    def open_group(self, store: TCPStore, name: str, rank: int, size: int) -> Any:
        """Open a process group that is independent of torch's default group. All its members must call this."""
        prefix = PrefixStore(f"group/{name}", store)
        if self.backend == "nccl":
            return dist.ProcessGroupNCCL(prefix, rank, size, _TIMEOUT)  # type: ignore[arg-type]
        if self.host != LOCAL_HOST:
            return dist.ProcessGroupGloo(prefix, rank, size, _TIMEOUT)
        options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._timeout = _TIMEOUT
        options._devices = [dist.ProcessGroupGloo.create_device(hostname=LOCAL_HOST)]
        return dist.ProcessGroupGloo(prefix, rank, size, options)

    def find_device(self) -> torch.device:
        """Where tensors must be for a broadcast. Call it in the thread that has chosen the GPU."""
        return torch.device("cuda", torch.cuda.current_device()) if self.backend == "nccl" else torch.device("cpu")


def open_meeting(host: str, learners: int, backend: str) -> tuple[Meeting, TCPStore]:
    """Serve a store on a free port of rank 0's machine. `host` is the address at which the others reach it."""
    listener = socket.create_server((LOCAL_HOST if host == LOCAL_HOST else "", 0))
    port = int(listener.getsockname()[1])
    store = TCPStore(
        host, port, is_master=True, timeout=_FOREVER, wait_for_workers=False, master_listen_fd=listener.detach()
    )
    return Meeting(host, port, learners, backend), store


class SharedWeights(Shared[dict[str, torch.Tensor]]):
    """A version of the weights that the learners send to the samplers.

    Arguments:
        number: the key of the version.
        version: the number of updates of the weights.
        checksums: of the parts of the learners.
        release: frees the version in the learners. Samplers have none.
    """

    def __init__(
        self,
        meeting: Meeting,
        number: int,
        version: int,
        checksums: tuple[int, ...],
        release: Callable[[int], None] | None = None,
    ) -> None:
        self.meeting, self.number, self.version, self.checksums = meeting, number, version, checksums
        self._release = release

    def __reduce__(self) -> tuple[type[SharedWeights], tuple[Meeting, int, int, tuple[int, ...]]]:
        return SharedWeights, (self.meeting, self.number, self.version, self.checksums)

    def describe(self) -> Json:
        """The handle as plain data, for a server."""
        return {
            "meeting": asdict(self.meeting), "number": self.number, "version": self.version, "checksums": list(self.checksums),
        }  # fmt: skip

    @classmethod
    def from_description(
        cls, meeting: Mapping[str, Any], number: int, version: int, checksums: Sequence[int]
    ) -> SharedWeights:
        """The handle that `describe` has described."""
        return cls(Meeting(**meeting), number, version, tuple(checksums))

    def get(self) -> dict[str, torch.Tensor]:
        """Return the weights, on the CPU. Waits until they have arrived.

        Raises:
            ExecutorError: the version was released or differs from that of the learners, or they are gone.
        """
        return find_receiver(self.meeting).get(self)

    def release(self) -> None:
        if self._release is not None:
            self._release(self.number)
            self._release = None


class WeightSender:
    """A learner's side.

    Arguments:
        rank: the rank of this learner. Rank 0 also orders the transfers.
    """

    def __init__(self, meeting: Meeting, rank: int) -> None:
        self.meeting, self.rank = meeting, rank
        self._requests, self._device = meeting.connect(), meeting.find_device()
        self._versions: dict[int, torch.Tensor] = {}
        self._layout: list[Piece] = []
        self._published = 0
        works = [self._send_rounds, *([_Coordinator(meeting).run] if rank == 0 else [])]
        self._threads = [threading.Thread(target=work, name="weights", daemon=True) for work in works]
        for thread in self._threads:
            thread.start()

    def store_part(self, parts: Sequence[tuple[Piece, torch.Tensor]]) -> int:
        """Copy this learner's part of the next version to main memory. Returns its checksum.

        Arguments:
            parts: the pieces with their elements, the same pieces for each version.
        """
        layout = [piece for piece, _ in parts]
        if not self._layout:
            self._layout = layout
            self._requests.set(f"layout/{self.rank}", json.dumps(layout))
        if layout != self._layout:
            raise ExecutorError("the weights of a run must have the same names and shapes in every version")
        offsets, size = _find_offsets(layout)
        buffer = torch.zeros(size, dtype=torch.uint8)
        for offset, (_, flat) in zip(offsets, parts, strict=True):
            buffer[offset : offset + flat.nbytes].view(flat.dtype).copy_(flat.detach())
        self._published += 1
        self._versions[self._published] = buffer
        return compute_checksum(buffer)

    def publish(self, version: int, checksums: Sequence[int]) -> SharedWeights:
        """Send the newest version to the samplers. Rank 0 calls this after all learners have stored their parts.

        Arguments:
            version: the number of updates of the weights, for messages.
            checksums: of the parts of all learners, by rank.
        """
        _request(self._requests, "publish", number=self._published)
        return SharedWeights(self.meeting, self._published, version, tuple(checksums), self._release)

    def close(self) -> None:
        """End the threads. Rank 0 ends those of all learners and samplers."""
        if self.rank == 0:
            _request(self._requests, "end")
        for thread in self._threads:
            thread.join(_CLOSE_SECONDS)

    def _release(self, number: int) -> None:
        _request(self._requests, "release", number=number)

    def _send_rounds(self) -> None:
        store, group = self.meeting.connect(), _Group(self.meeting, self.rank)
        for round_ in _read_rounds(store, 1):
            for released in round_.released:
                self._versions.pop(released, None)
            buffer = self._versions.get(round_.number)
            if buffer is None or not round_.samplers:
                continue
            try:
                self._send(group, store, round_, buffer)
            except RuntimeError:  # A sampler is gone. The others join again.
                group.close()
                _request(self._requests, "drop", samplers=round_.samplers)

    def _send(self, group: _Group, store: TCPStore, round_: _Round, buffer: torch.Tensor) -> None:
        # Nothing but `group` may refer to the open group, so that closing it ends the connections: the others notice.
        opened = group.open(store, round_, 0)
        for chunk in _split(buffer):
            opened.broadcast(chunk.to(self._device), 0).wait()


@cache
def find_receiver(meeting: Meeting) -> Receiver:
    """This process's receiver of a run's weights."""
    return Receiver(meeting)


class Receiver:
    """A sampler's side: receives versions in a thread and keeps those that are not used yet."""

    def __init__(self, meeting: Meeting) -> None:
        self.meeting = meeting
        self._requests, self._device = meeting.connect(), meeting.find_device()
        self._changed = threading.Condition()
        self._received: dict[int, tuple[list[torch.Tensor], list[int]]] = {}
        """The parts of the learners and their checksums, by version."""
        self._released: set[int] = set()
        self._layouts: list[list[Piece]] = []
        self._sampler = 0
        """The number under which this process has joined; 0 before."""
        self._wanted = self._requested = self._newest = 0
        """Versions: the one that `get` waits for, the one that was requested last, the newest that was published."""
        self._failures, self._error = 0, ""

    def get(self, shared: SharedWeights) -> dict[str, torch.Tensor]:
        """Wait for a version, compare its checksums with those of the learners, and drop earlier versions."""
        number = shared.number
        with self._changed:
            self._wanted = number
            if not self._sampler:
                self._join()
                threading.Thread(target=self._run, name="weights", daemon=True).start()
            else:
                self._request_missing()
            self._changed.wait_for(lambda: number in self._received or number in self._released or self._error)
            self._wanted = 0
            if number not in self._received:
                cause = RELEASED if number in self._released else self._error
                raise ExecutorError(f"the weights of version {shared.version} did not arrive: {cause}")
            parts, checksums = self._received[number]
            for old in [known for known in self._received if known < number]:
                del self._received[old]
            for rank, (checksum, expected) in enumerate(zip(checksums, shared.checksums, strict=True)):
                if checksum != expected:
                    del self._received[number]
                    raise ExecutorError(
                        f"the weights of version {shared.version} from learner {rank} have the checksum {checksum:x}; "
                        f"expected {expected:x}: they were changed on the way"
                    )
        return assemble_weights(self._layouts, parts)

    def _join(self) -> None:
        left, self._sampler = self._sampler, self._requests.add("samplers", 1)
        self._requested = self._wanted
        _request(self._requests, "join", sampler=self._sampler, left=left, number=self._wanted)

    def _request_missing(self) -> None:
        """Request the wanted version if it was published before, but is not on its way."""
        if self._wanted <= self._newest and self._wanted not in (0, self._requested, *self._received):
            self._requested = self._wanted
            _request(self._requests, "want", sampler=self._sampler, number=self._wanted)

    def _run(self) -> None:
        try:
            store = self.meeting.connect()
            groups = [_Group(self.meeting, rank) for rank in range(self.meeting.learners)]
            self._layouts = [_read_layout(store, rank) for rank in range(self.meeting.learners)]
            while self._failures < _MAX_FAILURES and self._receive_rounds(store, groups):
                for group in groups:
                    group.close()
                with self._changed:
                    self._join()
            cause = "the learners have ended"
        except RuntimeError as error:
            cause = str(error).splitlines()[0]
        with self._changed:
            self._error = self._error or cause
            self._changed.notify_all()

    def _receive_rounds(self, store: TCPStore, groups: Sequence[_Group]) -> bool:
        """Receive until the run ends. Returns whether the group of all samplers was lost, so that this one must join again."""
        first, newest = json.loads(store.get(f"joined/{self._sampler}"))
        with self._changed:
            self._newest = max(self._newest, newest)
            self._request_missing()
        for round_ in _read_rounds(store, first):
            with self._changed:
                self._released.update(round_.released)
                if round_.is_for_all:
                    self._newest = max(self._newest, round_.number)
                self._changed.notify_all()
            if self._sampler not in round_.samplers:
                if round_.is_for_all:
                    return True
                continue
            if not round_.number:
                continue
            try:
                opened = [group.open(store, round_, 1 + round_.samplers.index(self._sampler)) for group in groups]
                parts = self._receive(opened)
            except RuntimeError as error:
                self._failures += 1
                self._error = str(error).splitlines()[0] if self._failures == _MAX_FAILURES else ""
                return True
            self._failures = 0
            checksums = [compute_checksum(part) for part in parts]
            with self._changed:
                for old in sorted(self._received)[: max(0, len(self._received) + 1 - _MAX_KEPT)]:
                    if old != self._wanted:
                        del self._received[old]
                self._received[round_.number] = parts, checksums
                self._requested = 0
                self._changed.notify_all()
        return False

    def _receive(self, groups: Sequence[Any]) -> list[torch.Tensor]:
        """Receive the parts of all learners, side by side."""
        parts = [torch.zeros(_find_offsets(layout)[1], dtype=torch.uint8) for layout in self._layouts]
        for chunks in zip_longest(*(_split(part) for part in parts)):
            received = [
                (chunk, chunk.to(self._device), g) for chunk, g in zip(chunks, groups, strict=True) if chunk is not None
            ]
            for work in [group.broadcast(there, 0) for _, there, group in received]:
                work.wait()
            for chunk, there, _ in received:
                if there is not chunk:
                    chunk.copy_(there)
        return parts


@dataclass(frozen=True, slots=True)
class _Round:
    """One transfer, or a notice.

    Arguments:
        number: the key of the version; 0 if nothing is sent.
        samplers: the samplers that receive it.
        group: the name of the group. It is open if an earlier round had the same name.
        is_for_all: whether `samplers` are all that have joined. Others must join again.
        released: the keys of versions that are no longer needed.
        ends: whether the run ends.
    """

    number: int = 0
    samplers: tuple[int, ...] = ()
    group: str = ""
    is_for_all: bool = False
    released: tuple[int, ...] = ()
    ends: bool = False


class _Coordinator:
    """Turns the requests of all processes into rounds, in a thread of rank 0."""

    def __init__(self, meeting: Meeting) -> None:
        self._store = meeting.connect()
        self._samplers: list[int] = []
        self._held: set[int] = set()
        self._group = ""
        self._rounds = self._newest = 0

    def run(self) -> None:
        with suppress(RuntimeError):  # The store is closed.
            while (request := json.loads(self._store.queue_pop(_REQUESTS, True)))["kind"] != "end":
                getattr(self, f"_{request.pop('kind')}")(**request)
            self._add(_Round(ends=True))

    def _publish(self, number: int) -> None:
        self._held.add(number)
        self._newest, self._group = number, self._group or f"all-{self._rounds}"
        self._add(_Round(number, tuple(self._samplers), self._group, True))

    def _release(self, number: int) -> None:
        self._held.discard(number)
        self._add(_Round(released=(number,)))

    def _join(self, sampler: int, left: int, number: int) -> None:
        self._samplers = [known for known in self._samplers if known != left] + [sampler]
        self._group = ""
        self._store.set(f"joined/{sampler}", json.dumps([self._rounds + 1, self._newest]))
        if number:
            self._want(sampler, number)

    def _want(self, sampler: int, number: int) -> None:
        if sampler in self._samplers:
            released = () if number in self._held else (number,)
            self._add(_Round(0 if released else number, (sampler,), f"one-{self._rounds}", released=released))

    def _drop(self, samplers: Sequence[int]) -> None:
        if any(lost in self._samplers for lost in samplers):
            self._samplers, self._group = [known for known in self._samplers if known not in samplers], ""
            self._add(_Round(samplers=tuple(self._samplers), is_for_all=True))

    def _add(self, round_: _Round) -> None:
        self._rounds += 1
        self._store.set(f"round/{self._rounds}", json.dumps(asdict(round_)))
        self._store.delete_key(f"round/{self._rounds - _MAX_ROUNDS}")


def _request(store: TCPStore, kind: str, **values: object) -> None:
    with suppress(RuntimeError):  # The store is closed: the run has ended.
        store.queue_push(_REQUESTS, json.dumps({"kind": kind, **values}))


def _read_rounds(store: TCPStore, first: int) -> Iterator[_Round]:
    """Yield the rounds from number `first` as they are added, until the run ends or rank 0 is gone."""
    for number in count(first):
        try:
            fields = json.loads(store.get(f"round/{number}"))
        except RuntimeError:
            return
        lists = {name: tuple(fields[name]) for name in ("samplers", "released")}
        round_ = _Round(**{**fields, **lists})
        if round_.ends:
            return
        yield round_


class _Group:
    """The open group of one learner and all samplers. The group of a single transfer is not kept."""

    def __init__(self, meeting: Meeting, learner: int) -> None:
        self._meeting, self._learner = meeting, learner
        self._name, self._group = "", None

    def open(self, store: TCPStore, round_: _Round, rank: int) -> Any:
        """Return the group of a round. Raises `RuntimeError` if a member is gone."""
        size, name = len(round_.samplers) + 1, f"{round_.group}/{self._learner}"
        if name == self._name:
            return self._group
        self._meet(store, name, rank, size)
        group = self._meeting.open_group(store, name, rank, size)
        if round_.is_for_all:
            self._group, self._name = group, name
        return group

    def _meet(self, store: TCPStore, name: str, rank: int, size: int) -> None:
        """Check that all members are alive. Opening a group would wait for a killed one until the timeout."""
        if rank > 0:
            store.set(f"ready/{name}/{rank}", "")
            if store.get(f"start/{name}") != b"yes":
                raise RuntimeError("a sampler of the group is gone")
            return
        try:
            store.wait([f"ready/{name}/{k}" for k in range(1, size)], _READY)
        except RuntimeError:
            store.set(f"start/{name}", "no")
            raise
        store.set(f"start/{name}", "yes")

    def close(self) -> None:
        """Close the connections, so that the other members notice."""
        self._name, self._group = "", None


def _read_layout(store: TCPStore, rank: int) -> list[Piece]:
    return [
        Piece(name, dtype, tuple(shape), start, length)
        for name, dtype, shape, start, length in json.loads(store.get(f"layout/{rank}"))
    ]


def _split(buffer: torch.Tensor, length: int = MAX_CHUNK) -> tuple[torch.Tensor, ...]:
    return torch.split(buffer, length)


def _find_offsets(layout: Sequence[Piece]) -> tuple[list[int], int]:
    """The place of each piece in the buffer of a part, and the length of the buffer."""
    offsets, end = [], 0
    for piece in layout:
        offsets.append(end)
        size = piece.length * getattr(torch, piece.dtype).itemsize
        end += -(-size // _ALIGNMENT) * _ALIGNMENT
    return offsets, end


def assemble_weights(layouts: Sequence[Sequence[Piece]], buffers: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors of a version from the parts of all learners. A tensor of a single piece uses the memory of its buffer."""
    weights: dict[str, torch.Tensor] = {}
    for layout, buffer in zip(layouts, buffers, strict=True):
        for offset, piece in zip(_find_offsets(layout)[0], layout, strict=True):
            dtype = getattr(torch, piece.dtype)
            flat = buffer[offset : offset + piece.length * dtype.itemsize].view(dtype)
            if piece.length == prod(piece.shape):
                weights[piece.name] = flat.view(piece.shape)
                continue
            if piece.name not in weights:
                weights[piece.name] = torch.empty(piece.shape, dtype=dtype)
            weights[piece.name].view(-1)[piece.start : piece.start + piece.length] = flat
    return weights


def compute_checksum(buffer: torch.Tensor) -> int:
    """The sum of all 64-bit words, each times an odd number of its place, modulo 2^64. A change of one word changes it."""
    checksum = 0
    for k, words in enumerate(_split(buffer.view(torch.int64), 1 << 18)):
        factors = torch.arange(1, 2 * len(words), 2) + (k << 19)
        checksum += int((words * factors).sum())
    return checksum % (1 << 64)
