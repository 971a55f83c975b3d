import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from palaestra.core.errors import RunError, StorageError
from palaestra.core.records import Completion, Failure, FailureCause, StopReason, Usage
from palaestra.runs.cache import Cache, digest

DONE = Completion("text", (1, 2), (-0.5, -1.0), StopReason.LENGTH, Usage(3, 2), (7, 8, 9))


def begin(cache: Cache, key: str, owner: str = "run", phase: str = "1", **more: bool) -> int:
    calls = cache.begin(owner, phase, "m", [key], **more)
    assert calls is not None
    return calls[0]


def test_answers_come_back_as_they_were(tmp_path: Path) -> None:
    refused = Failure(FailureCause.REFUSED, "no")
    with Cache(tmp_path / "new" / "c.sqlite") as cache:
        for key, answer in (("a", DONE), ("b", refused)):
            cache.end(begin(cache, key), Usage(3, 2), 0.5, 0.01, (key, answer))
    with Cache(tmp_path / "new" / "c.sqlite") as cache:
        assert cache.get(["a", "b", "c"]) == {"a": DONE, "b": refused}


def test_an_answered_or_running_call_does_not_start_again(tmp_path: Path) -> None:
    with Cache(tmp_path / "c.sqlite") as cache, Cache(tmp_path / "c.sqlite") as other:
        call = begin(cache, "a")
        for each in (cache, other):
            assert each.is_running(["b", "a"])
            assert each.begin("run", "1", "m", ["a"]) is None
            assert each.begin("run", "1", "m", ["b", "a"]) is None
        cache.end(call, Usage(), 0.0)  # A failure of the moment leaves no answer.
        assert not other.is_running(["a"])
        other.end(begin(other, "a"), Usage(), 0.0, keep=("a", Completion("first")))
        assert cache.begin("run", "1", "m", ["a"]) is None
        first, second = cache.begin("run", "1", "m", ["a", "b"]) or ()
        cache.end(first, Usage(), 0.0, keep=("a", Completion("second")))
        cache.end(second, Usage(), 0.0, keep=("b", Completion("b")))
        assert other.get(["a", "b"]) == {"a": Completion("first"), "b": Completion("b")}
        assert other.spent("run").calls == 4


def test_a_closed_cache_or_a_dead_process_holds_no_call(tmp_path: Path) -> None:
    path = tmp_path / "c.sqlite"
    code = (
        "import os, sys; from palaestra.runs.cache import Cache; "
        "Cache(sys.argv[1]).begin('run', '1', 'm', ['a']); print(flush=True); sys.stdin.read()"
    )
    worker = subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )  # fmt: skip
    assert worker.stdout is not None
    worker.stdout.readline()
    with Cache(path) as cache:
        assert cache.begin("run", "1", "m", ["a"]) is None
        worker.kill()
        worker.communicate()
        assert begin(cache, "a") > 0
        with Cache(path) as other:
            begin(other, "b")
            assert cache.begin("run", "1", "m", ["b"]) is None
        assert begin(cache, "b") > 0
    assert [file.name for file in tmp_path.iterdir() if file.suffix == ".lock"] == []


def test_a_cache_of_an_earlier_release_keeps_its_answers(tmp_path: Path) -> None:
    with Cache(tmp_path / "c.sqlite") as cache:
        cache.end(begin(cache, "a"), Usage(), 0.0, keep=("a", DONE))
        cache._db.execute("DROP TABLE claims")
    with Cache(tmp_path / "c.sqlite") as cache:
        assert cache.get(["a"]) == {"a": DONE}
        assert begin(cache, "b") > 0


def test_the_ledger_adds_up_by_owner_and_phase(tmp_path: Path) -> None:
    with Cache(tmp_path / "c.sqlite") as cache:
        cache.end(begin(cache, "a", phase="1/lesson"), Usage(3, 2), 0.5, 0.25)
        cache.end(begin(cache, "b", phase="2/lesson", priced=False), Usage(10, 20), 1.0)
        cache.end(begin(cache, "c", phase="2/lesson"), None, 1.0)
        begin(cache, "d", phase="2/lesson")  # Under way: perhaps for ever.
        cache.end(begin(cache, "e", "other", "2/lesson"), Usage(100, 100), 9.0)
        cache.hit("run", "2/lesson", "m", 3)
        cache.hit("run", "2/lesson", "m", 4)
        all_, second = cache.spent("run"), cache.spent("run", "2/")
    assert (all_.calls, all_.usage, all_.seconds, all_.money) == (4, Usage(13, 22), 2.5, 0.25)
    assert (second.calls, second.hits, second.unpriced, second.unmeasured) == (3, 7, 1, 2)
    assert second.tokens == 30


def test_an_answer_is_stored_with_its_cost_or_not_at_all(tmp_path: Path) -> None:
    with Cache(tmp_path / "c.sqlite") as cache:
        call = begin(cache, "a")
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
        for call in cache.begin("run", "1", "m", [str(k)]) or ():
            cache.end(call, Usage(1, 1), 0.0, keep=(str(k), Completion(str(k))))
"""
    path = str(tmp_path / "c.sqlite")
    workers = [subprocess.Popen([sys.executable, "-c", code, path], stderr=subprocess.PIPE) for _ in range(3)]
    for worker in workers:
        assert worker.communicate()[1] == b""
    with Cache(path) as cache:
        assert cache.spent("run").calls == 100
        assert cache.get(["0", "99"]) == {"0": Completion("0"), "99": Completion("99")}


def test_a_file_that_is_no_cache_is_one_clear_line(tmp_path: Path) -> None:
    path = tmp_path / "c.sqlite"
    path.write_bytes(b"this is no database at all, just text" * 100)
    with pytest.raises(RunError, match="delete it") as caught:
        Cache(path)
    assert "\n" not in str(caught.value)


def test_an_invalid_record_or_another_version_is_refused(tmp_path: Path) -> None:
    with Cache(tmp_path / "c.sqlite") as cache:
        cache.end(begin(cache, "a"), Usage(), 0.0, keep=("a", DONE))
        cache._db.execute("UPDATE answers SET data='{}'")
        with pytest.raises(RunError, match="damaged"):
            cache.get(["a"])
        cache._db.execute("UPDATE meta SET value='99'")
    with pytest.raises(RunError, match="version 99"):
        Cache(tmp_path / "c.sqlite")


def test_a_place_that_cannot_be_written_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="opening the cache"):
        Cache(tmp_path / "file" / "c.sqlite")


def test_keys_are_stable_and_survive_any_text() -> None:
    assert digest({"a": 1, "b": ["x"]}) == digest({"b": ["x"], "a": 1})
    assert digest(["\ud800"]) != digest(["\ud801"])
    assert len(digest("")) == 40
