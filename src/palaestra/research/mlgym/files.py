"""The task and dataset files of an MLGym checkout, with the fields that MLGym documents."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat


class EntryPoint(StrEnum):
    """How a task is judged, by the name of MLGym's class."""

    CSV = "CSVSubmissionTasks"
    """`evaluate.py --submission_file WORKSPACE/submission.csv`; runs no code of the agent."""
    MODEL = "ModelSubmissionTasks"
    """`evaluate.py --config_fname FIRST.yaml`, with the agent's checkpoints and code."""
    LANGUAGE_MODEL = "LMSubmissionTasks"
    """`torchrun evaluate.py`, with the agent's checkpoints and code."""
    PYTHON = "PythonSubmissionTasks"
    """`evaluate.py`, which imports the file that the agent edits; see `roles`."""


class _File(BaseModel):
    # Later versions may add fields; the ones that we read must be valid.
    model_config = ConfigDict(extra="ignore", frozen=True)


class TaskFile(_File):
    """`configs/tasks/NAME.yaml`."""

    id: str
    name: str
    description: str
    task_entrypoint: EntryPoint = EntryPoint.CSV
    dataset_configs: tuple[str, ...] = ()
    training_timeout: Annotated[FiniteFloat, Field(gt=0)] | None = None
    use_generic_conda: bool = True
    requirements_path: str | None = None
    starter_code: tuple[str, ...] = ()
    baseline_paths: tuple[str, ...] = ()
    baseline_scores: tuple[dict[str, FiniteFloat], ...] = ()
    sample_submission: str | None = None
    evaluation_paths: tuple[str, ...] = ("evaluate.py",)
    evaluation_read_only: bool = False
    secret_files: tuple[str, ...] = ()
    memory_path: str | None = None
    benchmark_name: str | None = None


class SplitFile(_File):
    """A split of a dataset file."""

    name: str | None = None
    file_regex: str | None = None


class DatasetFile(_File):
    """`configs/datasets/NAME.yaml`."""

    name: str
    description: str = ""
    data_path: str
    is_local: bool = False
    train_split: SplitFile | None = None
    valid_split: SplitFile | None = None
    test_split: SplitFile | None = None
