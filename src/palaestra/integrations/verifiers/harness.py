"""A harness of verifiers that calls the model in this process, and the tools of the task as the model asks for them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any

import httpx
import verifiers.v1 as vf
from verifiers.v1.dialects.chat import message_to_wire
from verifiers.v1.harnesses.utils.mcp import connect_mcp, mcp_content_to_chat_content


class ChatHarness(vf.Harness[vf.HarnessConfig]):  # type: ignore[misc]
    """Sends the conversation to the model until it answers without a tool call.

    The harnesses of verifiers start a program for every turn. A call that cannot be executed (malformed, of an unknown
    tool, rejected by the tool) is answered with an error, so that the model can correct it.
    """

    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_MCP = True
    SUPPORTS_RESUME = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: vf.ModelContext,
        trace: vf.Trace,
        runtime: vf.Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: Mapping[str, str],
        data: vf.TaskData,
    ) -> vf.ProgramResult:
        system, prompt = self.resolve_prompt(data)
        messages = [{"role": "system", "content": system}] if system else []
        if isinstance(prompt, str):
            messages.append({"role": "user", "content": prompt})
        else:
            messages += [message_to_wire(message) for message in prompt or ()]
        servers = {name: {"url": url, "timeout": self.config.tool_timeout} for name, url in mcp_urls.items()}
        async with AsyncExitStack() as stack:
            tools, places, connections = await connect_mcp({"mcpServers": servers}, stack)
            # The endpoint is on this machine: certificates would only take time to load.
            client = await stack.enter_async_context(httpx.AsyncClient(timeout=None, trust_env=False, verify=False))
            while True:
                response = await client.post(
                    f"{endpoint}/chat/completions",
                    json={"model": ctx.model, "messages": messages, **({"tools": tools} if tools else {})},
                    headers={"Authorization": f"Bearer {secret}"},
                )
                answer = response.json()["choices"][0]["message"] if response.is_success else {}
                if not answer.get("tool_calls"):
                    # verifiers keeps the cause of a failed call itself; the exit code only says that there is one.
                    return vf.ProgramResult(exit_code=0 if response.is_success else 1, stdout="", stderr=response.text)
                messages.append(answer)
                for call in answer["tool_calls"]:
                    text = await _execute_call(call["function"], places, connections)
                    messages.append({"role": "tool", "tool_call_id": call["id"], "content": text})


async def _execute_call(
    function: Mapping[str, Any], places: Mapping[str, tuple[str, str]], connections: Mapping[str, Any]
) -> Any:
    """Execute a call on its tool server and return the result, or a text that starts with `error:`.

    Arguments:
        places: the server of each tool and its name there.
        connections: the tool servers.
    """
    name = str(function.get("name"))
    if name not in places:
        return f"error: there is no tool {name!r}; the tools are {', '.join(places)}"
    try:
        values = json.loads(function.get("arguments") or "{}")
    except ValueError:
        values = None
    if not isinstance(values, dict):
        return f"error: expected a JSON object of arguments; got {str(function.get('arguments'))[:200]!r}"
    server, own_name = places[name]
    result = await connections[server].run(lambda client: client.call_tool(own_name, values))
    content = mcp_content_to_chat_content(result.content)
    return f"error: {content}" if result.is_error else content


__all__ = ["ChatHarness"]
