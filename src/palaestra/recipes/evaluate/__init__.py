"""Evaluation: the accuracy of a model on a task, and comparisons of two runs."""
