"""Which runs, and which files of code, belong to this user.

The settings of a run can name code: plugins, classes such as `file.py:Class`, commands of agents, task folders, and the
addresses of servers that receive an API key. A run folder from somebody else must not run any of these unasked. For every
run that a user starts, a file outside of the run folder, `$XDG_STATE_HOME/palaestra/trusted/HASH.json`, records the hash of
the settings, and the path and hash of each file of code. Only such a run is resumed without `--trust`.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib.machinery import PathFinder
from pathlib import Path

from palaestra.core.errors import PalaestraError, RunError
from palaestra.core.registry import is_user_file
from palaestra.runs.files import hash_file, read_json, write_json, write_text

_HARMFUL = (
    "plugins", "engine_kwargs", "trainer_kwargs", "mlgym", "prompts", "reward", "memory", "cache", "demonstration", "skills_file",
    "agent_config",
)  # fmt: skip
"""Settings that always name code, how to run it, or a file."""
_PREFIXES = {
    "agent": ("model",),
    "device": ("cuda",),
    "executor": ("processes",),
    "history": ("last", "summary"),
    "env": ("text", "textarena", "gem"),
    **dict.fromkeys(("model", "student", "writer", "planner", "discover"), ("openai", "azure", "vllm", "transformers", "mock")),
}  # fmt: skip
"""Prefixes of values that name no code, for example `openai:` of a model, by setting."""
_SANDBOX = "bubblewrap"
_FOLDERS = ("task", "places", "mlgym", "prompts")
"""Settings that name folders with code. Folders of models and data can be large, and no code in them is run."""
_COMMANDS = ("agent", "trainer_kwargs")
"""Settings that name programs."""
_CODE_SUFFIXES = (".py", ".sh", ".yaml", ".yml", ".toml", ".j2")
"""Suffixes of files that can contain code."""
_MAX_COPIES, _MAX_COPY = 20, 1 << 18
_HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*")
_WORD = re.compile(r"[^\s=,\"'\[\]{}]+")
_ADVICE = "if you trust it, add --trust (in Python, trust=True); see docs/security.md"


def check_trust(
    folder: Path, recipe: str, settings: Mapping[str, object], *, trust: bool = False, advice: str = _ADVICE
) -> None:
    """Raise unless everything that the settings of a run name may be run.

    That is the case if they name no code, if this user has started the run with these settings and the code is unchanged,
    or if the user trusts the folder. A trusted run is recorded as the user's own.

    Raises:
        RunError: lists what the settings name.
    """
    named = list_code(recipe, settings)
    if not named:
        return
    if trust:
        record_trust(recipe, settings)
        return
    record = _read_record(_hash_settings(recipe, settings))
    if record is None:
        listing = "; ".join(named[:20])
        raise RunError(
            f"you have not started the run {folder} on this machine, and its settings name code, files or servers: "
            f"{listing}; {advice}"
        )
    code = _hash_code(settings)
    changed = sorted(path for path in {*code, *record} if code.get(path) != record.get(path))
    if changed:
        raise RunError(f"code of the run {folder} has changed since you started it: {', '.join(changed)}; {advice}")


def record_trust(recipe: str, settings: Mapping[str, object]) -> None:
    """Record that this user runs these settings. Settings that name no code need no record."""
    if list_code(recipe, settings):
        _write_record(_hash_settings(recipe, settings), _hash_code(settings))


def copy_code(settings: Mapping[str, object], folder: Path) -> None:
    """Copy the Python files that settings name into `folder`, to keep what a run was started with.

    Secrets are masked. Large files are left out.
    """
    for path in map(Path, list(_hash_code(settings))[:_MAX_COPIES]):
        if path.suffix == ".py" and path.stat().st_size <= _MAX_COPY:
            folder.mkdir(exist_ok=True)
            copy = folder / path.name
            copy = folder / f"{path.parent.name}-{path.name}" if copy.exists() else copy
            write_text(copy, path.read_text(encoding="utf-8", errors="replace"))


def is_own_pickle(data: bytes) -> bool:
    """Whether a run of this user has written this pickle."""
    return _read_record(hashlib.sha256(data).hexdigest()) is not None


def record_pickle(data: bytes) -> None:
    """Record that this user has written a pickle."""
    _write_record(hashlib.sha256(data).hexdigest(), {})


def forget_pickle(path: Path) -> None:
    """Remove the record of a pickle that is about to be deleted."""
    with suppress(OSError):
        _find_record(hash_file(path)).unlink()


def _hash_settings(recipe: str, settings: Mapping[str, object]) -> str:
    """Return the hash of a run's recipe and settings, which does not depend on its folder."""
    return hashlib.sha256(json.dumps([recipe, settings], sort_keys=True, default=str).encode()).hexdigest()


def list_code(recipe: str, settings: Mapping[str, object]) -> list[str]:
    """List the settings that could run code, read or write files, or contact a server, each as `name=value`.

    Everything counts that is not a plain word, because a registered name is the only value that never names code.

    >>> list_code("train", {"env": "CartPole-v1", "model": "openai:gpt-5", "seed": 3, "plugins": []})
    []
    >>> list_code("train", {"env": "games.py:Chess", "env_kwargs": {"opponent": "players:random"}, "agent": "bash"})
    ['env=games.py:Chess', 'env_kwargs=players:random', 'agent=bash']
    """
    named = []
    for setting, value in settings.items():
        commands = setting in _HARMFUL or (setting == "agent" and recipe == "train")
        for name, text in list_texts(setting, value):
            if text and (commands or not _is_plain(setting, name, text)):
                shown = f"{setting}={text}" if len(text) <= 200 else f"{setting}={text[:197]}..."
                # A terminal must not obey what somebody else has written.
                named.append("".join(sign if sign.isprintable() else "\N{REPLACEMENT CHARACTER}" for sign in shown))
    return named


def _is_plain(setting: str, name: str, text: str) -> bool:
    """Whether a value, of a setting or of an option `name` in it, names neither code, nor a file, nor a server."""
    if setting == "tags":
        return True
    if name == "sandbox" or "sandbox" in text:
        return text in (_SANDBOX, f"sandbox={_SANDBOX}")
    prefix, colon, rest = text.partition(":")
    if colon and name == setting and prefix in _PREFIXES.get(setting, ()):
        text = rest
    if re.search(r":\S|\.py\b|[~\\]", text):
        return False
    words = _WORD.findall(text)
    if (name in _FOLDERS or name != setting) and any(map(os.path.lexists, words)):
        return False
    return all("/" not in word or _HUB_ID.fullmatch(word) for word in words)


def list_texts(name: str, value: object) -> Iterator[tuple[str, str]]:
    """Yield all texts in nested values, each with the name of its option, or of the setting."""
    if isinstance(value, str):
        option = re.match(r"(\w+)=", value)
        yield option[1] if option else name, value
    elif isinstance(value, Mapping):
        for key, entry in value.items():
            yield from list_texts(name, key)
            yield from list_texts(str(key), entry)
    elif isinstance(value, list | tuple):
        for entry in value:
            yield from list_texts(name, entry)


def _hash_code(settings: Mapping[str, object]) -> dict[str, str]:
    """Return the hashes of all files of code that settings name, by path: files, folders of code, and modules."""
    paths: set[Path] = set()
    for setting, value in settings.items():
        for name, text in list_texts(setting, value):
            words = {*_WORD.findall(text), text}
            with suppress(ValueError):  # An open quotation mark.
                words.update(shlex.split(text))
            for word in words:
                paths.update(_find_code({setting, name}, word))
    return {str(path): hash_file(path) for path in sorted(paths) if os.access(path, os.R_OK)}


def _find_code(names: set[str], word: str) -> Iterator[Path]:
    """Yield the files of code that a word names: a path, `PATH:Name`, `prefix:PATH`, or a module.

    Arguments:
        names: the setting of the word, and the option in it.
    """
    for part in {word, *word.split(":"), word.rpartition(":")[0]} - {""}:
        with suppress(OSError, ValueError, RuntimeError):  # Not a path, for example a text with a null character.
            path = Path(part).expanduser()
            if path.is_file():
                if path.suffix in _CODE_SUFFIXES or (names.intersection(_COMMANDS) and os.access(path, os.X_OK)):
                    yield path.resolve()
            elif path.is_dir() and names.intersection(_FOLDERS):
                yield from (
                    file for file in path.resolve().rglob("*") if file.suffix in _CODE_SUFFIXES and file.is_file()
                )
            elif ("plugins" in names or ":" in word) and (module := _locate_module(part)):
                yield module


def _locate_module(name: str) -> Path | None:
    """Return the file of a module of the user; `None` if there is none. Imports nothing."""
    parts, folders = name.split("."), [*sys.path, os.getcwd()]
    spec = None
    for depth in range(len(parts)):
        spec = PathFinder.find_spec(".".join(parts[: depth + 1]), folders)
        if spec is None:
            return None
        folders = list(spec.submodule_search_locations or ())
    return Path(spec.origin) if spec and spec.origin and is_user_file(spec.origin) else None


def _find_record(digest: str) -> Path:
    base = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(base).expanduser() / "palaestra" / "trusted" / f"{digest}.json"


def _read_record(digest: str) -> dict[str, str] | None:
    with suppress(PalaestraError, RuntimeError):  # No record, or no home folder.
        record = read_json(_find_record(digest))
        return record["code"] if isinstance(record, dict) and isinstance(record.get("code"), dict) else None
    return None


def _write_record(digest: str, code: Mapping[str, str]) -> None:
    # Without a home folder that can be written to, a run starts as usual, and its resume needs --trust.
    with suppress(PalaestraError, OSError, RuntimeError):
        path = _find_record(digest)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_json(path, {"code": dict(code)})
