"""A run: a folder with settings, store, checkpoints, summary and report.

settings.json     the recipe and its settings, enough to start again
store.sqlite      attempts, lessons, metrics, costs
checkpoints/      weights, each folder written atomically
rollouts.json     which rollouts are in which iteration, where workers sample ahead of the updates
initial_model/    the weights of a model that was passed as a Python object
code/             the user's Python files that the settings name, as they were at the start
summary.json      the results, once the run has ended
report.html       the results as a page
log.txt           the events and warnings of the run, bounded in size
traceback.txt     the last error, if the run failed
notes.json        the name and the notes that the user gave the run in the viewer
run.lock          held by the process that works on the run
"""

from __future__ import annotations

import errno
import fcntl
import os
import platform
import time
from contextlib import suppress
from pathlib import Path
from traceback import format_exception

from palaestra.core.errors import RunError, StorageError
from palaestra.core.records import Json
from palaestra.core.text import mask_settings
from palaestra.runs.files import (
    PARTIAL,
    check_own_file,
    read_json,
    read_text,
    refuse_links,
    storage_errors,
    write_json,
    write_text,
)
from palaestra.runs.log import TRACEBACK, RunLog, find_cause
from palaestra.runs.provenance import LedgerEntry
from palaestra.runs.store import Store
from palaestra.runs.trust import copy_code, record_trust

FORMAT = 1
INITIAL_MODEL = "initial_model"
"""The checkpoint of a model that was passed as an object. It is written before the run is created."""
# Files that a start may leave behind if it is killed before it writes the settings.
_WRITTEN = ("store.sqlite", "store.sqlite-wal")
_STORE = ("store.sqlite", "store.sqlite-journal", "store.sqlite-wal", "store.sqlite-shm")
_QUIET = 120.0
"""Seconds without a change after which a run of another machine counts as stopped."""
_UNFINISHED = {"run.lock", *_STORE, f"settings.json{PARTIAL}"}


class Run:
    """An open run folder, locked against other processes. Use `Run.create` or `Run.open`."""

    def __init__(self, folder: Path, recipe: str, settings: Json) -> None:
        self.folder, self.recipe, self.settings = folder, recipe, settings
        self.trusted = False
        """Whether the user trusts the code that the folder names, although this user may not have started the run."""
        self.log = RunLog(folder)
        self._lock: int | None = None
        self._store: Store | None = None

    @classmethod
    def create(cls, folder: Path, recipe: str, settings: Json) -> Run:
        """Create a run in `folder`, which must be empty or not exist.

        Raises:
            RunError: the folder is not empty.
            StorageError: the folder cannot be written to.
        """
        with storage_errors(folder, "making the run folder"):
            refuse_links(folder)
            folder.mkdir(parents=True, exist_ok=True)
            run = cls(folder, recipe, settings)
            run._acquire()
        try:
            cls.check_new(folder)
            with storage_errors(folder, "making the run folder"):
                run._clear()
            run._store = Store(folder / "store.sqlite", create=True)
            # The settings are written last: a folder with settings is a run.
            run.write_settings(settings)
            copy_code(settings, folder / "code")
        except BaseException as error:
            if not isinstance(error, RunError):
                run._clear()
            if not (folder / "settings.json").exists():
                (folder / "run.lock").unlink(missing_ok=True)
            run.close()
            raise
        return run

    @staticmethod
    def check_new(folder: Path) -> None:
        """Raise the errors of `create` early, before other work.

        Raises:
            RunError: the folder is not empty, or there is a file in its place.
            StorageError: the folder cannot be written to.
        """
        check_folder(folder)
        with storage_errors(folder, "making the run folder"):
            if (folder / "settings.json").exists():
                raise RunError(
                    f"{folder} already has a run; resume it with: palaestra resume {folder}, or choose another --out"
                )
            names = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
            if not {*_UNFINISHED, INITIAL_MODEL}.issuperset(names):
                raise RunError(f"{folder} is not empty; choose another --out")

    def _clear(self) -> None:
        """Remove the files of a start that failed: it was killed, or the disk was full."""
        for name in _UNFINISHED - {"run.lock"}:
            (self.folder / name).unlink(missing_ok=True)

    @classmethod
    def open(cls, folder: Path, *, read_only: bool = False, trust: bool = False) -> Run:
        """Open the run in `folder`, to continue it or (`read_only`) to read it. Runs no code of the folder.

        Arguments:
            trust: the value of `trusted`.

        Raises:
            RunError: there is no run, it is damaged, or another process is using it.
            StorageError: a folder to be written to contains a link.
        """
        with storage_errors(folder, "opening the run folder"):
            if not folder.is_dir():
                raise RunError(f"the run folder {folder} does not exist")
            if not (folder / "settings.json").exists():
                raise RunError(f"{folder} is not a run folder: it has no settings.json")
        data = read_json(folder / "settings.json")
        if not isinstance(data, dict) or "format" not in data:
            raise RunError(f"the run folder is damaged: {folder / 'settings.json'} has no format")
        if data["format"] != FORMAT:
            raise RunError(
                f"{folder} was written by another version of Palaestra (format {data['format']!r}, expected {FORMAT})"
            )
        if not isinstance(data.get("recipe"), str) or not isinstance(data.get("settings"), dict):
            raise RunError(f"the run folder is damaged: {folder / 'settings.json'} has no valid recipe or settings")
        run = cls(folder, data["recipe"], data["settings"])
        run.trusted = trust
        if not read_only:
            refuse_links(folder)
            _refuse_links_inside(folder)
            run._acquire()
        try:
            run._store = Store(folder / "store.sqlite", read_only=read_only)
        except BaseException:
            run.close()
            raise
        return run

    @property
    def store(self) -> Store:
        assert self._store is not None, "the run is closed"
        return self._store

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    @property
    def summary(self) -> Json | None:
        """The results of a run that has ended; otherwise `None`."""
        path = self.folder / "summary.json"
        if not path.exists():
            return None
        summary = read_json(path)
        if not isinstance(summary, dict):
            raise RunError(
                f"the run folder is damaged: {path} is not an object; delete it, then: palaestra resume {self.folder}"
            )
        return summary

    def write_settings(self, settings: Json) -> None:
        """Write the settings of a run that this user starts or continues."""
        self.settings = settings
        record_trust(self.recipe, mask_settings(settings))
        write_json(
            self.folder / "settings.json",
            {"format": FORMAT, "recipe": self.recipe, "settings": mask_settings(settings)},
        )

    def forget_failure(self) -> None:
        """Remove the summary of a run that failed and is resumed."""
        if (self.summary or {}).get("error"):
            with storage_errors(self.folder, "removing the summary of a failed run"):
                (self.folder / "summary.json").unlink()

    def write_summary(self, summary: Json) -> None:
        write_json(self.folder / "summary.json", summary)

    def _acquire(self) -> None:
        path = self.folder / "run.lock"
        with storage_errors(path, "locking the run folder"):
            check_own_file(path)
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.ftruncate(handle, 0)
                os.write(handle, f"{os.getpid()} {platform.node()}\n".encode())
            except BlockingIOError:
                holder = os.read(handle, 64).decode(errors="replace").partition(" ")[0].strip() or "unknown"
                os.close(handle)
                raise RunError(
                    f"{self.folder} is in use by another process (pid {holder}); wait for it or stop it"
                ) from None
            except BaseException:
                os.close(handle)
                raise
        self._lock = handle

    def close(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = None
        if self._lock is not None:
            os.ftruncate(self._lock, 0)  # An empty lock says to other machines that the run is not going on.
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> Run:
        if self._lock is not None:
            self.log.open()
            with suppress(OSError):
                (self.folder / TRACEBACK).unlink(missing_ok=True)  # A resumed run has not failed yet.
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, KeyboardInterrupt):
            error.add_note(f"palaestra resume {self.folder}")  # Shown to the user who stopped the run.
        if self._lock is not None:
            if isinstance(error, KeyboardInterrupt):
                self.log.add("stopped by the user")
            elif error is not None:
                self._write_traceback(error)
            self.log.close()
        self.close()

    def _write_traceback(self, error: BaseException) -> None:
        """Write the traceback of a failed run to `traceback.txt`, and its cause to the log."""
        path, text = self.folder / TRACEBACK, "".join(format_exception(error))
        self.log.add(f"failed: {find_cause(text)}")
        with suppress(OSError, StorageError):  # The error may be a full disk.
            write_text(path, text)
            error.add_note(f"traceback: {path}")


def is_running(folder: Path) -> bool:
    """Whether a process works on the run in a folder: the one that `run.lock` names, on this machine.

    A run of another machine counts as running if its store has changed in the last two minutes. The lock itself is not
    tried: that would disturb a run that starts in this moment.
    """
    try:
        process, _, host = read_text(folder / "run.lock").strip().partition(" ")
        if host != platform.node():
            states = [path.stat() for path in map(folder.joinpath, _WRITTEN) if path.exists()]
            # A reader makes an empty -wal for a moment.
            last = max((state.st_mtime for state in states if state.st_size), default=0.0)
            return bool(process) and time.time() - last < _QUIET
        os.kill(int(process), 0)
    except PermissionError:
        return True
    except (OSError, ValueError, OverflowError, RunError):
        return False
    return True


class RunClock:
    """Records the seconds of a run that no other ledger entry covers.

    Arguments:
        start: `time.perf_counter()` at the start of the work.
    """

    def __init__(self, run: Run, start: float) -> None:
        self.run, self.start, self.booked = run, start, run.store.total().seconds

    def book(self, phase: str) -> None:
        """Add the seconds since the last call to the ledger, minus those that were recorded in the meantime."""
        now, total = time.perf_counter(), self.run.store.total().seconds
        rest = (now - self.start) - (total - self.booked)
        if rest > 0 and self.run.summary is None:
            self.run.store.add_cost(LedgerEntry(phase, seconds=rest))
            total += rest
        self.start, self.booked = now, total


def _refuse_links_inside(folder: Path) -> None:
    """Raise if a folder that is about to be written to contains a link. Weights & Biases makes links in its own folder."""
    for place, folders, files in os.walk(folder):
        if link := next((name for name in (*folders, *files) if os.path.islink(os.path.join(place, name))), None):
            refuse_links(Path(place, link))
        folders[:] = [name for name in folders if name != "wandb"]


def check_folder(folder: Path) -> None:
    """Raise if `folder` cannot be created or written to. Creates nothing.

    Raises:
        RunError: there is a file in its place or in the place of a parent.
        StorageError: this user may not write there.
    """
    with storage_errors(folder, "making the folder"):
        parent = next((path for path in (folder, *folder.parents) if path.exists()), folder)
        if not parent.is_dir():
            raise RunError(f"{parent} is a file, not a folder; choose another folder than {folder}")
        if not os.access(parent, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def read_summary(folder: Path, recipe: str) -> Json | None:
    """Read the summary of a run of a recipe; `None` if the run has not ended.

    Raises:
        RunError: it is the summary of something else.
    """
    if not (folder / "summary.json").exists():
        return None
    summary = read_json(folder / "summary.json")
    if not isinstance(summary, dict) or summary.get("recipe") != recipe:
        raise RunError(f"the run folder is damaged: {folder / 'summary.json'} is not the summary of a {recipe} run")
    return summary


def new_folder(recipe: str, base: Path = Path("runs")) -> Path:
    """Return a new folder name from the recipe, the time and, if needed, the process id."""
    stem = f"{recipe}-{time.strftime('%Y%m%d-%H%M%S')}"
    candidates = [base / stem, *(base / f"{stem}-{os.getpid()}-{k}" for k in range(1, 1000))]
    return next(folder for folder in candidates if not folder.exists())
