import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest

from palaestra.core.errors import MissingExtraError, PalaestraError, SettingsError, TaskError
from palaestra.core.records import Message
from palaestra.core.seeding import Seeds
from palaestra.recipes.own_data import store_data
from palaestra.rewards.data import ResponseComparison, parse_comparison, read_comparisons, split_comparisons
from palaestra.tasks import sources

PAIR = {"prompt": "2+2=", "chosen": "4", "rejected": "5"}
FOUR = {"query": "2+2=", "sample0": "5", "sample1": "4", "sample2": "3", "sample3": "22", "best": 1}
EXPECTED = [ResponseComparison("2+2=", ("4", "5"), 0), ResponseComparison("2+2=", ("5", "4", "3", "22"), 1)]


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


@pytest.mark.parametrize("name", ["d.jsonl", "d.jsonl.gz", "d.json"])
def test_pairs_and_best_of_k_are_read_from_files(tmp_path: Path, name: str) -> None:
    lines = "\n".join(json.dumps(row) for row in (PAIR, FOUR)) + "\n\n"
    path = tmp_path / name
    if name.endswith(".gz"):
        path.write_bytes(gzip.compress(lines.encode()))
    else:
        path.write_text(json.dumps([PAIR, FOUR]) if name.endswith(".json") else lines)
    assert read_comparisons(path) == EXPECTED
    if not name.endswith(".json"):
        assert read_comparisons(str(tmp_path)) == EXPECTED


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("split", [False, True])
def test_a_folder_of_datasets_is_read(tmp_path: Path, split: bool) -> None:
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset.from_list([PAIR])
    (datasets.DatasetDict(test=datasets.Dataset.from_list([PAIR] * 3), train=data) if split else data).save_to_disk(
        str(tmp_path / "d")
    )
    assert read_comparisons(tmp_path / "d") == EXPECTED[:1]


CHAT = ([user("2+2=")], [assistant("4")], [assistant("5")])
TRL_FORMATS = {
    "standard": PAIR,
    "standard, implicit prompt": {"chosen": "2+2=4", "rejected": "2+2=5"},
    "conversational": dict(zip(("prompt", "chosen", "rejected"), CHAT, strict=True)),
    "conversational, implicit prompt": {"chosen": CHAT[0] + CHAT[1], "rejected": CHAT[0] + CHAT[2]},
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", TRL_FORMATS)
def test_preference_formats_of_trl_are_read(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setenv("PALAESTRA_CACHE", str(tmp_path / "cache"))
    rows = [TRL_FORMATS[name]] * 2
    data = datasets.Dataset.from_list(rows)
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data.to_parquet(str(tmp_path / "pairs.parquet"))
    sources = [tmp_path / "pairs.jsonl", tmp_path / "pairs.parquet", store_data(rows), store_data(data)]
    prompt: Any = "2+2=" if name.startswith("standard") else (Message("user", "2+2="),)
    expected = ResponseComparison(prompt, ("4", "5"), 0)
    if name == "standard, implicit prompt":
        expected = ResponseComparison("", ("2+2=4", "2+2=5"), 0)
    for source in sources:
        assert read_comparisons(source) == [expected] * 2


@pytest.mark.parametrize(
    "row",
    [
        {"chosen": [user("q"), assistant("good")], "rejected": [user("q"), assistant("bad")]},
        {"prompt": [user("q")], "chosen": [assistant("good")], "rejected": [assistant("bad")]},
        {
            "prompt": [user("q")],
            "chosen": [user("q"), assistant("good")],
            "rejected": [user("q"), assistant("bad")],
        },
        {"prompt": "q", "chosen": [user("q"), assistant("good")], "rejected": [user("q"), assistant("bad")]},
    ],
)
def test_lists_of_messages_are_a_conversation_and_its_answers(row: dict[str, Any]) -> None:
    assert parse_comparison(row) == ResponseComparison((Message("user", "q"),), ("good", "bad"), 0)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ([1], "object; got [1]"),
        ({"text": "a"}, "'chosen' and 'rejected', or 'query'"),
        ({"chosen": "a"}, "'rejected' is missing"),
        ({"chosen": "a", "rejected": [assistant("b")]}, "got one of each"),
        ({"chosen": 3, "rejected": 4}, "'chosen' to be a text"),
        ({"chosen": [user("a")], "rejected": [user("b")]}, "'chosen' to end with"),
        ({"chosen": [user("a"), assistant("x")], "rejected": [user("b"), assistant("y")]}, "differ"),
        (
            {"chosen": [{"role": "poet", "content": "a"}], "rejected": []},
            "assistant or tool; got 'poet'",
        ),
        ({"query": "q", "sample0": "a", "best": 0}, "2 responses to compare; got 1"),
        ({"query": "q", "sample0": "a", "sample1": "b", "best": 2}, "'best' from 0 to 1; got 2"),
        ({"query": "q", "sample0": "a", "sample1": "b", "best": "1"}, "'best' to be the index"),
        ({"query": "q", "sample0": "a", "sample1": 7, "best": 0}, "'sample1' to be a text; got 7"),
    ],
)
def test_a_bad_row_is_one_line_that_names_file_and_row(tmp_path: Path, row: Any, message: str) -> None:
    path = tmp_path / "d.jsonl"
    path.write_text(json.dumps(PAIR) + "\n" + json.dumps(row) + "\n")
    with pytest.raises(TaskError) as caught:
        read_comparisons(path)
    assert str(caught.value).startswith(f"{path}, row 2: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("d.jsonl", "{", "row 1: "),
        ("d.json", "{}", "expected a JSON list"),
        ("d.json", "{", "expected a JSON list"),
        ("d.jsonl", "\n", "no comparisons"),
        ("d.txt", "a,b", "ends with .jsonl"),
        ("d.parquet", "no table", "cannot read"),
        ("d.jsonl.gz", "not gzip", "cannot be read"),
    ],
)
def test_a_bad_file_is_one_line(tmp_path: Path, name: str, content: str, message: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(PalaestraError) as caught:
        read_comparisons(tmp_path / name)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_or_an_empty_folder_is_named(tmp_path: Path) -> None:
    for path, message in (
        (tmp_path / "no.jsonl", r"no\.jsonl"),
        (tmp_path, "no comparisons"),
    ):
        with pytest.raises(SettingsError, match=message):
            read_comparisons(path)
    for name in ("data/none.jsonl", "data/none.jsonl.gz", "data/none.parquet"):
        with pytest.raises(SettingsError, match=re.escape(name)):
            read_comparisons(name)


def test_without_datasets_the_install_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"palaestra\[data\]"):
        read_comparisons("owner/name")


def prompts(part: list[ResponseComparison]) -> set[object]:
    return {c.prompt or frozenset(c.responses) for c in part}


def test_no_prompt_is_on_both_sides() -> None:
    data = [ResponseComparison(f"p{i % 50}", (f"a{i}", f"b{i}"), i % 2) for i in range(200)]
    data += [ResponseComparison("", (f"x{i % 30}", f"y{i % 30}")[:: 1 if i < 30 else -1], 0) for i in range(60)]
    train, held = split_comparisons(data, 0.2, Seeds(0))
    assert prompts(train).isdisjoint(prompts(held))
    assert sorted(map(repr, train + held)) == sorted(map(repr, data))
    assert len(held) == 52


def test_the_split_depends_on_the_seed_only() -> None:
    data = [ResponseComparison(f"p{i}", ("a", "b"), 0) for i in range(100)]
    first = split_comparisons(data, 0.2, Seeds(0))[1]
    assert prompts(first) == prompts(split_comparisons(data[::-1], 0.2, Seeds(0))[1])
    assert prompts(first) != prompts(split_comparisons(data, 0.2, Seeds(1))[1])


@pytest.mark.parametrize("share", [0.001, 0.5, 0.999])
def test_neither_part_is_ever_empty(share: float) -> None:
    data = [ResponseComparison(f"p{i % 3}", (f"{i}", "b"), 0) for i in range(12)]
    train, held = split_comparisons(data, share, Seeds(0))
    assert train
    assert held


def test_one_prompt_cannot_be_split() -> None:
    with pytest.raises(TaskError):
        split_comparisons([ResponseComparison("p", ("a", "b"), 0)] * 4, 0.2, Seeds(0))


def test_a_best_response_that_another_equals_cannot_be_decided() -> None:
    assert ResponseComparison("p", ("a", "b", "b"), 0).decidable
    assert not ResponseComparison("p", ("a", "b", "b"), 1).decidable
