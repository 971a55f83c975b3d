"""What a run used: versions, hardware, calls of models, and their cost."""

from __future__ import annotations

import functools
import os
import platform
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from palaestra.core.errors import RunError
from palaestra.core.records import Completion, Failure, ImagePart, Json, Message, TextPart, ToolCall, Usage, Values
from palaestra.core.text import clean_fields, mask_arguments, mask_settings
from palaestra.runs.files import read_json, write_json
from palaestra.version import __version__

PROVENANCE = "provenance.json"
_GIT_SECONDS = 10
_MAX_URL = 500
"""Maximum characters of an image's URL; a longer one is an image itself and is left out."""


def record_provenance(folder: Path, models: Mapping[str, object], *, ended: bool = False) -> None:
    """Write `provenance.json` if the folder has none, otherwise add an entry for this resume.

    Arguments:
        models: the hashes of the base weights by model name.
        ended: whether the run has ended; then nothing is added.
    """
    known = read_provenance(folder)
    if known is None or not ended:
        write_json(folder / PROVENANCE, extend_provenance(known, models))


def extend_provenance(known: Json | None, models: Mapping[str, object]) -> Json:
    """Return the provenance of a run that starts now, or `known` with an entry for a resume."""
    now = _collect_provenance(models)
    if known is None:
        return {"started": now, "resumed": []}
    entry = {"time": now["time"], "command": now["command"], "changed": _find_changes(known["started"], now)}
    return {**known, "resumed": [*known["resumed"], entry]}


def read_provenance(folder: Path) -> Json | None:
    """Return the content of `provenance.json`; `None` if the run has none.

    Raises:
        RunError: the file is damaged.
    """
    path = folder / PROVENANCE
    if not path.exists():
        return None
    data = read_json(path)
    if isinstance(data, dict) and isinstance(data.get("started"), dict) and isinstance(data.get("resumed"), list):
        return data
    raise RunError(
        f"the run folder is damaged: {path} has no 'started' or no 'resumed'; delete the file to continue without it"
    )


def _collect_provenance(models: Mapping[str, object]) -> Json:
    """Collect the versions of Palaestra, Python, the platform and all packages, and the command line."""
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "command": mask_arguments(sys.argv),
        "palaestra": {"version": __version__, **_read_own_checkout()},
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "platform": platform.platform(),
        "host": platform.node(),
        "accelerator": _accelerator(),
        "packages": list_packages(),
        "models": {mask_settings(name): hashes for name, hashes in models.items()},
    }


def _find_changes(before: Mapping[str, object], now: Mapping[str, object]) -> Json:
    """Return the differences between two provenance records, except time, host and command, as `[before, now]` by dotted name.

    >>> _find_changes({"python": "3.11", "packages": {"numpy": "2.0"}}, {"python": "3.12", "packages": {"numpy": "2.0"}})
    {'python': ['3.11', '3.12']}
    """
    first, second = _flatten(before), _flatten(now)
    return {
        name: [first.get(name), second.get(name)]
        for name in sorted({*first, *second})
        if name not in ("time", "command", "host") and first.get(name) != second.get(name)
    }


def _flatten(record: Mapping[str, object], prefix: str = "") -> Json:
    flat: Json = {}
    for name, value in record.items():
        flat |= _flatten(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return flat


def read_checkout(package: Path) -> Json:
    """Return the git commit of the checkout with `package`, and whether it is dirty; both `None` outside a checkout.

    Dirty means changed tracked files, or new files in the package. An installed package inside a user's repository is not
    tracked there, so it is not part of a checkout.
    """
    nothing: Json = {"commit": None, "dirty": None}
    if _git(package, "ls-files", "--error-unmatch", "__init__.py") is None:
        return nothing
    commit = _git(package, "rev-parse", "HEAD")
    changed = _git(package, "status", "--porcelain", "--untracked-files=no", "--", ":/")
    added = _git(package, "ls-files", "--others", "--exclude-standard")
    if commit is None or changed is None or added is None:
        return nothing
    return {"commit": commit.strip(), "dirty": bool(changed.strip() or added.strip())}


@functools.cache
def _read_own_checkout() -> Json:
    """Read the checkout of this package once: a process keeps the code that it has imported."""
    return read_checkout(Path(__file__).resolve().parents[1])


def _git(folder: Path, *arguments: str) -> str | None:
    """Run a read-only git command. Returns its output; `None` if it fails."""
    # Variables such as GIT_DIR, which git sets in hooks, would point at another repository.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]
        done = subprocess.run(command, capture_output=True, timeout=_GIT_SECONDS, env=environment, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode(errors="replace") if done.returncode == 0 else None


def list_packages() -> dict[str, str]:
    """List name and version of all installed packages by the `.dist-info` folders on the import path.

    `importlib.metadata` parses a file for each package and takes a hundred times as long.
    """
    packages: dict[str, str] = {}
    for entry in sys.path:
        try:
            names = [path.name for path in Path(entry or ".").glob("*.dist-info")]
        except OSError:
            continue
        for name in names:
            package, dash, version = name.removesuffix(".dist-info").partition("-")
            if dash:
                packages.setdefault(package, version)
    return dict(sorted(packages.items(), key=lambda item: item[0].lower()))


def _accelerator() -> str | None:
    """Return the name of the GPU, if torch is loaded and has one."""
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "cuda") or not torch.cuda.is_available():
        return None
    return str(torch.cuda.get_device_name(0))


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """The cost of one step of work, written in the same transaction as its result."""

    phase: str
    model: str = ""
    calls: int = 0
    usage: Usage = field(default_factory=Usage)
    seconds: float = 0.0
    money: float = 0.0


@dataclass(frozen=True, slots=True)
class LedgerTotal:
    """The sum of many entries. Money is in US dollars."""

    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    seconds: float = 0.0
    money: float = 0.0


@dataclass(frozen=True, slots=True)
class Spending:
    """The cost of calls to models.

    Arguments:
        calls: number of calls, including rejected and failed ones.
        hits: number of answers from the cache; they cost nothing and are not in the other numbers.
        seconds: the sum of the calls' latencies; concurrent calls count in full.
        money: US dollars at list price, for calls with a known price.
        unpriced: number of calls without a known price; they are missing from `money`.
        unmeasured: number of calls whose tokens are unknown, because the connection broke or this process
            was killed; they are missing from the tokens and from `money`.
        again: number of repeated calls, after a failure or a kill of this process.
    """

    calls: int = 0
    hits: int = 0
    usage: Usage = field(default_factory=Usage)
    seconds: float = 0.0
    money: float = 0.0
    unpriced: int = 0
    unmeasured: int = 0
    again: int = 0

    @property
    def tokens(self) -> int:
        return self.usage.prompt_tokens + self.usage.completion_tokens

    def entry(self, phase: str, model: str, seconds: float = 0.0) -> LedgerEntry:
        """Convert to an entry of a run's ledger. `seconds` is wall-clock time."""
        return LedgerEntry(phase, model, self.calls, self.usage, seconds, self.money)

    def entry_since(self, noted: LedgerTotal, phase: str, model: str = "", seconds: float = 0.0) -> LedgerEntry:
        """Return the cost since `noted`, the total of the ledger so far, including the calls of killed processes."""
        usage = Usage(
            max(0, self.usage.prompt_tokens - noted.prompt_tokens),
            max(0, self.usage.completion_tokens - noted.completion_tokens),
        )
        money = max(0.0, self.money - noted.money)
        return LedgerEntry(phase, model, max(0, self.calls - noted.calls), usage, seconds, money)

    def gaps(self) -> dict[str, int]:
        """Return the numbers of calls that are missing from the cost of a summary.

        `unpriced_calls` have no known price; `unmeasured_calls` have no known number of tokens.
        """
        return {"unpriced_calls": self.unpriced, "unmeasured_calls": self.unmeasured}


def describe_cost(summary: Values) -> str:
    """Describe the cost of a summary. Calls without a price or a token count are not shown as $0.

    Arguments:
        summary: has `cost`, and optionally `unpriced_calls` and `unmeasured_calls` (`Spending.gaps`) or the names of
            `unpriced` models.

    >>> describe_cost({"cost": 0.5}), describe_cost({"cost": 0.0, "unpriced_calls": 4})
    ('$0.50', 'unpriced')
    >>> describe_cost({"cost": 0.5, "unpriced_calls": 1})
    '$0.50 and 1 unpriced call'
    >>> describe_cost({"cost": 0.0, "unpriced": ["m"]}), describe_cost({"cost": 1.5, "unpriced": ["m"]})
    ('unpriced (m)', '$1.50 and unpriced (m)')
    >>> describe_cost({"cost": 0.0, "unmeasured_calls": 2})
    '$0.00 and 2 unmeasured calls'
    """
    money, names = summary["cost"], summary.get("unpriced") or ()
    unpriced, unmeasured = (int(summary.get(f"{name}_calls") or 0) for name in ("unpriced", "unmeasured"))
    parts = [f"${money:.2g}" if 0 < money < 0.01 else f"${money:,.2f}"] if money or not (names or unpriced) else []
    if names:
        parts.append(f"unpriced ({', '.join(names)})")
    elif unpriced:
        parts.append(_count_calls(unpriced, "unpriced") if money else "unpriced")
    if unmeasured:
        parts.append(_count_calls(unmeasured, "unmeasured"))
    return " and ".join(parts)


def _count_calls(count: int, kind: str) -> str:
    return f"{count} {kind} {'call' if count == 1 else 'calls'}"


@dataclass(frozen=True, slots=True)
class CallRecord:
    """One call, or several with the same request.

    Arguments:
        key: identifies the request, as in the cache.
        phase: the part of the run, for example `2/lesson`.
        messages: the prompt. Images are replaced by their sizes.
        answer: the text of the completion; empty if the call failed.
        failure: why there is no answer.
        stop_reason: why the completion ended.
        spent: the cost of this run's calls. It has no calls if the answer came from the cache.
    """

    key: str
    phase: str
    model: str
    messages: tuple[Message, ...]
    answer: str = ""
    failure: Failure | None = None
    stop_reason: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    spent: Spending = field(default_factory=Spending)

    def __post_init__(self) -> None:
        clean_fields(self, "phase", "model", "answer")

    @property
    def is_cached(self) -> bool:
        return self.spent.calls == 0


class CallLog:
    """Collects the calls of a run until they are stored with the result that they led to."""

    def __init__(self) -> None:
        self._records: dict[str, CallRecord] = {}

    def add(
        self,
        key: str,
        phase: str,
        model: str,
        messages: Sequence[Message],
        answer: Completion | Failure,
        spent: Spending,
    ) -> None:
        """Add a call. A repeated request replaces the first one."""
        prompt = tuple(map(_hide, messages))
        if isinstance(answer, Failure):
            self._records[key] = CallRecord(key, phase, model, prompt, failure=answer, spent=spent)
            return
        if not spent.calls:  # The tokens are those of the call that another run has paid for.
            spent = replace(spent, usage=answer.usage)
        reason = str(answer.stop_reason)
        self._records[key] = CallRecord(key, phase, model, prompt, answer.text, None, reason, answer.tool_calls, spent)

    def take(self) -> list[CallRecord]:
        """Return the calls since the last time, in order, and forget them."""
        records, self._records = list(self._records.values()), {}
        return records


def _hide(message: Message) -> Message:
    """Replace the images of a message."""
    if isinstance(message.content, str):
        return message
    parts = (
        TextPart(f"[image of {len(part.url)} characters]")
        if isinstance(part, ImagePart) and len(part.url) > _MAX_URL
        else part
        for part in message.content
    )
    return replace(message, content=tuple(parts))
