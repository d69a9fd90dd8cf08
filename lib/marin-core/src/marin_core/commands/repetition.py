"""Making a step again, from its record alone: ``marin reproduce``."""

import argparse
import json
import signal
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from marin_core.commands import Answer
from marin_core.reading.catalogue import Catalogue
from marin_core.records import to_json
from marin_core.reproduction import certificate_key, certificates
from marin_core.reproduction import reproduce as made_again


def reproduce(parsed: argparse.Namespace) -> Answer:
    """Makes a step again and compares; what the script says meanwhile goes to stderr. Exit code 1: it differs."""
    store = Catalogue.of(parsed.prefix).store
    with _interrupted_by(signal.SIGTERM, signal.SIGHUP):
        certificate = made_again(
            parsed.address,
            prefix=store.url,
            repository=Path(parsed.repository) if parsed.repository else None,
            keep=Path(parsed.keep) if parsed.keep else None,
            tell=lambda line: print(f"  {line}", file=sys.stderr, flush=True),
        )
    where = f"certificate: {store.child(certificate_key(certificate))}.txt"
    return Answer(
        document=json.loads(to_json(certificate)),
        lines=[*certificates.as_text(certificate).splitlines(), where],
        exit_code=0 if certificate.reproduced else 1,
    )


class _Signalled(KeyboardInterrupt):
    def __init__(self, number: int) -> None:
        super().__init__(f"interrupted by signal {number}")
        self.exit_code = 128 + number


@contextmanager
def _interrupted_by(*numbers: signal.Signals) -> Generator[None]:
    """Makes of the first of these signals what Ctrl-C is, so that the checkout is removed; a second one changes
    nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, _frame: FrameType | None) -> None:
        for each in numbers:
            signal.signal(each, signal.SIG_IGN)
        raise _Signalled(number)

    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
