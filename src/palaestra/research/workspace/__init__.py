"""The agent's workspace: environment, commands, output parsers and prompts."""
