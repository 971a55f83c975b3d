"""The lesson scale: one action is a lesson, the reward is what the student learned from it."""

from palaestra.envs.lesson.env import LessonEnv
from palaestra.envs.lesson.state import Round, StudentState, ValidationAttempt

__all__ = ["LessonEnv", "Round", "StudentState", "ValidationAttempt"]
