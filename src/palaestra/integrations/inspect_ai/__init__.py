"""Inspect AI: its tasks as tasks of ours (`source`), and ours as tasks of Inspect (`exported`)."""
