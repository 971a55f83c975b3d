"""Record the provenance of a run, including the hashes of its local models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from palaestra.runs.provenance import record_provenance

if TYPE_CHECKING:
    from palaestra.runs.run import Run


def record_run(run: Run, *models: str) -> None:
    """Write `provenance.json` of a run that starts, or add an entry for a run that is resumed.

    Arguments:
        models: names of models; services and empty names are left out.
    """
    summary = run.summary
    # A run that ended with an error goes on when it is resumed.
    ended = summary is not None and not summary.get("error")
    record_provenance(run.folder, hash_models(*models), ended=ended)


def hash_models(*names: str) -> dict[str, Any]:
    """The hashes of local models by name; `None` for files that cannot be found or read."""
    from palaestra.engines.base import is_remote
    from palaestra.engines.models import hash_model

    return {name: hash_model(name) for name in dict.fromkeys(names) if name and not is_remote(name)}
