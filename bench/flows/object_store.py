"""moto's S3 server on loopback, with every answer 50 ms late, holding what a local prefix holds.

    python bench/flows/object_store.py /tmp/x          prints its endpoint; the bucket is ``bench``; ends with its stdin

The server is Python too and takes some milliseconds of a processor for each request, so graphs are small here.
"""

import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

LATENCY_S = 0.05


def filled(prefix: Path) -> Any:
    """The server's application, with the records of a prefix in its bucket."""
    from moto.core import DEFAULT_ACCOUNT_ID
    from moto.s3.models import s3_backends
    from moto.server import DomainDispatcherApplication, create_backend_app

    backend = s3_backends[DEFAULT_ACCOUNT_ID]["aws"]
    backend.create_bucket("bench", "us-east-1")
    for path in prefix.rglob("*.json"):
        backend.put_object("bench", path.relative_to(prefix).as_posix(), path.read_bytes())
    return DomainDispatcherApplication(create_backend_app)


def main() -> None:
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Handler(WSGIRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
            pass

    application = filled(Path(sys.argv[1]))

    def late(environ: dict[str, Any], start: Callable[..., Any]) -> Any:
        time.sleep(LATENCY_S)
        return application(environ, start)

    server = make_server("127.0.0.1", 0, late, threaded=True, request_handler=Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
