"""The command line: parse options, call a recipe, print its results."""
