"""Tests without a sandbox: the blocklist, the linter, and the docs and schemas of the commands."""

import json
import os
import signal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from registries import isolate_registries

from palaestra.research.workspace.commands import (
    COMMANDS,
    documentation,
    tool_schemas,
)
from palaestra.research.workspace.commands.base import (
    Command,
    CommandError,
    from_text,
    load_commands,
    parse_arguments,
)
from palaestra.research.workspace.commands.lint import Finding, Findings, find_errors, get_worker, new_errors
from palaestra.research.workspace.commands.session import refuse


@pytest.mark.parametrize(
    "text",
    [
        "vim a.py", "/usr/bin/vim x", "A=1 vim", "sudo vim x", "env A=1 emacs &", "less x | head", "python", "python3 -i", "python3.11",
        "ipython", "bash", "sh", "top", "tail -f log", "python -m pdb x.py", "watch ls", "ssh host", "\nvim\nls", "more x", "htop", "tmux new",
        "sqlite3", "gdb prog", "jupyter notebook", "'vim' x",
    ],
)  # fmt: skip
def test_interactive_programs_are_refused_with_advice(text: str) -> None:
    refusal = refuse(text)
    assert refusal is not None
    assert " is refused: " in refusal
    assert refusal.endswith("Nothing was run.")


@pytest.mark.parametrize(
    "text",
    [
        "python vim.py", "echo vim", "ls vim", "grep nano x", "cat less", "pip show emacs", "python -c 'print(1)'", "python - <<E\n1\nE",
        "echo 'print(1)' | python", "python < x.py", "python3 -m pytest", "python --version", "bash run.sh", "bash -c 'echo vim'",
        "echo 'a; vim'", "# vim", "cat <<EOF > notes\nvim\nnano x\nEOF", "top -b -n 1", "tail -n 5 log", "git commit -m 'less is more'",
        "vim=1", "./vim.sh", "which vim", "gdb -batch prog", "sqlite3 x.db 'select 1'", "[ -f vim ] && echo", "python train.py | tail -n 20",
        "jupyter nbconvert x.ipynb", "'unclosed", "",
    ],
)  # fmt: skip
def test_names_that_are_no_commands_pass(text: str) -> None:
    assert refuse(text) is None


# Arguments


def test_arguments_of_texts_are_divided_as_a_shell_does_it() -> None:
    commands = load_commands()
    assert from_text(commands["open"], "open 'a b.py' 12") == {"path": "a b.py", "line": 12}
    assert from_text(commands["edit"], "edit 3:4\n  x\n\n  y\n  end_of_edit  ") == {
        "first": 3,
        "last": 4,
        "text": "  x\n\n  y\n",
    }
    assert from_text(commands["create"], "create f\n\nend_of_file") == {"path": "f", "text": "\n"}
    assert from_text(commands["create"], "create f") == {"path": "f"}
    assert from_text(commands["memory_write"], "memory_write k  a 'b\nc") == {"key": "k", "text": "a 'b\nc"}
    assert from_text(commands["memory_read"], "memory_read") == {}
    for text in ("open a\nls", "validate now", "goto x", "goto 1.5"):
        command = commands[text.split()[0]]
        with pytest.raises(CommandError, match=f"^{command.name}: .*Usage: "):
            from_text(command, text)


@settings(max_examples=40)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda x: st.lists(x) | st.dictionaries(st.text(), x),
    )
)
def test_json_of_any_kind_is_arguments_or_an_error(value: object) -> None:
    for command in load_commands().values():
        for given_ in (value, json.dumps(value), {"path": value, "text": value}):
            try:
                result = parse_arguments(command, given_)  # type: ignore[arg-type]
            except CommandError:
                continue
            assert json.loads(json.dumps(result)).keys() <= {parameter.name for parameter in command.all_parameters}


# Docs


def test_docs_say_how_each_command_is_written() -> None:
    text = documentation()
    for name, command in load_commands().items():
        if command.textual:
            assert f"{command.usage}\n" in text
        assert command.docs.split(".")[0] in " ".join(text.split())
        if command.example:
            first = command.example.split()[0]
            assert first == name or not command.textual
    assert "edit FIRST:LAST\nTEXT\nend_of_edit\n" in text
    assert text.rstrip().split("\n\n")[-1].startswith("any other text: bash")


def test_examples_in_the_docs_are_right() -> None:
    for command in load_commands().values():
        if command.textual and command.example:
            assert from_text(command, command.example) is not None


def test_schemas_are_strict_openai_tools() -> None:
    schemas = tool_schemas()
    assert {schema["function"]["name"] for schema in schemas} == set(COMMANDS.names())
    for schema in schemas:
        function = schema["function"]
        assert schema["type"] == "function"
        assert function["strict"] is True
        parameters = function["parameters"]
        assert parameters["additionalProperties"] is False
        assert parameters["required"] == list(parameters["properties"])
    (opening,) = tool_schemas(load_commands(["open"]))
    assert opening["function"]["parameters"]["properties"]["line"]["type"] == ["integer", "null"]
    (editing,) = tool_schemas(load_commands(["edit"]))
    assert list(editing["function"]["parameters"]["properties"]) == ["first", "last", "text"]
    assert "end_of_edit" not in editing["function"]["description"]


def test_a_command_of_ones_own_is_one_registration(monkeypatch: pytest.MonkeyPatch) -> None:
    isolate_registries(monkeypatch, COMMANDS)
    COMMANDS.register("hello", Command("hello", lambda session, arguments: "hi", "Say hello."), "says hello")
    assert list(load_commands())[-2:] == ["hello", "bash"]
    assert "\nhello\n    Say hello.\n" in documentation()


# The linter


@pytest.mark.parametrize(
    ("source", "result"),
    [
        ("import os\nx = 1\n", []),
        ("print(x)\n", [(1, "undefined name 'x'")]),
        ("def f():\n    return y\n", [(2, "undefined name 'y'")]),
        ("return 1\n", [(1, "SyntaxError: 'return' outside function")]),
        ("from math import *\nprint(sin(1))\n", []),
        ("x = '\\d'\nif x is 'a': pass\n", []),
        ("def f():\n    nonlocal z\n", [(2, "SyntaxError: no binding for nonlocal 'z' found")]),
        ("async def f():\n    await g()\n", [(2, "undefined name 'g'")]),
    ],
)
def test_errors_of_python_are_found(source: str, result: list[tuple[int, str]]) -> None:
    checked = find_errors(source)
    assert checked is not None
    assert list(checked.errors) == [Finding(*item) for item in result]


def test_sources_that_are_too_much_cost_a_worker_at_most() -> None:
    for source in ("-" * 200_000 + "1", "a." * 100_000 + "b", "x\n" * 300_000, "lambda:" * 30_000 + "1"):
        assert find_errors(source) is None
    assert find_errors("(" * 500) == Findings((Finding(1, "SyntaxError: too many nested parentheses"),), True)
    assert find_errors("\0") is not None
    worker = get_worker().process
    assert worker is not None
    os.kill(worker.pid, signal.SIGKILL)
    worker.wait()
    assert find_errors("y\n") == Findings((Finding(1, "undefined name 'y'"),))
    assert find_errors("") == Findings()


def test_new_errors_are_those_that_were_not_there() -> None:
    a, b = Finding(1, "undefined name 'a'"), Finding(5, "undefined name 'b'")
    moved = a._replace(line=9)
    assert new_errors(Findings((a,)), Findings((moved, b))) == [b]
    assert new_errors(Findings((a,)), Findings((a, moved))) == [moved]
    assert new_errors(Findings((a,), broken=True), Findings((b,))) == []
    assert new_errors(Findings(), Findings()) == []
