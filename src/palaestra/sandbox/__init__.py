"""Sandboxes for code that a model wrote: bubblewrap, containers, none; with a persistent shell."""

from palaestra.sandbox.base import SANDBOXES, Sandbox, make_sandbox
from palaestra.sandbox.cgroups import LimitReport, report_limits
from palaestra.sandbox.records import SHELL_LIMITS, Limits, SandboxCommand, SandboxResult, ShellResult, Status
from palaestra.sandbox.shell import Shell

__all__ = [
    "SANDBOXES",
    "SHELL_LIMITS",
    "LimitReport",
    "Limits",
    "Sandbox",
    "SandboxCommand",
    "SandboxResult",
    "Shell",
    "ShellResult",
    "Status",
    "make_sandbox",
    "report_limits",
]
