"""The simulated cluster against times that can be computed by hand."""

import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from palaestra.rl.scheduler import RolloutPart

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def simulation(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return load(monkeypatch, "simulate_cluster")


@pytest.fixture
def pipeline(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return load(monkeypatch, "pipeline")


def load(monkeypatch: pytest.MonkeyPatch, name: str) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.delitem(sys.modules, name, raising=False)
    return __import__(name)


def make(simulation: ModuleType, **values: float) -> tuple:  # type: ignore[type-arg]
    """A cluster with responses of equal length, and round service times."""
    times = simulation.Times(
        parameters=1e9, decode=((1, 0.01), (256, 0.02)), decode_context=600, cache_bytes=1e6, prefill=1e4, update=1e4,
        optimizer=0.5, to_host=1e9, grading=0.01, part=0.1, token=1e-5, join=1e-6, pack=2e9,
    )  # fmt: skip
    cluster = simulation.Cluster(
        rollout_gpus=1, learner_gpus=1, responses=256, group_size=8, prompt_tokens=100, mean_tokens=1000, sigma=0.0,
        staleness=0, bandwidth=1e12,
    )  # fmt: skip
    return replace(cluster, **values), times


def test_one_update_after_the_other_takes_the_sum_of_its_stages(simulation: ModuleType) -> None:
    cluster, times = make(simulation)
    assert (cluster.part_groups, cluster.parts_per_batch) == (32, 1)
    work = simulation.ClusterWork(cluster, times)
    play = 32 * 100 / 1e4 + 1000 * 0.02 + 256 * 0.01  # prefill, steps of 256 sequences, verdicts
    assert work.play(RolloutPart(0, 0)) == pytest.approx(play)
    load, share = 2.0, 2.0 + 1.0  # 2e9 bytes to the GPU; to the host and into a file
    tokens = 256 * 1100
    driver, join, learn = 0.1 + 1e-5 * tokens, 1e-6 * tokens, tokens / 1e4 + 0.5
    totals = simulation.simulate(work, 1, 1, 3, 0)
    assert totals.seconds == pytest.approx(3 * (load + play + driver + join + learn) + 2 * share)


def test_a_longer_context_makes_steps_slower(simulation: ModuleType) -> None:
    cluster, times = make(simulation)
    # 1,000 tokens more for 64 sequences of 1 MB a token, at 1 TB/s.
    longer = times.step(64, 1600, cluster.bandwidth) - times.step(64, 600, cluster.bandwidth)
    assert longer == pytest.approx(0.064)


def test_with_stale_weights_the_slowest_stage_sets_the_pace(simulation: ModuleType) -> None:
    cluster, times = make(simulation, staleness=2, rollout_gpus=4)
    figures = simulation.measure(cluster, times, 12)
    tokens = 256 * 1100
    # Stale responses are evaluated once more.
    learner = 2 * tokens / 1e4 + 0.5 + 3.0 + 1e-6 * tokens
    assert figures.responses_per_second == pytest.approx(256 / learner, rel=0.01)
    assert figures.bottleneck == "learner: learning"
    assert 0 < figures.staleness <= 2


def test_the_bottleneck_is_named(simulation: ModuleType) -> None:
    cluster, times = make(simulation, staleness=2)
    assert simulation.measure(cluster, replace(times, update=1e7, prefill=1e7), 6).bottleneck == "rollout: decoding"
    assert (
        simulation.measure(cluster, replace(times, update=1e7, prefill=1e7, grading=1.0), 6).bottleneck
        == "rollout: grading"
    )
    assert simulation.measure(cluster, replace(times, pack=1e6), 6).bottleneck == "learner: sharing weights"
    assert simulation.measure(cluster, replace(times, token=1e-2), 6).bottleneck == "driver: receiving rollouts"


def test_a_model_that_does_not_fit_has_no_split(simulation: ModuleType) -> None:
    cluster, times = make(simulation)
    assert simulation.find_best_split(cluster, replace(times, parameters=70e9), 4, 2) is None
    assert simulation.find_best_split(cluster, times, 4, 2) is not None


def test_a_slow_response_costs_little_with_staleness(pipeline: ModuleType) -> None:
    """`benchmarks/pipeline.py` measures the same with real workers."""
    usual = pipeline.Load()
    slow = replace(usual, slow=pipeline.SLOW)
    assert pipeline.predict(slow) > 0.9 * pipeline.predict(usual)
    # Without staleness the learner waits for it.
    assert pipeline.predict(replace(slow, staleness=0)) < 0.8 * pipeline.predict(replace(usual, staleness=0))
    # Bound by the workers, it costs its share of their time.
    usual, slow = replace(usual, learn=0.2), replace(slow, learn=0.2)
    work = sum(usual.draw_seconds()) / sum(slow.draw_seconds())
    assert pipeline.predict(slow) > 0.9 * work * pipeline.predict(usual)
