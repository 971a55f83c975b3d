"""A service that repeats the key and the password of its caller: neither is stored or printed."""

from __future__ import annotations

import base64
import html
import json
import logging
import sys
from pathlib import Path
from urllib.parse import quote

import pytest
from chat_server import Call, Reply, Script, Server, error

from palaestra.cli import terminal
from palaestra.cli.main import main
from palaestra.core.records import Completion, Message, Request
from palaestra.core.text import URL_USER
from palaestra.engines.openai import OpenAIEngine
from palaestra.recipes.resume import resume

KEY, PASSWORD = "correct-horse/battery+staple-42", "hunter22&tiger"
SECRETS = [
    KEY, PASSWORD, quote(KEY, safe=""), quote(PASSWORD), html.escape(PASSWORD), base64.b64encode(KEY.encode()).decode()[:24],
    base64.b64encode(f"me:{PASSWORD}".encode()).decode()[:20],
]  # fmt: skip
SIZE = ["--skill", "percent", "--rounds", "1", "--lesson-size", "2", "--validation", "2", "--test", "1", "--answer-tokens",
        "4", "--epochs", "1", "--threads", "1"]  # fmt: skip


def repeat(call: Call) -> str:
    """The credentials of a call in several encodings."""
    header = call.headers["authorization"]
    value = header.partition(" ")[2]
    if header.startswith("Basic"):
        value += " " + base64.b64decode(value).decode()
    return f"{header} {value} {quote(value, safe='')} {html.escape(value)} {base64.b64encode(value.encode()).decode()}"


SCRIPTS: dict[str, Script] = {
    "401": lambda call, _: error(401, f"wrong key {repeat(call)}"),
    "cut 400": lambda call, _: error(400, "x" * 275 + repeat(call)),
    "refusal": lambda call, _: Reply(None, message={"refusal": repeat(call)}),
    "usage": lambda call, _: Reply(raw=json.dumps({"choices": [{"message": {"content": "4"}}], "usage": repeat(call)}).encode()),
    "answer": lambda call, _: Reply(f"The answer is 4. {repeat(call)}"),
}  # fmt: skip


@pytest.fixture(autouse=True)
def own_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PALAESTRA_API_KEY", KEY)
    monkeypatch.setattr("palaestra.core.text._remembered", set())
    monkeypatch.setattr("palaestra.core.text._urls", {})


def run_command(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, getattr(sys, name))  # The command replaces them.
    monkeypatch.setattr(sys, "argv", ["palaestra", *arguments])
    with pytest.raises(SystemExit):
        main()


def check_nothing_leaked(folder: Path, printed: str) -> None:
    texts = {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    for place, text in {**texts, "terminal": printed.encode()}.items():
        for secret in SECRETS:
            assert secret.encode() not in text, f"{secret} is in {place}"
    assert any(b"***" in text for text in texts.values())


@pytest.mark.parametrize("with_password", [False, True])
@pytest.mark.parametrize("fault", SCRIPTS)
def test_evaluate_keeps_no_key_that_a_service_repeats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], fault: str, with_password: bool
) -> None:
    with Server(SCRIPTS[fault]) as server:
        model = server.model.replace("://", f"://me:{quote(PASSWORD)}@") if with_password else server.model
        options = ["--task", "math-skills", "--skill", "percent", "--problems", "2", "--out", str(tmp_path / "run")]
        run_command(monkeypatch, "evaluate", "--traceback", "--model", model, *options)
        assert server.calls[0].headers["authorization"].startswith("Basic" if with_password else "Bearer")
    check_nothing_leaked(tmp_path, "".join(capsys.readouterr()))


def test_teach_keeps_no_key_that_its_writer_repeats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PALAESTRA_CACHE", str(tmp_path / "cache"))
    with Server(SCRIPTS["answer"]) as server:
        model = server.model.replace("://", f"://me:{quote(PASSWORD)}@")
        run_command(monkeypatch, "teach", "--writer", model, *SIZE, "--out", str(tmp_path / "run"))
        assert server.calls
    check_nothing_leaked(tmp_path, "".join(capsys.readouterr()))


def test_an_answer_with_the_key_is_masked_and_has_no_token_ids() -> None:
    def script(call: Call, _: int) -> Reply:
        logprobs = {"content": [{"logprob": -0.5}] * 3}
        text = repeat(call) if call.asked == "repeat" else "Seven."
        return Reply(text, choice={"token_ids": [5, 6, 7], "logprobs": logprobs})

    with Server(script) as server:
        requests = [Request((Message("user", text),)) for text in ("repeat", "3 + 4?")]
        ((masked,), (plain,)) = OpenAIEngine(server.model, exact=True).generate(requests)
    assert isinstance(masked, Completion)
    assert isinstance(plain, Completion)
    assert masked.text.startswith("Bearer *** ***")
    assert (masked.token_ids, masked.logprobs, masked.is_exact) == ((), (), False)
    assert (plain.text, plain.token_ids, plain.logprobs) == ("Seven.", (5, 6, 7), (-0.5,) * 3)


def test_a_run_with_a_password_in_its_address_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer: list[Reply] = [error(401, "locked")]
    with Server(lambda call, _: answer[0]) as server:
        model = server.model.replace("://", f"://me:{quote(PASSWORD)}@")
        options = ["--task", "math-skills", "--skill", "percent", "--problems", "2", "--out", str(tmp_path / "run")]
        run_command(monkeypatch, "evaluate", "--model", model, *options)
        answer[0] = Reply("Answer: 4")
        monkeypatch.setattr("palaestra.core.text._urls", {})  # As in a new process.
        monkeypatch.setenv(URL_USER, f"me:{quote(PASSWORD)}")
        result = resume(tmp_path / "run", progress=False)
        assert server.calls[-1].headers["authorization"].startswith("Basic ")
    assert result.summary["problems"] == 2


def test_logs_and_warnings_of_the_command_are_masked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, getattr(sys, name))
    terminal.mask_output()
    terminal.say(f"the key is {KEY}")
    handler = logging.StreamHandler()
    handler.handle(logging.LogRecord("a", logging.ERROR, "", 0, "Authorization: Bearer %s", (KEY,), None))
    print(f"a library prints {KEY}", file=sys.stderr)  # noqa: T201
    printed = "".join(capsys.readouterr())
    assert printed.count("***") == 3
    assert KEY not in printed
