"""All of a prefix in the browser: ``marin serve``."""

import argparse

from marin_core.server.command import serve_command


def serve(parsed: argparse.Namespace) -> int:
    """Serves until Ctrl-C; prints the URL itself, since it has more to do after that."""
    return serve_command(
        parsed.prefix, host=parsed.host, port=parsed.port, allowed_hosts=parsed.allow_host, as_json=parsed.json
    )
