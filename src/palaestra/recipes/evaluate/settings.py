"""Settings of `palaestra evaluate`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from palaestra.core.records import Json
from palaestra.core.settings import check_ranges, setting
from palaestra.engines.base import is_remote
from palaestra.recipes.settings import (
    CALL_TIMEOUT,
    EngineSettings,
    ExecutorSettings,
    RunSettings,
    check_effects,
    require,
)


@dataclass(frozen=True)
class EvaluateSettings(EngineSettings, ExecutorSettings, RunSettings):
    """Settings of one evaluation. The command line's options and `settings.json` have the same names."""

    plugins: tuple[str, ...] = setting((), panel="Run")
    """Files (my_task.py) or modules of your own that register tasks."""
    task: str = setting("math-skills", panel="Task", usual=True, names="tasks")
    """The task: a name, see `palaestra list tasks`, or your own data: FILE, FOLDER or hf:NAME."""
    task_kwargs: Mapping[str, Any] = setting({}, panel="Task")
    """Options of the task, for example scorer=number."""
    model: str = setting("", panel="Model", usual=True, names="models")
    """The model: a registered name, a folder, a hub id, or a service such as openai:MODEL or ADDRESS#MODEL; empty: the
    embedded model that fits the task."""
    split: Literal["train", "validation", "test"] = setting("test", panel="Task", usual=True)
    """The split of the task."""
    problems: int = setting(0, low=0, panel="Task")
    """Problems per skill; 0: all of a published data set, 25 of a task that generates its own."""
    limit: int = setting(0, low=0, panel="Task", usual=True)
    """Maximum problems in total, taken from the skills in turn; 0: no limit."""
    skills: tuple[str, ...] = setting((), panel="Task")
    """Only these skills; empty: all."""
    shots: int = setting(0, low=0, panel="Task", usual=True)
    """Worked problems of the train split before each question."""
    samples: int = setting(1, low=1, panel="Sampling", usual=True)
    """Answers per problem; with several, pass@k is reported."""
    max_tokens: int = setting(0, low=0, panel="Sampling", usual=True)
    """Maximum tokens of an answer; 0: the task's own limit."""
    temperature: float = setting(0.0, low=0, panel="Sampling", usual=True)
    """Sampling temperature; 0: greedy decoding."""
    top_p: float = setting(1.0, above=0, high=1, panel="Sampling")
    """Nucleus sampling: the probability mass of the most likely tokens to sample from."""
    stop: tuple[str, ...] = setting((), panel="Sampling")
    """Strings that end an answer, in addition to the model's end token."""
    prompt: Literal["chat", "plain"] = setting("chat", panel="Sampling")
    """chat: apply the model's chat template if it has one; plain: always the bare text."""
    max_cost: float = setting(0.0, low=0, panel="Limits on model calls", usual=True)
    """Maximum dollars for service calls; 0: no limit."""
    call_timeout: float = setting(CALL_TIMEOUT, above=0, panel="Limits on model calls")
    """Maximum seconds to wait for one answer of a service, including retries."""
    engine_batch: int = setting(128, low=1, panel="Model")
    """Answers generated in one batch."""
    device: str = setting("", panel="Model", usual=True)
    """The device, for example cuda; empty: a GPU if there is one."""
    threads: int = setting(0, low=0, panel="Model")
    """CPU threads; 0: torch's default."""
    seed: int = setting(0, low=0, panel="Run", usual=True)
    """Seed of problems and sampling."""

    def __post_init__(self) -> None:
        check_ranges(self)
        require(all(self.stop), "setting 'stop': expected non-empty strings")
        require(
            self.samples == 1 or self.temperature > 0,
            f"setting 'samples': {self.samples} answers at temperature 0 would all be the same; set a temperature",
        )

    def check_effects(self) -> None:
        """Raise for a setting that has no effect on this evaluation."""
        remote = is_remote(self.engine_model)
        local = ("device", "threads", "engine_batch")
        check_effects(
            self,
            (self.temperature, "at temperature 0: greedy decoding samples nothing; set a temperature", ("top_p",)),
            (not remote, f"because a service runs {self.model}", local),
            (
                remote,
                f"because {self.model} is a local model; calls to a service cost money",
                ("max_cost", "call_timeout"),
            ),
        )

    @property
    def engine_model(self) -> str:
        """The model with its engine, for example vllm:nano."""
        return self.resolve_model(self.model)

    @property
    def options(self) -> Json:
        """The options of the task, with `shots`."""
        options = dict(self.task_kwargs)
        require("shots" not in options, "setting 'task_kwargs': use the setting 'shots' for shots")
        return {"shots": self.shots, **options}
