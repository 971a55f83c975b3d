"""A run: a folder with settings, store, checkpoints, summary and report.

settings.json     the recipe and its settings, enough to start again
store.sqlite      attempts, lessons, curves, costs
checkpoints/      weights, each folder written beside and renamed
summary.json      the figures, once the run has ended
report.html       the same to look at
traceback.txt     where the run broke off, if it did
run.lock          held by the process that is at work
"""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from traceback import format_exception
from types import TracebackType
from typing import Any

from palaestra.core.errors import RunError
from palaestra.runs.files import PARTIAL, read_json, write_json
from palaestra.runs.guard import storage_errors
from palaestra.runs.ledger import LedgerEntry
from palaestra.runs.store import Store

FORMAT = 1
TRACEBACK = "traceback.txt"
_PROBE = ".palaestra-"
"""Folders that `check_folder` makes for a moment begin with this; a kill may leave one behind."""
# What a start that was killed before it wrote the settings may have left in its folder.
_UNFINISHED = {
    "run.lock", "store.sqlite", "store.sqlite-journal", "store.sqlite-wal", "store.sqlite-shm", "settings.json" + PARTIAL
}  # fmt: skip


class Run:
    """An open run folder, locked against other processes while it is used as a context.

    Make one with `Run.create` or `Run.open`.
    """

    def __init__(self, folder: Path, recipe: str, settings: dict[str, Any]) -> None:
        self.folder, self.recipe, self.settings = folder, recipe, settings
        self._lock: int | None = None
        self._store: Store | None = None

    @classmethod
    def create(cls, folder: Path, recipe: str, settings: dict[str, Any]) -> Run:
        """A new run in `folder`, which must be empty or not exist.

        Raises:
            RunError: the folder holds something already.
            StorageError: it cannot be written to.
        """
        with storage_errors(folder, "making the run folder"):
            folder.mkdir(parents=True, exist_ok=True)
            run = cls(folder, recipe, settings)
            run._acquire()
        try:
            cls.check_new(folder)
            with storage_errors(folder, "making the run folder"):
                run._clear()
            run._store = Store(folder / "store.sqlite", create=True)
            # The settings come last: a folder that has them is a run.
            write_json(folder / "settings.json", {"format": FORMAT, "recipe": recipe, "settings": settings})
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
        """Raise now where `create` would, before the work that comes ahead of a run.

        Raises:
            RunError: the folder holds something already, or cannot be one.
            StorageError: it cannot be written to.
        """
        check_folder(folder)
        with storage_errors(folder, "making the run folder"):
            if (folder / "settings.json").exists():
                raise RunError(
                    f"{folder} holds a run already; resume it with: palaestra resume {folder}, or choose another --out"
                )
            if folder.is_dir() and any(
                entry.name not in _UNFINISHED and not entry.match(f"{_PROBE}*") for entry in folder.iterdir()
            ):
                raise RunError(f"{folder} is not empty; choose another --out")

    def _clear(self) -> None:
        """Remove what a start that was killed, or that found the disk full, has left behind."""
        for name in _UNFINISHED - {"run.lock"}:
            (self.folder / name).unlink(missing_ok=True)
        for probe in self.folder.glob(f"{_PROBE}*"):
            probe.rmdir()

    @classmethod
    def open(cls, folder: Path, *, read_only: bool = False) -> Run:
        """The run in `folder`, to go on with or (`read_only`) to look at.

        Raises:
            RunError: there is no run, it is damaged, or another process is at work in it.
        """
        with storage_errors(folder, "opening the run folder"):
            if not folder.is_dir():
                raise RunError(f"there is no run folder {folder}")
            if not (folder / "settings.json").exists():
                raise RunError(f"{folder} is not a run folder: it has no settings.json")
        data = read_json(folder / "settings.json")
        if not isinstance(data, dict) or not {"format", "recipe", "settings"} <= set(data):
            raise RunError(f"the run folder is damaged: {folder / 'settings.json'} lacks format, recipe or settings")
        if data["format"] != FORMAT:
            raise RunError(
                f"{folder} was written by another version of Palaestra (format {data['format']!r}, expected {FORMAT})"
            )
        if not isinstance(data["recipe"], str) or not isinstance(data["settings"], dict):
            raise RunError(f"the run folder is damaged: {folder / 'settings.json'} names no recipe or no settings")
        run = cls(folder, data["recipe"], data["settings"])
        if not read_only:
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
    def summary(self) -> dict[str, Any] | None:
        """The figures of a run that has ended, else `None`."""
        path = self.folder / "summary.json"
        if not path.exists():
            return None
        summary = read_json(path)
        if not isinstance(summary, dict):
            raise RunError(
                f"the run folder is damaged: {path} holds no object; delete it, then: palaestra resume {self.folder}"
            )
        return summary

    def write_settings(self, settings: dict[str, Any]) -> None:
        """Change the settings that the run goes on with."""
        self.settings = settings
        write_json(self.folder / "settings.json", {"format": FORMAT, "recipe": self.recipe, "settings": settings})

    def forget_failure(self) -> None:
        """Remove the summary of a run that ended with an error, as it goes on."""
        if (self.summary or {}).get("error"):
            with storage_errors(self.folder, "removing the summary of a failed run"):
                (self.folder / "summary.json").unlink()

    def write_summary(self, summary: dict[str, Any]) -> None:
        write_json(self.folder / "summary.json", summary)

    def _acquire(self) -> None:
        path = self.folder / "run.lock"
        with storage_errors(path, "locking the run folder"):
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.ftruncate(handle, 0)
                os.write(handle, f"{os.getpid()}\n".encode())
            except BlockingIOError:
                holder = os.read(handle, 64).decode(errors="replace").strip() or "unknown"
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
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, KeyboardInterrupt):
            error.add_note(f"palaestra resume {self.folder}")  # How to go on, for whoever stopped it.
        elif self._lock is not None:
            self._keep_traceback(error)
        self.close()

    def _keep_traceback(self, error: BaseException | None) -> None:
        """Write where the run broke off to `traceback.txt`; a run that ends well has none."""
        path = self.folder / TRACEBACK
        with suppress(OSError):  # The disk may be full, and that be the error.
            if error is None:
                path.unlink(missing_ok=True)
            else:
                path.write_text("".join(format_exception(error)), encoding="utf-8")
                error.add_note(f"traceback: {path}")


class RunClock:
    """Books the seconds of a run that no other ledger entry covers.

    Arguments:
        start: `time.perf_counter()` at the start of the work.
    """

    def __init__(self, run: Run, start: float) -> None:
        self.run, self.start, self.booked = run, start, run.store.total().seconds

    def book(self, phase: str) -> None:
        """Add the seconds since the last call to the ledger, less those that were booked in the meantime."""
        now, total = time.perf_counter(), self.run.store.total().seconds
        rest = (now - self.start) - (total - self.booked)
        if rest > 0 and self.run.summary is None:
            self.run.store.add_cost(LedgerEntry(phase, seconds=rest))
            total += rest
        self.start, self.booked = now, total


def check_folder(folder: Path) -> None:
    """Raise if `folder` cannot be made or written to. Nothing is left behind.

    Raises:
        RunError: there is a file in its place or above it.
        StorageError: the disk refuses it.
    """
    with storage_errors(folder, "making the folder"):
        parent = next((path for path in (folder, *folder.parents) if path.exists()), folder)
        if not parent.is_dir():
            raise RunError(f"{parent} is a file, not a folder; choose another place than {folder}")
        with TemporaryDirectory(prefix=_PROBE, dir=parent):
            pass  # Only making one shows whether a folder can be made there.


def new_folder(recipe: str, base: Path = Path("runs")) -> Path:
    """A folder name that is not taken yet: the recipe, the time and the process."""
    stem = f"{recipe}-{time.strftime('%Y%m%d-%H%M%S')}"
    candidates = [base / stem, *(base / f"{stem}-{os.getpid()}-{k}" for k in range(1, 1000))]
    return next(folder for folder in candidates if not folder.exists())
