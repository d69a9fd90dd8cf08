"""The ``zephyr`` command: dispatch, exit codes and errors; what each subcommand does stands in ``commands/``.

    zephyr run SCRIPT.py[:NAME]          runs a dataset that ends in a write
    zephyr explain SCRIPT.py[:NAME]      shows its fused plan
    zephyr doctor FILE...                finds damage and says where
    zephyr normalize INPUT... --out DIR
    zephyr dedup DIR --out DIR [--fuzzy]
    zephyr quality DIR --out DIR [--rules gopher fineweb]
    zephyr decontaminate DIR --against EVAL... --out DIR
    zephyr train-tokenizer INPUT... --vocab-size N --out FILE
    zephyr tokenize INPUT... --tokenizer T --out DIR
    zephyr inspect STORE [--verify] [--token N]

Exit codes: 0 done, 1 something failed, 2 usage or bad input, 3 refused. With ``--json`` standard output holds one JSON
document and nothing else. A user's mistake is one line on standard error, never a traceback. Only the command
prints; everything else in this package logs.
"""

from __future__ import annotations

import io
import logging
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Generator
from contextlib import contextmanager

import tyro

from marin_zephyr.commands.corpora import decontaminate, dedup, normalize, quality
from marin_zephyr.commands.datasets import doctor, explain, run
from marin_zephyr.commands.stores import inspect, tokenize, train_tokenizer
from marin_zephyr.errors import UserCodeError, ZephyrError

_SHOWN_FRAMES = 5
_PACKAGE = os.path.dirname(__file__)  # noqa: PTH120  compared with the file names of frames


def main(argv: list[str] | None = None) -> int:
    """Runs one command; the exit code."""
    commands = {
        "run": run,
        "explain": explain,
        "doctor": doctor,
        "normalize": normalize,
        "dedup": dedup,
        "quality": quality,
        "decontaminate": decontaminate,
        "train-tokenizer": train_tokenizer,
        "tokenize": tokenize,
        "inspect": inspect,
    }
    for stream in (sys.stdout, sys.stderr):  # a file's name need not be text, nor a terminal know UTF-8
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        with _log_on_stderr():
            return tyro.extras.subcommand_cli_from_dict(
                commands,
                prog="zephyr",
                description="Datasets for language models: clean, de-duplicate, tokenize.",
                args=argv,
            )
    except ZephyrError as e:
        print(f"zephyr: {e}", file=sys.stderr)
        for frame in _callers_frames(e):
            print(f"  {frame}", file=sys.stderr)
        return e.exit_code
    except BrokenPipeError:  # whoever read our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        print("zephyr: interrupted; committed work is kept, the same command goes on from there", file=sys.stderr)
        return 1


def _callers_frames(error: ZephyrError) -> list[str]:
    """Where in the caller's own code a function of theirs failed, innermost last; a worker sends it as a note."""
    if not isinstance(error, UserCodeError):
        return []
    cause = error.__cause__
    places = (
        [] if cause is None else [(f.filename, f.lineno, f.name) for f in traceback.extract_tb(cause.__traceback__)]
    )
    for note in getattr(error, "__notes__", ()):
        places += re.findall(r'^  File "(.+)", line (\d+), in (.+)$', note, re.MULTILINE)
    foreign = (_PACKAGE, sysconfig.get_paths()["stdlib"], "<frozen")
    # A function that went to a worker by value has lost its file.
    places = [("" if file == "<dynamic-code>" else f"{file}, ", line, name) for file, line, name in places]
    own = [(f"{file}line {line}", name) for file, line, name in places if not file.startswith(foreign)]
    told = [f"{place}, in {name}" for place, name in own if place not in str(error) and "site-packages" not in place]
    return told[-_SHOWN_FRAMES:]


class _CurrentStderr(logging.StreamHandler):
    """Writes to what `sys.stderr` is at the moment: while a bar is drawn, lines go above it."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


@contextmanager
def _log_on_stderr() -> Generator[None]:
    handler = _CurrentStderr()
    handler.setFormatter(logging.Formatter("%(message)s"))
    log = logging.getLogger("marin_zephyr")
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)


if __name__ == "__main__":
    sys.exit(main())
