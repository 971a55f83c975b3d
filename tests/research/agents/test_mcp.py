"""The commands over MCP: our server on stdio, and the SDK's client."""

import sys
from typing import Any

import pytest
from mcp_client import text_of, with_client

from palaestra.core.errors import MissingExtraError, SandboxError
from palaestra.research.agents.mcp import make_server
from palaestra.research.workspace.commands import COMMANDS, CommandResult, load_commands
from palaestra.sandbox import make_sandbox

anyio = pytest.importorskip("anyio")
pytest.importorskip("mcp")

SERVER = """
from palaestra.research.workspace.commands import Session
from palaestra.research.agents.mcp import serve
from palaestra.sandbox import make_sandbox
class Hooks:
    def validate(self):
        return "validation: 0.5"
    def submit(self):
        return "submitted"

with make_sandbox().shell(files={"main.py": "print(1 + 1)\\n"}) as shell:
    serve(Session(shell, Hooks()), "Work in the workspace.")
"""


@pytest.fixture(autouse=True)
def _sandbox() -> None:
    try:
        make_sandbox()
    except SandboxError as error:
        pytest.skip(str(error))


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

    with_client(work, "-c", SERVER)


def test_what_breaks_around_the_commands_is_told_as_an_error() -> None:
    from mcp import Client

    class Broken:
        commands = load_commands(["bash"])

        def call(self, name: str, arguments: Any) -> CommandResult:
            raise SandboxError("the shell is closed")

    async def run() -> None:
        async with Client(make_server(Broken())) as client:
            result = await client.call_tool("bash", {"command": "ls"})
            assert result.is_error
            assert text_of(result) == "SandboxError: the shell is closed"

    anyio.run(run)


def test_missing_package_names_its_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp.server.lowlevel", None)

    class Nothing:
        commands = load_commands(["bash"])

        def call(self, name: str, arguments: Any) -> CommandResult:
            return CommandResult("")

    with pytest.raises(MissingExtraError, match=r"palaestra\[mcp\]"):
        make_server(Nothing())
