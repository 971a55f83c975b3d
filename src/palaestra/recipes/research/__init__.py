"""`palaestra research`: agents work on research tasks."""
