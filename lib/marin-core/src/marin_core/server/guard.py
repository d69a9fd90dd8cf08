"""The guard: what every request must be, and what every response must say.

It stands before all routes. A page on some other site may point its own name at 127.0.0.1 (DNS rebinding) and would
then read this server as its own origin: the ``Host`` header tells, so only names and addresses that are this server's
are answered. Nothing here changes anything, so only GET and HEAD are. A path with ``..``, NUL or a backslash has no
honest use and goes no further. And every response, errors included, forbids what it does not need.

See: https://owasp.org/www-project-secure-headers, RFC 9110 section 7.4 (misdirected requests).
"""

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; sandbox; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Sent unless the response says otherwise itself. The policy forbids everything; a page of ours brings its own."""


@dataclass(frozen=True)
class Hosts:
    """The names that a request may ask for.

    Args:
        names: besides ``localhost``: host names, lower case.
        any_address: any IP address will do, since the server listens on all of the machine's; a rebound *name* is
            refused all the same.
    """

    names: frozenset[str] = frozenset()
    any_address: bool = False

    @classmethod
    def of(cls, host: str, *, allowed: Iterable[str] = ()) -> "Hosts":
        """Those of a server that listens on `host`, and `allowed` ones."""
        names = frozenset(_bare(name) for name in (host, *allowed))
        return cls(names, any_address=is_address(host) and not ipaddress.ip_address(_bare(host)).is_loopback)

    def admits(self, header: str) -> bool:
        """Whether the value of a ``Host`` header names this server."""
        name = _bare(_without_port(header))
        if name in self.names or name == "localhost":
            return True
        return is_address(name) and (self.any_address or ipaddress.ip_address(name).is_loopback)


def is_address(host: str) -> bool:
    """Whether a host is written as an IP address."""
    try:
        ipaddress.ip_address(_bare(host))
    except ValueError:
        return False
    return True


def _bare(host: str) -> str:
    return host.strip().removeprefix("[").removesuffix("]").rstrip(".").lower()


def _without_port(header: str) -> str:
    name, colon, port = header.rpartition(":")
    return name if colon and port.isdecimal() and (":" not in name or name.endswith("]")) else header


@dataclass(frozen=True)
class Guard:
    """An ASGI application around another; see the module."""

    application: "ASGIApp"
    hosts: Hosts = field(default_factory=Hosts)

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        """Answers, refuses, or passes on."""
        if scope["type"] == "lifespan":
            await self.application(scope, receive, send)
        elif scope["type"] == "http":
            refusal = self._refusal(scope)
            if refusal is None:
                await self.application(scope, receive, _with_headers(send))
            else:
                await _refuse(*refusal, scope=scope, send=_with_headers(send))

    def _refusal(self, scope: "Scope") -> tuple[int, str] | None:
        hosts = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        if len(hosts) != 1 or not self.hosts.admits(hosts[0]):
            return 421, "this server does not answer to that name; see marin serve --allow-host"
        if scope["method"] not in ("GET", "HEAD"):
            return 405, "only GET and HEAD are answered: this server changes nothing"
        path = scope["path"]
        if "\0" in path or "\\" in path or any(part in (".", "..") for part in path.split("/")):
            return 400, "that is not a path of this server"
        return None


def _with_headers(send: "Send") -> "Send":
    async def sent(message: "Message") -> None:
        if message["type"] == "http.response.start":
            present = {name.lower() for name, _ in message["headers"]}
            more = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
            message["headers"] = [*message["headers"], *((n, v) for n, v in more if n not in present)]
        await send(message)

    return sent


async def _refuse(status: int, why: str, *, scope: "Scope", send: "Send") -> None:
    body = f"{why}\n".encode()
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode())]
    if status == 405:
        headers.append((b"allow", b"GET, HEAD"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})
