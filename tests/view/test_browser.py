"""The viewer in a real browser, over runs of every scale. Needs Chromium; without it the tests are skipped."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from number_task import number_task
from stored_runs import write_train_run

import palaestra
from palaestra.recipes.check.records import CheckRecord, CheckStatus, SubjectReport
from palaestra.report.page import write_check_report

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
playwright = pytest.importorskip("playwright.sync_api")
pytestmark = [
    pytest.mark.backends,
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed: apt-get install chromium"),
]

RULES = {"light": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"], "dark": ["color-contrast"]}
"""What is checked in each colour scheme: everything, or what depends on the colours."""
TRAIN: dict[str, Any] = {
    "env": "palaestra/CoT-v0", "tags": ["small", "try 1"], "model": "nano", "algorithm": "grpo", "iterations": 2, "episodes": 16, "evaluation": 4, "max_tokens": 24,
}  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real run of each scale, and one with text that must not do anything."""
    folder = tmp_path_factory.mktemp("runs")
    palaestra.train(**TRAIN, out=folder / "train", progress=False)
    palaestra.teach(
        teacher="skill_tree",
        student="nano",
        rounds=1,
        lesson_size=4,
        epochs=1,
        test=4,
        validation=4,
        skills=["addition", "clock"],
        out=folder / "teach",
        progress=False,
    )
    script = folder / "script.txt"
    script.write_text("\n%%\n".join(["echo 60 > answer.txt", "validate", "echo 70 > answer.txt", "submit"]))
    palaestra.run_research(
        task=str(number_task(folder)), agent=f"script:{script}", out=folder / "research", progress=False
    )
    write_train_run(folder / "hostile")
    texts = ("<script>alert(1)</script>" * 99,)
    fault = CheckRecord(
        "runtime.api", 1, "a title", CheckStatus.FAIL, "<b>wrong</b>", texts, {"count": 3}, "again", "mend it"
    )
    write_check_report(SubjectReport("CartPole-v1", 3, (fault,)), folder / "check" / "check.json")
    return folder


@pytest.fixture(scope="module")
def address(runs: Path) -> Iterator[str]:
    """The command as a user starts it."""
    command = [sys.executable, "-m", "palaestra", "view", str(runs), "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=dict(os.environ)) as server:
        assert server.stdout is not None
        line = server.stdout.readline()
        match = re.search(r"http://\S+", line)
        assert match, line
        yield match[0]
        server.terminate()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


class Visit:
    """A browser window that remembers what must not happen: errors, dialogs, and requests that leave the machine."""

    def __init__(self, browser: Any, address: str, **options: Any) -> None:
        self.context = browser.new_context(**options)
        self.page = self.context.new_page()
        self.home = address.split("/?")[0]
        self.problems: list[str] = []
        self.page.on("console", lambda message: self._note("console", message.text, message.type == "error"))
        self.page.on("pageerror", lambda error: self._note("error", error, True))
        self.page.on("dialog", lambda dialog: (self._note("dialog", dialog.message, True), dialog.dismiss()))
        self.page.on("request", lambda r: self._note("request", r.url, not r.url.startswith((self.home, "data:"))))
        self.page.goto(address)

    def _note(self, kind: str, text: Any, matters: bool) -> None:
        if matters:
            self.problems.append(f"{kind}: {text}")

    def open(self, path: str) -> Any:
        self.page.goto(f"{self.home}{path}")
        return self.page


@pytest.fixture
def visit(browser: Any, address: str) -> Iterator[Visit]:
    visit = Visit(browser, address)
    yield visit
    visit.context.close()
    assert visit.problems == []


def list_pages(visit: Visit) -> list[str]:
    """The list, every tab of every run, a row of each list, a comparison, and two conversations."""
    paths = ["/", "/run/check/", "/compare?run=train&run=hostile", "/settings?run=train&run=hostile"]
    for run in ("train", "teach", "research"):
        visit.open(f"/run/{run}/")
        paths += visit.page.eval_on_selector_all(".tabs a", "links => links.map(a => a.getAttribute('href'))")
    for path in ("train/episodes", "research/conversation", "teach/examples", "teach/problems"):
        visit.open(f"/run/{path}")
        paths.append(visit.page.locator("[data-row] a").first.get_attribute("href"))
    paths += ["/charts?run=train&run=hostile", "/?edit=train&column=notes&column=seed"]
    return [*paths, "/turns?left=research&right=research:0"]


def test_the_list_is_sorted_searched_and_opened_by_keys(visit: Visit) -> None:
    page = visit.page
    page.get_by_role("link", name="Time").click()
    page.wait_for_url("**sort=seconds**")
    assert page.locator("th[aria-sort=descending]").inner_text() == "Time"
    page.goto(f"{visit.home}/")
    assert "token" not in page.url
    assert page.locator("[data-row]").count() == 5
    page.keyboard.press("/")
    page.keyboard.type("teach")
    page.keyboard.press("Enter")
    page.wait_for_url("**q=teach**")
    assert page.locator("[data-row]").count() == 1
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_url("**/run/teach/")
    assert page.locator("h1").inner_text() == "skill_tree teaches nano"
    page.keyboard.press("u")
    page.wait_for_url(f"{visit.home}/")
    page.get_by_role("link", name="try 1").click()
    page.wait_for_url("**q=try**")
    assert page.locator("[data-row]").count() == 1


@pytest.mark.backends
def test_every_page_of_every_scale_opens_and_is_accessible(browser: Any, address: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    for scheme in ("light", "dark"):
        # The rules are a script of their own, which the pages' policy would refuse.
        visit = Visit(browser, address, color_scheme=scheme, bypass_csp=True)
        for path in list_pages(visit):
            page = visit.open(path)
            assert page.locator("h1").count() == 1, path
            violations = axe.run(page, options={"runOnly": RULES[scheme]}).response["violations"]
            assert [(v["id"], v["nodes"][0]["html"]) for v in violations] == [], f"{path} ({scheme})"
        dark = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 27)"
        assert dark == (scheme == "dark")
        visit.context.close()
        assert visit.problems == []


def test_a_token_shows_its_values_by_click_and_by_keys(visit: Visit) -> None:
    page = visit.open("/run/train/episodes/1/0")
    page.get_by_role("navigation", name="Colour of the tokens").get_by_role("link", name="entropy").click()
    page.wait_for_url("**colour=entropy")
    inspector, tokens = page.locator("#inspector"), page.locator(".episode.chosen .tokens")
    tokens.locator("span[class^=t][title]").first.click()
    first = inspector.inner_text()
    assert all(name in first for name in ("log-prob", "advantage", "entropy", "most likely"))
    address = page.url
    tokens.focus()
    page.keyboard.press("ArrowRight")
    assert inspector.inner_text() != first
    assert page.url != address
    page.keyboard.press("ArrowLeft")
    assert (inspector.inner_text(), page.url) == (first, address)
    page.reload()
    assert inspector.inner_text() == first, "the address of the token shows the same"
    page.keyboard.press("u")
    page.wait_for_url("**/run/train/episodes?iteration=1")


def test_no_page_is_wider_than_a_phone(browser: Any, address: str) -> None:
    visit = Visit(browser, address, viewport={"width": 390, "height": 800})
    for path in list_pages(visit):
        page = visit.open(path)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, path
    visit.context.close()
    assert visit.problems == []


def test_a_run_appears_and_goes_on_without_a_reload(visit: Visit, runs: Path) -> None:
    page = visit.page
    page.evaluate("window.untouched = true")
    training = threading.Thread(target=palaestra.train, kwargs={**TRAIN, "out": runs / "live", "progress": False})
    training.start()
    row = page.locator("[data-row]", has_text="live")
    row.wait_for()
    training.join()
    row.locator(".status.ended").wait_for()
    assert page.evaluate("window.untouched")
    shutil.rmtree(runs / "live")
    row.wait_for(state="detached")


def test_a_deep_link_shows_the_same_episode(visit: Visit, browser: Any, address: str) -> None:
    page = visit.open("/run/train/episodes")
    page.locator("[data-row] a").first.click()
    page.wait_for_selector(".tokens")
    other = Visit(browser, address.replace("/?", f"{page.url.removeprefix(visit.home)}?"))
    assert other.page.url == page.url
    assert other.page.locator(".tokens").first.inner_text() == page.locator(".tokens").first.inner_text()
    other.context.close()


def test_chosen_runs_are_compared_and_a_figure_is_saved(visit: Visit, tmp_path: Path) -> None:
    page = visit.page
    for name in ("train", "hostile"):
        page.get_by_label(f"choose {name}", exact=True).check()
    page.get_by_role("button", name="Compare the chosen runs").click()
    page.wait_for_url("**/compare?**")
    assert page.locator("h1").inner_text() == "2 runs compared"
    page.locator(".save summary").click()
    with page.expect_download() as download:
        page.locator(".save a", has_text="PNG").first.click()
    download.value.save_as(tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")


def test_a_chart_shows_its_values_and_zooms(visit: Visit) -> None:
    page = visit.open("/charts?run=train&run=hostile&metric=training+reward")
    chart = page.locator("svg[data-chart]")
    box = chart.bounding_box()
    right, middle = box["x"] + 0.95 * box["width"], box["y"] + 0.5 * box["height"]
    page.mouse.move(right, middle)
    tip = page.locator(".tip")
    assert tip.inner_text().splitlines()[0] == "iteration 3"
    assert "hostile: 0.3" in tip.inner_text()
    assert page.locator("svg .crosshair").count() == 1
    page.mouse.move(box["x"] + 0.45 * box["width"], middle)
    page.mouse.down()
    page.mouse.move(right, middle, steps=3)
    page.mouse.up()
    page.wait_for_url("**from=**to=**")
    assert "metric=training+reward" in page.url
    assert page.get_by_role("textbox", name="From").or_(page.get_by_label("From")).first.input_value()
    page.locator("svg[data-chart]").dblclick(position={"x": 100, "y": 100})
    page.wait_for_url(lambda address: "from=" not in address)
    page.mouse.move(1, 1)
    assert tip.is_hidden()


def test_a_run_is_renamed_and_noted_by_forms(visit: Visit) -> None:
    page = visit.page
    row = page.locator("[data-row]", has_text="research").first
    row.hover()
    row.get_by_label("rename research").click()
    page.wait_for_url("**edit=research**")
    page.get_by_label("name of research").fill("the best")
    page.keyboard.press("Enter")
    page.wait_for_url(f"{visit.home}/?*")
    page.get_by_role("link", name="the best").click()
    page.wait_for_url("**/run/research/")
    page.get_by_text("Name and notes").click()
    page.get_by_label("Notes").fill("seen twice")
    page.get_by_role("button", name="Save", exact=True).click()
    page.wait_for_load_state()
    assert "seen twice" in page.locator("header").inner_text()
    page.get_by_text("Name and notes").click()
    page.get_by_label("Name", exact=True).fill("")
    page.get_by_role("button", name="Save", exact=True).click()


def test_text_of_models_only_shows(visit: Visit) -> None:
    page = visit.open("/run/hostile/episodes")
    page.locator("[data-row] a").first.click()
    page.wait_for_selector(".tokens")
    assert "<script>alert(1)</script>" in page.locator(".tokens").first.inner_text()
    assert page.locator("main script").count() == 0
