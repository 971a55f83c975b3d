"""Turn environments and tasks for TRL's `GRPOTrainer`: environment classes, reward functions and data sets."""

from palaestra.integrations.trl.environments import make_dataset, make_environment_class, score_episodes
from palaestra.integrations.trl.plain_messages import make_plain_tokenizer
from palaestra.integrations.trl.tasks import TaskReward

__all__ = ["TaskReward", "make_dataset", "make_environment_class", "make_plain_tokenizer", "score_episodes"]
