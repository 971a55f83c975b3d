"""Clean and mask texts, of models, programs, servers, data files and user code.

Cleaning: Python strings can contain lone surrogates (`"\\ud800"`), which UTF-8 cannot encode, so files, databases, tokenizers
and HTTP clients reject them. JSON and program output may contain them. The records in `palaestra.core.records` pass their
text through `clean`.

Masking: every text that is stored or printed has no keys and passwords. Masked are the secrets that this process knows, in
every encoding in which a service may repeat them, and texts in the form of a credential. Known secrets are the values of
environment variables with names like `OPENAI_API_KEY`, and what engines and servers were given (`remember_secret`). The
places where texts leave the process call `mask` or `mask_data`: files and databases (`palaestra.runs.files`), the terminal,
responses of servers, and answers of services, which are masked before anything else reads them.
"""

from __future__ import annotations

import base64
import functools
import html
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import quote, quote_plus, unquote, urlsplit

from palaestra.core.errors import EngineError


def clean_text(text: str) -> str:
    """Replace lone surrogates with U+FFFD and join surrogate pairs. Other text is returned unchanged.

    >>> clean_text("a\\ud800b") == "a\\N{REPLACEMENT CHARACTER}b", clean_text("\\ud83d\\ude00")
    (True, '😀')
    """
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def clean(value: Any) -> Any:
    """Clean a string, or all strings in nested mappings, lists and tuples.

    Values that need no change are returned themselves, not as copies.
    """
    kind = type(value)
    if kind is str:
        return clean_text(value)
    if kind in (int, float, bool, type(None)):
        return value
    if kind is dict or isinstance(value, Mapping):
        for key, entry in value.items():
            if clean(key) is not key or clean(entry) is not entry:
                return {clean(key): clean(entry) for key, entry in value.items()}
        return value
    if kind in (list, tuple):
        for item in value:
            if clean(item) is not item:
                return kind(map(clean, value))
        return value
    return clean_text(value) if isinstance(value, str) else value


def clean_fields(record: object, *names: str) -> None:
    """Clean fields of a frozen dataclass. Called in its `__post_init__`."""
    for name in names:
        value = getattr(record, name)
        if type(value) is str and value.isascii():
            continue
        cleaned = clean(value)
        if cleaned is not value:
            object.__setattr__(record, name, cleaned)


MASK = "***"
URL_USER = "PALAESTRA_URL_USER"
"""The environment variable with user and password of a masked URL."""
_MIN_LENGTH = 8
"""Minimum length of a known secret. Shorter values occur in ordinary text."""
_PREFIX = 16
"""Length of a part at the start of a secret that is masked as well: a message may end within a key."""
_ORDINARY = frozenset(
    {"password", "username", "changeme", "anything", "undefined", "disabled", "required", "localhost"}
)
"""Placeholders that are not secrets."""
_SECRET_NAME = re.compile(
    r"(api_?key|(^|[_-])(key|token|secret|credentials?|auth|passphrase|passwd|pwd))$|password", re.IGNORECASE
)
# The conditions on the character before follow the first letter; see `_compile`.
_FORMS = r"""
    s(?<![A-Za-z0-9]s)k-[A-Za-z0-9_-]{16,}
    s(?<![A-Za-z0-9]s)k_(?:live|test)_[A-Za-z0-9]{16,}
    h(?<![A-Za-z0-9]h)f_[A-Za-z0-9]{20,}
    g(?<![A-Za-z0-9]g)h[pousr]_[A-Za-z0-9]{20,}
    g(?<![A-Za-z0-9]g)ithub_pat_[A-Za-z0-9_]{20,}
    g(?<![A-Za-z0-9]g)lpat-[A-Za-z0-9_-]{16,}
    g(?<![A-Za-z0-9]g)sk_[A-Za-z0-9]{20,}
    n(?<![A-Za-z0-9]n)vapi-[A-Za-z0-9_-]{20,}
    x(?<![A-Za-z0-9]x)ai-[A-Za-z0-9]{20,}
    x(?<![A-Za-z0-9]x)ox[a-z]-[A-Za-z0-9-]{10,}
    w(?<![A-Za-z0-9]w)andb_v1_[A-Za-z0-9_]{16,}
    A(?<![A-Za-z0-9]A)KIA[0-9A-Z]{16}
    A(?<![A-Za-z0-9]A)SIA[0-9A-Z]{16}
    A(?<![A-Za-z0-9]A)Iza[A-Za-z0-9_-]{30,}
    eyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}
    -----BEGIN [A-Z ]*PRIVATE KEY-----[A-Za-z0-9+/=\s\\:,-]*?-----END [A-Z ]*PRIVATE KEY-----
"""
_HEADERS = ("Bearer", "bearer", "BEARER", "Basic", "basic", "BASIC")
_CREDENTIALS = r"(?:\s+|%20|\+)(?=[A-Za-z._~+/=-]{0,99}[0-9]|[A-Za-z._~+/=-]{20})[A-Za-z0-9._~+/=-]{7,}[A-Za-z0-9_=-]"
"""What follows the name of a header's scheme: not an ordinary word, which has no digit."""
_USER_IN_URL = r""":(?:\\?/){2}[^/?\#\s"'<>\\]{1,1000}@"""
_QUERY_IN_URL = re.compile(r"(\b[a-zA-Z][a-zA-Z0-9+.\-]*://[^?\s#]*\?)([^#\s]*)")
_remembered: set[str] = set()
_urls: dict[str, str] = {}
"""The URLs of this process by what is stored of them."""
T = TypeVar("T")


def remember_secret(value: str) -> None:
    """Mask a value from now on, for example the key of an engine."""
    if value:
        _remembered.add(value)


def restore_url(url: str) -> str:
    """Return a URL with its user and password, and mask its password and query values from now on.

    They are not stored: the address of a resumed run has `***` in their place, and takes them from the environment
    variable `PALAESTRA_URL_USER`.

    Raises:
        EngineError: the variable is not set, and no earlier call had the whole URL.
    """
    if f"://{MASK}@" in url:
        user = os.environ.get(URL_USER, "")
        if not user and url not in _urls:
            raise EngineError(f"the user and password of {url} are not stored; set {URL_USER} to USER:PASSWORD")
        url = url.replace(f"://{MASK}@", f"://{user}@", 1) if user else _urls[url]
    parts = urlsplit(url)
    user, password = unquote(parts.username or ""), unquote(parts.password or "")
    queries = [unquote(value.partition("=")[2]) for value in parts.query.split("&")]
    for value in (password, password and base64.b64encode(f"{user}:{password}".encode()).decode(), *queries):
        remember_secret(value)
    _urls[mask(url)] = url
    return url


def mask(text: str) -> str:
    """Replace the secrets in a text. A text without any is returned itself, and masking twice changes nothing.

    >>> mask("401: wrong key sk-abcdefghijklmnop1234 at https://me:pass@host/v1")
    '401: wrong key *** at https://***@host/v1'
    """
    return _get_pattern().sub(_replace, text)


def mask_data(value: T) -> T:
    """Replace the secrets in all texts of nested mappings, lists and tuples. Numbers are not changed."""
    masked: T = _mask_nested(value, _get_pattern())
    return masked


def mask_rows(rows: Iterable[Sequence[object]]) -> Iterator[list[object]]:
    """Replace the secrets in the texts of database rows. A text that is JSON stays JSON, and its numbers stay exact.

    >>> next(mask_rows([(1, '{"error": "sk-abcdefghijklmnop1234", "token_ids": [1, 2]}')]))
    [1, '{"error":"***","token_ids":[1,2]}']
    """
    pattern = _get_pattern()
    for row in rows:
        yield [_mask_json(value, pattern) if isinstance(value, str) else value for value in row]


def _mask_json(text: str, pattern: re.Pattern[str]) -> str:
    if len(text) < _MIN_LENGTH or pattern.search(text) is None:
        return text
    if text[0] in '{["':
        try:
            data = json.loads(text)
        except ValueError:
            pass
        else:
            return json.dumps(_mask_nested(data, pattern), ensure_ascii=False, separators=(",", ":"))
    return pattern.sub(_replace, text)


def mask_settings(value: Any, name: str = "") -> Any:
    """Mask settings: what `mask` finds, values with a name like a secret's, and query values in URLs.

    >>> mask_settings({"writer": "https://host/v1?key=1#m", "env_kwargs": {"api_key": "abc", "size": 3}})
    {'writer': 'https://host/v1?***#m', 'env_kwargs': {'api_key': '***', 'size': 3}}
    """
    if isinstance(value, Mapping):
        return {key: mask_settings(part, str(key)) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(mask_settings(part, name) for part in value)
    if not isinstance(value, str) or not value:
        return value
    if _SECRET_NAME.search(name):
        return MASK
    option, equals, _ = value.partition("=")
    if equals and "://" not in option and _SECRET_NAME.search(option):
        return f"{option}={MASK}"
    return _QUERY_IN_URL.sub(rf"\g<1>{MASK}", mask(value))


def mask_arguments(arguments: Sequence[str]) -> list[str]:
    """Mask the secrets of a command line, also the values of options named like a secret.

    >>> mask_arguments(["--writer", "https://me:pw@host/v1?key=1#m", "--api-key", "abc"])
    ['--writer', 'https://***@host/v1?***#m', '--api-key', '***']
    """
    names = [before if before.startswith("-") and "=" not in before else "" for before in ("", *arguments)]
    return [
        mask_settings(argument, name if not argument.startswith("-") else "")
        for name, argument in zip(names, arguments, strict=False)
    ]


def is_masked(value: object) -> bool:
    """Whether a setting had a secret that was not stored, other than the password of a URL (`restore_url`)."""
    if isinstance(value, Mapping):
        return any(map(is_masked, value.values()))
    if isinstance(value, list | tuple):
        return any(map(is_masked, value))
    return isinstance(value, str) and (value == MASK or value.endswith(f"={MASK}") or f"?{MASK}" in value)


def _mask_nested(value: Any, pattern: re.Pattern[str]) -> Any:
    if isinstance(value, str):
        return pattern.sub(_replace, value) if len(value) >= _MIN_LENGTH else value
    if isinstance(value, Mapping):
        return {_mask_nested(key, pattern): _mask_nested(part, pattern) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_mask_nested(part, pattern) for part in value)
    return value


def _replace(match: re.Match[str]) -> str:
    """Keep what tells the kind of the secret: the scheme of a header, the marks around the user of a URL."""
    text = match[0]
    if text[0] == ":" and text[-1] == "@":
        return f"{text[: text.rindex('/') + 1]}{MASK}@"
    scheme = text[:6] if text[:6].lower() == "bearer" else text[:5]
    return f"{scheme} {MASK}" if scheme in _HEADERS else MASK


def _get_pattern() -> re.Pattern[str]:
    """The pattern of the secrets that are known now."""
    named = (value for name, value in os.environ.items() if _is_secret_name(name) and not value.startswith(("/", "~")))
    return _compile(frozenset(value for value in (*named, *_remembered) if _is_distinct(value)))


@functools.lru_cache(4096)
def _is_secret_name(name: str) -> bool:
    return bool(_SECRET_NAME.search(name))


def _is_distinct(value: str) -> bool:
    return len(value.strip()) >= _MIN_LENGTH and value.lower() not in _ORDINARY


@functools.lru_cache(16)
def _compile(secrets: frozenset[str]) -> re.Pattern[str]:
    """One pattern for all secrets, the longest first.

    Every alternative begins with one character and no group, so that `re` skips all positions with another character.
    """
    variants: set[str] = set()
    for secret in secrets:
        variants |= _list_variants(secret.strip())
    literals = [_to_pattern(variant) for variant in sorted(variants, key=lambda text: (-len(text), text))]
    forms = [form.strip() for form in _FORMS.strip().splitlines()]
    return re.compile("|".join([_USER_IN_URL, *literals, *(scheme + _CREDENTIALS for scheme in _HEADERS), *forms]))


def _to_pattern(text: str) -> str:
    """The pattern of a secret, also if the text ends within it."""
    if text.isdecimal():  # A part of a number is not a secret.
        return rf"{text[0]}(?<![\d.]{text[0]}){text[1:]}(?![\d.]*\d)"
    start, rest = re.escape(text[:_PREFIX]), re.escape(text[_PREFIX:])
    return f"{start}(?:{rest}|[A-Za-z0-9_.~%+/=-]*)" if len(text) >= _PREFIX + 4 else start + rest


def _list_variants(secret: str) -> set[str]:
    """The encodings of a secret in which a service may repeat it."""
    variants = {secret, json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1], repr(secret)[1:-1]}
    variants |= {json.dumps(secret)[1:-1].replace("/", "\\/"), html.escape(secret), quote_plus(secret)}
    for safe in ("", "/"):
        encoded = quote(secret, safe=safe)
        variants |= {encoded, re.sub("%..", lambda match: match[0].lower(), encoded)}
    for shift in range(3):
        # In base64 a secret has one of three forms, by its position; the characters that mix with others are left out.
        padded = b"\0" * shift + secret.encode()
        whole = len(padded) // 3 * 4
        start = (0, 2, 3)[shift]
        for code in (base64.b64encode(padded), base64.urlsafe_b64encode(padded)):
            variants.add(code.decode()[start:whole])
    variants |= {json.dumps(variant)[1:-1] for variant in variants}  # JSON inside of JSON.
    return {variant for variant in variants if len(variant) >= _MIN_LENGTH}
