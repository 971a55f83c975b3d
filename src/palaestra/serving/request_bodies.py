"""The bodies of requests to our servers: OpenAI's parameters, validated before any other work.

A parameter is honored, or rejected with status 400 and its name. Only `user` has no effect: it cannot change an answer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from palaestra.core.records import ImagePart, Json, Message, Sampling, ToolCall
from palaestra.core.tables import load_table
from palaestra.engines.openai_format import parse_message

if TYPE_CHECKING:
    from starlette.requests import Request as HttpRequest

_MAX_TOKENS = 2**20
"""Maximum value of a token limit."""
MAX_SEED = 2**63 - 1
_make_sampling = lru_cache(256)(Sampling)
_TokenLimit = Annotated[int | None, Field(ge=1, le=_MAX_TOKENS)]
_StopString = Annotated[str, Field(min_length=1, max_length=1024)]
_Zero = Annotated[float | None, Field(ge=0, le=0)]


_ERRORS = load_table(__file__, "errors")
_ALTERNATIVES: Mapping[str, str] = _ERRORS["alternatives"]
"""What to do instead, by the name of a parameter that is not honored."""
_STATUSES: Mapping[str, int] = _ERRORS["statuses"]
"""HTTP status by the code of an error; others have status 400."""


class RequestError(Exception):
    """A request that cannot be answered: message, code and status of the response.

    Arguments:
        status: the HTTP status, if it is not that of the code.
    """

    def __init__(self, message: str, code: str = "invalid_request", status: int = 0) -> None:
        super().__init__(message)
        self.code, self.status = code, status or _STATUSES.get(code, 400)


class StrictBody(BaseModel):
    """A JSON object without unknown names. Values of another type are not converted."""

    model_config = ConfigDict(extra="forbid", strict=True)


class StreamOptions(StrictBody):
    include_usage: bool = False


class CommonBody(StrictBody):
    """The parameters that both kinds of completions share."""

    model: str = Field("", max_length=1024)
    max_tokens: _TokenLimit = None
    temperature: float = Field(1.0, ge=0, le=2)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=-1, le=2**31 - 1)
    n: int = Field(1, ge=1, le=128)
    seed: int | None = Field(None, ge=-MAX_SEED - 1, le=MAX_SEED)
    stop: _StopString | Annotated[list[_StopString], Field(max_length=16)] | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    return_token_ids: bool = False
    user: str | None = None
    store: Literal[False] | None = None
    presence_penalty: _Zero = None
    frequency_penalty: _Zero = None
    logit_bias: dict[str, float] | None = Field(None, max_length=0)

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, data: Any) -> Any:
        """A parameter that is null counts as not given, as in OpenAI's API."""
        if not isinstance(data, dict):
            return data
        return {name: value for name, value in data.items() if value is not None or name not in cls.model_fields}

    @model_validator(mode="after")
    def _check_stream_options(self) -> CommonBody:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options: only allowed if stream is true")
        return self

    @property
    def stop_strings(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    def to_sampling(self, limit: int) -> Sampling:
        return _make_sampling(limit, self.temperature, self.top_p, max(self.top_k, 0), self.stop_strings, self.n)


class ToolFunction(StrictBody):
    """`strict` is accepted, because clients set it by default; arguments are not checked against the schema."""

    name: str = Field(pattern=r"^[A-Za-z0-9_.:-]{1,128}$")
    description: str | None = None
    parameters: Json = {}
    strict: bool | None = None

    @field_validator("parameters")
    @classmethod
    def _check_properties(cls, value: Json) -> Json:
        properties = value.get("properties", {})
        if not isinstance(properties, dict) or not all(isinstance(schema, dict) for schema in properties.values()):
            raise ValueError("expected a JSON schema whose properties are objects")
        return value


class OfferedTool(StrictBody):
    type: Literal["function"]
    function: ToolFunction


class NamedFunction(StrictBody):
    name: str = Field(min_length=1)


class NamedTool(StrictBody):
    """The tool that the answer must call."""

    type: Literal["function"]
    function: NamedFunction


class ChatBody(CommonBody):
    messages: list[Json] = Field(min_length=1, max_length=2**14)
    max_completion_tokens: _TokenLimit = None
    logprobs: bool = False
    top_logprobs: Literal[0] | None = None
    response_format: Json | None = None
    tools: list[Json] | None = Field(None, max_length=128)
    tool_choice: Literal["auto", "none", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None

    @field_validator("tools")
    @classmethod
    def _check_tools(cls, value: list[Json] | None) -> list[Json] | None:
        for tool in value or ():
            try:
                OfferedTool.model_validate(tool)  # The tools themselves stay as the client wrote them.
            except ValidationError as error:
                raise ValueError(_describe(error)) from error
        return value

    @model_validator(mode="after")
    def _check_choice(self) -> ChatBody:
        names = [tool["function"]["name"] for tool in self.tools or ()]
        if self.forced_tool is not None and (self.forced_tool or (names or [None])[0]) not in names:
            raise ValueError(
                f"tool_choice: expected one of the offered tools ({', '.join(names) or 'none'}); "
                f"got {self.forced_tool or 'required'}"
            )
        return self

    @property
    def forced_tool(self) -> str | None:
        """The name of the tool that the answer must call; empty for any tool, `None` if no call is required."""
        if isinstance(self.tool_choice, NamedTool):
            return self.tool_choice.function.name
        return "" if self.tool_choice == "required" else None

    def to_schema(self) -> str:
        """The JSON schema of the answer as text; empty for none.

        Raises:
            RequestError: the response format is unknown, or has no schema.
        """
        match self.response_format:
            case None | {"type": "text"}:
                return ""
            case {"type": "json_schema", "json_schema": {"schema": dict(schema)}}:
                return json.dumps(schema)
            case {"type": "json_object"}:
                return json.dumps({"type": "object"})
        raise RequestError("expected a response_format of text, json_object, or json_schema with its schema")

    def to_tools(self) -> str:
        """The offered tools as JSON text; empty for none."""
        return json.dumps(self.tools) if self.tools and self.tool_choice != "none" else ""

    def limit_calls(self, calls: Sequence[ToolCall]) -> tuple[ToolCall, ...]:
        """Return the calls of a reply: only the first if `parallel_tool_calls` is false."""
        return tuple(calls[:1] if self.parallel_tool_calls is False else calls)

    def parse_messages(self) -> tuple[Message, ...]:
        """Parse the messages. Newer clients call the role `system` `developer`.

        Raises:
            RequestError: a message is invalid.
        """
        try:
            messages = tuple(
                parse_message({**message, "role": "system"} if message.get("role") == "developer" else message)
                for message in self.messages
            )
        except ValueError as error:
            raise RequestError(f"messages: {error}") from error
        for part in (part for m in messages if not isinstance(m.content, str) for part in m.content):
            if isinstance(part, ImagePart) and not part.url.startswith("data:"):
                raise RequestError("expected images as data: URLs; this server does not fetch URLs or files")
        return messages

    def count_characters(self, messages: Sequence[Message]) -> int:
        """The characters of the conversation and the tools, without images."""
        calls = (call for message in messages for call in message.tool_calls)
        texts = sum(len(message.text) for message in messages) + sum(len(call.arguments) for call in calls)
        return texts + len(self.to_tools())


class TextBody(CommonBody):
    prompt: str | list[int] | list[str] | list[list[int]] = Field(min_length=1)
    logprobs: Literal[0, 1] | None = None
    echo: Literal[False] | None = None
    best_of: Literal[1] | None = None
    suffix: Literal[""] | None = None

    @property
    def prompts(self) -> list[str | list[int]]:
        """The prompts, each a text or token ids."""
        if isinstance(self.prompt, list) and not isinstance(self.prompt[0], int):
            return list(self.prompt)
        return [self.prompt]


Body = TypeVar("Body", bound=BaseModel)


async def read_bytes(http: HttpRequest, limit: int) -> bytes:
    """Read the body of a request.

    Raises:
        RequestError: it is larger than `limit` bytes.
    """
    data = bytearray()
    async for chunk in http.stream():
        data += chunk
        if len(data) > limit:
            raise RequestError(f"the body is larger than {limit} bytes", "too_large")
    return bytes(data)


def parse_body(data: bytes, kind: type[Body]) -> Body:
    """Parse and validate the JSON body of a request.

    Raises:
        RequestError: it is invalid; the message names the first wrong parameter.
    """
    import orjson

    try:
        return convert_body(orjson.loads(data), kind)
    except orjson.JSONDecodeError as error:
        raise RequestError(f"the body is not JSON: {error}") from error


def convert_body(data: Any, kind: type[Body]) -> Body:
    """Validate the values of a body.

    Raises:
        RequestError: one is invalid; the message names the first wrong parameter.
    """
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        raise RequestError(_describe(error)) from error


def _describe(error: ValidationError) -> str:
    """The place and the reason of the first error, in one line."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    place = ".".join(map(str, first["loc"]))[:200] or "body"
    reason = "this parameter is not supported" if first["type"] == "extra_forbidden" else first["msg"]
    name = ".".join(part for part in first["loc"] if isinstance(part, str))
    reason = _ALTERNATIVES.get(name, reason.removeprefix("Value error, "))
    return f"{place}: {reason}"
