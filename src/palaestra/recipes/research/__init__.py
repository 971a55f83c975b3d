"""Research: an agent works on a task in a workspace; benchmarks of several agents and tasks."""
