"""The ``marin-train`` command: dispatch, exit codes and errors; what each subcommand does stands in ``commands/``.

Results go to standard output, one JSON document with ``--json``; progress and warnings go to standard error. Exit
codes: 0 done, 1 something failed or was interrupted, 2 usage or bad input, 3 refused because something drifted.
"""

import io
import logging
import os
import sys
from collections.abc import Sequence

import tyro

from marin_train.commands.evaluations import blame, evaluate, held_out
from marin_train.commands.outputs import export, generate
from marin_train.commands.pages import routing
from marin_train.commands.plans import data, describe
from marin_train.commands.training import run
from marin_train.errors import LostProcessError, MarinTrainError

_LESS_MEMORY = "make batches smaller, raise accumulation, or use more devices; marin-train describe says what one holds"


def main(arguments: Sequence[str] | None = None) -> None:
    """The command's entry point; exits with the codes of the module's docstring."""
    from marin_train.progress import StderrHandler

    logging.basicConfig(level=logging.WARNING, format="%(message)s", handlers=[StderrHandler()])
    # Progress is ours to tell; what the libraries below have to say is not, unless it warns.
    logging.getLogger("marin_train").setLevel(logging.INFO)
    commands = {
        "run": run,
        "eval": evaluate,
        "generate": generate,
        "export": export,
        "blame": blame,
        "describe": describe,
        "data": data,
        "held-out": held_out,
        "routing": routing,
    }
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # no text is lost for what a terminal cannot show of it
    description = "Train, evaluate and sample language models. Exit codes: 0 done, 1 failed, 2 bad input, 3 refused."
    try:
        tyro.extras.subcommand_cli_from_dict(
            commands,
            args=arguments,
            prog="marin-train",
            description=description,
            config=(tyro.conf.FlagCreatePairsOff,),
        )
    except LostProcessError as error:
        print(f"marin-train: {error}", file=sys.stderr, flush=True)
        os._exit(error.exit_code)  # an orderly end would wait for the process that is gone
    except MarinTrainError as error:
        print(f"marin-train: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except BrokenPipeError:  # the reader has seen enough; Python's last flush must not find the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except OSError as error:  # a disk that is full, a file that may not be read
        print(f"marin-train: {error}", file=sys.stderr)
        sys.exit(1)
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and "out of memory" not in str(error).lower():  # as XLA says it
            raise
        reason = str(error).partition("\n")[0]
        print(f"marin-train: out of memory ({reason}); {_LESS_MEMORY}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(1)


if __name__ == "__main__":
    main()
