"""Calls a model with OpenAI's client under OpenTelemetry's instrumentation, and writes the trace: ADDRESS FILE.

It runs in an environment of its own and does not import Palaestra.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

os.environ["OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"] = "SPAN_ONLY"
os.environ["OTEL_SEMCONV_STABILITY_OPT_IN"] = "gen_ai_latest_experimental"

import openai
from google.protobuf.json_format import MessageToDict
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.instrumentation.openai_v2 import OpenAIInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

address, file = sys.argv[1:]
exporter, provider = InMemorySpanExporter(), TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
OpenAIInstrumentor().instrument(tracer_provider=provider)
client = openai.OpenAI(base_url=address, api_key="none")
messages = [{"role": "system", "content": "Add."}, {"role": "user", "content": "1 + 2?"}]
agent = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "adder"}
with provider.get_tracer("adder").start_as_current_span("invoke_agent adder", attributes=agent):
    answer = client.chat.completions.create(model="m", messages=messages).choices[0].message
    calls = [call.model_dump() for call in answer.tool_calls]
    messages += [{"role": "assistant", "content": None, "tool_calls": calls}]
    messages += [{"role": "tool", "tool_call_id": calls[0]["id"], "content": "3"}]
    client.chat.completions.create(model="m", messages=messages)
Path(file).write_text(json.dumps(MessageToDict(encode_spans(exporter.get_finished_spans()))))
