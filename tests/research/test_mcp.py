"""The commands over MCP: a server of our own over stdio, and the SDK's client."""

import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from palaestra.core.errors import MissingExtraError, SandboxError
from palaestra.research.commands import COMMANDS, Outcome, load_commands
from palaestra.research.mcp import Episode, make_server
from palaestra.sandbox import make_sandbox

anyio = pytest.importorskip("anyio")
pytest.importorskip("mcp")

SERVER = """
from palaestra.research.commands import Session
from palaestra.research.mcp import serve
from palaestra.sandbox import make_sandbox

class Hooks:
    def validate(self):
        return "validation: 0.5"
    def submit(self):
        return "submitted"

with make_sandbox().shell(files={"main.py": "print(1 + 1)\\n"}) as shell:
    serve(Session(shell, Hooks()), "Work in the workspace.")
"""
TASK = """
import sys
from palaestra.research.mcp import serve_task

info = serve_task("prisoners_dilemma", seed=0)
with open(sys.argv[1], "w") as out:
    print(info["stop_reason"], info["score"], round(info["reward"], 6), file=out)
"""


@pytest.fixture(autouse=True)
def _sandbox() -> None:
    try:
        make_sandbox()
    except SandboxError as error:
        pytest.skip(str(error))


def with_client(script: str, work: Any, *arguments: str) -> None:
    """Run a server as a process of its own, and work with it as a client."""
    from mcp import Client, StdioServerParameters
    from mcp.client.stdio import stdio_client

    async def run() -> None:
        server = StdioServerParameters(command=sys.executable, args=["-c", textwrap.dedent(script), *arguments])
        with anyio.fail_after(60):
            async with Client(stdio_client(server)) as client:
                await work(client)

    anyio.run(run)


def text_of(result: Any) -> str:
    (part,) = result.content
    return str(part.text)


def test_commands_are_tools_of_an_mcp_server() -> None:
    async def work(client: Any) -> None:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert set(tools) == set(COMMANDS.names())
        assert tools["open"].input_schema["properties"]["line"]["type"] == ["integer", "null"]
        assert client.instructions == "Work in the workspace."
        shown = await client.call_tool("open", {"path": "main.py"})
        assert (text_of(shown), shown.is_error) == ("[file /workspace/main.py, 1 line]\n1|print(1 + 1)", False)
        assert text_of(await client.call_tool("bash", {"command": "cd /tmp; python3 /workspace/main.py"})) == "2"
        assert text_of(await client.call_tool("bash", {"command": "pwd; true"})) == "/tmp"
        assert text_of(await client.call_tool("bash", {"command": "true"})) == "(it printed nothing)"
        broken = await client.call_tool("edit", {"first": 1, "last": 1, "text": "print(x)"})
        assert broken.is_error
        assert "undefined name 'x'" in text_of(broken)
        failed = await client.call_tool("bash", {"command": "exit 3"})
        assert failed.is_error
        assert "a new shell was started" in text_of(failed)
        assert (await client.call_tool("bash", {"command": "vim"})).is_error
        async with anyio.create_task_group() as group:  # together, and yet one after the other
            for k in range(5):
                line = f"echo begin {k} >> log; sleep .02; echo end {k} >> log"
                group.start_soon(client.call_tool, "bash", {"command": line})
        log = text_of(await client.call_tool("bash", {"command": "cat log"})).split("\n")
        assert len(log) == 10
        assert all(log[k].replace("begin", "end") == log[k + 1] for k in range(0, 10, 2))
        assert text_of(await client.call_tool("validate", {})) == "validation: 0.5"
        assert text_of(await client.call_tool("submit", {})) == "submitted"

    with_client(SERVER, work)


@pytest.mark.parametrize("how", ["submits", "leaves"])
def test_a_task_is_played_over_mcp_to_its_end(tmp_path: Path, how: str) -> None:
    result = tmp_path / "result"

    async def work(client: Any) -> None:
        assert "submit" in client.instructions
        assert "/workspace" in text_of(await client.call_tool("bash", {"command": "pwd"}))
        if how == "submits":
            assert "Handed in" in text_of(await client.call_tool("submit", {}))
            after = await client.call_tool("bash", {"command": "ls"})
            assert after.is_error
            assert "The episode is over" in text_of(after)

    with_client(TASK, work, str(result))
    for _ in range(200):
        if result.exists() and result.read_text():
            break
        time.sleep(0.05)
    stop, score, reward = result.read_text().split()
    assert stop == ("submitted" if how == "submits" else "interrupted")
    float(score)
    float(reward)


def test_what_breaks_around_the_commands_is_told_as_an_error() -> None:
    from mcp import Client

    class Broken:
        commands = load_commands(["bash"])

        def call(self, name: str, arguments: Any) -> Outcome:
            raise SandboxError("the shell is closed")

    async def run() -> None:
        async with Client(make_server(Broken())) as client:
            result = await client.call_tool("bash", {"command": "ls"})
            assert result.is_error
            assert text_of(result) == "SandboxError: the shell is closed"

    anyio.run(run)


def test_a_missing_package_is_answered_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp.server.lowlevel", None)

    class Nothing:
        commands = load_commands(["bash"])

        def call(self, name: str, arguments: Any) -> Outcome:
            return Outcome("")

    with pytest.raises(MissingExtraError, match=r"pip install 'palaestra\[mcp\]'"):
        make_server(Nothing())


def test_an_episode_hands_in_when_it_is_ended() -> None:
    from palaestra.research.env import ResearchEnv

    episode = Episode(ResearchEnv("prisoners_dilemma", tools=True), seed=0)
    assert not episode.call("opne", {}).text.startswith("The episode is over")
    info = episode.end()
    assert info["stop_reason"] == "interrupted"
    assert info["reward"] == episode.reward
    assert not episode.call("bash", {"command": "ls"}).ok
