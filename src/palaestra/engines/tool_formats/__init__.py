"""Formats of tool calls in the text of a model, one per family, with a parser for each.

A new format is one file and one registration.
"""

from palaestra.core.registry import Registry

TOOL_FORMATS = Registry("tool format", "palaestra.tool_formats")
for _name, _description in {
    "hermes": "Hermes, Qwen2.5, Qwen3: JSON between <tool_call> tags",
    "qwen3_coder": "Qwen3-Coder, Qwen3.5, Nemotron 3: <function=NAME> with a tag for each parameter",
    "glm": "GLM-4.5: the name and <arg_key>, <arg_value> pairs between <tool_call> tags",
    "llama3": "Llama 3.1 and later: the message is JSON with a name and parameters",
    "mistral": "Mistral: JSON after [TOOL_CALLS]",
    "deepseek": "DeepSeek V3, V3.1, R1: JSON between special tokens",
    "harmony": "gpt-oss: messages in channels; a call has a recipient",
    "pythonic": "LFM2, Llama 4, ToolACE: a list of Python calls",
}.items():
    TOOL_FORMATS.register(_name, f"palaestra.engines.tool_formats.{_name}:FORMAT", _description)

__all__ = ["TOOL_FORMATS"]
