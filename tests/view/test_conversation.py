"""The pages of the turn scale: a bench of real runs, and a conversation with every kind of text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path

import pytest
from number_task import number_task
from starlette.testclient import TestClient
from stored_runs import HOSTILE

from palaestra.core.records import Message, ToolCall, Usage
from palaestra.recipes.research.bench import bench
from palaestra.recipes.research.settings import RECIPE, ResearchSettings
from palaestra.recipes.settings import to_plain
from palaestra.research.workspace.workspace import FileChange, Step
from palaestra.runs.provenance import LedgerEntry
from palaestra.runs.run import Run
from palaestra.view import make_app

START = {"metric": "value", "baseline_validation": 5.0, "direction": "higher"}


def write_conversation(folder: Path, episodes: int = 2) -> None:
    """A run with 45 steps: reasoning, a script, tool calls, a diff, broken text, 10 MB of output."""
    with Run.create(folder, RECIPE, to_plain(ResearchSettings())) as run:
        for episode in range(episodes):
            run.store.save_step(
                episode,
                0,
                Step(
                    episode,
                    0,
                    observation=(Message("system", "You are an agent."), Message("user", "The task.")),
                    info=START,
                ),
            )
            for position in range(1, 46):
                answer, observation = (
                    Message("assistant", f"```\necho {position}\n```"),
                    Message("user", f"printed {position}"),
                )
                step = Step(episode, position, answer, f"echo {position}", (observation,), seconds=1.0)
                run.store.save_step(episode, position, step, [LedgerEntry("agent")])
        thought = Message("assistant", f"<think>why {HOSTILE}</think>Now I look.\n```\nls\n```\nthen wait")
        run.store.save_step(
            0,
            1,
            Step(
                0,
                1,
                thought,
                "ls",
                (Message("user", f"out {HOSTILE} \x07\ud800\u202e"),),
                calls=2,
                usage=Usage(1200, 34),
                money=0.5,
            ),
        )
        call = Message("assistant", "I call.", (ToolCall("bash", '{"command": "print(\\"a_b\\")\\nls"}', "c1"), ToolCall("odd", "not json <b>", "c2")))  # fmt: skip
        diff = FileChange("src/<b>.py", "changed", "@@ -1,2 +1,2 @@\n same\n-old <i>\n+new \x1b[1m", 7)
        run.store.save_step(
            0,
            2,
            Step(
                0, 2, call, 'bash {"command"...', (Message("tool", "done"),), files=(diff,), info={"validated": [7.5]}
            ),
        )
        large = Message("user", "z" * 10_000_000 + " needle at the end")
        run.store.save_step(0, 3, Step(0, 3, Message("assistant", "cat large"), "cat large", (large,)))
        run.store.save_step(0, 45, Step(0, 45, None, "", (), info={"score": 9.0}, stop_reason="time", note="late"))


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    folder = tmp_path_factory.mktemp("runs")
    write_conversation(folder / "talk")
    task = str(number_task(tmp_path_factory.mktemp("task")))
    bench(tasks=[task], agents=["baseline", "reference"], seeds=1, out=folder / "bench", progress=False)
    with TestClient(make_app([folder]), base_url="http://127.0.0.1") as client:
        yield client


def read_page(client: TestClient, path: str) -> str:
    page = client.get(path)
    assert page.status_code == 200, page.text
    assert "<script>alert" not in page.text
    assert "\x1b" not in page.text
    assert len(page.text) < 500_000, "long texts are cut"
    return page.text


def to_text(page: str) -> str:
    return unescape(re.sub("<[^>]*>", "", page.split("<main", 1)[1]))


def list_steps(page: str) -> list[int]:
    return [int(number) for number in re.findall(r'id="step-(\d+)"', page)]


def test_a_conversation_is_paged_and_every_step_has_an_address(client: TestClient) -> None:
    page = read_page(client, "/run/talk/conversation")
    assert list_steps(page) == list(range(1, 21))
    assert "First messages" in page
    assert "45 steps" in to_text(page)
    assert 'rel="next" href="?page=2"' in page
    last = read_page(client, "/run/talk/conversation/0?page=3")
    assert list_steps(last) == [*range(41, 46)]
    assert "First messages" not in last
    assert "late" in to_text(last)
    step = read_page(client, "/run/talk/conversation/0/21")
    assert 'href="/run/talk/conversation/0?page=2#step-21"' in step
    assert re.search(r'rel="prev" href="[^"]*/20".*rel="next" href="[^"]*/22"', step)
    for missing in (
        "conversation/5",
        "conversation/0/99",
        "conversation/0/3/output-4.txt",
        "conversation/0/3/other.txt",
    ):
        assert client.get(f"/run/talk/{missing}").status_code == 404, missing


def test_a_step_shows_reasoning_commands_outputs_and_its_cost(client: TestClient) -> None:
    page = read_page(client, "/run/talk/conversation/0/1")
    text = to_text(page).replace("\N{NARROW NO-BREAK SPACE}", " ")
    assert re.search(r"Reasoning of step 1\s*why <script>alert\(1\)</script> red 100% a_b", text)
    assert '<details class="reasoning">' in page, "folded"
    assert '<pre class="talk assistant" tabindex="0">ls</pre>' in page
    assert "Now I look." in text
    assert "then wait" in text
    assert "\N{SYMBOL FOR BELL}\N{REPLACEMENT CHARACTER}[U+202E]" in text
    assert "1 200 tokens in, 34 out, $0.50, 2 calls" in text
    call = to_text(read_page(client, "/run/talk/conversation/0/2"))
    assert 'print("a_b")\nls' in call, "arguments are shown as the text that they are"
    assert "not json <b>" in call
    assert "validation 7.5" in call


def test_changed_files_are_shown_as_diffs_with_signs(client: TestClient) -> None:
    page = read_page(client, "/run/talk/conversation/0/2")
    lines = re.findall(r'<span class="(added|removed|place|same)">([^<]*)\n</span>', page)
    assert [(kind, unescape(line)) for kind, line in lines] == [
        ("place", "@@ -1,2 +1,2 @@"),
        ("same", " same"),
        ("removed", "-old <i>"),
        ("added", "+new "),
    ]
    assert "src/<b>.py" in to_text(page)
    assert "7 characters were not stored" in to_text(page)


def test_long_texts_are_cut_and_the_whole_text_is_plain(client: TestClient) -> None:
    page = read_page(client, "/run/talk/conversation/0/3")
    link = re.search(r'href="([^"]*output-0.txt)"', page)
    assert link
    whole = client.get(link[1])
    assert whole.headers["content-type"] == "text/plain; charset=utf-8"
    assert whole.headers["x-content-type-options"] == "nosniff"
    assert whole.text.endswith(" needle at the end")
    assert HOSTILE in client.get("/run/talk/conversation/0/1/message.txt").text
    assert client.get("/run/talk/conversation/0/2/file-0.txt").text.startswith("changed src/<b>.py\n@@")


def test_conversations_are_searched(client: TestClient) -> None:
    for text, steps in {
        "NEEDLE at": [3],
        "printed 4": [4, *range(40, 45)],
        'print("a_b")': [2],
        "+new": [2],
        "alert(1)": [1],
        "position": [],
        "100% axb": [],
        "echo 44": [44],
    }.items():
        page = client.get("/run/talk/conversation", params={"q": text}).text
        assert list_steps(page) == steps, text
    assert "<mark>printed 4</mark>" in read_page(client, "/run/talk/conversation?q=printed 4")
    assert '<details class="reasoning" open>' in read_page(client, "/run/talk/conversation?q=why")
    rows = client.get("/run/talk/conversation?q=alert&format=json").json()
    assert [(row["step"], row["prompt_tokens"], row["money"]) for row in rows] == [(1, 1200, 0.5)]


def test_two_conversations_are_aligned_by_step(client: TestClient) -> None:
    page = read_page(client, "/turns?left=bench/number/reference-seed0&right=talk:1")
    assert list_steps(page) == list(range(1, 21))
    first = page.split('id="step-1"')[1].split('id="step-2"')[0]
    assert first.count("<section") == 2
    assert "No step 4." in page
    assert "selected>talk:1</option>" in page
    assert read_page(client, "/turns?run=talk&run=talk") == read_page(client, "/turns?left=talk:0&right=talk")
    for path in (
        "/turns",
        "/turns?left=talk&right=bench",
        "/turns?left=talk&right=talk:9",
        "/turns?left=talk&right=none",
    ):
        assert client.get(path).status_code == 404, path


def test_a_bench_shows_its_profiles_and_links_to_its_runs(client: TestClient) -> None:
    page = read_page(client, "/run/bench/")
    assert "Performance profiles" in page
    assert page.count("<polyline") >= 6
    links = re.findall(r'href="([^"]*report.html)"', page)
    assert len(links) == 2
    for link in links:
        answer = client.get(f"/run/bench/{link}")
        assert answer.status_code == 200
        assert answer.url.path == f"/run/bench/{link.removesuffix('report.html')}"
        assert f"{answer.url.path}conversation" in answer.text
    changed = to_text(read_page(client, "/run/bench/number/reference-seed0/conversation"))
    assert re.search(r"answer.txt\s*changed\s*@@ -1 \+1 @@\s*-5\s*\+50", changed)
