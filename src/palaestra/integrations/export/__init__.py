"""Turn environments as packages for other libraries: `palaestra export ENV --to TARGET`."""
