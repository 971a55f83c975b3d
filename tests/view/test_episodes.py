"""Episodes of a train run in the viewer: the list, and each token with its values."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Iterator
from dataclasses import replace
from html import unescape
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from stored_runs import HOSTILE, TOKENIZER, make_trajectory, write_train_run

from palaestra.core.records import Segment, Trajectory
from palaestra.recipes.train.recipe import train
from palaestra.runs.files import from_json
from palaestra.runs.provenance import LedgerEntry
from palaestra.runs.run import Run
from palaestra.view import episodes as module
from palaestra.view import make_app
from palaestra.view.colors import DIVERGING, NAMES, SHADES, make_coloring
from palaestra.view.tokens import read_segments

ITERATION = 2
SETTINGS: dict[str, Any] = {
    "env": "palaestra/CoT-v0", "env_kwargs": {"skills": ['clock']}, "iterations": ITERATION, "episodes": 8, "num_envs": 8, "group_size": 4,
    "keep_trajectories": 8, "kl_coef": 0.1, "learning_rate": 1e-3, "evaluation": 0, "threads": 1, "max_tokens": 16, "progress": False,
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was trained, one of several turns, and one that was written without values."""
    folder = tmp_path_factory.mktemp("runs")
    train(out=folder / "trained", **SETTINGS)
    write_train_run(folder / "old")
    with Run.open(folder / "old") as run:
        given, own = make_trajectory("one", 0.0, 0).segments
        details = {"advantages": (0.5,) * len(own.token_ids), "entropies": (1.5,) * len(own.token_ids)}
        segments = (given, replace(own, **details), given, own)  # type: ignore[arg-type]
        several = Trajectory("env", 0, (0.25, 1.0), segments, True, infos=({"prompt": "talk"},))
        run.store.add_iteration(9, {"reward": 1.0}, [several], LedgerEntry("9/train"))
    return folder


@pytest.fixture
def client(folder: Path) -> Iterator[TestClient]:
    with TestClient(make_app([folder]), base_url="http://127.0.0.1") as client:
        yield client


def read_stored(folder: Path, name: str, iteration: int) -> list[Trajectory]:
    with Run.open(folder / name, read_only=True) as run:
        return run.store.trajectories(iteration)


def test_episodes_are_searched_and_paged(client: TestClient) -> None:
    page = client.get("/run/old/episodes").text
    assert "13 stored" in page
    assert page.count("data-row") == 13
    assert client.get("/run/old/episodes?iteration=2").text.count("data-row") == 4
    assert client.get("/run/old/episodes?q=step 3").text.count("data-row") == 4
    for text, count in (("100% a_b", 12), ("100% axb", 0), ("%", 12), ("token_ids", 0), ("STEP 1:", 4)):
        assert client.get("/run/old/episodes", params={"q": text}).text.count("data-row") == count, text


def test_the_list_is_exported_with_its_filters(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAGE", 3)
    page = client.get("/run/old/episodes?q=step").text
    assert "page 1 of 4" in page
    assert 'href="?q=step&amp;page=2"' in page
    rows = client.get("/run/old/episodes?q=step&format=json").json()
    assert len(rows) == 12, "all pages"
    assert rows[5] == {
        "iteration": 2,
        "position": 1,
        "group": 0,
        "reward": 0.25,
        "tokens": len(TOKENIZER.encode(rows[5]["response"]).ids),
        "logprob": rows[5]["logprob"],
        "stop": "end",
        "failure": "",
        "prompt": "What is 1 + 1?",
        "response": f"step 2: {HOSTILE}",
    }
    assert len(list(csv.reader(io.StringIO(client.get("/run/old/episodes?iteration=1&format=csv").text)))) == 5


def test_an_episode_shows_each_token_beside_its_group(client: TestClient) -> None:
    page = client.get("/run/old/episodes/2/1").text
    assert re.findall(r'<section class="episode[^"]*" aria-label="episode (\S+)"', page) == ["2/1", "2/0"]
    shown = unescape("".join(re.findall(r'<span class="t\d" title="[^"]*">([^<]*)</span>', page)))
    assert shown == f"step 2: {HOSTILE}".replace("\x1b", "\u241b") * 2, "control characters are visible"
    assert "log-prob -0.500 (60.7 %)" in page
    assert "advantage (not stored)" in page
    assert 'aria-current="true">log-prob' in client.get("/run/old/episodes/2/1?colour=advantage").text
    assert client.get("/run/old/episodes/9/9").status_code == 404
    assert client.get("/run/old/episodes/9/9?format=csv").status_code == 404
    assert client.get("/run/old/episodes/9/9?format=json").status_code == 404


def test_the_stored_divergence_is_that_of_the_metric(folder: Path) -> None:
    stored = read_stored(folder, "trained", ITERATION)
    assert len(stored) == SETTINGS["episodes"]
    sums = [
        math.fsum(p - q for s in t.segments[1:] for p, q in zip(s.logprobs, s.reference_logprobs, strict=True))
        for t in stored
    ]
    with Run.open(folder / "trained", read_only=True) as run:
        metrics = run.store.metrics()[ITERATION]
    assert metrics["reference_kl"] != 0
    assert math.fsum(sums) / len(sums) == pytest.approx(metrics["reference_kl"], abs=1e-3)
    entropies = [value for t in stored for value in t.segments[1].entropies]
    assert math.fsum(entropies) / len(entropies) == pytest.approx(metrics["entropy"], rel=1e-3)


@pytest.mark.parametrize("colour", NAMES)
def test_a_trained_episode_is_colored_by_each_value(client: TestClient, folder: Path, colour: str) -> None:
    stored = read_stored(folder, "trained", ITERATION)
    place = len(stored[1].segments[0].token_ids) + 2
    page = client.get(f"/run/trained/episodes/{ITERATION}/1?colour={colour}&at={place}").text
    assert f'aria-current="true">{NAMES[colour]}' in page
    shown = re.findall(r'<span class="(\w\d|g)( current)?" title="([^"]*)">', page)
    assert len(shown) == sum(len(s.token_ids) for t in stored[:4] for s in t.segments), "the whole group"
    own = [(class_, unescape(title)) for class_, _, title in shown if class_ != "g"]
    values = [
        (class_, re.search(rf"^{colour.replace('logprob', 'log-prob')} (\S+)", title, re.M)) for class_, title in own
    ]
    numbers = [float(match[1]) for _, match in values if match]
    assert len(numbers) == len(own)
    coloring = make_coloring(colour, numbers)
    edge = 2e-3  # Titles have three decimals.
    for number, (class_, _) in zip(numbers, values, strict=True):
        assert class_ in {coloring.choose_class(number - edge), coloring.choose_class(number + edge)}
    for class_, words in coloring.legend:
        assert f'<i class="block {class_}"></i> {words}' in unescape(page) or colour == "advantage"
    [current] = [unescape(title) for _, is_current, title in shown if is_current]
    assert current.startswith(f"token {place}, id ")
    assert "most likely: '" in current
    inspector = re.search(r'<section class="inspector".*?</section>', page, re.S)
    assert inspector
    assert unescape(current) in unescape(inspector[0]), "the values of the token stand below, without a script"
    size = sum(len(segment.token_ids) for segment in stored[1].segments)
    assert page.count('#inspector">') == size, "each token has an address"


def test_an_episode_is_exported_as_json_and_csv(client: TestClient, folder: Path) -> None:
    stored = read_stored(folder, "trained", ITERATION)[3]
    address = f"/run/trained/episodes/{ITERATION}/3"
    assert from_json(Trajectory, client.get(f"{address}?format=json").text) == stored
    rows = list(csv.DictReader(io.StringIO(client.get(f"{address}?format=csv").text)))
    given, own = stored.segments
    assert [int(row["id"]) for row in rows] == [*given.token_ids, *own.token_ids]
    sampled = rows[len(given.token_ids) :]
    assert [float(row["advantage"]) for row in sampled] == list(own.advantages)
    assert [float(row["entropy"]) for row in sampled] == list(own.entropies)
    assert [float(row["reference_logprob"]) for row in sampled] == list(own.reference_logprobs)
    assert [[(a[0], a[2]) for a in json.loads(row["alternatives"])] for row in sampled] == [
        list(a) for a in own.alternatives
    ]
    assert {row["logprob"] for row in rows[: len(given.token_ids)]} == {""}, "given tokens have no values"


def test_the_turns_of_an_episode_have_titles_and_rewards(client: TestClient) -> None:
    page = client.get("/run/old/episodes/9/0?colour=entropy").text
    roles = re.findall(r'<span class="role">([^<]*)</span>', page)
    assert roles == ["Prompt", "Model, turn 1 of 2, reward 0.250", "Environment", "Model, turn 2 of 2, reward 1.00"]
    own = re.findall(r'<span class="(t\d)"', page)
    assert set(own[: len(own) // 2]) == {"t3"}, "an entropy of 1.5"
    assert set(own[len(own) // 2 :]) == {"t0"}, "the second turn has no values"


def test_the_overview_links_to_sample_episodes(client: TestClient) -> None:
    page = client.get("/run/trained/").text
    links = re.findall(r'href="(/run/trained/episodes[/?][^"]*)"', page)
    assert {f"/run/trained/episodes/{ITERATION}/0", f"/run/trained/episodes?iteration={ITERATION}"} <= set(links)
    assert all(client.get(link).status_code == 200 for link in links)
    for title in (
        "KL to the reference",
        "Entropy",
        "Clip fraction",
        "Response length",
        "tokens per second",
        "reward of an episode",
    ):
        assert title in page, "the curves of a run with a reference"


def test_a_long_episode_is_shown_in_parts(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_TOKENS", 10)
    monkeypatch.setattr(module, "MAX_TOKENS_BESIDE", 6)
    size = len(TOKENIZER.encode("What is 1 + 1?").ids) + len(TOKENIZER.encode(f"step 2: {HOSTILE}").ids)
    page = client.get("/run/old/episodes/2/1").text
    assert len(re.findall('<span class="(?:g|t[0-9])" title', page)) == 16
    assert f"Tokens 0 to 9 of {size}" in page
    assert f"{size - 6} more tokens" in page
    assert 'rel="next" href="?start=10"' in page
    texts = ""
    for start in range(0, size, 10):
        part = client.get(f"/run/old/episodes/2/1?start={start}").text.split("</section>")[0]
        texts += unescape("".join(re.findall(r'<span class="(?:t\d|g)" title="[^"]*">([^<]*)</span>', part)))
    assert texts == f"What is 1 + 1?step 2: {HOSTILE}".replace("\x1b", "\u241b")
    assert "token 25, id" in client.get("/run/old/episodes/2/1?at=25").text, "the part with the token is shown"


@pytest.mark.parametrize("text", ["naïve café", "😀 two 😀😀", "日本語", "a\tb\n\nc", ""])
def test_the_texts_of_tokens_join_to_the_text(text: str) -> None:
    segments = read_segments(make_trajectory(text, 0.0, 0), TOKENIZER)
    own = "".join(token.text for segment in segments if segment.own for token in segment.tokens)
    assert own == TOKENIZER.decode(TOKENIZER.encode(text).ids, skip_special_tokens=False)


def test_without_a_tokenizer_tokens_are_ids() -> None:
    segment = Segment((7, 8), (True, True), (-0.1, -0.2), alternatives=(((7, -0.1),), ((9, -0.2),)))
    [shown] = read_segments(Trajectory("env", 0, (), (segment,)), None)
    assert [token.text for token in shown.tokens] == ["7 ", "8 "]
    assert shown.tokens[1].describe_alternatives() == "'9' 81.9 %"


def read_colours(scheme: str) -> dict[str, str]:
    """The variables of the style sheets; `dark` replaces those of `light`."""
    texts = [
        (files(package) / path).read_text(encoding="utf-8")
        for package, path in (("palaestra.report", "templates/style.css"), ("palaestra.view", "static/view.css"))
    ]
    values: dict[str, str] = {}
    for text in texts:
        light, *dark = re.split(r"@media \(prefers-color-scheme: dark\) \{(.*?\})\s*\}", text, flags=re.S)
        values |= dict(re.findall(r"--([\w-]+): (#\w{6})", light))
        if scheme == "dark":
            values |= dict(re.findall(r"--([\w-]+): (#\w{6})", dark[0]))
    return values


def compute_contrast(a: str, b: str) -> float:
    def luminance(colour: str) -> float:
        parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_on_every_shade_has_the_contrast_of_wcag_aa(scheme: str) -> None:
    colours = read_colours(scheme)
    assert (colours["page"] == "#ffffff") == (scheme == "light")
    shades = [colours[name] for name in {*SHADES, *DIVERGING} - {"t0"}]
    assert len(set(shades)) > 8
    for background in (*shades, colours["raised"], colours["page"]):
        assert compute_contrast(colours["text"], background) >= 4.5
    assert compute_contrast(colours["muted"], colours["raised"]) >= 4.5, "given tokens"
    assert compute_contrast("#000000", "#ffffff") == pytest.approx(21)
