"""Command-line coding agents that play the guessing game of `ENV_URL` by running a program in their folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

_TASK = "Guess a number from 1 to 8. Run ./guess NUMBER for each guess."
_CODEX_PROVIDER = '{name="gateway", base_url="%s", env_key="OPENAI_API_KEY", wire_api="responses"}'
_PROGRAM = """#!{python}
import sys
sys.path.insert(0, {helpers!r})
from tool_agents import guess
print(guess(int(sys.argv[1])))
"""
SHELLS = {
    "claude-code": ("Bash", "command", {}),
    "codex": ("exec_command", "cmd", {}),
    "opencode": ("bash", "command", {"description": "guess"}),
    "qwen-code": ("run_shell_command", "command", {"is_background": False}),
    "mini-swe-agent": ("bash", "command", {}),
}
"""The tool of each agent that runs a command: its name, the argument of the command, and its other arguments."""


def write_command(
    agent: str, folder: Path, python: str, variables: Mapping[str, str]
) -> tuple[list[str], dict[str, str]]:
    """Prepare a folder for an agent. Returns the command, and variables for it in addition to `variables`."""
    program = folder / "guess"
    program.write_text(_PROGRAM.format(python=python, helpers=str(Path(__file__).parent)))
    program.chmod(0o755)
    model, url, places = variables["OPENAI_MODEL"], variables["OPENAI_BASE_URL"], Path(python).parent
    path = f"{places.parent / 'node_modules' / '.bin'}:{places}:/usr/bin:/bin"
    more = {"PATH": path, "HOME": str(folder)}
    match agent:
        case "claude-code":
            words = ["claude", "-p", _TASK, "--model", model, "--tools", "Bash", "--allowedTools", "Bash"]
            more |= {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"}
        case "codex":
            words = [
                "codex",
                "exec",
                "--skip-git-repo-check",
                "--dangerously-bypass-approvals-and-sandbox",
                "-m",
                model,
            ]
            words += ["-c", f"model_providers.gateway={_CODEX_PROVIDER % url}", "-c", "model_provider=gateway"]
            words += ["-c", 'web_search="disabled"', "--disable", "multi_agent", _TASK]
        case "opencode":
            words = ["opencode", "run", "-m", f"gateway/{model}", "--auto", "--title", "game", _TASK]
            options = {"baseURL": url, "apiKey": variables["OPENAI_API_KEY"]}
            provider = {"npm": "@ai-sdk/openai-compatible", "options": options, "models": {model: {}}}
            (folder / "opencode.json").write_text(json.dumps({"provider": {"gateway": provider}}))
            more |= {"OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_AUTOUPDATE": "1"}
        case "qwen-code":
            words = ["qwen", "-p", _TASK, "-y", "-m", model, "--auth-type", "openai"]
        case _:
            words = [
                "mini",
                "-t",
                _TASK,
                "-y",
                "-m",
                f"openai/{model}",
                "--exit-immediately",
                "-l",
                "0",
                "-o",
                "run.json",
            ]
            more |= {"MSWEA_CONFIGURED": "true", "MSWEA_COST_TRACKING": "ignore_errors"}
    return words, more
