"""Standings of several agents over several tasks: performance profiles and the area under them."""
