"""The content of `provenance.json`, and the secrets that it must not contain."""

import hashlib
import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from palaestra import __version__
from palaestra.core.errors import RunError
from palaestra.core.text import mask_arguments
from palaestra.models import registry as models
from palaestra.runs import provenance
from palaestra.runs.provenance import read_checkout, read_provenance, record_provenance


def git(folder: Path, *arguments: str) -> str:
    options = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    return subprocess.run(
        ["git", *options, "-C", folder, *arguments], check=True, capture_output=True, text=True
    ).stdout.strip()


def test_a_start_records_versions_packages_command_and_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["palaestra", "teach", "--seed", "3"])
    record_provenance(tmp_path, {"nano": models.hash_model("nano")})
    actual = json.loads((tmp_path / "provenance.json").read_text())
    started = actual["started"]
    assert actual["resumed"] == []
    assert started["palaestra"]["version"] == __version__
    assert started["command"] == ["palaestra", "teach", "--seed", "3"]
    assert started["packages"]["torch"] == version("torch")
    assert sys.version.partition(" ")[0] in started["python"]
    file = Path(models.locate("nano")) / "model.safetensors"
    assert started["models"]["nano"]["files"][file.name] == hashlib.sha256(file.read_bytes()).hexdigest()


def test_a_resume_adds_differences_until_the_run_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record_provenance(tmp_path, {"nano": {"sha256": "a"}})
    started = read_provenance(tmp_path)["started"]  # type: ignore[index]
    record_provenance(tmp_path, {"nano": {"sha256": "a"}})
    monkeypatch.setattr(provenance, "__version__", "9.9")
    monkeypatch.setattr(provenance, "list_packages", lambda: {**started["packages"], "torch": "0.0"})
    record_provenance(tmp_path, {"nano": {"sha256": "b"}})
    record_provenance(tmp_path, {"nano": {"sha256": "c"}}, ended=True)
    actual = read_provenance(tmp_path)
    assert actual is not None
    assert actual["started"] == started
    assert [entry["changed"] for entry in actual["resumed"]] == [
        {},
        {
            "models.nano.sha256": ["a", "b"],
            "packages.torch": [started["packages"]["torch"], "0.0"],
            "palaestra.version": [__version__, "9.9"],
        },
    ]


def test_a_damaged_file_is_named_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "provenance.json").write_text('{"started": 1}')
    with pytest.raises(RunError, match=r"provenance\.json"):
        record_provenance(tmp_path, {})


def test_a_checkout_is_dirty_by_changes_and_new_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "src" / "palaestra"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (tmp_path / "notes.txt").write_text("one")
    assert read_checkout(package) == {"commit": None, "dirty": None}
    git(tmp_path, "init", "-q")
    assert read_checkout(package) == {"commit": None, "dirty": None}  # In a repository that does not track it.
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")
    commit = git(tmp_path, "rev-parse", "HEAD")
    monkeypatch.setenv("GIT_DIR", "/nowhere")  # As in a hook of git.
    assert read_checkout(package) == {"commit": commit, "dirty": False}
    (tmp_path / "untracked.txt").write_text("an output of the user")
    assert read_checkout(package) == {"commit": commit, "dirty": False}
    (package / "new.py").write_text("")
    assert read_checkout(package) == {"commit": commit, "dirty": True}
    (package / "new.py").unlink()
    (tmp_path / "notes.txt").write_text("two")
    assert read_checkout(package) == {"commit": commit, "dirty": True}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["--writer", "https://me:pass@host:1/v1#model"], ["--writer", "https://***@host:1/v1#model"]),
        (["--writer=https://host/v1?api_key=abc#model"], ["--writer=https://host/v1?***#model"]),
        (["--api-key", "abc", "--seed", "1"], ["--api-key", "***", "--seed", "1"]),
        (["--token=abc"], ["--token=***"]),
        (["--task-option", "hub_token=abc"], ["--task-option", "hub_token=***"]),
        (["sk-abcdefgh12345678"], ["***"]),
        (["--note", "uses correct-horse here"], ["--note", "uses *** here"]),
        (["--max-tokens", "24", "--answer-tokens", "8"], ["--max-tokens", "24", "--answer-tokens", "8"]),
        (["--max-tokens=24", "runs/keyboard"], ["--max-tokens=24", "runs/keyboard"]),
    ],
)
def test_secrets_on_the_command_line_are_masked(
    given: list[str], expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_SERVICE_KEY", "x")
    monkeypatch.setenv("PALAESTRA_API_KEY", "correct-horse")
    assert mask_arguments(given) == expected


def test_no_environment_variable_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "a-very-secret-key")
    monkeypatch.setenv("HARMLESS", "a-harmless-value")
    monkeypatch.setattr(sys, "argv", ["palaestra", "a-very-secret-key"])
    record_provenance(tmp_path, {"https://user:a-very-secret-key@host/v1#m": None})
    text = (tmp_path / "provenance.json").read_text()
    assert "secret" not in text
    assert "harmless" not in text


def test_hashes_of_large_files_are_cached_until_a_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PALAESTRA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(models, "CACHED_FROM", 4)
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"12345")
    first = models.hash_files(folder)
    assert first["model.safetensors"] == hashlib.sha256(b"12345").hexdigest()
    hashed: list[str] = []
    real = models.hash_file
    monkeypatch.setattr(models, "hash_file", lambda path: hashed.append(path.name) or real(path))
    assert models.hash_files(folder) == first
    assert hashed == ["config.json"]
    (folder / "model.safetensors").write_bytes(b"1234567")
    assert models.hash_files(folder)["model.safetensors"] == hashlib.sha256(b"1234567").hexdigest()
    (tmp_path / "cache" / "hashes.json").write_text("no json")
    assert models.hash_files(folder)["model.safetensors"] == hashlib.sha256(b"1234567").hexdigest()
    assert models.hash_model("nobody/nothing") is None
    before = models.hash_files(folder)
    (folder / "provenance.json").write_text("{}")  # How the weights were made is no part of them.
    assert models.hash_files(folder) == before


def test_a_pretrained_checkpoint_says_what_made_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from palaestra.recipes.train import pretrain

    monkeypatch.setattr(pretrain, "TOKENIZER_EXAMPLES", 200)
    monkeypatch.setattr(pretrain, "TOKENIZER_EXAMPLES_PER_SKILL", 10)
    pretrain.pretrain(steps=1, batch_size=2, layers=1, width=32, problems=1, out=str(tmp_path / "made"))
    created = json.loads((tmp_path / "made" / "provenance.json").read_text())
    assert {"time", "command", "palaestra", "packages"} <= set(created["started"])
