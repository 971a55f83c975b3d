"""Settings of `palaestra evaluate`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from palaestra.core.settings import check_ranges, setting
from palaestra.recipes.engine_settings import EngineOptions, EngineSettings
from palaestra.recipes.executor_settings import ExecutorOptions, ExecutorSettings
from palaestra.recipes.metered_engines import CALL_TIMEOUT, CALL_TIMEOUT_HELP
from palaestra.recipes.run_settings import RunOptions, RunSettings
from palaestra.recipes.settings import parse_options, require


@dataclass(frozen=True)
class EvaluateSettings(EngineSettings, ExecutorSettings, RunSettings):
    """Settings of one evaluation. The command line's options and `settings.json` have the same names."""

    plugins: tuple[str, ...] = setting((), "Files (my_task.py) or modules of your own that register tasks.")
    task: str = setting("math-skills", "The task; `palaestra list tasks` lists them.")
    task_options: tuple[str, ...] = setting((), "Options of the task, each as name=value, for example path=FOLDER.")
    model: str = setting(
        "nano",
        "The model: a registered name, a folder, a hub id, or a service such as openai:MODEL or ADDRESS#MODEL.",
    )
    split: Literal["train", "validation", "test"] = setting("test", "The split of the task.")
    problems: int = setting(
        0,
        "Problems per skill; 0: all of a published data set, 25 of a task that generates its own.",
        low=0,
    )
    limit: int = setting(0, "Maximum problems in total, taken from the skills in turn; 0: no limit.", low=0)
    skills: tuple[str, ...] = setting((), "Only these skills; empty: all.")
    shots: int = setting(0, "Worked problems of the train split before each question.", low=0)
    samples: int = setting(1, "Answers per problem; with several, pass@k is reported.", low=1)
    max_tokens: int = setting(0, "Maximum tokens of an answer; 0: the task's own limit.", low=0)
    temperature: float = setting(0.0, "Sampling temperature; 0: greedy decoding.", low=0)
    top_p: float = setting(
        1.0, "Nucleus sampling: the probability mass of the most likely tokens to sample from.", above=0, high=1
    )
    stop: tuple[str, ...] = setting((), "Strings that end an answer, in addition to the model's end token.")
    prompt: Literal["chat", "plain"] = setting(
        "chat", "chat: apply the model's chat template if it has one; plain: always the bare text."
    )
    max_cost: float = setting(0.0, "Maximum dollars for service calls; 0: no limit.", low=0)
    call_timeout: float = setting(CALL_TIMEOUT, CALL_TIMEOUT_HELP, above=0)
    engine_batch: int = setting(128, "Answers generated in one batch.", low=1)
    device: str = setting("", "The device, for example cuda; empty: a GPU if there is one.")
    threads: int = setting(0, "CPU threads; 0: torch's default.", low=0)
    seed: int = setting(0, "Seed of problems and sampling.", low=0)

    def __post_init__(self) -> None:
        check_ranges(self)
        require(all(self.stop), "setting 'stop': expected non-empty strings")
        require(
            self.samples == 1 or self.temperature > 0,
            f"setting 'samples': {self.samples} answers at temperature 0 would all be the same; set a temperature",
        )

    @property
    def engine_model(self) -> str:
        """The model with its engine, for example vllm:nano."""
        return self.resolve_model(self.model)

    @property
    def options(self) -> dict[str, Any]:
        """The options of the task, with `shots`."""
        options = parse_options(self.task_options, "task_options")
        require("shots" not in options, "setting 'task_options': use the setting 'shots' for shots")
        return {"shots": self.shots, **options}


class EvaluateOptions(EngineOptions, ExecutorOptions, RunOptions, total=False):
    """The fields of `EvaluateSettings` as keyword arguments, for editors and type checkers."""

    plugins: Sequence[str]
    task: str | type[Any]
    task_options: Sequence[str]
    model: str
    split: Literal["train", "validation", "test"]
    problems: int
    limit: int
    skills: Sequence[str]
    shots: int
    samples: int
    max_tokens: int
    temperature: float
    top_p: float
    stop: Sequence[str]
    prompt: Literal["chat", "plain"]
    max_cost: float
    call_timeout: float
    engine_batch: int
    device: str
    threads: int
    seed: int
