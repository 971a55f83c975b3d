"""The report of a train run agrees with its metrics, for finished and unfinished runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from html_pages import read_report

from palaestra.core.records import (
    Attempt,
    Completion,
    Failure,
    FailureCause,
    Message,
    Problem,
    Score,
    Segment,
    Trajectory,
    Usage,
)
from palaestra.recipes.settings import to_plain
from palaestra.recipes.train.settings import TrainSettings
from palaestra.report.charts import (
    MetricPoint,
    Panel,
    Series,
    average_neighbors,
    axis_range,
    line_chart,
    metric_points,
)
from palaestra.runs.provenance import LedgerEntry
from palaestra.runs.run import Run

HOSTILE = '</script><script>alert(1)</script><img src=x onerror="alert(2)"> & more'


def create(folder: Path, **values: Any) -> Run:
    return Run.create(folder, "train", to_plain(TrainSettings(**values)))


def language(folder: Path, env: str = "RLHFEnv-v0", algorithm: Any = "ppo", **values: Any) -> Run:
    settings: dict[str, Any] = {
        "policy": "lm",
        "model": "nano",
        "iterations": 10,
        "episodes": 64,
        "hyperparameters": {"max_grad_norm": 0.5},
        "seed": 7,
    }
    return create(folder, env=env, algorithm=algorithm, **(settings | values))


def classic(folder: Path, **values: Any) -> Run:
    settings: dict[str, Any] = {"env": "CartPole-v1", "algorithm": "ppo", "policy": "mlp", "iterations": 10}
    return create(folder, **(settings | values))


def metrics(iteration: int, **more: float) -> dict[str, float]:
    """What an iteration of a language model with a reference brings."""
    reward = 0.1 * iteration
    return {
        "reward": reward, "reward_low": reward - 0.05, "reward_high": reward + 0.05, "reward_count": 64.0,
        "episodes": 64.0, "failures": 1.0, "actions": 1000.0, "total_actions": 1000.0 * iteration,
        "length": 15.5, "entropy": 0.8, "truncated": 0.125, "approx_kl": 0.004, "clip_fraction": 0.03, "grad_norm": 0.42,
        "explained_variance": -0.5, "reference_kl": 0.2 * iteration, "seconds_model": 2.0, "seconds_environment": 0.5,
        "seconds_reference": 0.5, "seconds_update": 1.0, "tokens_per_second": 250.0, **more,
    }  # fmt: skip


def steps(iteration: int, **more: float) -> dict[str, float]:
    """What an iteration in a classic environment brings."""
    return {
        "reward": 20.0 * iteration, "reward_low": 15.0 * iteration, "reward_high": 25.0 * iteration,
        "reward_count": 8.0, "episodes": 8.0, "failures": 0.0, "actions": 512.0, "length": 20.0 * iteration,
        "recent_return": 18.0 * iteration, "explained_variance": 0.25, "entropy": 0.6, "steps_per_second": 2048.0,
        "seconds_model": 0.1, "seconds_environment": 0.05, "seconds_update": 0.1, **more,
    }  # fmt: skip


def make_held_out_metrics(value: float, count: int = 32, **more: float) -> dict[str, float]:
    return {
        "test_reward": value, "test_reward_low": value - 0.1, "test_reward_high": value + 0.1,
        "test_count": float(count), "test_failures": 2.0, "seconds_evaluate": 3.0, **more,
    }  # fmt: skip


def cost(phase: str, seconds: float = 4.0) -> LedgerEntry:
    return LedgerEntry(phase, "nano", 64, Usage(500, 1000), seconds)


def episode(response: str = "3*9=27. Answer: 27", failure: str = "") -> Trajectory:
    info = {"prompt": "How many nuts?", "response": response, "stop_reason": "length"}
    info |= {"failure": failure} if failure else {}
    segments = (Segment((1, 2), (False, False), (0.0, 0.0)), Segment((5, 6, 7), (True,) * 3, (-0.1, -0.2, -0.6)))
    return Trajectory("RLHFEnv-v0", 7, (0.0, 0.0, 0.75), segments, False, True, (info,))


def attempts(right: int, failed: int = 0) -> list[Attempt]:
    """Ten problems of two skills: the first `right` are right, the last `failed` failed."""
    attempts = []
    for k in range(10):
        problem = Problem(f"p{k}", (Message("user", f"Question {k}?"),), f"{k}", "addition" if k < 5 else "clock")
        outcome: Score | Failure = Score(float(k < right))
        if k >= 10 - failed:
            outcome = Failure(FailureCause.ENGINE, "broke")
        attempts.append(Attempt(problem, Completion(f"answer {k}"), outcome))
    return attempts


def rlhf_run(folder: Path, iterations: int = 3, *, gold: bool = False, response: str = "fine") -> Path:
    with language(folder) as run:
        run.store.add_metrics(0, make_held_out_metrics(0.2, test_reference_kl=0.0))
        for k in range(1, iterations + 1):
            run.store.add_iteration(k, metrics(k), [episode(response)], cost(f"{k}/train"))
            if gold:
                value = 0.5 - 0.1 * (k - 2) ** 2
                more = {"gold_reward": value, "gold_reward_low": value - 0.04, "gold_reward_high": value + 0.04}
                run.store.add_metrics(k, more)
        run.store.add_metrics(iterations, make_held_out_metrics(0.7, test_reference_kl=0.6))
        run.store.add_cost(LedgerEntry("rest", seconds=1.0))
        run.write_summary({"recipe": "train", "weights_sha256": "abcdef0123456789", "stopped_early": False})
    return folder


def task_run(folder: Path, *, ended: bool = True) -> Path:
    with language(folder, "CoTEnv-v0", "grpo", hyperparameters={"variant": "dr_grpo"}) as run:
        store = run.store
        store.add_attempts("0/test", attempts(2), cost("0/test"))
        interval = {"test_accuracy_low": 5.67, "test_accuracy_high": 50.98}
        store.add_metrics(0, {"test_accuracy": 20.0, **interval, "test_count": 10.0, "seconds_evaluate": 1.0})
        for k in (1, 2):
            more = {"frac_reward_zero_std": 0.25}
            store.add_iteration(k, metrics(k, **more), [episode()], cost(f"{k}/train"))
        store.add_attempts("2/test", attempts(8, failed=1), cost("2/test"))
        if ended:
            store.add_metrics(2, {"test_accuracy": 88.9, "test_count": 9.0, "seconds_evaluate": 1.0})
            run.write_summary({"recipe": "train"})
    return folder


def test_the_headline_of_a_run_with_rewards(tmp_path: Path) -> None:
    page = read_report(rlhf_run(tmp_path / "run"))
    text = page.section("headline")
    assert "nano learns in RLHFEnv-v0 by PPO" in page.text
    assert "Held-out reward before 0.200 0.100 to 0.300 mean of 32 episodes" in text
    assert "Held-out reward after 0.700 0.600 to 0.800 mean of 32 episodes after iteration 3" in text
    # Two halves of 0.1, independent: sqrt(0.02) = 0.141.
    assert "Change +0.500 0.359 to 0.641" in text
    assert "The interval is above 0." in text
    assert re.search(r"Episodes 192 Actions 3\D000 tokens Failures 3 of 195 episodes", text)
    assert "Failures, held-out 4 of 68" in text
    assert "Seed 7" in text
    assert "abcdef012345" in text
    assert "abcdef0123456789" not in page.text
    assert "has not ended" not in page.text


def turn_run(folder: Path, **summary: Any) -> Path:
    with language(folder, "palaestra/Guess-v0", "grpo") as run:
        run.store.add_metrics(0, make_held_out_metrics(0.2))
        run.store.add_iteration(1, metrics(1, frac_reward_zero_std=0.25), [episode()], cost("1/train"))
        run.store.add_metrics(1, make_held_out_metrics(0.3))
        run.write_summary({"recipe": "train", "iterations": 1, **summary})
    return folder


def test_a_gain_over_the_same_episodes_is_paired(tmp_path: Path) -> None:
    gain = {"gain": 0.1, "gain_low": 0.04, "gain_high": 0.16, "gain_episodes": 31}
    page = read_report(turn_run(tmp_path / "paired", **gain))
    assert "Change +0.100 0.040 to 0.160 paired over 31 episodes" in page.section("headline")
    assert "The interval is above 0." in page.section("headline")
    assert "independent" not in page.section("headline")
    # Two halves of 0.1 would hide it.
    apart = read_report(turn_run(tmp_path / "apart")).section("headline")
    assert "Change +0.100 −0.041 to 0.241 the two assumed to be independent" in apart
    assert "this run alone does not show a change" in apart


def test_intervals_of_groups_say_that_groups_are_independent(tmp_path: Path) -> None:
    text = read_report(turn_run(tmp_path / "run")).section("reward")
    assert "the training intervals treat groups, not episodes, as independent" in text
    assert "treat groups, not episodes" not in read_report(rlhf_run(tmp_path / "single")).section("reward")


def test_an_evaluation_in_which_no_episode_counts_says_so(tmp_path: Path) -> None:
    with language(tmp_path / "run", "palaestra/Guess-v0", "grpo") as run:
        for k in (0, 1):
            if k:
                run.store.add_iteration(k, metrics(k), [episode()], cost(f"{k}/train"))
            run.store.add_metrics(k, {"test_count": 0.0, "test_failures": 1.0, "seconds_evaluate": 1.0})
        nothing = dict.fromkeys(("gain", "gain_low", "gain_high"))
        run.write_summary({"recipe": "train", "iterations": 1, **nothing, "gain_episodes": 0})
    text = read_report(tmp_path / "run").section("headline")
    for name in ("before", "after"):
        assert f"Held-out reward {name} – unknown: 1 episode failed, none was scored" in text
    assert "Change – unknown" in text
    assert "Failures, held-out 2 of 2" in text


def test_a_task_headline_has_accuracy_and_paired_gain(tmp_path: Path) -> None:
    text = read_report(task_run(tmp_path / "run")).text
    assert "nano learns in CoTEnv-v0 by Dr. GRPO" in text
    assert "Held-out before 20.0 % 5.7–51.0 % 2 of 10 right" in text
    assert "Held-out after 88.9 % 56.5–98.0 % 8 of 9 right, 1 failed after iteration 2" in text
    assert "on 9 problems scored both times" in text
    assert "Failures, held-out 1 of 20" in text


def test_a_task_is_divided_by_skill(tmp_path: Path) -> None:
    page = read_report(task_run(tmp_path / "run"))
    text = page.section("skills")
    assert re.search(r"addition 40\.0 % .* 2 of 5 right 100\.0 % .* 5 of 5 right \+60\.0", text)
    assert re.search(r"clock 0\.0 % .* 0 of 5 right 75\.0 % .* 3 of 4 right, 1 failed", text)
    assert "iteration 0: 20.00 (5.67 to 50.98), n 10" in page.chart("held-out accuracy by iteration")
    assert "Now right 6 of 9" in page.section("samples")
    assert page.section("divergence")  # Metrics of a reference are there, whatever the environment.


def test_rewards_are_drawn_with_their_intervals_and_evaluations(tmp_path: Path) -> None:
    page = read_report(rlhf_run(tmp_path / "run"))
    text = page.chart("reward by iteration")
    assert "training: iteration 1: 0.100 (0.050 to 0.150), n 64, iteration 3: 0.300" in text
    assert "held-out: iteration 0: 0.200 (0.100 to 0.300), n 32, iteration 3: 0.700" in text
    assert 'class="band s1"' in page.markup
    table = page.section("reward")
    assert re.search(r" 3 3\D000 64 1 0\.300 0\.250 to 0\.350 0\.700 0\.600 to 0\.800 32 ", table)


def test_proxy_and_gold_need_a_gold_reward(tmp_path: Path) -> None:
    without = read_report(rlhf_run(tmp_path / "without"))
    assert not [label for label in without.charts if label.startswith("proxy and gold")]
    assert "gold" not in without.text.lower()
    assert "Reward against divergence" in without.text
    path = without.chart("reward against the divergence from the reference")
    assert "training: iteration 1 at 0.200: 0.100" in path
    assert "held-out: iteration 0: 0.200 (0.100 to 0.300), n 32, iteration 3 at 0.600: 0.700" in path

    page = read_report(rlhf_run(tmp_path / "with", gold=True))
    assert "Proxy against gold" in page.text
    both = page.chart("proxy and gold reward by iteration")
    assert "proxy: iteration 1: 0.100" in both
    assert "gold: iteration 1: 0.400 (0.360 to 0.440), iteration 3: 0.400" in both
    assert "gold: iteration 1 at 0.200: 0.400" in page.chart("reward against the divergence")
    assert (
        "Highest gold 0.500 (0.460 to 0.540) at iteration 2; last 0.400 (0.360 to 0.440) at iteration 3." in page.text
    )


def test_without_a_reference_nothing_is_said_of_divergence(tmp_path: Path) -> None:
    with classic(tmp_path / "run") as run:
        run.store.add_iteration(1, steps(1), [], cost("1/train"))
    assert read_report(tmp_path / "run").section("divergence") == ""


def test_the_health_panel_has_the_metrics_that_there_are(tmp_path: Path) -> None:
    page = read_report(rlhf_run(tmp_path / "run"))
    text = page.section("health")
    for words in (
        "KL of the update 0.0040", "KL to the reference 0.600", "Clip fraction 3 %", "Entropy 0.800",
        "Explained variance −0.500", "Response length 15.50 tokens", "Truncated 12.5 %",
        "Gradient norm 0.420 before clipping; limit 0.500",
    ):  # fmt: skip
        assert words in text, words
    assert "Groups without variance" not in text
    assert "KL to the reference: iteration 1: 0.200, iteration 3: 0.600" in page.charts
    assert "Groups without variance 25 %" in read_report(task_run(tmp_path / "task")).section("health")


def test_an_older_metric_is_shown_with_its_iteration(tmp_path: Path) -> None:
    with language(tmp_path / "run") as run:
        run.store.add_iteration(1, metrics(1), [], cost("1/train"))
        run.store.add_iteration(2, {n: v for n, v in metrics(2).items() if n != "approx_kl"}, [], cost("2/train"))
    text = read_report(tmp_path / "run").section("health")
    assert "KL of the update 0.0040 at 1" in text
    assert "Entropy 0.800 nats" in text


def test_a_classic_environment(tmp_path: Path) -> None:
    with classic(tmp_path / "run") as run:
        run.store.add_metrics(0, make_held_out_metrics(10.0, 20))
        for k in (1, 2):
            kept = [Trajectory("CartPole-v1", 0, (20.0,), infos=({"length": 20},))]
            run.store.add_iteration(k, steps(k), kept, cost(f"{k}/train", 0.25))
        run.store.add_metrics(2, make_held_out_metrics(450.0, 20))
        run.write_summary({"recipe": "train", "stopped_early": True})
    page = read_report(tmp_path / "run")
    assert "mlp 2×64 learns in CartPole-v1 by PPO" in page.text
    assert "Iterations 2 of 10 stopped early" in page.text
    assert re.search(r"Actions 1\D024 steps", page.text)
    assert "mean of the last 100 episodes: iteration 1: 18.00, iteration 2: 36.00" in page.chart("reward by iteration")
    assert "Episode length 40.00 steps" in page.section("health")
    # 1024 steps in half a second.
    assert re.search(r"2\D048 steps per second while collecting and learning", page.text)
    assert page.section("episodes") == page.section("skills") == ""


def test_seconds_are_divided_by_phase(tmp_path: Path) -> None:
    page = read_report(rlhf_run(tmp_path / "run"))
    text = page.section("time")
    # Three iterations of 4 s and two evaluations of 3 s are more than the ledger's 13 s: nothing is left as rest.
    assert "the policy acts 6.0 33.3 %" in text
    assert "learning 3.0 16.7 %" in text
    assert "held-out evaluation 6.0 33.3 %" in text
    assert "all 18.0" in text
    assert "the rest" not in text
    assert "250.0 tokens per second while collecting and learning" in text
    assert re.search(r"collecting and learning 12\.0 192 1\D500 3\D000", page.section("cost"))


def test_episodes_are_shown_with_reward_tokens_and_log_probs(tmp_path: Path) -> None:
    with language(tmp_path / "run") as run:
        for k in range(1, 6):
            episodes = [episode(f"said in {k}"), episode("lost", failure="reward broke")]
            run.store.add_iteration(k, metrics(k), episodes, cost(f"{k}/train"))
    text = read_report(tmp_path / "run").section("episodes")
    assert [int(k) for k in re.findall(r"Iteration (\d+)", text)] == [1, 3, 5]
    assert "said in 2" not in text
    assert "How many nuts? Response said in 3 Reward 0.750 Tokens 3 Log-prob per token −0.300 Stopped by length" in text
    assert "Response lost Reward failed Tokens 3" in text
    assert "Failure reward broke" in text


def test_model_text_is_escaped_and_the_page_is_self_contained(tmp_path: Path) -> None:
    page = read_report(rlhf_run(tmp_path / "run", response=HOSTILE))
    assert HOSTILE in page.text
    assert "<script" not in page.markup
    assert not {tag for tag, _ in page.elements} & {"script", "link", "img", "iframe", "object"}
    assert not page.links
    assert not [a for _, a in page.elements if {"onerror", "src"} & set(a)]
    assert "http" not in page.markup
    assert "url(" not in page.markup


@pytest.mark.parametrize("kind", [language, classic])
def test_a_run_without_iterations(tmp_path: Path, kind: Any) -> None:
    with kind(tmp_path / "run"):
        page = read_report(tmp_path / "run")  # While its own process holds the lock.
    assert "The run has not ended. 0 of 10 iterations are done" in page.text
    assert "No iteration has been finished yet." in page.text
    assert page.charts == []
    with kind(tmp_path / "evaluated") as run:
        run.store.add_metrics(0, make_held_out_metrics(0.25))
    page = read_report(tmp_path / "evaluated")
    assert "Held-out reward before 0.250 0.150 to 0.350" in page.text
    assert "Held-out reward after – not measured yet" in page.text
    assert [label.split(":")[0] for label in page.charts] == ["reward by iteration"]


def test_a_run_that_goes_on_leaves_out_the_evaluation_under_way(tmp_path: Path) -> None:
    page = read_report(task_run(tmp_path / "run", ended=False))
    assert "The run has not ended. 2 of 10 iterations are done" in page.text
    assert "Not finished and left out: the held-out evaluation after iteration 2 (10 attempts so far)." in page.text
    assert "Held-out after – – –" in page.text
    assert "Gain in points – not measured yet" in page.text
    assert page.section("samples") == ""


def test_without_evaluations_the_headline_is_the_reward(tmp_path: Path) -> None:
    with classic(tmp_path / "run", evaluation=0) as run:
        for k in (1, 2):
            run.store.add_iteration(k, steps(k), [], cost(f"{k}/train"))
    text = read_report(tmp_path / "run").text
    assert "Reward, first iteration 20.00 15.00 to 25.00 mean of 8 episodes" in text
    assert "Reward, last iteration 40.00 30.00 to 50.00" in text


def test_iterations_without_an_episode_or_with_one_can_be_drawn(tmp_path: Path) -> None:
    single = {n: v for n, v in steps(2, reward_count=1.0).items() if n not in ("reward_low", "reward_high")}
    none = {n: v for n, v in steps(3, episodes=0.0).items() if not n.startswith("reward") and n != "length"}
    with classic(tmp_path / "run", evaluation=0) as run:
        for k, row in enumerate((steps(1), single, none, steps(4)), 1):
            run.store.add_iteration(k, row, [], cost(f"{k}/train"))
    page = read_report(tmp_path / "run")
    assert "iteration 4: 80.00 (60.0 to 100.0), n 8" in page.chart("reward by iteration")
    assert re.search(r" 2 – 8 0 40\.00 no interval ", page.section("reward"))
    assert re.search(r" 3 – 0 0 – – ", page.section("reward"))


def test_a_long_run_stays_a_page(tmp_path: Path) -> None:
    with language(tmp_path / "run", iterations=500) as run:
        for k in range(1, 401):
            run.store.add_iteration(k, metrics(k), [], cost(f"{k}/train"))
    page = read_report(tmp_path / "run")
    assert len(page.markup) < 200_000
    assert "a point is the mean of neighbouring iterations" in page.text
    assert page.section("reward").count("to") < 80
    assert "collecting and learning 1600.0" in page.section("cost")


def test_settings_are_listed(tmp_path: Path) -> None:
    text = read_report(rlhf_run(tmp_path / "run")).markup
    assert re.search(r"<code>seed</code></td><td>7 <span class=\"dot\"", text)
    assert re.search(r"<code>max_grad_norm</code></td><td>0.5</td>", text)


def test_outliers_do_not_squeeze_the_chart() -> None:
    narrow = [MetricPoint(k, k, float(k), k - 1.0, k + 1.0) for k in range(1, 21)]
    low, high = axis_range([*narrow, MetricPoint(21, 21, 20.0, -5000.0, 5000.0)])
    assert low == 0
    assert high < 30
    low, high = axis_range([MetricPoint(k, k, 0.5 + 0.01 * k) for k in range(40)] + [MetricPoint(41, 41, -900.0)])
    assert low > -1
    assert axis_range([MetricPoint(1, 1, 0.0)]) == (0.0, 1.0)
    low, high = axis_range([MetricPoint(1, 1, -3.0)])
    assert low < -3 < high


def test_averaging_keeps_means_without_intervals() -> None:
    points = [MetricPoint(k, k / 10, float(k), k - 1.0, k + 1.0, 8) for k in range(1, 5)]
    means = average_neighbors(points, 2)
    assert [(r.iteration, r.value, r.low) for r in means] == [(2, 1.5, None), (4, 3.5, None)]
    assert means[0].x == pytest.approx(0.15)
    assert average_neighbors(points, 4) == points


def test_readings_need_their_place_on_the_axis() -> None:
    table = {1: {"reward": 1.0}, 2: {"reward": 2.0, "reference_kl": 0.5}}
    assert [(r.iteration, r.x) for r in metric_points(table, "reward", along="reference_kl")] == [(2, 0.5)]
    plot = line_chart([Panel("y", [Series("only", metric_points(table, "reward"))])], "x", "a <label>")
    assert "a &lt;label&gt;: only: iteration 1: 1.00, iteration 2: 2.00" in plot.__html__()
