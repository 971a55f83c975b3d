import warnings
from pathlib import Path

import pytest

from palaestra.core.errors import SandboxError, SandboxWarning
from palaestra.sandbox import Limits, SandboxCommand, Status, make_sandbox
from palaestra.sandbox.base import MIB
from palaestra.sandbox.local_host import NoSandbox


@pytest.fixture(scope="module")
def no_sandbox() -> NoSandbox:
    with warnings.catch_warnings(action="ignore"):
        return NoSandbox()


def test_it_warns_where_it_is_made() -> None:
    with pytest.warns(SandboxWarning, match="isolates nothing") as caught:
        make_sandbox("none")
    assert "\n" not in str(caught[0].message)


def test_it_keeps_the_protocol(no_sandbox: NoSandbox) -> None:
    result = no_sandbox.run(
        SandboxCommand(
            ["sh", "-c", "cat - a.txt; echo $GIVEN >out; exit 3"],
            {"a.txt": "A"},
            b"in ",
            env={"GIVEN": "x"},
            read_back=["out"],
        )
    )
    assert (result.status, result.exit_code, result.stdout, result.files) == (Status.EXIT, 3, b"in A", {"out": b"x\n"})


@pytest.mark.parametrize(
    ("argv", "limits", "status"),
    [
        (["sleep", "9"], Limits(wall_seconds=0.2), Status.WALL_TIME),
        (["sh", "-c", "while :; do :; done"], Limits(cpu_seconds=0.3), Status.CPU_TIME),
        (["yes"], Limits(output=1000), Status.OUTPUT),
        (["python3", "-c", "x = []\nwhile True: x.append(b'x' * 1000000)"], Limits(memory=64 * MIB), Status.MEMORY),
        (["sh", "-c", "for i in $(seq 30); do sleep 9 & done; wait"], Limits(processes=8), Status.PROCESSES),
    ],
)
def test_limits_hold_for_what_does_not_hide(
    no_sandbox: NoSandbox, argv: list[str], limits: Limits, status: Status
) -> None:
    assert no_sandbox.run(SandboxCommand(argv, limits=limits)).status is status


def test_the_workspace_is_gone_afterwards(no_sandbox: NoSandbox) -> None:
    folder = Path(no_sandbox.run(SandboxCommand(["pwd"])).text.strip())
    assert folder.is_absolute()
    assert not folder.exists()
    with no_sandbox.shell() as shell:
        folder = Path(shell.workspace)
        assert shell.execute("pwd; touch x").text.strip() == str(folder)
        assert folder.exists()
    assert not folder.exists()


def test_a_workspace_of_folders_a_thousand_deep_is_gone_too(
    no_sandbox: NoSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/dev/shm")  # a disk would take seconds
    with no_sandbox.shell() as shell:
        folder = Path(shell.workspace)
        shell.execute('python3 -c \'import os\nfor _ in range(1100): os.mkdir("d"); os.chdir("d")\'')
        assert shell.list_files() == []
    assert not folder.exists()


def test_its_shell_recovers_too(no_sandbox: NoSandbox) -> None:
    with no_sandbox.shell(files={"a": "A"}) as shell:
        assert shell.execute("x=1; cat a").output == b"A"
        assert shell.execute("sleep 9; echo no", 0.2).status is Status.WALL_TIME
        assert shell.execute("echo $x").output == b"1\n"
        assert shell.execute("exit 3").restarted
        assert shell.execute("kill -STOP $$").restarted
        assert shell.execute("cat a").output == b"A"


def test_what_it_cannot_do_is_refused(no_sandbox: NoSandbox) -> None:
    with pytest.raises(SandboxError, match="read_only"):
        no_sandbox.run(SandboxCommand(["true"], read_only={"/data": "/usr"}))
    with pytest.raises(SandboxError, match="program"):
        no_sandbox.run(SandboxCommand([]))
