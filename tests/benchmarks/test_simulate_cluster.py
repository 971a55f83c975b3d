"""The simulated cluster against times that can be computed by hand."""

import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def simulation(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.delitem(sys.modules, "simulate_cluster", raising=False)
    import simulate_cluster

    return simulate_cluster


def make(simulation: ModuleType, **values: float) -> tuple:  # type: ignore[type-arg]
    """A cluster with responses of equal length, and round service times."""
    times = simulation.Times(
        parameters=1e9, decode=((1, 0.01), (256, 0.02)), prefill=1e4, update=1e4, optimizer=0.5, grading=0.1
    )
    cluster = simulation.Cluster(
        rollout_gpus=1,
        learner_gpus=1,
        graders=64,
        responses=256,
        prompt_tokens=100,
        mean_tokens=1000,
        sigma=0.0,
        staleness=0,
        network=1e9,
    )
    return replace(cluster, **values), times


def test_one_update_after_the_other_takes_the_sum_of_its_stages(simulation: ModuleType) -> None:
    cluster, times = make(simulation)
    rollout = 256 * 100 / 1e4 + 1000 * 0.02  # prefill, then steps of 256 sequences
    grading = 4 * 0.1  # 256 verdicts on 64 cores
    update, sync = 256 * 1100 / 1e4 + 0.5, 2.0
    totals = simulation.Simulation(cluster, times).run(3)
    assert totals.finished == pytest.approx(3 * (rollout + grading + update + sync))


def test_with_stale_weights_the_slowest_stage_sets_the_pace(simulation: ModuleType) -> None:
    cluster, times = make(simulation, staleness=2)
    totals = simulation.Simulation(cluster, times).run(12)
    rollout = 256 * 100 / 1e4 + 1000 * 0.02
    learner = 256 * 1100 / 1e4 + 0.5 + 2.0  # the slower one
    assert totals.finished == pytest.approx(rollout + 0.4 + 12 * learner, rel=0.01)


def test_too_few_graders_set_the_pace(simulation: ModuleType) -> None:
    cluster, times = make(simulation, staleness=2, graders=1)
    times = replace(times, grading=1.0)
    totals = simulation.Simulation(cluster, times).run(4)
    assert totals.finished > 4 * 256
    assert totals.busy["grading"] / totals.finished > 0.9


def test_a_model_that_does_not_fit_has_no_split(simulation: ModuleType) -> None:
    cluster, times = make(simulation)
    assert simulation.best_split(cluster, replace(times, parameters=70e9), 4, 1) is None
    assert simulation.best_split(cluster, times, 4, 1) is not None
