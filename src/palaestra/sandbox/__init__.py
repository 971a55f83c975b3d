"""Sandboxes for code that a model wrote: bubblewrap, containers, none; with a persistent shell."""

from palaestra.sandbox.base import (
    SANDBOXES,
    SHELL_LIMITS,
    Limits,
    Sandbox,
    SandboxResult,
    Shell,
    ShellResult,
    Status,
    make_sandbox,
)
from palaestra.sandbox.cgroups import LimitReport, report_limits

__all__ = [
    "SANDBOXES",
    "SHELL_LIMITS",
    "LimitReport",
    "Limits",
    "Sandbox",
    "SandboxResult",
    "Shell",
    "ShellResult",
    "Status",
    "make_sandbox",
    "report_limits",
]
