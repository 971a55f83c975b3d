"""The command line: parses, calls a recipe, draws progress."""
