"""Where learners and samplers meet: the store of rank 0, the rounds that order the transfers, and the process groups.

Rank 0 answers requests (of samplers that join or miss a version, of learners that lost a sampler) by numbered rounds; a round
names a version, the samplers that receive it, and their group. If a process of a group is lost, its samplers leave the group and
join again. Neither the store nor the groups encrypt or authenticate, like those of torchrun: they need a trusted network.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from itertools import count
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

LOCAL_HOST = "127.0.0.1"
_TIMEOUT = timedelta(minutes=2)
"""How long the processes of a group wait for each other. A killed process is noticed at once."""
_READY = timedelta(seconds=10)
"""How long a learner waits for the samplers of a new group; their threads only receive weights."""
_OPENING = timedelta(seconds=20)
"""How long the processes of a group wait for each other when it is opened. One that dies meanwhile is not noticed earlier."""
_FOREVER = timedelta(days=365)
_MAX_ROUNDS = 1000
"""Number of rounds that the store keeps."""
_REQUESTS = "requests"


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
            group = dist.ProcessGroupGloo(prefix, rank, size, _OPENING)
        else:
            options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
            options._timeout = _OPENING
            options._devices = [dist.ProcessGroupGloo.create_device(hostname=LOCAL_HOST)]
            group = dist.ProcessGroupGloo(prefix, rank, size, options)
        group.set_timeout(_TIMEOUT)
        return group

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


@dataclass(frozen=True, slots=True)
class TransferRound:
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


class Coordinator:
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
            self._add(TransferRound(ends=True))

    def _publish(self, number: int) -> None:
        self._held.add(number)
        self._newest, self._group = number, self._group or f"all-{self._rounds}"
        self._add(TransferRound(number, tuple(self._samplers), self._group, True))

    def _release(self, number: int) -> None:
        self._held.discard(number)
        self._add(TransferRound(released=(number,)))

    def _join(self, sampler: int, left: int, number: int) -> None:
        self._samplers = [known for known in self._samplers if known != left] + [sampler]
        self._group = ""
        self._store.set(f"joined/{sampler}", json.dumps([self._rounds + 1, self._newest]))
        if number:
            self._want(sampler, number)

    def _want(self, sampler: int, number: int) -> None:
        if sampler in self._samplers:
            released = () if number in self._held else (number,)
            self._add(TransferRound(0 if released else number, (sampler,), f"one-{self._rounds}", released=released))

    def _drop(self, samplers: Sequence[int]) -> None:
        if any(lost in self._samplers for lost in samplers):
            self._samplers, self._group = [known for known in self._samplers if known not in samplers], ""
            self._add(TransferRound(samplers=tuple(self._samplers), is_for_all=True))

    def _add(self, round_: TransferRound) -> None:
        self._rounds += 1
        self._store.set(f"round/{self._rounds}", json.dumps(asdict(round_)))
        self._store.delete_key(f"round/{self._rounds - _MAX_ROUNDS}")


def send_request(store: TCPStore, kind: str, **values: object) -> None:
    with suppress(RuntimeError):  # The store is closed: the run has ended.
        store.queue_push(_REQUESTS, json.dumps({"kind": kind, **values}))


def read_rounds(store: TCPStore, first: int) -> Iterator[TransferRound]:
    """Yield the rounds from number `first` as they are added, until the run ends or rank 0 is gone."""
    for number in count(first):
        try:
            fields = json.loads(store.get(f"round/{number}"))
        except RuntimeError:
            return
        lists = {name: tuple(fields[name]) for name in ("samplers", "released")}
        round_ = TransferRound(**{**fields, **lists})
        if round_.ends:
            return
        yield round_


class Group:
    """The open group of one learner and all samplers. The group of a single transfer is not kept."""

    def __init__(self, meeting: Meeting, learner: int) -> None:
        self._meeting, self._learner = meeting, learner
        self._name, self._tried, self._group = "", "", None

    def open(self, store: TCPStore, round_: TransferRound, rank: int) -> Any:
        """Return the group of a round. Raises `RuntimeError` if a member is gone."""
        size, name = len(round_.samplers) + 1, f"{round_.group}/{self._learner}"
        if name == self._name:
            return self._group
        if name == self._tried:  # A version was published before the loss of the group was known.
            raise RuntimeError("the group is lost")
        self._tried = name
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
