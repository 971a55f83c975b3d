"""Standings of agents over tasks: performance profiles and the area under them."""
