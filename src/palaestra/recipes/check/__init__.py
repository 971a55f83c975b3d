"""`palaestra check`: find the faults of an environment, a task or a research task before a model does."""
