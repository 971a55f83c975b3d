"""Which requests a server on this machine answers: by the address, the host name and the page that they come from."""

from __future__ import annotations

import errno
import socket
from collections.abc import Collection
from contextlib import suppress
from ipaddress import ip_address
from urllib.parse import urlsplit

from palaestra.core.errors import SettingsError


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach a server on `host`."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def list_host_names(host: str) -> frozenset[str]:
    """Return the names of a server that listens on `host`; none, which accepts every name, if it listens everywhere.

    >>> sorted(list_host_names("127.0.0.1")), list_host_names("0.0.0.0")
    (['127.0.0.1', '::1', 'localhost'], frozenset())
    """
    return frozenset() if host in ("0.0.0.0", "::") else frozenset({host.lower(), "localhost", "127.0.0.1", "::1"})


def listen(host: str, port: int) -> socket.socket:
    """Open the socket of a server. Clients may connect at once.

    Raises:
        SettingsError: the port is in use, or the address is not one of this machine.
    """
    try:
        return socket.create_server(
            (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=2048
        )
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            advice = f"port {port} is in use; choose another with --port, or 0 for a free one"
        else:
            advice = "expected an address of this machine, for example 127.0.0.1, and a port that this user may open"
        raise SettingsError(f"cannot listen on {host}, port {port}: {error.strerror}; {advice}") from error


def list_urls(host: str, port: int) -> list[str]:
    """List the URLs of a server that listens on `host`. For one that listens everywhere, the last is for other machines."""
    if host not in ("0.0.0.0", "::"):
        return [f"http://{f'[{host}]' if ':' in host else host}:{port}"]
    return [f"http://{name}:{port}" for name in ("localhost", find_own_address())]


def find_own_address() -> str:
    """Find this machine's address on its default route, or its host name if it has none."""
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # Sends nothing: only the route is chosen.
        return str(probe.getsockname()[0])
    return socket.gethostname()


def find_access_error(host: str, origin: str | None, hosts: Collection[str]) -> str:
    """Return why a request is not answered; empty if it may be.

    The host name must be one of the server's own: otherwise another site could resolve its name to this address and read
    the answers. A browser sends the origin of the page, which must be the server's own.

    Arguments:
        host, origin: the headers of the request.
        hosts: the accepted host names; empty accepts all.

    >>> find_access_error("localhost:8000", "http://localhost:8000", list_host_names("127.0.0.1"))
    ''
    """
    try:
        address = urlsplit(f"//{host}")
        if hosts and address.hostname not in hosts:
            return "this server does not go by that name"
        if origin and urlsplit(origin).netloc.lower() != address.netloc.lower():
            return "requests from other pages are not answered"
    except ValueError:
        return "the host name or the origin of the request is not an address"
    return ""
