"""The workspace of an agent: environment, commands, output parsers and prompts."""
