"""The site builds without a warning; in a browser its pages are accessible, and search works from a folder without a network."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
WINDOWS = {
    ("light", 1400): ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"],
    ("dark", 1400): ["color-contrast"],
    ("light", 390): [],
}
"""The rules of axe that are checked in a window: all, what depends on the colors, or only whether the page fits."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` builds it."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-3000:]
    return folder


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed: apt-get install chromium")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


def test_the_site_is_built_without_a_warning(site: Path) -> None:
    assert (site / "index.html").exists()
    assert (site / "reference" / "envs.html").exists()


@pytest.mark.backends
def test_pages_are_accessible_and_load_nothing(site: Path, browser: Any) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    requests: list[str] = []
    faults = []
    for (scheme, width), rules in WINDOWS.items():
        context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 900})
        context.on("request", lambda request: requests.append(request.url))
        page = context.new_page()
        for path in sorted(set(site.rglob("*.html")) - {site / "404.html"}):  # for servers: its links are absolute
            page.goto(path.as_uri())
            if page.evaluate("document.documentElement.scrollWidth > window.innerWidth"):
                faults.append(f"{path.relative_to(site)} {width}: is wider than the window")
            options = {"runOnly": rules, "resultTypes": ["violations"]}
            for violation in axe.run(page, options=options).response["violations"] if rules else ():
                nodes = "; ".join(node["html"][:120] for node in violation["nodes"][:2])
                faults.append(f"{path.relative_to(site)} {scheme} {width}: {violation['id']}: {nodes}")
        context.close()
    assert not faults, "\n".join(faults[:40])
    assert not [url for url in requests if not url.startswith(("file:", "data:", "blob:", "about:"))]


@pytest.mark.backends
def test_search_works_from_a_folder(site: Path, browser: Any) -> None:
    page = browser.new_context().new_page()
    page.goto((site / "index.html").as_uri())
    search = page.get_by_role("textbox", name="Search")
    search.click()
    search.press_sequentially("entropy collapse", delay=30)
    page.wait_for_selector(".md-search-result__item a[href*='diagnose.html']", timeout=20_000)
