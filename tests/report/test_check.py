"""The report of a check as a page, a badge and JSON, and in the viewer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import broken_envs
import pytest
from html_pages import HtmlPage
from starlette.testclient import TestClient

from palaestra.core.errors import RunError
from palaestra.recipes.check.recipe import check
from palaestra.recipes.check.records import CheckRecord, CheckStatus, SubjectReport
from palaestra.report.check import describe_verdict, draw_badge, read_check_report
from palaestra.report.page import write_check_report, write_report
from palaestra.view import make_app

HOSTILE = "<script>alert(1)</script> & \ud800 \x1b[31m \"quoted' 字"


def make_result(status: str, name: str = "runtime.api", level: int = 1) -> CheckRecord:
    is_fault = status in ("fail", "warn")
    return CheckRecord(
        name, level, f"Title of {name}", CheckStatus(status), f"summary of {name}", (HOSTILE,) if is_fault else (),
        {"reward": float("inf"), "<b>": HOSTILE}, f"palaestra check '{HOSTILE}' --only {name}" if is_fault else "",
        "Return `five` values & <b>." if is_fault else "", 0.5,
    )  # fmt: skip


def make_report(*statuses: str, stopped: str = "") -> SubjectReport:
    results = tuple(make_result(status, f"runtime.c{number}") for number, status in enumerate(statuses))
    return SubjectReport(HOSTILE, 3, results, 2.5, 7, stopped)


def read_page(report: SubjectReport, folder: Path) -> HtmlPage:
    return HtmlPage(write_check_report(report, folder / "new" / "check.html").read_text())


def test_a_page_has_each_fault_with_its_remedy(tmp_path: Path) -> None:
    report = check(f"{broken_envs.__file__}:RewardNaN", level=1)
    page = read_page(report, tmp_path)
    fault = report.get("runtime.reward_well_formed")
    faults = page.section("faults")
    for text in (fault.check_id, fault.summary, fault.remediation, *fault.evidence, f"--only {fault.check_id}"):
        assert " ".join(text.split()) in faults
    for result in report.with_status("pass"):
        assert result.check_id in page.section("level-1")
        assert result.check_id not in faults
    for result in report.with_status("skip"):
        assert result.check_id in page.section("missing")
        assert result.summary in page.section("missing")
    assert "level 4, learnability" in page.section("missing")
    assert page.links == []


def test_failures_come_before_warnings(tmp_path: Path) -> None:
    faults = read_page(make_report("warn", "pass", "fail"), tmp_path).section("faults")
    assert faults.index("runtime.c2") < faults.index("runtime.c0")
    assert "runtime.c1" not in faults


def test_texts_of_the_environment_are_escaped(tmp_path: Path) -> None:
    page = read_page(make_report("fail", "skip"), tmp_path)
    assert "script" not in {tag for tag, _ in page.elements}
    assert "<script>alert(1)</script> & " in page.text
    assert "Return five values & <b>." in page.section("faults")


def test_a_page_says_why_checks_are_missing(tmp_path: Path) -> None:
    page = read_page(make_report("pass", stopped="the budget of 5 s is spent; 9 checks did not run"), tmp_path)
    assert "The check has not ended" in page.text
    assert "9 checks did not run" in page.section("missing")


@pytest.mark.parametrize(
    ("statuses", "stopped", "words", "color"),
    [
        (("pass", "pass", "skip"), "", "level 3 passed, 2 checks", "#2f7d32"),
        (("pass", "fail", "warn"), "", "level 3 failed, 1 of 3 checks", "#c0342b"),
        (("pass", "warn"), "", "level 3, 1 of 2 checks warned", "#e5b32a"),
        (("pass",), "the budget is spent", "level 3 not finished, 1 check", "#e5b32a"),
        (("skip",), "", "level 3, no check ran", "#e5b32a"),
    ],
)
def test_a_badge_shows_the_verdict(statuses: tuple[str, ...], stopped: str, words: str, color: str) -> None:
    report = make_report(*statuses, stopped=stopped)
    badge = ElementTree.fromstring(draw_badge(report).encode("utf-8", "replace"))
    assert describe_verdict(report) == words
    texts = [node for node in badge.iter() if node.tag.endswith("}text")]
    assert [node.text for node in texts] == ["palaestra check", words]
    assert color in {node.get("fill") for node in badge.iter()}
    end = sum(float(texts[-1].get(name, 0)) for name in ("x", "textLength"))
    assert end + 6 == float(badge.get("width", 0)), "the text ends inside"


def test_json_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = write_check_report(make_report("fail", "pass", "skip"), tmp_path / "check.json")
    report = read_check_report(path)
    assert "Infinity" not in path.read_text().replace('"Infinity"', "")
    assert (report.verdict, report.seed, len(report.results)) == ("fail", 7, 3)
    assert report.results[0].status is CheckStatus.FAIL
    assert report.results[0].evidence == (HOSTILE.replace("\ud800", "\N{REPLACEMENT CHARACTER}"),)
    write_check_report(report, tmp_path / "again.json")
    assert (tmp_path / "again.json").read_text() == path.read_text()


@pytest.mark.parametrize("text", ["", "[]", '{"target": 3}', '{"target": "a", "level": 1, "results": [{}]}', "\ud800"])
def test_a_damaged_file_is_answered_in_one_line(text: str, tmp_path: Path) -> None:
    path = tmp_path / "check.json"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(RunError, match=r"check\.json") as error:
        read_check_report(path)
    assert "\n" not in str(error.value)


def test_the_viewer_lists_and_opens_checks(tmp_path: Path) -> None:
    write_check_report(make_report("fail"), tmp_path / "mine" / "check.json")
    write_check_report(replace(make_report("pass"), target="CartPole-v1"), tmp_path / "deep" / "er" / "check.json")
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "check.json").write_text('{"target"')
    with TestClient(make_app([tmp_path]), base_url="http://127.0.0.1") as client:
        rows = {row["id"]: row for row in client.get("/runs.json").json()}
        assert {name: row["kind"] for name, row in rows.items()} == {
            "mine": "check", "deep/er": "check", "damaged": "unreadable",
        }  # fmt: skip
        assert rows["mine"]["method"] == "level 3 failed, 1 of 1 check"
        assert rows["deep/er"]["subject"] == "CartPole-v1"
        assert "not a report" in rows["damaged"]["problem"]
        assert client.get("/").text.count("data-row") == 3
        page = client.get("/run/mine/")
        assert page.status_code == 200
        assert "summary of runtime.c0" in page.text
        assert "<script>alert" not in page.text
        assert client.get("/run/damaged/").status_code == 500
        write_check_report(make_report("pass"), tmp_path / "mine" / "check.json")
        assert "level 3 passed" in client.get("/").text, "a new check replaces the old one"


def test_a_report_of_the_folder_is_the_same_page(tmp_path: Path) -> None:
    report = make_report("fail", "warn", "pass")
    folder = write_check_report(report, tmp_path / "one" / "check.json").parent
    page = HtmlPage(write_report(folder).read_text())
    assert page.section("faults") == read_page(read_check_report(folder / "check.json"), tmp_path).section("faults")
