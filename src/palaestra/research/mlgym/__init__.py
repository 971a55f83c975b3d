"""Tasks of a checkout of MLGym, read as they are and run in our sandbox. Nothing of MLGym is part of this package."""

from palaestra.research.mlgym.task import MLGymTask, load_mlgym, mlgym_names

__all__ = ["MLGymTask", "load_mlgym", "mlgym_names"]
