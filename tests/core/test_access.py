"""The addresses that a server prints."""

import socket

from palaestra.core.access import list_urls, listen


def test_a_server_lists_an_address_for_other_machines() -> None:
    with listen("0.0.0.0", 0) as server:
        port = server.getsockname()[1]
        local, other = list_urls("0.0.0.0", port)
        assert local == f"http://localhost:{port}"
        name = other.removeprefix("http://").rpartition(":")[0]
        assert name not in ("0.0.0.0", "127.0.0.1", "localhost")
        with socket.create_connection((name, port), timeout=5):
            pass


def test_other_addresses_are_listed_as_given() -> None:
    assert list_urls("127.0.0.1", 80) == ["http://127.0.0.1:80"]
    assert list_urls("::1", 80) == ["http://[::1]:80"]
