"""Two learners send their weights to two samplers. All are processes; no weights pass through the driver."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

import pytest
import torch

from palaestra.core.errors import ExecutorError
from palaestra.executors.base import open_executor
from palaestra.executors.broadcast import Receiver, SharedWeights, WeightSender, find_receiver
from palaestra.executors.meeting import LOCAL_HOST, Meeting, open_meeting
from palaestra.executors.weight_parts import Piece, assemble_weights, compute_checksum

SHAPE = (5, 3)


def make_weights(version: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(version)
    return {"matrix": torch.rand(SHAPE, generator=generator), "half": torch.rand(7, generator=generator).bfloat16()}


def cut(weights: dict[str, torch.Tensor], rank: int) -> list[tuple[Piece, torch.Tensor]]:
    """Rows 0 to 2 of the matrix belong to learner 0, the others to learner 1; the vector belongs to learner 1."""
    matrix, half = weights["matrix"].flatten(), weights["half"]
    bounds, own = ((0, 9), (0, 0)) if rank == 0 else ((9, 15), (0, 7))
    return [
        (Piece("matrix", "float32", SHAPE, bounds[0], bounds[1] - bounds[0]), matrix[slice(*bounds)]),
        (Piece("half", "bfloat16", (7,), own[0], own[1] - own[0]), half[slice(*own)]),
    ]


def learn(meeting: Meeting, pipe: Connection) -> None:
    """A learner of rank 1: store the part of each version that the pipe names."""
    sender = WeightSender(meeting, 1)
    while (version := pipe.recv()) is not None:
        pipe.send(sender.store_part(cut(make_weights(version), 1)))
    sender.close()


def sample(pipe: Connection) -> None:
    """A sampler: answer with the weights of each handle, or with the error."""
    while True:
        shared = pipe.recv()
        try:
            pipe.send({name: tensor.tolist() for name, tensor in shared.get().items()})
        except ExecutorError as error:
            pipe.send(str(error))


def start(function: Any, *arguments: Any) -> tuple[multiprocessing.Process, Connection]:
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=function, args=(*arguments, theirs), daemon=True)
    process.start()
    return process, ours  # type: ignore[return-value]


class Learners:
    """Rank 0 in this process, rank 1 in a thread or in another process."""

    def __init__(self, processes: bool) -> None:
        self.meeting, self.store = open_meeting(LOCAL_HOST, 2, "gloo")
        self.sender, self.pipe = WeightSender(self.meeting, 0), None
        if processes:
            self.process, self.pipe = start(learn, self.meeting)
        else:
            self.other = WeightSender(self.meeting, 1)

    def publish(self, version: int) -> SharedWeights:
        mine = self.sender.store_part(cut(make_weights(version), 0))
        if self.pipe is None:
            return self.sender.publish(version, [mine, self.other.store_part(cut(make_weights(version), 1))])
        self.pipe.send(version)
        return self.sender.publish(version, [mine, self.pipe.recv()])

    def close(self) -> None:
        if self.pipe is not None:
            self.pipe.send(None)
        self.sender.close()
        if self.pipe is None:
            self.other.close()


@pytest.fixture
def learners(request: pytest.FixtureRequest) -> Iterator[Learners]:
    learners = Learners(request.node.get_closest_marker("backends") is not None)
    yield learners
    learners.close()


def to_lists(version: int) -> dict[str, Any]:
    return {name: tensor.tolist() for name, tensor in make_weights(version).items()}


def ask(sampler: Connection | Receiver, shared: SharedWeights) -> Any:
    if isinstance(sampler, Receiver):
        return {name: tensor.tolist() for name, tensor in sampler.get(shared).items()}
    sampler.send(shared)
    assert sampler.poll(60), "the sampler does not answer"
    return sampler.recv()


def test_samplers_receive_the_version_that_they_need(learners: Learners) -> None:
    samplers = [Receiver(learners.meeting) for _ in range(2)]
    versions = {version: learners.publish(version) for version in (0, 1)}
    for sampler in samplers:  # They join after both versions were published.
        assert [ask(sampler, versions[version]) for version in (0, 1)] == [to_lists(0), to_lists(1)]
    versions |= {version: learners.publish(version) for version in range(2, 6)}
    # The first sampler has dropped version 2 when it needs it, because later ones have arrived.
    assert [ask(samplers[0], versions[version]) for version in (5, 2)] == [to_lists(5), to_lists(2)]
    versions[3].release()
    versions[6] = learners.publish(6)
    assert [ask(sampler, versions[6]) for sampler in samplers] == [to_lists(6)] * 2
    with pytest.raises(ExecutorError, match="version 3 did not arrive: the shared value was released"):
        ask(samplers[0], versions[3])


def test_a_version_that_differs_is_refused(learners: Learners) -> None:
    shared = learners.publish(8)
    wrong = SharedWeights(learners.meeting, shared.number, 8, (shared.checksums[0], 123))
    with pytest.raises(ExecutorError, match="version 8 from learner 1 have the checksum"):
        ask(Receiver(learners.meeting), wrong)


def test_a_version_can_be_read_once(learners: Learners) -> None:
    sampler, versions = Receiver(learners.meeting), [learners.publish(version) for version in (0, 1)]
    assert ask(sampler, versions[1]) == to_lists(1)
    assert {name: tensor.tolist() for name, tensor in versions[0].read().items()} == to_lists(0)
    # The reader has left: later versions reach the sampler only.
    for version in (2, 3):
        assert ask(sampler, learners.publish(version)) == to_lists(version)
    assert not sampler.has_ended


@pytest.mark.backends
def test_a_killed_sampler_is_replaced(learners: Learners) -> None:
    samplers = [start(sample) for _ in range(2)]
    shared = learners.publish(1)
    assert [ask(pipe, shared) for _, pipe in samplers] == [to_lists(1)] * 2
    shared = learners.publish(2)  # To both at once: their group stays open.
    assert [ask(pipe, shared) for _, pipe in samplers] == [to_lists(2)] * 2
    os.kill(samplers[0][0].pid or 0, signal.SIGKILL)
    # The group is lost, and the other sampler notices before its timeout of two minutes.
    assert ask(samplers[1][1], learners.publish(3)) == to_lists(3)
    samplers[0] = start(sample)
    for version in (4, 5):
        shared = learners.publish(version)
        assert [ask(pipe, shared) for _, pipe in samplers] == [to_lists(version)] * 2
    for process, _ in samplers:
        process.kill()


def test_checksum_of_changed_and_swapped_words() -> None:
    buffer = torch.zeros(1 << 22, dtype=torch.uint8)
    checksums = {compute_checksum(buffer)}
    for place in (0, 8, 1 << 21, (1 << 22) - 1):
        changed = buffer.clone()
        changed[place] = 1
        checksums.add(compute_checksum(changed))
    assert len(checksums) == 5


def test_a_whole_part_is_not_copied() -> None:
    buffer = torch.zeros(64, dtype=torch.uint8)
    weights = assemble_weights([[Piece("matrix", "float32", SHAPE, 0, 15)]], [buffer])
    assert weights["matrix"].shape == SHAPE
    assert weights["matrix"].data_ptr() == buffer.data_ptr()


def test_an_executor_passes_a_shared_value_on() -> None:
    with open_executor("inline") as executor:
        shared = executor.share({"a": 1})
        assert executor.share(shared) is shared


def test_the_receiver_of_a_meeting_is_one() -> None:
    meeting, store = open_meeting(LOCAL_HOST, 1, "gloo")
    assert find_receiver(meeting) is find_receiver(Meeting(LOCAL_HOST, store.port, 1))
