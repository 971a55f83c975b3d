"""Weights from the learners to the samplers by broadcasts of torch.distributed. They do not pass through the driver.

Each learner stores its part of a version: its shard of a sharded model, or its share of a whole one. A `WeightSender` sends the
part to all samplers in a process group of this learner and the samplers; the learners send side by side. A sampler has a thread
that receives new versions while it samples. It joins with the first `SharedWeights.get`. A sampler that joins late, or has
dropped a version, receives it alone. `executors.meeting` orders the transfers.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from itertools import zip_longest
from typing import Any

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from palaestra.core.errors import ExecutorError
from palaestra.core.records import Json
from palaestra.executors.meeting import Coordinator, Group, Meeting, TransferRound, read_rounds, send_request
from palaestra.executors.weight_parts import Piece, assemble_weights, compute_checksum, find_offsets, split
from palaestra.executors.workers import RELEASED, Shared

_CLOSE_SECONDS = 5.0
_MAX_KEPT = 2
"""Maximum number of received versions that a sampler keeps until it uses them."""
_MAX_FAILURES = 5
"""How often in a row a sampler joins again after a failed transfer."""


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

    @property
    def is_readable(self) -> bool:
        """Whether rank 0 can be a sampler beside its learner: with nccl both would need the same GPU."""
        return self.meeting.backend != "nccl"

    def read(self) -> dict[str, torch.Tensor]:
        """Return a copy of the weights. This process is a sampler for this version only."""
        receiver = Receiver(self.meeting)
        try:
            return {name: tensor.clone() for name, tensor in receiver.get(self).items()}
        finally:
            receiver.close()

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
        works = [self._send_rounds, *([Coordinator(meeting).run] if rank == 0 else [])]
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
        offsets, size = find_offsets(layout)
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
        send_request(self._requests, "publish", number=self._published)
        return SharedWeights(self.meeting, self._published, version, tuple(checksums), self._release)

    def close(self) -> None:
        """End the threads. Rank 0 ends those of all learners and samplers."""
        if self.rank == 0:
            send_request(self._requests, "end")
        for thread in self._threads:
            thread.join(_CLOSE_SECONDS)

    def _release(self, number: int) -> None:
        send_request(self._requests, "release", number=number)

    def _send_rounds(self) -> None:
        store, group = self.meeting.connect(), Group(self.meeting, self.rank)
        for round_ in read_rounds(store, 1):
            for released in round_.released:
                self._versions.pop(released, None)
            buffer = self._versions.get(round_.number)
            if buffer is None or not round_.samplers:
                continue
            try:
                self._send(group, store, round_, buffer)
            except RuntimeError:  # A sampler is gone. The others join again.
                group.close()
                send_request(self._requests, "drop", samplers=round_.samplers)

    def _send(self, group: Group, store: TCPStore, round_: TransferRound, buffer: torch.Tensor) -> None:
        # Nothing but `group` may refer to the open group, so that closing it ends the connections: the others notice.
        opened = group.open(store, round_, 0)
        for chunk in split(buffer):
            opened.broadcast(chunk.to(self._device), 0).wait()


_RECEIVERS: dict[Meeting, Receiver] = {}


def find_receiver(meeting: Meeting) -> Receiver:
    """This process's receiver of a run's weights. Those of ended runs are forgotten."""
    if meeting not in _RECEIVERS:
        for ended in [known for known, receiver in _RECEIVERS.items() if receiver.has_ended]:
            del _RECEIVERS[ended]
        _RECEIVERS[meeting] = Receiver(meeting)
    return _RECEIVERS[meeting]


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

    @property
    def has_ended(self) -> bool:
        """Whether no more weights arrive, because the learners have ended."""
        return bool(self._error)

    def close(self) -> None:
        """Leave the samplers."""
        self._failures = _MAX_FAILURES
        send_request(self._requests, "drop", samplers=[self._sampler])

    def _join(self) -> None:
        left, self._sampler = self._sampler, self._requests.add("samplers", 1)
        self._requested = self._wanted
        send_request(self._requests, "join", sampler=self._sampler, left=left, number=self._wanted)

    def _request_missing(self) -> None:
        """Request the wanted version if it was published before, but is not on its way."""
        if self._wanted <= self._newest and self._wanted not in (0, self._requested, *self._received):
            self._requested = self._wanted
            send_request(self._requests, "want", sampler=self._sampler, number=self._wanted)

    def _run(self) -> None:
        try:
            store = self.meeting.connect()
            groups = [Group(self.meeting, rank) for rank in range(self.meeting.learners)]
            self._layouts = [read_layout(store, rank) for rank in range(self.meeting.learners)]
            while self._receive_rounds(store, groups) and self._failures < _MAX_FAILURES:
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

    def _receive_rounds(self, store: TCPStore, groups: Sequence[Group]) -> bool:
        """Receive until the run ends. Returns whether the group of all samplers was lost, so that this one must join again."""
        first, newest = json.loads(store.get(f"joined/{self._sampler}"))
        with self._changed:
            self._newest = max(self._newest, newest)
            self._request_missing()
        for round_ in read_rounds(store, first):
            with self._changed:
                self._released.update(round_.released)
                if round_.is_for_all:
                    self._newest = max(self._newest, round_.number)
                if self._sampler in round_.samplers:  # It is on its way.
                    self._requested = round_.number
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
        parts = [torch.zeros(find_offsets(layout)[1], dtype=torch.uint8) for layout in self._layouts]
        for chunks in zip_longest(*(split(part) for part in parts)):
            received = [
                (chunk, chunk.to(self._device), g) for chunk, g in zip(chunks, groups, strict=True) if chunk is not None
            ]
            for work in [group.broadcast(there, 0) for _, there, group in received]:
                work.wait()
            for chunk, there, _ in received:
                if there is not chunk:
                    chunk.copy_(there)
        return parts


def read_layout(store: TCPStore, rank: int) -> list[Piece]:
    return [
        Piece(name, dtype, tuple(shape), start, length)
        for name, dtype, shape, start, length in json.loads(store.get(f"layout/{rank}"))
    ]
