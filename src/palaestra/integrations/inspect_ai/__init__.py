"""Inspect AI: its tasks as tasks of ours (`source`), ours as tasks of Inspect (`exported`), and our engines as its models
(`model`)."""
