"""The lesson scale: an action is a lesson, the reward is the student's gain."""

from palaestra.envs.lesson.env import LessonEnv
from palaestra.envs.lesson.state import Round, StudentState, ValidationAttempt

__all__ = ["LessonEnv", "Round", "StudentState", "ValidationAttempt"]
