"""Settings for what generates with the local models of a recipe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

from palaestra.core.settings import setting
from palaestra.engines.base import LOCAL_SCHEME, apply_engine, check_serves_weights
from palaestra.recipes.settings import parse_options, require


@dataclass(frozen=True)
class EngineSettings:
    """Base class of the settings of recipes that generate with local models."""

    engine: str = setting(LOCAL_SCHEME, "What generates with local models: transformers or vllm.")
    engine_options: tuple[str, ...] = setting(
        (), "Arguments of vllm.LLM for --engine vllm, each as name=value, for example max_model_len=4096."
    )

    def resolve_model(self, name: str) -> str:
        """Return the name of a model with its engine: `vllm:nano` for `nano`. A name with a scheme does not change."""
        return apply_engine(name, self.engine)

    def check_engine(self) -> None:
        """Raise if the engine cannot load local weights, or if it has no options. Loads nothing."""
        check_serves_weights(self.engine, "engine")
        require(
            self.engine != LOCAL_SCHEME or not self.parse_engine_options(),
            f"setting 'engine_options': the engine '{LOCAL_SCHEME}' has no options; set 'engine' to 'vllm'",
        )

    def parse_engine_options(self) -> dict[str, Any]:
        return parse_options(self.engine_options, "engine_options")


class EngineOptions(TypedDict, total=False):
    """The fields of `EngineSettings` as keyword arguments."""

    engine: str
    engine_options: Sequence[str]
