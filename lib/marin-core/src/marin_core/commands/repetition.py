"""Making a step again, from its record alone: ``marin reproduce``."""

import argparse
import json
import sys
from pathlib import Path

from marin_core.commands import Answer
from marin_core.reading.catalogue import Catalogue
from marin_core.records import to_json
from marin_core.reproduction import certificate_key, certificates
from marin_core.reproduction import reproduce as made_again


def reproduce(parsed: argparse.Namespace) -> Answer:
    """Makes a step again and compares; what the script says meanwhile goes to stderr. Exit code 1: it differs."""
    store = Catalogue.of(parsed.prefix).store
    certificate = made_again(
        parsed.address,
        prefix=store.url,
        repository=Path(parsed.repository) if parsed.repository else None,
        keep=Path(parsed.keep) if parsed.keep else None,
        tell=lambda line: print(f"  {line}", file=sys.stderr, flush=True),  # noqa: T201
    )
    where = f"certificate: {store.child(certificate_key(certificate))}.txt"
    return Answer(
        document=json.loads(to_json(certificate)),
        lines=[*certificates.as_text(certificate).splitlines(), where],
        exit_code=0 if certificate.reproduced else 1,
    )
