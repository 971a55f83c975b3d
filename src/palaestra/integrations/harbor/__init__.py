"""Task folders of Harbor and Terminal-Bench, read without changes and run in our sandbox. This package contains no Harbor code."""

from palaestra.integrations.harbor.judge import HarborJudge
from palaestra.integrations.harbor.task import HarborTask, load_harbor

__all__ = ["HarborJudge", "HarborTask", "load_harbor"]
