"""Traces of OpenTelemetry's semantic conventions for generative AI, as OTLP in JSON.

An episode is a trace: a span `invoke_agent`, below it a span `chat` for each message of the model and a span `execute_tool` for
each answered tool call. The conventions have no attributes for token ids, log-probs, costs and rewards: these are
attributes `palaestra.*`. Times inside of an episode are known for research only; other spans follow each other by a microsecond.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any

from palaestra.core.records import ImagePart, Json, Message, TextPart, Trajectory
from palaestra.integrations.export.trajectories import (
    COUNTS,
    TOKEN_IDS,
    ModelTurn,
    TrajectoryFormat,
    TrajectorySource,
    TrajectoryTurns,
    join_turns,
    make_call,
    parse_arguments,
    split_turns,
)
from palaestra.version import __version__

_USAGE = dict(zip(COUNTS, ("gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens"), strict=True))
_OWN = (*TOKEN_IDS, "cost_usd")
"""Metrics with an attribute `palaestra.NAME`; the others are in `palaestra.metrics`."""
_MODEL_CALLS = ("chat", "generate_content", "text_completion")


def write_otel(trajectory: Trajectory, source: TrajectorySource) -> Json:
    """Write a trajectory as an OTLP document with one trace.

    Raises:
        RunError: it has no text.
    """
    record, history = split_turns(trajectory), list[Message]()
    trace = sha256(f"{source.run}/{source.name}".encode()).hexdigest()
    now, spans = int(source.started * 1e9), list[Json]()

    def add_span(operation: str, subject: str, attributes: Mapping[str, Any], seconds: float = 0.0) -> None:
        nonlocal now
        end = now + int(seconds * 1e9) + 1000
        spans.append(
            {
                "traceId": trace[:32],
                "spanId": sha256(f"{trace}/{len(spans)}".encode()).hexdigest()[:16],
                **({"parentSpanId": spans[0]["spanId"]} if spans else {}),
                "name": f"{operation} {subject}".strip(),
                "kind": 1 if operation == "execute_tool" else 3,
                "startTimeUnixNano": str(now),
                "endTimeUnixNano": str(end),
                "attributes": _write_attributes({"gen_ai.operation.name": operation, **attributes}),
            }
        )
        now = end if spans[1:] else now

    shared = {"gen_ai.provider.name": "palaestra", "gen_ai.request.model": source.model}
    known = [turn.metrics for turn in record.turns if "prompt_tokens" in turn.metrics]
    usage = {_USAGE[name]: sum(metrics.get(name, 0) for metrics in known) for name in COUNTS} if known else {}
    agent = {
        "gen_ai.agent.name": "palaestra",
        "gen_ai.agent.version": __version__,
        "gen_ai.conversation.id": source.name,
    }
    rest = {**record.rest, "after": list(map(_write_message, record.after))}
    own = {"palaestra.reward": trajectory.total_reward, "palaestra.trajectory": _to_text(rest)}
    add_span("invoke_agent", "palaestra", {**shared, **agent, **usage, **own})
    for turn in record.turns:
        _add_tools(history, turn.before, add_span)
        metrics = dict(turn.metrics)
        output = [{**_write_message(turn.message), "finish_reason": "tool_call" if turn.message.tool_calls else "stop"}]
        texts = {"gen_ai.input.messages": _to_text(list(map(_write_message, history)))}
        texts["gen_ai.output.messages"] = _to_text(output)
        counts = {_USAGE[name]: metrics.pop(name) for name in COUNTS if name in metrics}
        values = {f"palaestra.{name}": metrics.pop(name) for name in _OWN if name in metrics}
        more = {"palaestra.metrics": _to_text(metrics)} if metrics else {}
        add_span(
            "chat", source.model, {**shared, **texts, **counts, **values, **more}, float(metrics.get("seconds", 0.0))
        )
        history.append(turn.message)
    _add_tools(history, record.after, add_span)
    spans[0]["endTimeUnixNano"] = str(now)
    scope = {"scope": {"name": "palaestra", "version": __version__}, "spans": spans}
    resource = {"attributes": _write_attributes({"service.name": "palaestra", "palaestra.run": source.run})}
    return {"resourceSpans": [{"resource": resource, "scopeSpans": [scope]}]}


def _add_tools(history: list[Message], messages: Sequence[Message], add_span: Any) -> None:
    """Add the spans of answered tool calls, and the messages to the history."""
    for message in messages:
        calls = [call for earlier in history for call in earlier.tool_calls if call.id == message.tool_call_id]
        if message.role == "tool" and calls:
            call = calls[-1]
            values = {"gen_ai.tool.name": call.name, "gen_ai.tool.call.id": call.id, "gen_ai.tool.type": "function"}
            texts = {"gen_ai.tool.call.arguments": call.arguments, "gen_ai.tool.call.result": message.text}
            add_span("execute_tool", call.name, {**values, **texts})
        history.append(message)


def _to_text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _write_attributes(values: Mapping[str, Any]) -> list[Json]:
    return [{"key": name, "value": _write_value(value)} for name, value in values.items()]


def _write_value(value: Any) -> Json:
    match value:
        case bool():
            return {"boolValue": value}
        case int():
            return {"intValue": str(value)}
        case float():
            return {"doubleValue": value}
        case list():
            return {"arrayValue": {"values": list(map(_write_value, value))}}
    return {"stringValue": str(value)}


def _write_message(message: Message) -> Json:
    """Write a message with the parts of the conventions. `multipart` tells a text from a list with one text."""
    is_text = isinstance(message.content, str)
    contents = (
        ((TextPart(message.content),) if message.content else ())
        if isinstance(message.content, str)
        else message.content
    )
    parts: list[Json] = [
        {"type": "text", "content": part.text}
        if isinstance(part, TextPart)
        else {"type": "uri", "modality": "image", "uri": part.url}
        for part in contents
    ]
    if message.role == "tool" or message.tool_call_id:
        parts = [
            {"type": "tool_call_response", "id": message.tool_call_id, "response": message.text if is_text else parts}
        ]
    for call in message.tool_calls:
        values = parse_arguments(call)
        arguments = call.arguments if values is None else values
        parts.append({"type": "tool_call", "id": call.id, "name": call.name, "arguments": arguments})
    return {"role": message.role, "parts": parts, **({} if is_text else {"multipart": True})}


def is_otel(document: Json) -> bool:
    return isinstance(document.get("resourceSpans"), list)


def read_otel(documents: Sequence[Json]) -> list[Trajectory]:
    """Read the traces of a file. The calls of a model below one span `invoke_agent` are a trajectory."""
    spans = {span["spanId"]: span for document in documents for span in _list_spans(document)}
    episodes: dict[tuple[str, str], list[Json]] = {}
    for span in sorted(spans.values(), key=lambda span: (span["start"], span["order"])):
        agent, seen = span, set[str]()
        while agent["values"].get("gen_ai.operation.name") != "invoke_agent" and agent.get("parentSpanId") in spans:
            if agent["spanId"] in seen:
                break
            seen.add(agent["spanId"])
            agent = spans[agent["parentSpanId"]]
        is_agent = agent["values"].get("gen_ai.operation.name") == "invoke_agent"
        episodes.setdefault((span["traceId"], agent["spanId"] if is_agent else ""), []).append(span)
    read = [_read_episode(spans.get(agent), members) for (_, agent), members in episodes.items()]
    return [trajectory for trajectory in read if trajectory is not None]


def _list_spans(document: Json) -> Iterator[Json]:
    """Yield the spans with their attributes as plain `values`. Those of events on a span count as its own."""
    scopes = (scope for resource in document["resourceSpans"] for scope in resource.get("scopeSpans", ()))
    for order, span in enumerate(span for scope in scopes for span in scope.get("spans", ())):
        values: Json = {}
        for part in (*span.get("events", ()), span):
            values |= {entry["key"]: _read_value(entry.get("value", {})) for entry in part.get("attributes", ())}
        yield {**span, "values": values, "order": order, "start": int(span.get("startTimeUnixNano", 0))}


def _read_value(value: Json) -> Any:
    for kind, content in value.items():
        match kind:
            case "intValue":
                return int(content)
            case "arrayValue":
                return list(map(_read_value, content.get("values", ())))
            case "kvlistValue":
                return {entry["key"]: _read_value(entry["value"]) for entry in content.get("values", ())}
            case _:
                return content
    return None


def _read_episode(agent: Json | None, spans: Sequence[Json]) -> Trajectory | None:
    """The trajectory of the spans of an agent in order; `None` without a call of a model and without a record of ours."""
    values = agent["values"] if agent else {}
    own = _parse(values.get("palaestra.trajectory"))
    calls = [span["values"] for span in spans if span["values"].get("gen_ai.operation.name") in _MODEL_CALLS]
    if own is None and not calls:
        return None
    turns, known = list[ModelTurn](), list[Message]()
    for call in calls:
        system = _parse(call.get("gen_ai.system_instructions")) or []
        given = [{"role": "system", "parts": system}] if system else []
        messages = list(map(_read_message, [*given, *(_parse(call.get("gen_ai.input.messages")) or [])]))
        same = next((k for k, pair in enumerate(zip(known, messages, strict=False)) if pair[0] != pair[1]), None)
        before = messages[min(len(known), len(messages)) if same is None else same :]
        output = _parse(call.get("gen_ai.output.messages")) or [{"role": "assistant", "parts": []}]
        metrics: Json = {name: call[key] for name, key in _USAGE.items() if key in call}
        metrics |= {name: call[f"palaestra.{name}"] for name in _OWN if f"palaestra.{name}" in call}
        metrics |= _parse(call.get("palaestra.metrics")) or {}
        turns.append(ModelTurn(tuple(before), _read_message(output[0]), metrics))
        known = [*messages, turns[-1].message]
    if own is None:
        answered = {message.tool_call_id for message in known}
        tools = [span["values"] for span in spans if span["values"].get("gen_ai.operation.name") == "execute_tool"]
        after = [
            Message(
                "tool",
                str(tool.get("gen_ai.tool.call.result", "")),
                tool_call_id=str(tool.get("gen_ai.tool.call.id", "")),
            )
            for tool in tools
            if tool.get("gen_ai.tool.call.id") not in answered
        ]
        model = str(calls[0].get("gen_ai.response.model") or calls[0].get("gen_ai.request.model") or "")
        info = {"agent": {"name": str(values.get("gen_ai.agent.name", "")), "model_name": model}}
        own = {"environment": info["agent"]["name"] or model, "infos": [info]}
    else:
        after = list(map(_read_message, own.pop("after")))
    return join_turns(TrajectoryTurns(tuple(turns), tuple(after), own))


def _parse(value: Any) -> Any:
    """An attribute with structured content: a text of JSON, or the content itself."""
    return json.loads(value) if isinstance(value, str) else value


def _read_message(data: Json) -> Message:
    contents, calls, call_id = list[TextPart | ImagePart](), [], ""
    role = str(data.get("role", "assistant"))
    is_multipart = bool(data.get("multipart"))
    for part in data.get("parts", ()):
        match part.get("type"):
            case "tool_call":
                calls.append(make_call(part["name"], part.get("arguments", {}), str(part.get("id") or "")))
            case "tool_call_response":
                call_id, response = str(part.get("id") or ""), part.get("response", part.get("result", ""))
                inner = response if isinstance(response, list) and is_multipart else ()
                contents += [_read_part(entry) for entry in inner]
                contents += (
                    []
                    if inner or is_multipart
                    else [TextPart(response if isinstance(response, str) else _to_text(response))]
                )
            case _:
                contents.append(_read_part(part))
    if is_multipart or any(isinstance(part, ImagePart) for part in contents):
        return Message(_read_role(role), tuple(contents), tuple(calls), call_id)
    text = "".join(part.text for part in contents if isinstance(part, TextPart))
    return Message(_read_role(role), text, tuple(calls), call_id)


def _read_role(role: str) -> Any:
    return role if role in ("system", "user", "assistant", "tool") else "system" if role == "developer" else "user"


def _read_part(part: Json) -> TextPart | ImagePart:
    match part.get("type"):
        case "uri" if part.get("modality") == "image":
            return ImagePart(str(part["uri"]))
        case "blob" if part.get("modality") == "image":
            return ImagePart(f"data:{part.get('mime_type', 'image/png')};base64,{part['content']}")
        case "reasoning":
            return TextPart(f"<think>{part.get('content', '')}</think>\n")
        case "text":
            return TextPart(str(part.get("content", "")))
    return TextPart(f"[{part.get('type', 'part')}]")


OTEL = TrajectoryFormat(write_otel, is_otel, read_otel)
