"""The errors that Palaestra raises on purpose.

Every one of them is the user's to solve: its message is one line that names what was expected,
what came, and what to do. The command line prints that line and exits with code 2. Anything else
that escapes is a bug, of ours or of a user's own code: the command line names its place and exits with code 1.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class PalaestraError(Exception):
    """Base class of every error that a user can act on."""


class UnknownNameError(PalaestraError):
    """A name that nothing is registered under. Suggests the nearest one that exists."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        self.kind, self.name, self.known = kind, name, sorted(known)
        super().__init__(f"unknown {kind} '{name}'; {suggest(name, self.known)}")


class SettingsError(PalaestraError):
    """A setting that does not exist, has the wrong type, or a value that makes no sense."""


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
    """A service cannot be used as it is set up: no key, a refused one, no such model, nobody there."""


class BudgetSpentError(PalaestraError):
    """The next call would pass a limit of the budget. What was answered before is stored."""


class TotalSpentError(BudgetSpentError):
    """What several runs may spend together is spent. It ends none of them: they wait for more."""


class PromptError(PalaestraError):
    """A prompt template is missing, is no Jinja, or uses a variable that it was not given."""


class TaskError(PalaestraError):
    """A task cannot give what was asked of it."""


class TooFewProblemsError(TaskError):
    """A skill has fewer problems than were asked for; `available` says how many it has."""

    def __init__(self, message: str, available: int = 0) -> None:
        self.available = available
        super().__init__(message)


class LessonError(PalaestraError):
    """A lesson that a student cannot be trained on."""


class WriterError(LessonError):
    """No lesson was written: the model that writes failed, or nothing that it wrote can be taught."""


class EnvError(PalaestraError):
    """An environment that cannot be built, does not fit its policy, or broke while it ran."""


class RewardError(PalaestraError):
    """A reward function raised, or gave something that is not a finite number."""


class RunError(PalaestraError):
    """A run folder is missing, damaged, finished, or in use by another process."""


class SandboxError(PalaestraError):
    """The sandbox itself failed: it cannot run here, or broke. What a program did is in its `Result`, never here."""


class SandboxWarning(UserWarning):
    """Code of a model runs with less isolation than a sandbox gives."""


class StorageError(PalaestraError):
    """The disk refused a write: no space, no permission. What was saved before is intact."""


def suggest(name: str, known: Iterable[str]) -> str:
    """Say which known name was probably meant, or list them all.

    >>> suggest("skil_tree", ["no_state", "skill_tree"])
    "did you mean 'skill_tree'? Known: no_state, skill_tree"
    """
    names = sorted(known)
    listing = f"Known: {', '.join(names)}" if names else "nothing is registered"
    lowered = {candidate.lower(): candidate for candidate in names}
    close = difflib.get_close_matches(name.lower(), list(lowered), n=1, cutoff=0.5)
    return f"did you mean '{lowered[close[0]]}'? {listing}" if close else listing
