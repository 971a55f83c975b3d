"""Sessions of OpenEnv environments: over the WebSocket of a server, or in the process.

A server gives every connection its own environment. Messages are JSON objects: `{"type": "reset", "data": {"seed": 3}}` and
`{"type": "step", "data": ACTION}` are answered with `{"type": "observation", "data": {"observation": ..., "reward": ...,
"done": ...}}`, or with `{"type": "error", "data": {"message": ..., "code": ...}}`.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Protocol, get_type_hints
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, build_opener

from palaestra.core.errors import EnvError, MissingExtraError
from palaestra.core.foreign import ForeignCallError
from palaestra.core.registry import load_reference
from palaestra.core.settings import short_repr
from palaestra.envs.base import Options

_MAX_MESSAGE_BYTES = 100 * 2**20
_MAX_CLOSE_SECONDS = 5.0
_SPARE_SECONDS = 1.0
"""How much longer than its caller a session waits for an answer."""
_INVALID_ACTION = "VALIDATION_ERROR"
"""The server's error code of an action that does not match its schema."""


class InvalidActionError(ForeignCallError):
    """An action does not match the environment's schema. The environment did not step."""


@dataclass(frozen=True, slots=True)
class SessionResult:
    """The result of `reset` or `step`. A reward of `None` is no reward; servers also send it for NaN."""

    observation: Options
    reward: float | None
    done: bool


class OpenEnvSession(Protocol):
    """One environment of OpenEnv. `schema` is the JSON schema of its actions."""

    schema: Options

    def reset(self, data: Options) -> SessionResult: ...

    def step(self, action: Options) -> SessionResult: ...

    def close(self) -> None: ...


class _ServerSession:
    """A session of an OpenEnv server.

    Arguments:
        url: the address of the server, for example `http://localhost:8000`.
        seconds: the maximum time of one answer.

    Raises:
        ForeignCallError: the server cannot be reached, or has no free session.
    """

    def __init__(self, url: str, seconds: float) -> None:
        if find_spec("websockets") is None:
            raise MissingExtraError("websockets", "openenv", "a server of OpenEnv")
        from websockets.sync.client import connect

        parts = urlsplit(url.rstrip("/"))
        is_secure = parts.scheme in ("https", "wss")
        place = f"{parts.netloc}{parts.path}"
        is_local = parts.hostname in ("localhost", "127.0.0.1", "::1")
        self.url, self._seconds = url, seconds
        self.schema = _fetch_action_schema(f"http{'s' * is_secure}://{place}", seconds, is_local)
        self._stack = ExitStack()
        self._socket = self._stack.enter_context(
            connect(
                f"ws{'s' * is_secure}://{place}/ws",
                open_timeout=seconds,
                close_timeout=min(seconds, _MAX_CLOSE_SECONDS),
                max_size=_MAX_MESSAGE_BYTES,
                proxy=None if is_local else True,
            )
        )
        try:
            self._exchange("state")  # The server reports a lack of free sessions with the first answer.
        except ForeignCallError as error:
            if "EXECUTION_ERROR" not in str(error):  # Some environments have no state before `reset`.
                self.close()
                raise

    def reset(self, data: Options) -> SessionResult:
        return _check_result(self.url, self._exchange("reset", data))

    def step(self, action: Options) -> SessionResult:
        return _check_result(self.url, self._exchange("step", action))

    def close(self) -> None:
        """End the session and wait until the server has closed it."""
        from websockets.exceptions import WebSocketException

        with suppress(WebSocketException, OSError, TimeoutError):
            self._socket.send(json.dumps({"type": "close"}))
            self._socket.recv(timeout=min(self._seconds, _MAX_CLOSE_SECONDS))
        self._stack.close()

    def _exchange(self, kind: str, data: Options | None = None) -> object:
        """Send a message and return the data of its answer."""
        from websockets.exceptions import ConnectionClosed

        with suppress(ConnectionClosed):  # The server may have sent an error before. Without one, `recv` raises.
            self._socket.send(json.dumps({"type": kind} if data is None else {"type": kind, "data": dict(data)}))
        text = self._socket.recv(timeout=self._seconds + _SPARE_SECONDS)
        try:
            answer = json.loads(text)
            expected = "state" if kind == "state" else "observation"
            if answer["type"] not in (expected, "error"):
                raise ValueError(answer["type"])
            content = answer["data"]
        except (ValueError, KeyError, TypeError) as error:
            what = f"{self.url} answered {short_repr(text)} to {kind}"
            raise EnvError(f"{what}; expected a message of OpenEnv") from error
        if answer["type"] == "error":
            code, message = content.get("code"), content.get("message")
            if code == _INVALID_ACTION:
                raise InvalidActionError(_describe_validation(content.get("errors")))
            raise ForeignCallError(f"{kind} of {self.url} answered {code}: {message}")
        return content


class _LocalSession:
    """An environment of OpenEnv in this process.

    Arguments:
        reference: the class as `module:Class` or `file.py:Class`.
        env_kwargs: arguments of its constructor.

    Raises:
        EnvError: the class of its actions is not known from the type hints of `step`.
    """

    def __init__(self, reference: str, env_kwargs: Options) -> None:
        kind = load_reference(reference)
        if find_spec("openenv") is None:
            raise EnvError(f"{reference} needs OpenEnv in the same process; install it with: pip install openenv")
        self._reference = reference
        self._action_type = _find_action_type(reference, kind)
        self.schema: Options = self._action_type.model_json_schema()
        self._env = kind(**env_kwargs)

    def reset(self, data: Options) -> SessionResult:
        parameters = inspect.signature(self._env.reset).parameters
        accepts_all = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        return self._read(self._env.reset(**{k: v for k, v in data.items() if accepts_all or k in parameters}))

    def step(self, action: Options) -> SessionResult:
        from openenv.core.env_server.serialization import deserialize_action
        from pydantic import ValidationError

        try:
            parsed = deserialize_action(dict(action), self._action_type)
        except ValidationError as error:
            raise InvalidActionError(_describe_validation(error.errors())) from error
        return self._read(self._env.step(parsed))

    def close(self) -> None:
        self._env.close()

    def _read(self, observation: object) -> SessionResult:
        from openenv.core.env_server.serialization import serialize_observation

        if not hasattr(observation, "model_dump"):
            raise EnvError(f"{self._reference} returned {short_repr(observation)}; expected an Observation of OpenEnv")
        return _check_result(self._reference, serialize_observation(observation))


def open_session(env_id: str, env_kwargs: Options, seconds: float) -> OpenEnvSession:
    """Open a session of a server (`http://...`, `ws://...`) or of a class in the process (`module:Class`)."""
    if "://" not in env_id:
        return _LocalSession(env_id, env_kwargs)
    if env_kwargs:
        raise EnvError(f"{env_id} is a server, which takes reset_options instead of env_kwargs={dict(env_kwargs)}")
    return _ServerSession(env_id, seconds)


def _fetch_action_schema(url: str, seconds: float, is_local: bool) -> Options:
    """Fetch the JSON schema of a server's actions."""
    opener = build_opener(ProxyHandler({})) if is_local else build_opener()
    try:
        with opener.open(f"{url}/schema", timeout=seconds) as response:
            schema = json.load(response)["action"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ForeignCallError(f"{url}/schema cannot be read: {error}") from error
    if not isinstance(schema, dict):
        raise EnvError(f"{url}/schema has {short_repr(schema)} as the schema of actions; expected an object")
    return schema


def _find_action_type(reference: str, kind: Any) -> Any:
    """Return the class of an environment's actions, from the type hints of `step`."""
    try:
        action_type = get_type_hints(kind.step).get("action")
    except (AttributeError, NameError, TypeError):
        action_type = None
    if not hasattr(action_type, "model_json_schema"):
        raise EnvError(f"{reference} does not name the class of its actions in the type hints of step(action: ...)")
    return action_type


def _check_result(name: str, data: object) -> SessionResult:
    """Check an answer to `reset` or `step`.

    Raises:
        EnvError: it is not one of OpenEnv's.
    """
    fields = data if isinstance(data, dict) else {}
    observation, reward, done = fields.get("observation"), fields.get("reward"), fields.get("done")
    if not isinstance(observation, Mapping) or not isinstance(reward, int | float | None) or not isinstance(done, bool):
        raise EnvError(f"{name} returned {short_repr(data)}; expected an observation, a reward and done")
    return SessionResult(observation, None if reward is None else float(reward), done)


def _describe_validation(errors: object) -> str:
    """Describe the errors of pydantic in one line."""
    listed = [error for error in errors if isinstance(error, dict)] if isinstance(errors, list) else []
    texts = [f"{'.'.join(map(str, error.get('loc', ())))}: {error.get('msg', '')}" for error in listed]
    return "; ".join(texts) or "it does not match the schema"
