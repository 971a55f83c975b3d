"""The agent's commands in a real sandbox."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from palaestra.core.errors import SandboxError, UnknownNameError
from palaestra.research.workspace.commands import (
    COMMANDS,
    Command,
    CommandResult,
    Session,
    load_commands,
)
from palaestra.research.workspace.commands.file_commands import MAX_UNDO
from palaestra.research.workspace.commands.files import HEADER, MAX_BYTES, Text
from palaestra.sandbox import SHELL_LIMITS, Limits, Shell, make_sandbox

PROGRAM = "import os\n\n\ndef double(x):\n    return x * 2\n\n\nprint(double(2), os.sep)\n"


class Counting:
    """Hooks that count how often they are called."""

    def __init__(self) -> None:
        self.validations = self.submissions = 0

    def validate(self) -> str:
        self.validations += 1
        return "validation: 0.5"

    def submit(self) -> str:
        self.submissions += 1
        return "submitted"


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """One for all; `session` gives it back in order."""
    data = tmp_path_factory.mktemp("data")
    (data / "table.csv").write_text("a,b\n" + "".join(f"{k},{k * k}\n" for k in range(3000)))
    (data / "wide.txt").write_text("\n".join(f"{k} " + "x" * 3000 for k in range(40)))
    (data / "model.bin").write_bytes(b"\x93NUMPY\x01\x00" + bytes(range(256)))
    try:
        sandbox = make_sandbox()
    except SandboxError as error:
        pytest.skip(str(error))
    with sandbox.shell(read_only={"/data": str(data)}) as shell:
        yield shell


@pytest.fixture
def hooks() -> Counting:
    return Counting()


@pytest.fixture
def session(shell: Shell, hooks: Counting) -> Session:
    shell.execute("exit 0")  # variables, functions, traps: all gone
    shell.execute("shopt -s dotglob; cd /workspace; chmod -R u+w .; rm -rf -- *; shopt -u dotglob")
    return Session(shell, hooks)


def put(session: Session, **files: str | bytes) -> None:
    session.shell.write_files({name.replace("__", "."): content for name, content in files.items()})


def get(session: Session, name: str) -> bytes:
    return session.shell.read_files([name])[name]


def expect_ok(outcome: CommandResult) -> str:
    assert outcome.ok, outcome
    return outcome.text


def expect_error(outcome: CommandResult, *parts: str) -> str:
    assert (outcome.ok, outcome.kind) == (False, "error"), outcome
    for part in parts:
        assert part in outcome.text
    return outcome.text


# The window


def test_window_shows_numbered_lines_and_the_rest_as_counts(session: Session) -> None:
    put(session, long__txt="".join(f"line {k}\n" for k in range(1, 251)))
    shown = expect_ok(session.run("open long.txt")).split("\n")
    assert shown[:2] == ["[file /workspace/long.txt, 250 lines]", "1|line 1"]
    assert shown[-2:] == ["100|line 100", "(150 more lines below)"]
    shown = expect_ok(session.run("scroll_down")).split("\n")
    assert shown[1:3] == ["(98 more lines above)", "99|line 99"]
    assert session.state() == {
        "open_file": "/workspace/long.txt",
        "working_dir": "/workspace",
        "window": "99-198 of 250",
        "ok": True,
    }
    shown = expect_ok(session.run("goto 249")).split("\n")
    assert shown[1:3] == ["(150 more lines above)", "151|line 151"]
    assert shown[-1] == "250|line 250"
    assert expect_ok(session.run("scroll_down")).endswith("250|line 250")
    assert "\n53|line 53\n" in expect_ok(session.run("scroll_up"))
    assert "\n120|line 120\n" in expect_ok(session.run("open long.txt 120"))
    again = expect_ok(session.run("open"))
    assert HEADER.findall(again) == ["/workspace/long.txt"]
    assert "\n120|" in again


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        (b"", "[file /workspace/f, 0 lines]\n(the file is empty)"),
        (b"\n", "[file /workspace/f, 1 line]\n1|"),
        (b"no end", "[file /workspace/f, 1 line]\n1|no end"),
        (b"a\r\nb\r\n", "[file /workspace/f, 2 lines]\n1|a\n2|b"),
        (b"caf\xe9\n\xff", "[file /workspace/f, 2 lines]\n1|caf\ufffd\n2|\ufffd"),
        ("\ufeffBOM\n".encode(), "[file /workspace/f, 1 line]\n1|BOM"),
        (b"form\x0cfeed\n", "[file /workspace/f, 1 line]\n1|form\x0cfeed"),
    ],
)
def test_files_of_every_kind_of_text_open(session: Session, content: bytes, shown: str) -> None:
    put(session, f=content)
    assert expect_ok(session.run("open f")) == shown


def test_what_is_no_text_is_not_opened(session: Session) -> None:
    put(session, small__bin=b"\x89PNG\r\n\x1a\n\x00\x00", large__bin=bytes(100_000))
    session.run("mkdir folder; mkfifo pipe; ln -s nowhere dangling; echo x > locked; chmod 000 locked")
    expect_error(session.run("open small.bin"), "NUL bytes", "by a program")
    expect_error(session.run("open large.bin"), "NUL bytes")
    expect_error(session.run("open /data/model.bin"), "NUL bytes")
    expect_error(session.run("open folder"), "is a folder", "ls -la 'folder'")
    expect_error(session.run("open pipe"), "neither a file nor a folder")
    expect_error(session.run("open dangling"), "a link that leads to nothing")
    expect_error(session.run("open locked"), "may not be read")
    expect_error(session.run("open nothing.py"), "does not exist", "create 'nothing.py'")
    expect_error(session.run("open no/such/folder/f.py"), "does not exist")
    assert session.state()["open_file"] == ""


def test_huge_files_are_shown_in_parts_and_not_edited(session: Session) -> None:
    expect_ok(session.run("seq 1 2000000 > huge.txt"))
    assert int(expect_ok(session.run("wc -c < huge.txt"))) > MAX_BYTES
    shown = expect_ok(session.run("open huge.txt 1500000"))
    assert shown.startswith("[file /workspace/huge.txt, 2000000 lines]\n(1499974 more lines above)\n1499975|1499975\n")
    assert expect_ok(session.run("goto 2000000")).endswith("\n2000000|2000000")
    expect_error(session.run("goto 2000001"), "has 2000000 lines; there is no line 2000001")
    expect_error(session.run("edit 1:1\nx\nend_of_edit"), "files up to", "sed")
    assert "1999999:1999999" in expect_ok(session.run("search_file 1999999"))
    expect_ok(session.run("rm huge.txt"))
    expect_error(session.run("scroll_up"), "does not exist")


def test_files_outside_the_workspace_are_read_only(session: Session) -> None:
    shown = expect_ok(session.run("open /data/table.csv 2990"))
    assert shown.startswith("[file /data/table.csv, 3001 lines, read-only]\n")
    assert "\n2990|2988,8928144\n" in shown
    assert expect_ok(session.run("scroll_down")).endswith("\n3001|2999,8994001")
    expect_error(session.run("edit 1:1\nx\nend_of_edit"), "is outside the workspace", "copy it there")
    expect_error(session.run("create /data/x\nx\nend_of_file"), "is outside the workspace")
    wide = expect_ok(session.run("open /data/wide.txt"))  # more than the shell lets through at once
    assert wide.startswith("[file /data/wide.txt, 40 lines, read-only]\n1|0 xxx")
    assert wide.split("\n")[-1].startswith("40|39 xxx")
    assert "12:" in expect_ok(session.run("search_file '11 x' /data/wide.txt"))


def test_links_out_of_the_workspace_are_refused(session: Session, tmp_path: Path) -> None:
    put(session, main__py=PROGRAM)
    session.run(
        "mkdir sub; ln -s ../main.py sub/link.py; ln -s /etc/passwd out; ln -s sub way; ln -s /tmp away; echo t > /tmp/t"
    )
    assert expect_ok(session.run("open sub/link.py")).startswith("[file /workspace/main.py, ")
    expect_ok(session.run("edit 1:1\nimport os  # edited\nend_of_edit"))
    assert get(session, "main.py").startswith(b"import os  # edited\n")
    expect_ok(session.run("create way/new.txt\nhello\nend_of_file"))
    assert get(session, "sub/new.txt") == b"hello\n"
    assert "read-only" in expect_ok(session.run("open out"))
    expect_error(session.run("create out\nx\nend_of_file"), "outside the workspace, at /etc/passwd")
    expect_error(session.run("create away/x\nx\nend_of_file"), "outside the workspace, at /tmp/x")
    assert "read-only" in expect_ok(session.run("open away/t"))
    expect_error(session.run("edit 1:1\nx\nend_of_edit"), "outside the workspace")
    assert expect_ok(session.run("cat /tmp/t")) == "t"
    expect_error(session.run("create ../../escape\nx\nend_of_file"), "outside the workspace")


def test_paths_are_those_of_the_current_folder(session: Session) -> None:
    session.run("mkdir -p a/b; cd a/b")
    expect_ok(session.run("create here.txt\nx\nend_of_file"))
    assert get(session, "a/b/here.txt") == b"x\n"
    assert session.state()["working_dir"] == "/workspace/a/b"
    expect_ok(session.run("cd .."))
    assert expect_ok(session.run("open b/here.txt")).startswith("[file /workspace/a/b/here.txt")
    expect_ok(session.run("open ../a/b/../b/here.txt"))
    expect_ok(session.run("open /workspace/a/b/here.txt"))
    expect_ok(session.run("create 'a name with spaces and \"quotes\".txt'\ny\nend_of_file"))
    assert get(session, 'a/a name with spaces and "quotes".txt') == b"y\n"


# Changes


def test_an_edit_replaces_lines_and_shows_them(session: Session) -> None:
    put(session, main__py=PROGRAM)
    session.run("open main.py")
    shown = expect_ok(session.run("edit 5:5\n    y = x\n    return y + y\nend_of_edit"))
    assert "1 line replaced by 2" in shown
    assert "\n5|    y = x\n6|    return y + y\n" in shown
    assert get(session, "main.py") == PROGRAM.replace("    return x * 2\n", "    y = x\n    return y + y\n").encode()
    assert "2 lines deleted" in expect_ok(session.run("edit 2:3\nend_of_edit"))
    assert "1 line inserted" in expect_ok(session.run("insert 0\n# first\nend_of_insert"))
    assert get(session, "main.py").startswith(b"# first\nimport os\ndef double(x):\n")
    assert expect_ok(session.run("python3 main.py")) == "4 /"


def test_an_edit_that_brings_new_errors_is_rolled_back(session: Session) -> None:
    put(session, main__py=PROGRAM)
    session.run("open main.py")
    for text, error in (
        ("    return x * factor", "line 5: undefined name 'factor'"),
        ("    return (x", "SyntaxError: '(' was never closed"),
        ("  return x", "line 5: E111 indentation is not a multiple of 4"),
        ("return x", "IndentationError"),
    ):
        outcome = session.run(f"edit 5:5\n{text}\nend_of_edit")
        assert (outcome.ok, outcome.kind) == (False, "command")
        assert f"- {error}" in outcome.text or error in outcome.text
        assert f"5|{text}" in outcome.text
        assert "5|    return x * 2" in outcome.text
        assert get(session, "main.py") == PROGRAM.encode()
    assert not session.run("insert 8\n    stray = 1\nend_of_insert").ok
    expect_error(session.run("undo"), "nothing to undo")


def test_only_new_errors_count(session: Session) -> None:
    put(session, old__py="import os\nprint(unknown)\n", broken__py="def f(:\n    pass\n", notes__txt="def f(:\n")
    session.run("open old.py")
    assert "earlier errors:\n- line 3: undefined name 'unknown'" in expect_ok(
        session.run("insert 1\nx = 1\nend_of_insert")
    )
    assert not session.run("insert 1\nprint(unknown)\nend_of_insert").ok  # one more of the same
    assert "still" not in expect_ok(session.run("edit 3:3\nprint(x)\nend_of_edit"))
    session.run("open broken.py")
    assert "SyntaxError" in expect_ok(session.run("insert 2\n    return 1\nend_of_insert"))  # mended step by step
    assert "still" not in expect_ok(session.run("edit 1:1\ndef f():\nend_of_edit"))
    session.run("open notes.txt")
    expect_ok(session.run("edit 1:1\ndef (((\nend_of_edit"))  # no Python
    put(session, narrow__py="def f(x):\n  return x\n")
    session.run("open narrow.py")
    expect_ok(session.run("edit 2:2\n  y = x\n  return y\nend_of_edit"))  # The file is indented by 2 already.


def test_line_ends_and_bytes_around_an_edit_stay(session: Session) -> None:
    put(
        session, dos__txt=b"one\r\ntwo\r\nthree", latin__txt=b"caf\xe9\nx\n\xff\xfe\n", bom__txt="\ufeffa\nb\n".encode()
    )
    session.run("open dos.txt")
    expect_ok(session.run("edit 2:2\nzwei\ndrei\nend_of_edit"))
    assert get(session, "dos.txt") == b"one\r\nzwei\r\ndrei\r\nthree"
    expect_ok(session.run("edit 4:4\nvier\n\nend_of_edit"))
    assert get(session, "dos.txt") == b"one\r\nzwei\r\ndrei\r\nvier\r\n\r\n"  # The new last line is terminated.
    session.run("open latin.txt")
    expect_ok(session.run("edit 2:2\nÿ\nend_of_edit"))
    assert get(session, "latin.txt") == b"caf\xe9\n" + "ÿ".encode() + b"\n\xff\xfe\n"
    session.run("open bom.txt")
    expect_ok(session.run("edit 1:1\nA\nend_of_edit"))
    assert get(session, "bom.txt") == "\ufeffA\nb\n".encode()
    session.run("create empty.txt")
    expect_ok(session.run("edit 1:1\nfilled\nend_of_edit"))
    assert get(session, "empty.txt") == b"filled\n"


def test_misused_edits_say_what_was_expected(session: Session) -> None:
    put(session, f__txt="a\nb\nc\n")
    expect_error(session.run("edit 1:1\nx\nend_of_edit"), "no file is open", "open PATH")
    session.run("open f.txt")
    expect_error(session.run("edit 3:1\nx\nend_of_edit"), "got 3:1")
    expect_error(session.run("edit 1:2 g.txt\nx\nend_of_edit"), "the open file is '/workspace/f.txt'; open 'g.txt'")
    expect_error(session.run("edit 0:1\nx\nend_of_edit"), "got 0:1")
    expect_error(session.run("edit 1\nx\nend_of_edit"), "expected edit FIRST:LAST", "got '1'")
    expect_error(session.run("edit a:b\nx\nend_of_edit"), "FIRST is a whole number; got 'a'")
    expect_error(session.run("edit 1:1\nx"), "a line that is only end_of_edit")
    expect_error(session.run("edit 1:1\nx\nend_of_edit\nedit 2:2\ny\nend_of_edit"), "one command a message", "edit 2:2")
    expect_error(session.run("insert -1\nx\nend_of_insert"), "0 for before the first; got -1")
    expect_error(session.run("insert 1\nend_of_insert"), "no text to insert")
    expect_error(session.run("goto"), "LINE is missing")
    expect_error(session.run("goto 0"), "counts from 1")
    expect_error(session.run("goto 4"), "has 3 lines")
    expect_error(session.run("open f.txt 1 2"), "2 words at most")
    expect_error(session.run("open 'f.txt"), "quotes do not match")
    expect_error(session.run("create"), "PATH is missing")
    session.run("chmod a-w f.txt")
    expect_error(session.run("edit 1:1\nx\nend_of_edit"), "is read-only", "chmod u+w")
    assert get(session, "f.txt") == b"a\nb\nc\n"
    session.run("rm -f f.txt")
    expect_error(session.run("edit 1:1\nx\nend_of_edit"), "does not exist")
    expect_error(session.run("edit 1:1\nx\nend_of_edit"), "no file is open")


@pytest.mark.parametrize(
    ("command", "result"),
    [
        ("edit 2:9\nx", "a\nx\n"),
        ("edit 1:4\nx", "x\n"),
        ("edit 4:4\nx", "a\nb\nc\nx\n"),
        ("edit 9:12\nx", "a\nb\nc\nx\n"),
        ("edit 2:1\nx", "a\nx\nb\nc\n"),
        ("edit 2:9", "a\n"),
        ("edit 2:3 f.txt\nx", "a\nx\n"),
        ("insert 4\nx", "a\nb\nc\nx\n"),
        ("insert 99\nx", "a\nb\nc\nx\n"),
    ],
)
def test_line_numbers_beyond_the_end_mean_the_end(session: Session, command: str, result: str) -> None:
    put(session, f__txt="a\nb\nc\n")
    session.run("open f.txt")
    expect_ok(session.run(f"{command}\nend_of_{command.split()[0]}"))
    assert get(session, "f.txt").decode() == result


def test_open_and_create_open_a_file_as_in_mlgym(session: Session) -> None:
    put(session, f__txt="a\nb\nc\n", g__txt="g\n")
    for line in (0, -3, 4, 99):
        assert "3|c" in expect_ok(session.run(f"open f.txt {line}"))
    expect_error(session.run("create g.txt"), "'g.txt' already exists, so it was opened", "1|g")
    assert session.state()["open_file"] == "/workspace/g.txt"
    expect_ok(session.run("create new.txt"))
    expect_ok(session.run("insert 1\nx\nend_of_insert"))
    assert get(session, "new.txt") == b"\nx\n"


def test_create_makes_folders_and_reports_errors(session: Session) -> None:
    assert "was created. It has errors:\n- line 1: undefined name 'x'" in expect_ok(
        session.run("create a/b/c.py\nprint(x)\nend_of_file")
    )
    assert "undo restores the old version" in expect_ok(session.run("create a/b/c.py\nprint(1)\nend_of_file"))
    expect_ok(session.run("undo"))
    assert get(session, "a/b/c.py") == b"print(x)\n"
    expect_ok(session.run("undo"))
    assert session.state()["open_file"] == ""
    expect_error(session.run("open a/b/c.py"), "does not exist")
    expect_error(session.run("create a"), "is a folder")
    assert expect_ok(session.call("create", {"path": "empty", "text": ""})).endswith("(the file is empty)")
    expect_error(session.call("create", {"path": "nul", "text": "a\0b"}), "NUL")


def test_undo_goes_back_many_levels_and_over_files(session: Session) -> None:
    put(session, a__txt="0\n", b__txt="0\n")
    for level in range(1, 6):
        for name in ("a.txt", "b.txt"):
            session.run(f"open {name}")
            expect_ok(session.run(f"edit 1:1\n{level}\nend_of_edit"))
    for level in range(4, -1, -1):
        expect_ok(session.run("undo"))
        expect_ok(session.run("undo"))
        assert (get(session, "a.txt"), get(session, "b.txt")) == (f"{level}\n".encode(), f"{level}\n".encode())
    expect_error(session.run("undo"), "nothing to undo")


def test_undo_does_not_take_away_what_something_else_did(session: Session) -> None:
    put(session, a__txt="0\n", b__txt="0\n")
    for name in ("b.txt", "a.txt"):
        session.run(f"open {name}")
        session.run("edit 1:1\nmine\nend_of_edit")
    session.run("echo more >> a.txt")
    expect_error(session.run("undo"), "changed by another command", "can still be undone: 1")
    assert get(session, "a.txt") == b"mine\nmore\n"
    expect_ok(session.run("undo"))
    assert get(session, "b.txt") == b"0\n"


def test_the_undo_stack_is_bounded(session: Session) -> None:
    put(session, a__txt="0\n")
    session.run("open a.txt")
    for level in range(MAX_UNDO + 5):
        session.call("edit", {"first": 1, "last": 1, "text": str(level)})
    assert len(session.changes) == MAX_UNDO


def test_a_full_disk_loses_no_file() -> None:
    limits = Limits(**{**{name: getattr(SHELL_LIMITS, name) for name in Limits.__slots__}, "disk": 2 << 20})
    with make_sandbox().shell(limits, {"keep.txt": "kept\n"}) as shell:
        session = Session(shell, Counting())
        session.run("head -c 3M /dev/zero > fill")
        session.run("open keep.txt")
        outcome = session.call("edit", {"first": 1, "last": 1, "text": "x" * (1 << 20)})
        expect_error(outcome, "could not be written", "keep.txt")
        assert shell.read_files(["keep.txt"]) == {"keep.txt": b"kept\n"}


# Searching


def test_searches_find_files_and_lines(session: Session) -> None:
    put(session, **{"src/a.py": "rate = 1\nRATE = 2\n", "src/deep/b.py": "x = rate\n", "c.txt": "none\n"})
    session.run("mkdir .git; echo rate > .git/x; printf 'rate\\0' > binary")
    actual = expect_ok(session.run("search_dir rate")).split("\n")
    assert actual[0] == "[2 lines with 'rate' in the current folder]"
    assert set(actual[1:]) == {"src/a.py:1:rate = 1", "src/deep/b.py:1:x = rate"}
    assert expect_ok(session.run('search_dir "x = rate" src')).endswith("\ndeep/b.py:1:x = rate")
    assert expect_ok(session.run("search_dir nowhere")).startswith("No line of a file in the current folder holds")
    assert expect_ok(session.run("search_dir -- .")).startswith("No line")
    expect_error(session.run("search_dir a b c"), "quotes around a word with spaces")
    expect_error(session.run("search_dir rate nofolder"), "'nofolder' does not exist")
    assert expect_ok(session.run("find_file '*.py'")).split("\n")[1:] == ["src/a.py", "src/deep/b.py"]
    assert expect_ok(session.run("find_file b.py src")).endswith("\ndeep/b.py")
    assert "find_file '*b*'" in expect_ok(session.run("find_file b"))
    expect_error(session.run("find_file src/a.py"), "without folders")
    expect_error(session.run("search_file rate"), "no file is open")
    session.run("open src/a.py")
    assert expect_ok(session.run("search_file rate")) == "[1 lines with 'rate' in /workspace/src/a.py]\n1:rate = 1"


def test_too_many_matches_are_cut(session: Session) -> None:
    put(session, many__txt="".join(f"word {'y' * 900} {k}\n" for k in range(500)))
    actual = expect_ok(session.run("search_dir word")).split("\n")
    assert len(actual) == 52
    assert max(map(len, actual)) <= 200
    assert "more than 50" in actual[-1]
    session.run("open many.txt")
    assert len(expect_ok(session.run("search_file word")).split("\n")) == 52
    session.run("mkdir x; cd x; for i in $(seq 70); do : > f$i; done; cd ..")
    assert "more than 50" in expect_ok(session.run("find_file 'f*'"))


# Memory


def test_notes_outlive_the_episode_and_are_found_by_words(shell: Shell, hooks: Counting, tmp_path: Path) -> None:
    path = tmp_path / "deep" / "memory.jsonl"
    first = Session(shell, hooks, memory=path)
    assert expect_ok(first.run("memory_read")).startswith("The memory is empty")
    expect_ok(first.run("memory_write best learning rate 0.01 gives 0.8\nwith two layers"))
    expect_ok(first.run("memory_write idea try dropout with a larger learning rate"))
    expect_ok(first.run("memory_write other the data are sorted by date"))
    with open(path, "ab") as stream:
        stream.write(b'{"key": "half')  # killed in the middle of a write
    second = Session(shell, hooks, memory=path)
    expect_ok(second.run("memory_write idea dropout 0.1 did not help"))
    assert "[other]" in expect_ok(second.run("memory_read date"))
    assert expect_ok(first.run("memory_read learning rate")) == "[best]\nlearning rate 0.01 gives 0.8\nwith two layers"
    assert expect_ok(first.run("memory_read dropout")) == "[idea]\ndropout 0.1 did not help"
    assert expect_ok(first.run("memory_read")).startswith("[idea]\n")
    assert "None of the 3 notes" in expect_ok(first.run("memory_read zebra"))
    expect_error(first.run("memory_write onlykey"), "TEXT is missing")
    third = Session(shell, hooks)
    assert expect_ok(third.run("memory_read")).startswith("The memory is empty")
    expect_ok(third.run("memory_write k v"))
    assert expect_ok(third.run("memory_read")) == "[k]\nv"


# Bash, and what stands alone


def test_bash_keeps_its_state_and_tells_its_exit_code(session: Session) -> None:
    assert session.run("cd /tmp; A=1; echo out; echo err >&2").text == "out\nerr"
    outcome = session.run("echo $A; false")
    assert (outcome.text, outcome.ok, outcome.kind, outcome.note, outcome.exit_code) == (
        "1",
        False,
        "bash",
        "exit code 1",
        1,
    )
    quiet = session.run("true")
    assert (quiet.text, quiet.ok, quiet.note, quiet.exit_code) == ("", True, "", 0)
    assert session.state()["working_dir"] == "/tmp"
    assert session.run("echo a\r\necho b\r\n").text == "a\nb"
    limited = Session(session.shell, session.hooks, timeout=0.2)
    late = limited.run("echo first; sleep 5")
    assert (late.text.splitlines()[0], late.ok, late.exit_code) == ("first", False, 124)  # Bash may add who was killed.
    assert "ran out of time" in late.note
    gone = session.run("exit 7")
    assert "a new shell was started" in gone.note
    assert session.state()["working_dir"] == "/workspace"


def test_a_command_after_the_word_bash_is_run(session: Session) -> None:
    put(session, **{"run.sh": "echo script\n", "there.txt": ""})
    assert session.run("bash ls").text.split() == ["run.sh", "there.txt"]
    assert session.run("bash ls -1 | head -n 1").text == "run.sh"
    assert session.call("bash", {"command": "bash python3 -c 'print(3)'"}).text == "3"
    assert session.run("bash run.sh").text == "script"
    assert session.run("bash -c 'echo inner'").text == "inner"
    session.run("bash cd /tmp")
    assert session.state()["working_dir"] == "/tmp"
    assert "No such file" in session.run("bash missing.sh").text
    assert "refused" in session.run("bash vim there.txt").text
    assert "the agent types the bash command itself" in COMMANDS.descriptions()["bash"]


def test_submit_and_validate_stand_alone(session: Session, hooks: Counting) -> None:
    put(session, **{"run.sh": "submit\nvalidate\nsubmit 1\n", "says.txt": "submit\n", "evil": "`submit` $(submit)\n"})
    for text in (
        "cd /tmp && submit", "true; submit", "ls\nsubmit", "(submit)", "bash run.sh", "source run.sh", "cat says.txt",
        "echo submit", "eval submit", "submit; ls", "submit && ls", "submit now", "submit\nls", "if true; then validate; fi",
        "$(cat says.txt)", "xargs -n1 < says.txt", "'submit'", "\\submit", "command submit", "env submit", "cat evil",
        "submit()", "echo x | submit", "exit 0", "submit &",
    ):  # fmt: skip
        session.run("cd /workspace")
        outcome = session.run(text)
        assert (hooks.submissions, hooks.validations) == (0, 0), text
        if text in ("cd /tmp && submit", "ls\nsubmit", "eval submit", "bash run.sh", "echo x | submit", "submit; ls"):
            assert "submit did nothing: it is one of your own commands" in outcome.text, text
        if text in ("submit && ls", "submit now", "submit\nls"):
            expect_error(outcome, "stands alone")
    assert expect_ok(session.run(" submit \n")) == "submitted"
    assert expect_ok(session.run("validate")) == "validation: 0.5"
    assert (hooks.submissions, hooks.validations) == (1, 1)
    assert "submit did nothing" in session.run("true && submit").text  # the shell was started anew above
    assert session.run("nosuchprogram").text == "bash: nosuchprogram: command not found"
    assert expect_ok(session.run("submit() { echo mine; }; true && submit")) == "mine"


def test_what_background_processes_print_is_not_lost(session: Session) -> None:
    put(session, f__txt="x\n")
    session.run("(sleep .1; echo late) &")
    end = time.monotonic() + 5
    while not session.query.stray and time.monotonic() < end:
        assert expect_ok(session.run("open f.txt")) == "[file /workspace/f.txt, 1 line]\n1|x"
    assert expect_ok(session.run("echo now")) == "late\nnow"


@pytest.mark.parametrize(
    "setup",
    [
        "set -e", "set -u", "set -x", "set -f", "set -o pipefail -eux", "trap 'echo trapped' DEBUG", "trap 'echo err' ERR",
        "IFS=/", "cd() { echo no; }", "wc() { echo 1; }", "export LC_ALL=C", "shopt -s nullglob failglob", "a=1; readonly a",
        "set -- one two", "PATH=/nothing", "exec 2>&1", "mkdir gone; cd gone; rmdir ../gone; cd ..", "unset HOME PWD",
    ],
)  # fmt: skip
def test_settings_of_the_agents_shell_do_not_disturb_commands(session: Session, setup: str) -> None:
    put(session, f__txt="a\nb\n", **{"big.txt": "line\n" * 9000})
    session.run(setup)
    assert expect_ok(session.run("open f.txt")).endswith("1|a\n2|b")
    expect_ok(session.run("edit 1:1\nc\nend_of_edit"))
    assert get(session, "f.txt") == b"c\nb\n"
    assert "9000 lines" in expect_ok(session.run("open big.txt"))
    assert "3001 lines" in expect_ok(session.run("open /data/table.csv"))
    assert session.state()["working_dir"] == "/workspace"
    assert "builtin" not in session.run(":").text


def test_programs_that_the_agent_put_in_the_way_are_not_used(session: Session) -> None:
    forged = "#!/bin/bash\nprintf '9%.0s' {1..5000}\n"
    put(session, **{"big.txt": "line\n" * 9000, "bin/grep": forged, "bin/tail": forged})
    session.run("chmod +x bin/*; PATH=/workspace/bin:$PATH; grep() { echo 1; }; command() { echo 1; }")
    assert "9000 lines" in expect_ok(session.run("open big.txt"))
    assert "3001 lines" in expect_ok(session.run("open /data/table.csv"))
    assert "[2 lines with 'printf'" in expect_ok(session.run("search_dir printf"))


def test_commands_leave_nothing_behind_in_the_shell(session: Session) -> None:
    put(session, f__txt="a\n")
    before = session.run("declare -p | wc -l; declare -F; set -o | md5sum; pwd").text
    for text in (
        "open f.txt",
        "edit 1:1\nb\nend_of_edit",
        "undo",
        "search_dir a",
        "find_file f.txt",
        "open /data/table.csv",
        "open nope",
    ):
        session.run(text)
    assert session.run("declare -p | wc -l; declare -F; set -o | md5sum; pwd").text == before


# Calls of tools


def test_calls_do_what_texts_do(session: Session, hooks: Counting) -> None:
    assert expect_ok(session.call("bash", {"command": "echo hello"})) == "hello"
    expect_ok(session.call("create", {"path": "f.py", "text": "a = 1\nb = 2\n"}))
    expect_ok(session.call("edit", {"first": 1, "last": "1", "text": "end_of_edit = 'a text may hold the marker'\n"}))
    assert get(session, "f.py") == b"end_of_edit = 'a text may hold the marker'\nb = 2\n"
    assert expect_ok(session.call("open", '{"path": "f.py", "line": null}')).startswith(
        "[file /workspace/f.py, 2 lines]"
    )
    assert expect_ok(session.call("submit", {})) == "submitted"
    assert session.call("bash", {"command": "vim f.py"}).kind == "blocked"
    expect_error(session.call("oppen", {}), "did you mean 'open'?")
    expect_error(session.call("open", {"file": "f.py"}), "there is no argument 'file'", "path")
    expect_error(session.call("edit", {"first": 1, "text": ""}), "LAST is missing")
    expect_error(session.call("edit", {"first": "one", "last": 1, "text": ""}), "FIRST is a whole number; got 'one'")
    expect_error(session.call("open", {"path": ["f.py"]}), "PATH is a text")
    expect_error(session.call("open", "{broken"), "this is not JSON")
    expect_error(session.call("open", "[1]"), "arguments are a JSON object")
    expect_error(session.call("submit", {"now": True}), "it takes none")
    expect_ok(session.call("create", '{"path": "s.txt", "text": "\\ud800 x"}'))
    assert get(session, "s.txt") == "\ufffd x\n".encode()


def test_a_session_has_the_commands_that_it_is_given(shell: Shell, hooks: Counting) -> None:
    session = Session(shell, hooks, commands=["open", "bash"])
    assert list(session.commands) == ["open", "bash"]
    assert session.run("submit").exit_code == 127
    assert hooks.submissions == 0
    expect_error(session.call("submit", {}), "there is no tool 'submit'")
    with pytest.raises(UnknownNameError, match="'open'"):
        Session(shell, hooks, commands=["opne"])
    without = Session(shell, hooks, commands=["open", "submit"])
    for text in ("touch made.txt", "", "submit; touch made.txt"):
        expect_error(without.run(text), "and no bash; a message is one of: open, submit")
    assert "made.txt" not in expect_ok(session.run("ls -a"))
    assert list(load_commands())[-1] == "bash"
    assert all(isinstance(command, Command) for command in load_commands().values())


# Whatever comes


@given(st.binary(max_size=300).map(lambda data: data.replace(b"\0", b"")))
def test_a_file_comes_back_byte_by_byte(data: bytes) -> None:
    text = Text.decode(data)
    assert text.encode() == data
    assert text.replace_lines(1, 0, ["new"]).lines == ("new", *text.lines)


WORDS = st.sampled_from(
    ["open", "goto", "edit", "insert", "create", "undo", "scroll_up", "search_dir", "search_file", "find_file", "memory_write",
     "memory_read", "f.txt", "f.py", "1:1", "1", "0", "-5", "99999999999999999999", "..", "/", "'", '"', "\n", "end_of_edit",
     "end_of_file", "end_of_insert", "\\", "$HOME", "`ls`", "*", "-rf", "\t", "é\U0001f40d", "x" * 5000, "def f(:"]
)  # fmt: skip


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(WORDS, max_size=8), st.sampled_from([" ", "\n", ""]))
def test_no_text_of_a_command_raises(make_fuzz_session: Session, words: list[str], between: str) -> None:
    text = between.join(words)
    first = text.split(None, 1)[:1]
    if first and first[0] in make_fuzz_session.commands:
        outcome = make_fuzz_session.run(text)
        assert outcome.kind in ("command", "error")
        assert outcome.text


@pytest.fixture(scope="module")
def make_fuzz_session(shell: Shell) -> Session:
    session = Session(shell, Counting())
    put(session, f__txt="a\nb\n", f__py=PROGRAM)
    return session
