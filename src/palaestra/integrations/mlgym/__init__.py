"""Tasks of an MLGym checkout, read without changes and run in our sandbox. This package contains no MLGym code."""

from palaestra.integrations.mlgym.judge import MLGymJudge
from palaestra.integrations.mlgym.task import MLGymTask, load_mlgym, mlgym_names

__all__ = ["MLGymJudge", "MLGymTask", "load_mlgym", "mlgym_names"]
