"""Research in a workspace: tasks, workspaces, evaluation out of reach, the agent's commands, agents, profiles."""
