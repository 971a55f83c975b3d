"""Folders in the format of karpathy/autoresearch, read without changes. This package contains no code of that project."""

from palaestra.integrations.autoresearch.task import AutoresearchTask, load_autoresearch

__all__ = ["AutoresearchTask", "load_autoresearch"]
