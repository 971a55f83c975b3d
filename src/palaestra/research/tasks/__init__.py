"""Research tasks: their definition, data and seeds. Each task of ours is a folder with a `task.yaml`."""
