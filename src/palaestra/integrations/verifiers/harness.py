"""A harness of verifiers that makes one model call per turn, in this process and without tools."""

from __future__ import annotations

from typing import Any

import httpx
import verifiers.v1 as vf
from verifiers.v1.dialects.chat import message_to_wire


class ChatHarness(vf.Harness[vf.HarnessConfig]):  # type: ignore[misc]
    """Sends the conversation to the model and returns. The harnesses of verifiers start a program for every turn."""

    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_RESUME = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self, ctx: Any, trace: Any, runtime: Any, endpoint: str, secret: str, mcp_urls: Any, data: Any
    ) -> Any:
        system, prompt = self.resolve_prompt(data)
        messages = [{"role": "system", "content": system}] if system else []
        if isinstance(prompt, str):
            messages.append({"role": "user", "content": prompt})
        else:
            messages += [message_to_wire(message) for message in prompt or ()]
        # The endpoint is on this machine: certificates would only take time to load.
        async with httpx.AsyncClient(timeout=None, trust_env=False, verify=False) as client:
            response = await client.post(
                f"{endpoint}/chat/completions",
                json={"model": ctx.model, "messages": messages},
                headers={"Authorization": f"Bearer {secret}"},
            )
        # verifiers keeps the cause of a failed call itself; the exit code only says that there is one.
        return vf.ProgramResult(exit_code=0 if response.is_success else 1, stdout="", stderr=response.text)


__all__ = ["ChatHarness"]
