"""Endpoints of models by name, their list prices, and the retry policy for failed calls.

openai:gpt-4o-mini                  OpenAI; the key is in OPENAI_API_KEY, another address in OPENAI_BASE_URL
azure:my-deployment                 Azure; AZURE_OPENAI_API_KEY and AZURE_OPENAI_ENDPOINT
http://localhost:8000/v1#my-model   any server with the same chat format; an optional key in PALAESTRA_API_KEY
http://a:8000/v1,http://b:8000/v1#my-model    several servers of one model, which share the calls
"""

from __future__ import annotations

import functools
import math
import os
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

from palaestra.core.errors import EngineError, MissingExtraError, SettingsError
from palaestra.core.records import Json
from palaestra.core.seeding import Seeds
from palaestra.core.settings import check_ranges, setting
from palaestra.core.tables import load_table
from palaestra.core.text import mask, remember_secret, restore_url
from palaestra.engines.base import Price
from palaestra.engines.budget import strip_date

if TYPE_CHECKING:
    from openai import AsyncOpenAI


_AZURE_VERSION = "2024-10-21"
_LIST_PRICES = {model: Price(*dollars) for model, dollars in load_table(__file__, "prices").items()}
"""Prices of OpenAI and Azure OpenAI as published in 2025. Other servers set their own prices for the same models."""
_KEYS = {"openai": "OPENAI_API_KEY", "azure": "AZURE_OPENAI_API_KEY", "url": "PALAESTRA_API_KEY"}


def find_list_price(name: str) -> Price | None:
    """Return the published price of a model. A server on this machine is free; the prices of other servers are unknown."""
    if all(url.startswith(("http://localhost", "http://127.0.0.1")) for url in name.split(",")):
        return Price(0.0, 0.0)
    scheme, _, model = name.partition(":")
    return _LIST_PRICES.get(model, _LIST_PRICES.get(strip_date(model))) if scheme in ("openai", "azure") else None


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A model at an address."""

    name: str
    """The name without a password."""
    kind: str
    url: str
    model: str

    @classmethod
    def parse(cls, name: str) -> Endpoint:
        """Parse the name of a served model.

        Raises:
            SettingsError: the name has none of the three forms.
            EngineError: Azure's address, or the password of a resumed run's address, is not in the environment.
        """
        scheme, _, rest = name.partition(":")
        if scheme == "openai" and rest:
            url = restore_url(os.environ.get("OPENAI_BASE_URL") or "https://api.openai.com/v1")
            return cls(name, "openai", url.rstrip("/"), rest)
        if scheme == "azure" and rest:
            address = os.environ.get("AZURE_OPENAI_ENDPOINT", "")
            if not address:
                raise EngineError(
                    f"{name} needs the address of your Azure resource; set AZURE_OPENAI_ENDPOINT, "
                    "for example to https://NAME.openai.azure.com"
                )
            return cls(name, "azure", restore_url(address).rstrip("/"), rest)
        url, _, model = name.partition("#")
        if url.startswith(("http://", "https://")) and model:
            url = restore_url(url)
            return cls(f"{mask(url)}#{model}", "url", url.rstrip("/"), model)
        raise SettingsError(
            "a served model is named openai:MODEL, azure:DEPLOYMENT or http://HOST:PORT/v1#MODEL, with a comma between "
            f"several addresses; got '{mask(name)}'"
        )

    @classmethod
    def parse_all(cls, name: str) -> list[Endpoint]:
        """Parse the name of a served model that may have several addresses. Raises like `parse`.

        >>> [endpoint.url for endpoint in Endpoint.parse_all("http://a:1/v1,http://b:1/v1#m")]
        ['http://a:1/v1', 'http://b:1/v1']
        """
        urls, _, model = name.partition("#")
        if not urls.startswith(("http://", "https://")) or "," not in urls:
            return [cls.parse(name)]
        endpoints = [cls.parse(f"{url.strip()}#{model}") for url in urls.split(",")]
        if len({endpoint.url for endpoint in endpoints}) < len(endpoints):
            raise SettingsError(f"expected different addresses of the servers; got '{mask(name)}'")
        return endpoints

    @property
    def variable(self) -> str:
        """The environment variable that contains the key."""
        return _KEYS[self.kind]

    @property
    def identity(self) -> str:
        """Address and model, which determine the answers."""
        return f"{mask(self.url)}#{self.model}"

    def key(self) -> str:
        """Return the key from the environment. The key of OpenAI is never sent to another server.

        Raises:
            EngineError: the key is missing; the message names the variable.
        """
        key = os.environ.get(self.variable, "")
        remember_secret(key)
        if not key and self.kind != "url":
            raise EngineError(f"{self.name} needs an API key; set the environment variable {self.variable}")
        return key or "none"

    def check(self) -> None:
        """Raise if no call can be made.

        Raises:
            MissingExtraError: the `openai` package is not installed.
            EngineError: the key is missing.
        """
        if find_spec("openai") is None:
            raise MissingExtraError("openai", "openai", f"the engine for {self.name}")
        self.key()

    def client(self, timeout: float) -> AsyncOpenAI:
        """Make a client of the `openai` package that does not repeat calls by itself. Raises like `check`."""
        self.check()
        from openai import AsyncAzureOpenAI, AsyncOpenAI, DefaultAsyncHttpxClient

        http = DefaultAsyncHttpxClient(verify=load_certificates())
        common: Json = {"api_key": self.key(), "max_retries": 0, "timeout": timeout, "http_client": http}
        if self.kind == "azure":
            version = os.environ.get("OPENAI_API_VERSION") or _AZURE_VERSION
            return AsyncAzureOpenAI(azure_endpoint=self.url, api_version=version, **common)
        return AsyncOpenAI(base_url=self.url, **common)


@functools.cache
def load_certificates() -> ssl.SSLContext:
    """Load the certificate authorities once for all clients: it takes 50 ms, and every batch of calls has its own client."""
    httpx = import_module("httpx2" if find_spec("httpx2") else "httpx")  # of openai 3 and of openai 2
    context: ssl.SSLContext = httpx.create_ssl_context()
    return context


RETRY = "call again"
"""The phase of an event: a call failed and is repeated. The event counts the calls for this answer; its data contain
the `reason` and the `seconds` until the next call."""

WAITING = "no answer yet"
"""The phase of an event: running calls have received nothing for a while. The data contain the `model`, the number of
such `calls`, the `seconds` of the longest silence, and the `limit` after which the engine gives up."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Exponential backoff with jitter for calls with a temporary failure.

    The wait doubles each time, minus a random fraction of up to a half. A server's `Retry-After` takes precedence over
    `longest`, and ends the retries if it is beyond `total`.
    """

    first: float = setting(0.5, low=0)
    """Seconds before the second call."""
    longest: float = setting(60.0, low=0)
    """Maximum seconds between two calls."""
    total: float = setting(600.0, low=0)
    """Maximum seconds from the first call to the last."""
    tries: int = setting(10, low=1)
    """Maximum number of calls for one answer."""
    unreached: float = setting(10.0, low=0)
    """Replaces `total` while no server has ever answered at the address."""

    def __post_init__(self) -> None:
        check_ranges(self)

    def wait(self, tried: int, elapsed: float, wish: float | None, seeds: Seeds, reached: bool = True) -> float | None:
        """Return the seconds until the next call; `None` for no further call.

        Arguments:
            tried: number of calls so far.
            elapsed: seconds since the first call.
            wish: the server's `Retry-After` in seconds, if any.
            seeds: the source of the jitter.
            reached: whether a server has ever answered.

        >>> RetryPolicy(first=1.0, total=30.0).wait(1, 0.0, 7.0, Seeds(0))
        7.0
        >>> RetryPolicy(first=1.0, total=30.0).wait(1, 25.0, 7.0, Seeds(0)) is None
        True
        """
        if tried >= self.tries:
            return None
        if wish is not None:
            seconds = wish
        else:
            chance = seeds.derive("retry", tried).generator().random()
            seconds = min(self.longest, self.first * 2.0 ** min(tried - 1, 60)) * (1.0 - 0.5 * float(chance))
        left = (self.total if reached else min(self.total, self.unreached)) - elapsed
        if not reached and left >= self.first:
            seconds = min(seconds, left)  # One last call at the time limit.
        return seconds if seconds <= left else None


def parse_retry_after(headers: Mapping[str, str], now: float | None = None) -> float | None:
    """Parse the seconds that a server asks to wait: `retry-after-ms`, or `retry-after` in seconds or as a date.

    Arguments:
        headers: a mapping with lower-case names, or one that ignores case.
        now: seconds since 1970, for dates.

    >>> parse_retry_after({"retry-after": "2"}), parse_retry_after({"retry-after-ms": "150"}), parse_retry_after({})
    (2.0, 0.15, None)
    """
    for name, scale in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        value = headers.get(name)
        if value is None:
            continue
        try:
            seconds = float(value) * scale
        except ValueError:
            try:
                seconds = parsedate_to_datetime(value).timestamp() - (time.time() if now is None else now)
            except (ValueError, TypeError, OverflowError):
                continue
        if math.isfinite(seconds):
            return max(0.0, seconds)
    return None
