"""The errors that Palaestra raises on purpose.

The user can act on each of them: the message is one line with what was expected, what was given, and what to do. The
command line prints that line and exits with code 2. Any other exception is a bug in Palaestra or in user code; the command
line prints its location and exits with code 1.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping


class PalaestraError(Exception):
    """Base class of every error that a user can act on."""

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle without calling `__init__`, whose arguments are not always `args`."""
        return _rebuild, (type(self), self.args, self.__dict__)


class UnknownNameError(PalaestraError):
    """A name that is not registered. Suggests the nearest one."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        self.kind, self.name, self.known = kind, name, sorted(known)
        super().__init__(f"unknown {kind} '{name}'; {suggest(name, self.known)}")


class SettingsError(PalaestraError):
    """A setting that does not exist, or has a wrong type or value."""


class MissingExtraError(PalaestraError):
    """An optional dependency is not installed. Names the command that installs it."""

    def __init__(self, package: str, extra: str, needed_for: str) -> None:
        self.package, self.extra = package, extra
        super().__init__(
            f"{needed_for} needs the package '{package}', which is not installed; "
            f"install it with: pip install 'palaestra[{extra}]'"
        )


class ModelError(PalaestraError):
    """A model cannot be found, fetched, verified or loaded."""


class EngineError(PalaestraError):
    """A service cannot be used: a missing or rejected key, an unknown model, or no answer."""


class BudgetSpentError(PalaestraError):
    """The next call would exceed the budget. Earlier answers are stored."""


class TotalSpentError(BudgetSpentError):
    """The shared budget of several runs is spent. The runs can be resumed with a larger one."""


class PromptError(PalaestraError):
    """A prompt template is missing, is not valid Jinja, or uses an undefined variable."""


class TaskError(PalaestraError):
    """A task or its data cannot be used."""


class TooFewProblemsError(TaskError):
    """A skill has fewer problems than requested; `available` is their number."""

    def __init__(self, message: str, available: int = 0) -> None:
        self.available = available
        super().__init__(message)


class LessonError(PalaestraError):
    """A student cannot be trained on a lesson."""


class WriterError(LessonError):
    """The writer produced no usable lesson."""


class EnvError(PalaestraError):
    """An environment cannot be built, does not fit its policy, or raised an error."""


class RewardError(PalaestraError):
    """A reward function raised an error or returned something other than a finite number."""


class RunError(PalaestraError):
    """A run folder is missing, damaged, finished, or in use by another process."""


class SandboxError(PalaestraError):
    """The sandbox itself failed. Failures of the program inside are in its `Result`."""


class SandboxWarning(UserWarning):
    """Generated code runs with less isolation than in a sandbox."""


class ExecutorError(PalaestraError):
    """An executor cannot be opened, or its workers cannot be started."""


class RankError(PalaestraError):
    """Another process of a training run has ended or does not answer."""


class StorageError(PalaestraError):
    """Writing to the disk failed: no space or no permission. Earlier data is intact."""


def _rebuild(kind: type[PalaestraError], args: tuple[object, ...], attributes: Mapping[str, object]) -> PalaestraError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(attributes)
    return error


_MAX_LISTED = 60
"""Maximum number of names in a message; packages of games have hundreds."""


def suggest(name: str, known: Iterable[str]) -> str:
    """Suggest the known name that was probably meant, and list the known ones, at most `_MAX_LISTED`.

    >>> suggest("skil_tree", ["no_state", "skill_tree"])
    "did you mean 'skill_tree'? Known: no_state, skill_tree"
    """
    names = sorted(known)
    rest = [f"and {len(names) - _MAX_LISTED} more"] if len(names) > _MAX_LISTED else []
    listing = f"Known: {', '.join(names[:_MAX_LISTED] + rest)}" if names else "nothing is registered"
    lowered = {candidate.lower(): candidate for candidate in names}
    close = difflib.get_close_matches(name.lower(), list(lowered), n=1, cutoff=0.5)
    return f"did you mean '{lowered[close[0]]}'? {listing}" if close else listing
