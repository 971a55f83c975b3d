"""Policies: how decisions are made, judged again, and changed."""
