"""Research tasks: tasks, judging, workspaces, agents, standings, MLGym. The package is callable: `palaestra.research()`."""

from palaestra.core.plugins import make_callable

make_callable(__name__, "palaestra.recipes.research.recipe:research")
