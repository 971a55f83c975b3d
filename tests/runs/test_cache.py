import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from palaestra.core.errors import RunError, StorageError
from palaestra.core.records import Completion, Failure, FailureCause, StopReason, Usage
from palaestra.runs.cache import Cache, digest

DONE = Completion("text", (1, 2), (-0.5, -1.0), StopReason.LENGTH, Usage(3, 2), (7, 8, 9))


def test_answers_come_back_as_they_were(tmp_path: Path) -> None:
    refused = Failure(FailureCause.REFUSED, "no")
    with Cache(tmp_path / "new" / "c.sqlite") as cache:
        for key, answer in (("a", DONE), ("b", refused)):
            cache.end(cache.begin("run", "1", "m", key), Usage(3, 2), 0.5, 0.01, (key, answer))
    with Cache(tmp_path / "new" / "c.sqlite") as cache:
        assert cache.get(["a", "b", "c"]) == {"a": DONE, "b": refused}


def test_the_first_answer_under_a_key_stays(tmp_path: Path) -> None:
    with Cache(tmp_path / "c.sqlite") as cache:
        for text in ("first", "second"):
            cache.end(cache.begin("", "", "m", "a"), Usage(), 0.0, keep=("a", Completion(text)))
        assert cache.get(["a"]) == {"a": Completion("first")}


def test_the_ledger_adds_up_by_owner_and_phase(tmp_path: Path) -> None:
    with Cache(tmp_path / "c.sqlite") as cache:
        cache.end(cache.begin("run", "1/lesson", "m", "a"), Usage(3, 2), 0.5, 0.25)
        cache.end(cache.begin("run", "2/lesson", "m", "b", priced=False), Usage(10, 20), 1.0)
        cache.end(cache.begin("run", "2/lesson", "m", "c"), None, 1.0)
        cache.begin("run", "2/lesson", "m", "d")  # Under way: perhaps for ever.
        cache.end(cache.begin("other", "2/lesson", "m", "e"), Usage(100, 100), 9.0)
        cache.hit("run", "2/lesson", "m", 3)
        cache.hit("run", "2/lesson", "m", 4)
        all_, second = cache.spent("run"), cache.spent("run", "2/")
    assert (all_.calls, all_.usage, all_.seconds, all_.money) == (4, Usage(13, 22), 2.5, 0.25)
    assert (second.calls, second.hits, second.unpriced, second.unmeasured) == (3, 7, 1, 2)
    assert second.tokens == 30


def test_an_answer_and_its_cost_are_stored_together_or_not_at_all(tmp_path: Path) -> None:
    with Cache(tmp_path / "c.sqlite") as cache:
        call = cache.begin("run", "1", "m", "a")
        cache._db.execute("CREATE TRIGGER full BEFORE INSERT ON answers BEGIN SELECT RAISE(FAIL, 'no'); END")
        with pytest.raises(sqlite3.IntegrityError):
            cache.end(call, Usage(3, 2), 0.5, keep=("a", DONE))
        assert cache.spent("run").usage == Usage()
        assert cache.spent("run").unmeasured == 1


def test_several_processes_share_one_file(tmp_path: Path) -> None:
    code = """
import sys
from palaestra.core.records import Completion, Usage
from palaestra.runs.cache import Cache
with Cache(sys.argv[1]) as cache:
    for k in range(100):
        cache.end(cache.begin("run", "1", "m", str(k)), Usage(1, 1), 0.0, keep=(str(k), Completion(str(k))))
"""
    path = str(tmp_path / "c.sqlite")
    workers = [subprocess.Popen([sys.executable, "-c", code, path], stderr=subprocess.PIPE) for _ in range(3)]
    for worker in workers:
        assert worker.communicate()[1] == b""
    with Cache(path) as cache:
        assert cache.spent("run").calls == 300
        assert cache.get(["0", "99"]) == {"0": Completion("0"), "99": Completion("99")}


def test_a_file_that_is_no_cache_is_one_clear_line(tmp_path: Path) -> None:
    path = tmp_path / "c.sqlite"
    path.write_bytes(b"this is no database at all, just text" * 100)
    with pytest.raises(RunError, match="delete it") as caught:
        Cache(path)
    assert "\n" not in str(caught.value)


def test_a_record_that_does_not_parse_and_another_version_are_refused(tmp_path: Path) -> None:
    with Cache(tmp_path / "c.sqlite") as cache:
        cache.end(cache.begin("", "", "m", "a"), Usage(), 0.0, keep=("a", DONE))
        cache._db.execute("UPDATE answers SET data='{}'")
        with pytest.raises(RunError, match="damaged; delete it"):
            cache.get(["a"])
        cache._db.execute("UPDATE meta SET value='99'")
    with pytest.raises(RunError, match="version 99"):
        Cache(tmp_path / "c.sqlite")


def test_a_place_that_cannot_be_written_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="opening the cache"):
        Cache(tmp_path / "file" / "c.sqlite")


def test_keys_are_the_same_in_every_process_and_survive_any_text() -> None:
    assert digest({"a": 1, "b": ["x"]}) == digest({"b": ["x"], "a": 1})
    assert digest(["\ud800"]) != digest(["\ud801"])
    assert len(digest("")) == 40
