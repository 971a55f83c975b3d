"""Where a model is served, by its name: OpenAI, Azure OpenAI, or a server of one's own.

openai:gpt-4o-mini                  OpenAI; the key is in OPENAI_API_KEY (OPENAI_BASE_URL is honoured)
azure:my-deployment                 Azure; AZURE_OPENAI_API_KEY and AZURE_OPENAI_ENDPOINT
http://localhost:8000/v1#my-model   any server that speaks the format; a key, if it wants one, in PALAESTRA_API_KEY
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from palaestra.core.errors import EngineError, MissingExtraError, SettingsError

if TYPE_CHECKING:
    from openai import AsyncOpenAI

AZURE_VERSION = "2024-10-21"
_KEYS = {"openai": "OPENAI_API_KEY", "azure": "AZURE_OPENAI_API_KEY", "url": "PALAESTRA_API_KEY"}


def is_remote(name: str) -> bool:
    """Whether a model's name stands for a service, as opposed to weights that are loaded here."""
    return name.startswith(("openai:", "azure:", "http://", "https://"))


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A model at an address."""

    name: str
    kind: str
    url: str
    model: str

    @classmethod
    def of(cls, name: str) -> Endpoint:
        """The endpoint that `name` stands for.

        Raises:
            SettingsError: the name has none of the three forms.
            EngineError: Azure's address is not in the environment.
        """
        scheme, _, rest = name.partition(":")
        if scheme == "openai" and rest:
            url = os.environ.get("OPENAI_BASE_URL") or "https://api.openai.com/v1"
            return cls(name, "openai", url.rstrip("/"), rest)
        if scheme == "azure" and rest:
            address = os.environ.get("AZURE_OPENAI_ENDPOINT", "")
            if not address:
                raise EngineError(
                    f"{name} needs the address of your Azure resource; set AZURE_OPENAI_ENDPOINT, "
                    "for example to https://NAME.openai.azure.com"
                )
            return cls(name, "azure", address.rstrip("/"), rest)
        url, _, model = name.partition("#")
        if url.startswith(("http://", "https://")) and model:
            return cls(name, "url", url.rstrip("/"), model)
        raise SettingsError(
            f"a served model is named openai:MODEL, azure:DEPLOYMENT or http://HOST:PORT/v1#MODEL; got '{name}'"
        )

    @property
    def variable(self) -> str:
        """The environment variable that holds the key."""
        return _KEYS[self.kind]

    @property
    def identity(self) -> str:
        """What determines the answers: the model and who serves it."""
        return f"{self.url}#{self.model}"

    def key(self) -> str:
        """The key from the environment.

        The key of OpenAI goes to OpenAI and to nobody else: a server of one's own has a variable of its own.

        Raises:
            EngineError: there is none, in one line that names the variable.
        """
        key = os.environ.get(self.variable, "")
        if not key and self.kind != "url":
            raise EngineError(f"{self.name} needs a key; put it into the environment variable {self.variable}")
        return key or "none"

    def check(self) -> None:
        """Raise now if no call can ever be made.

        Raises:
            MissingExtraError: the `openai` package is not installed.
            EngineError: there is no key.
        """
        if find_spec("openai") is None:
            raise MissingExtraError("openai", "openai", f"the engine for {self.name}")
        self.key()

    def client(self, timeout: float) -> AsyncOpenAI:
        """A client of the `openai` package, which does not repeat calls by itself; raises as `check` does."""
        self.check()
        from openai import AsyncAzureOpenAI, AsyncOpenAI

        common: dict[str, Any] = {"api_key": self.key(), "max_retries": 0, "timeout": timeout}
        if self.kind == "azure":
            version = os.environ.get("OPENAI_API_VERSION") or AZURE_VERSION
            return AsyncAzureOpenAI(azure_endpoint=self.url, api_version=version, **common)
        return AsyncOpenAI(base_url=self.url, **common)
