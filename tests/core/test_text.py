"""External text is cleaned and otherwise stored unchanged; secrets are masked."""

from __future__ import annotations

import base64
import html
import json
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palaestra.core.errors import EngineError
from palaestra.core.records import (
    Completion,
    Decision,
    Example,
    Failure,
    FailureCause,
    ImagePart,
    Message,
    Problem,
    Score,
    TextPart,
    ToolCall,
    Trajectory,
)
from palaestra.core.text import (
    MASK,
    URL_USER,
    clean,
    clean_text,
    is_masked,
    mask,
    mask_data,
    mask_rows,
    mask_settings,
    restore_url,
)
from palaestra.research.workspace.workspace import Step
from palaestra.runs.files import MaskingConnection, from_json, to_json, write_json

ANY = st.text(st.characters(), max_size=40) | st.sampled_from(
    ["\ud800", "a\udfffb", "\ude00\ud83d", "\0", "\ufeff\ud800", "\x1b[2J", "\u2028"]
)
"""Text of any characters, lone surrogates among them."""
PLAIN = st.recursive(
    ANY | st.integers() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ANY, inner, max_size=3),
    max_leaves=6,
)


@given(ANY)
def test_cleaning_changes_only_lone_surrogates(text: str) -> None:
    cleaned = clean_text(text)
    assert cleaned.encode().decode() == cleaned
    assert clean_text(cleaned) is cleaned
    surrogates = any("\ud800" <= letter <= "\udfff" for letter in text)
    assert surrogates or cleaned is text
    joined = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    expected = "".join("\ufffd" if "\ud800" <= letter <= "\udfff" else letter for letter in joined)
    assert cleaned == expected


def test_containers_that_need_no_change_are_not_copied() -> None:
    value = {"a": ["b", ("c", 1)], "é": {"x": None}}
    assert clean(value) is value
    frozen = MappingProxyType({"a": ["\ud800", 1]})
    assert clean(frozen) == {"a": ["\ufffd", 1]}
    assert frozen["a"] == ["\ud800", 1]
    kept = ["\ud800", value]
    assert clean(kept)[1] is value


@given(ANY, ANY, st.dictionaries(ANY, PLAIN, max_size=3))
def test_a_record_comes_back_from_json_as_it_went_in(first: str, second: str, values: Mapping[str, Any]) -> None:
    message = Message("assistant", (TextPart(first), ImagePart(second)), (ToolCall(first, second, first),), second)
    for record in (
        message,
        Problem(first, (message,), second, first, second, values),
        Completion(first, tool_calls=(ToolCall(second, first),)),
        Failure(FailureCause.SCORER, first),
        Score(0.5, {first: second}),
        Example((message,), first, second, first, second, values),
        Decision(first, second, first, {second: 1}),
        Trajectory(first, 3, infos=(values,)),
        Step(0, 1, message, first, (message,), state=values, agent=values, info=values, stop_reason=first, note=second),
    ):
        assert from_json(type(record), to_json(record)) == record


@pytest.mark.parametrize("text", ["\ud800" * 100, "\0" * 100, "x" * 1_000_000, "é\ud800" * 500_000])
def test_long_and_strange_texts_are_stored_as_they_are_held(text: str) -> None:
    record = Completion(text)
    assert from_json(Completion, to_json(record)) == record


KEYS = ["correct-horse-battery-staple", "sk-proj-Ab3Cd4Ef5Gh6Ij7Kl8Mn9", 'p"a/ss w&rd\\12é', "0123456789"]
ENCODINGS = {
    "plain": str,
    "json": json.dumps,
    "json in json": lambda key: json.dumps(json.dumps(key)),
    "json of php": lambda key: json.dumps(key).replace("/", "\\/"),
    "url": lambda key: quote(key, safe=""),
    "url with slashes": quote,
    "lower url": lambda key: quote(key, safe="").replace("%2F", "%2f").replace("%C3%A9", "%c3%a9"),
    "form": quote_plus,
    "html": html.escape,
    "repr": repr,
    "base64": lambda key: base64.b64encode(key.encode()).decode(),
    "basic": lambda key: "Basic " + base64.b64encode(f"user:{key}".encode()).decode(),
    "bare basic": lambda key: base64.b64encode(f"me:{key}".encode()).decode(),
    "other basic": lambda key: base64.b64encode(f":{key}".encode()).decode(),
    "in a text": lambda key: f"Incorrect API key provided: {key}.",
    "in an address": lambda key: f"https://me:{quote(key, safe='')}@host/v1",
}


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """The keys of this file are the secrets of the process."""
    for number, key in enumerate(KEYS):
        monkeypatch.setenv(f"SERVICE_{number}_API_KEY", key)
    monkeypatch.setattr("palaestra.core.text._remembered", set())
    monkeypatch.setattr("palaestra.core.text._urls", {})


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("key", KEYS)
def test_a_known_secret_is_masked_in_every_encoding(key: str, encoding: str) -> None:
    written = f"before {ENCODINGS[encoding](key)} after"
    masked = mask(written)
    assert MASK in masked
    assert masked.startswith("before ")
    assert masked.endswith(" after")
    assert mask(masked) == masked
    for length in range(12, len(key) + 1):
        part = key[:length]
        assert part not in masked
        assert base64.b64encode(part.encode()).decode()[:16] not in masked


def test_a_text_that_ends_within_a_key_is_masked() -> None:
    for length in range(20, len(KEYS[0])):
        assert mask(f"wrong key {KEYS[0][:length]}") == f"wrong key {MASK}"


@pytest.mark.parametrize(
    "text",
    [
        "Bearer kJh7dfg8.sdf-9",
        "authorization: Basic dXNlcjpwYXNzd29yZA==",
        "hf_" + "aB1" * 11,
        "ghp_" + "aB1" * 12,
        "AKIAIOSFODNN7EXAMPLE",
        "sk-ant-api03-aaaaaaaaaaaaaaaaaaaa",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dozjgNryP4J3jVmNHl0w",
        "http://user:hunter2@host:8000/v1#model",
        "https://token@github.com/a/b",
        "http://user:p@ss@host/v1",
    ],
)
def test_texts_in_the_form_of_a_credential_are_masked(text: str) -> None:
    masked = mask(f"see {text} for more")
    assert MASK in masked
    assert not any(part in masked for part in ("hunter2", "p@ss", "dXNl", "kJh7", "IOSF", "aaaa", "aB1", "user:"))
    assert mask(masked) == masked


@pytest.mark.parametrize(
    "text",
    [
        "A risk-averse-policy-gradient-method of task-specific-embeddings",
        "Basic understanding of arithmetic; the bearer certificate is attached.",
        "hf_model_name_or_path and sk-learn and AKIA",
        "http://localhost:8000/v1#model, mail me@host.org, https://host/a@b",
        "the password is not here; the value of test is 1",
        "logprob -0.0123456789012 and 10123456789",
    ],
)
def test_ordinary_text_is_not_changed(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHORT_TOKEN", "test")
    monkeypatch.setenv("DB_PASSWORD", "password")
    monkeypatch.setenv("KEY_FILE_KEY", "/etc/ssl/private.key")
    assert mask(text) == text
    assert mask("/etc/ssl/private.key") == "/etc/ssl/private.key"


def test_numbers_of_records_stay_exact(tmp_path: Path) -> None:
    record = {"text": f"the key is {KEYS[3]}", "ids": [123456789, 1], "logprobs": [-0.0123456789, 1e-5]}
    expected = {**record, "text": f"the key is {MASK}"}
    (row,) = mask_rows([(json.dumps(record), 123456789, None)])
    assert (json.loads(row[0]), row[1:]) == (expected, [123456789, None])
    assert mask_data(record) == expected
    write_json(tmp_path / "a.json", record)
    assert json.loads((tmp_path / "a.json").read_text()) == expected
    db = sqlite3.connect(":memory:", factory=MaskingConnection)
    db.execute("CREATE TABLE t (a TEXT, b TEXT)")
    db.executemany("INSERT INTO t VALUES (?, ?)", [(KEYS[0], json.dumps(record))] * 2)
    assert db.execute("SELECT a FROM t WHERE a = ?", (KEYS[0],)).fetchall() == [(MASK,)] * 2
    assert [json.loads(b) for (b,) in db.execute("SELECT b FROM t")] == [expected] * 2


def test_settings_are_masked_by_their_names() -> None:
    given = {
        "model": "http://me:pw@host/v1?key=1#m",
        "env_kwargs": {"hub_token": "abc", "size": 3},
        "option": ["auth=x"],
    }
    masked = mask_settings(given)
    assert masked == {
        "model": f"http://{MASK}@host/v1?{MASK}#m",
        "env_kwargs": {"hub_token": MASK, "size": 3},
        "option": [f"auth={MASK}"],
    }
    assert [is_masked(value) for value in masked.values()] == [True, True, True]
    assert not is_masked(f"http://{MASK}@host/v1#m")


def test_the_password_of_an_address_is_given_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(URL_USER, raising=False)
    with pytest.raises(EngineError, match=URL_USER):
        restore_url(f"http://{MASK}@host/v1")
    monkeypatch.setenv(URL_USER, "me:hunter22hunter22")
    assert restore_url(f"http://{MASK}@host/v1") == "http://me:hunter22hunter22@host/v1"
    assert mask("the password hunter22hunter22") == f"the password {MASK}"
    monkeypatch.delenv(URL_USER)
    assert restore_url(f"http://{MASK}@host/v1") == "http://me:hunter22hunter22@host/v1"
