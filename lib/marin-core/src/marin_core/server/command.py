"""`marin serve`: a prefix in the browser, until Ctrl-C.

    marin serve                            http://127.0.0.1:8642/ shows .marin, or MARIN_PREFIX
    marin serve --port 0 --json            on any free port, whose URL is the one document on stdout
    marin serve --host 0.0.0.0             for others too; whoever reaches the port reads every output

The socket is bound before anything is printed, so that the URL answers when it is read.
"""

import errno
import json
import logging
import socket
import sys
import threading
from collections.abc import Sequence
from types import FrameType
from typing import TYPE_CHECKING

from marin_core.errors import UsageError
from marin_core.reading.catalogue import store_of

if TYPE_CHECKING:
    from marin_core.server.guard import Guard

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8642
_GRACE = 1
"""Seconds that a request in progress may go on after the signal to stop."""

_WHY = {errno.EADDRINUSE: "is taken", errno.EACCES: "needs privileges", errno.EADDRNOTAVAIL: "is not this machine's"}


def serve_command(
    prefix: str,
    *,
    host: str = DEFAULT_HOST,
    port: int = DEFAULT_PORT,
    allowed_hosts: Sequence[str] = (),
    as_json: bool = False,
) -> int:
    """Serves a prefix until SIGINT or SIGTERM.

    Args:
        prefix: a directory or URL.
        host: address to listen on.
        port: to listen on; 0 takes a free one.
        allowed_hosts: further names under which browsers may ask for this server.
        as_json: print the URL and the prefix as one JSON document.

    Returns:
        The exit code: 0.

    Raises:
        UsageError: the port is taken, the host is not this machine's, or the extra is missing.
        PrefixError: there is no such prefix.
    """
    try:
        import uvicorn  # noqa: F401  whether it is there

        from marin_core.server.application import make_application
        from marin_core.server.guard import Hosts, is_address
    except ModuleNotFoundError as e:
        if e.name is None or e.name.partition(".")[0] not in ("uvicorn", "starlette", "anyio"):
            raise
        raise UsageError(f"marin serve needs {e.name}: pip install 'marin-core[serve]'") from e
    store = store_of(prefix)
    listener = _listen(host, port)
    over = threading.Event()
    hosts = Hosts.of(host, allowed=allowed_hosts)
    application = make_application(prefix, hosts=hosts, stopping=over.is_set)
    url = _url(host, listener)
    if hosts.any_address or not (is_address(host) or host == "localhost"):
        print(f"warning: whoever reaches {url} can read every output under {store.url}", file=sys.stderr)  # noqa: T201
    print(json.dumps({"url": url, "prefix": store.url}) if as_json else url, flush=True)  # noqa: T201
    if not as_json:
        print(f"shows {store.url}; Ctrl-C ends it", flush=True)  # noqa: T201
    _run(application, listener, over)
    return 0


def _run(application: "Guard", listener: socket.socket, over: threading.Event) -> None:
    """Serves until a signal, which is how a server ends and no error: it is not raised again afterwards, and nothing is
    said of the requests that it cuts off."""
    import uvicorn

    logging.getLogger("uvicorn.error").addFilter(lambda _: not over.is_set())

    class Server(uvicorn.Server):
        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            over.set()
            self.should_exit = True

    config = uvicorn.Config(
        application,
        log_config=None,
        access_log=False,
        lifespan="off",
        server_header=False,
        timeout_graceful_shutdown=_GRACE,
    )
    Server(config).run(sockets=[listener])


def _listen(host: str, port: int) -> socket.socket:
    if not 0 <= port < 65536:
        raise UsageError(f"--port {port}: a port is a number from 0 to 65535")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as e:
        raise UsageError(f"--host {host}: {e.strerror}") from e
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(128)
    except OSError as e:
        listener.close()
        why = _WHY.get(e.errno or 0) or f"cannot be used: {e.strerror}"
        raise UsageError(f"port {port} of {host} {why}; give another --port, or --port 0 for any free one") from e
    listener.setblocking(False)
    return listener


def _url(host: str, listener: socket.socket) -> str:
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{listener.getsockname()[1]}/"
