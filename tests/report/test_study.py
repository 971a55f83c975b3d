"""The report of a study: arms with intervals, pairs with tests, links to the reports of the runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from html_pages import HtmlPage, read_report

from palaestra.core.errors import RunError
from palaestra.core.statistics import mean_interval, t_test
from palaestra.recipes.settings import to_plain
from palaestra.recipes.teach.settings import TeachSettings
from palaestra.recipes.teach.study import PLAN, read_study
from palaestra.report import write_report
from palaestra.runs.files import write_json
from palaestra.runs.run import Run

ARMS = {"no_state": (1.0, 2.0, 3.0), "skill_list": (4.0, 4.5, 6.5), "skill_tree": (1.0, 2.0, 3.0)}


def summary(gain: float | None, failures: dict[str, int], kept: int = 2) -> dict[str, Any]:
    return {
        "recipe": "teach", "gain": gain, "gain_low": None if gain is None else gain - 5.0,
        "gain_high": None if gain is None else gain + 5.0, "problems": 50, "before": 40.0,
        "after": None if gain is None else 40.0 + gain, "rounds": 2, "kept_round": kept, "examples": 20,
        "failures": failures, "seconds": 30.0, "cost": 0.25, "calls": 3, "prompt_tokens": 1000, "completion_tokens": 200,
        "ordered": 20, "delivered": 20, "dropped": {}, "withheld": 0, "writer_failures": {}, "ordered_again": 0,
        "unmeasured_calls": 0, "unpriced": [],
    }  # fmt: skip


def write_study(folder: Path, arms: dict[str, tuple[float | None, ...]], ended: int = 99) -> Path:
    """A study of `arms` by seed, of which the first `ended` runs have ended, the next has begun, and the rest has not."""
    folder.mkdir()
    common = {
        name: value for name, value in to_plain(TeachSettings(rounds=2)).items() if name not in ("seed", "teacher")
    }
    seeds = list(range(len(next(iter(arms.values())))))
    planned = [{"name": name, "values": {"teacher": name}} for name in arms]
    write_json(folder / PLAN, {"recipe": "study", "seeds": seeds, "arms": planned, "settings": common})
    runs = [(name, seed, gains[seed]) for seed in seeds for name, gains in arms.items()]
    for place, (name, seed, gain) in enumerate(runs[: ended + 1]):
        settings = TeachSettings(rounds=2, teacher=name, seed=seed)
        with Run.create(folder / f"{name}-seed{seed}", "teach", to_plain(settings)) as run:
            if place < ended:
                run.write_summary(summary(gain, {"engine": 2} if name == "skill_list" else {}, kept=2 - (place == 0)))
    return folder


def read(folder: Path) -> HtmlPage:
    page = read_report(folder)
    assert not {"script", "link", "iframe", "img"} & {tag for tag, _ in page.elements}
    return page


def test_arms_have_intervals_and_pairs_have_tests(tmp_path: Path) -> None:
    page = read(write_study(tmp_path / "study", ARMS))
    gain, ahead = mean_interval(ARMS["skill_list"]), mean_interval([3.0, 2.5, 3.5])
    assert f"skill_list +{gain.value:.1f} +{gain.low:.1f} to +{gain.high:.1f}" in page.text
    chance = t_test([3.0, 2.5, 3.5])
    assert chance is not None
    assert f"+3.0 +{ahead.low:.1f} to +{ahead.high:.1f} p = {chance:.3f}" in page.text
    # Three pairs: the smallest p-value counts three times, and of eight flips of signs two are as far out.
    assert f"+3.0 +{ahead.low:.1f} to +{ahead.high:.1f} {chance:.3f} {3 * chance:.3f} 0.250 3" in page.text
    assert "0.0 0.0 to 0.0 1.000 1.000 1.000 3" in page.text
    assert "Largest gain: skill_list" in page.text
    assert "has not ended" not in page.text


def test_failures_costs_and_what_was_kept_are_shown(tmp_path: Path) -> None:
    page = read(write_study(tmp_path / "study", ARMS))
    assert "Failures 6 engine 6" in page.text
    assert "skill_list 90.0 9 3 000 600 $0.75" in page.text
    assert "all 270.0 27" in page.text
    assert "2 kept 1" in page.text
    assert "Varied settings teacher" in page.text
    assert "Examples in one lesson" in page.text


def test_every_run_leads_to_its_own_report(tmp_path: Path) -> None:
    folder = write_study(tmp_path / "study", ARMS)
    links = set(read(folder).links)
    assert links == {f"{name}-seed{seed}/report.html" for name in ARMS for seed in range(3)}
    assert all("<h1>" in (folder / link).read_text() for link in links)
    written = {link: (folder / link).stat().st_mtime_ns for link in links}
    read(folder)
    assert {link: (folder / link).stat().st_mtime_ns for link in links} == written  # What is current is left alone.


def test_each_seed_has_a_point_in_each_arm(tmp_path: Path) -> None:
    text = write_report(write_study(tmp_path / "study", ARMS)).read_text()
    titles = re.findall(r"<title>(\w+), seed (\d): (\S+) \((\S+) to (\S+); 50 problems\)</title>", text)
    assert len(titles) == 9
    assert ("skill_list", "1", "+4.5", "−0.5", "+9.5") in titles
    assert len(re.findall(r'<polygon points="[^"]*" class="mark mean">', text)) == 3 + 3  # Arms, and pairs.


@pytest.mark.parametrize("ended", range(9))
def test_a_study_under_way_shows_what_there_is(ended: int, tmp_path: Path) -> None:
    page = read(write_study(tmp_path / "study", ARMS, ended))
    assert f"The study has not ended. {ended} of 9 runs have" in page.text
    assert page.text.count("has not ended") == 2
    assert page.text.count("has not begun") == 8 - ended
    assert len(set(page.links)) == ended + 1
    assert ("No seed has ended in two arms yet" in page.text) == (ended < 2)


def test_a_run_without_a_gain_is_in_no_mean_and_is_named(tmp_path: Path) -> None:
    folder = write_study(tmp_path / "study", {"no_state": (1.0, None), "skill_list": (4.0, 5.0)})
    assert [row.gain.count for row in read_study(folder).rows] == [1, 2]
    page = read(folder)
    assert "no_state, seed 1: no problem was scored both before and after" in page.text
    assert "+3.0 no interval – – 1.000 1" in page.text


def test_a_study_of_one_arm_has_no_pairs(tmp_path: Path) -> None:
    page = read(write_study(tmp_path / "study", {"no_state": (1.0, 2.0)}))
    assert "Pairwise comparison" not in page.text
    assert "Gain of no_state +1.5" in page.text


def test_a_damaged_study_is_an_error_of_ours(tmp_path: Path) -> None:
    folder = write_study(tmp_path / "study", ARMS)
    (folder / "no_state-seed0" / "summary.json").write_text("{}")
    with pytest.raises(RunError, match="summary of a teach"):
        write_report(folder)
    (folder / PLAN).write_text("[]")
    with pytest.raises(RunError, match=r"study\.json .*seeds"):
        write_report(folder)
