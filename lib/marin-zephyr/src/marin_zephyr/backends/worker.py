"""A worker process: takes tasks from the driver over one socket, one after another, until the socket closes.

The socket is the lifeline. A thread reads it all the time, so a driver that goes away in any manner, SIGKILL included,
is noticed at once, also in the middle of a task, and the worker exits. Interrupts of the terminal are the driver's to
handle.

Polars is held to one thread by the environment in which the driver starts a worker, and Arrow here: sums of floats
would otherwise depend on the number of cores, and workers would fight for them.
"""

from __future__ import annotations

import os
import pickle
import queue
import signal
import threading
import traceback
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

_MESSAGE_LIMIT = 20_000


def main(fd: int) -> None:
    """Serves the driver at the other end of the socket ``fd``. Does not return."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection = Connection(fd)
    os.register_at_fork(after_in_child=connection.close)  # a child of a function is no worker, nor keeps one alive
    inbox: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(connection, inbox), daemon=True).start()
    try:
        _serve(connection, inbox)
    except BaseException:  # a function may leave threads that would keep this process from ending
        traceback.print_exc()
        os._exit(1)


def _serve(connection: Connection, inbox: queue.SimpleQueue[bytes]) -> None:
    import_engine()
    blob = b""
    while True:
        message = pickle.loads(inbox.get())  # noqa: S301  from our own driver, over a private socket
        if message[0] == "spec":
            blob = message[1]
            continue
        _, index, task_input, terms = message
        connection.send_bytes(outcome(partial(_run, blob, index, task_input, **terms)))


def _listen(connection: Connection, inbox: queue.SimpleQueue[bytes]) -> None:
    try:
        while True:
            inbox.put(connection.recv_bytes())
    except (EOFError, OSError):
        os._exit(0)


def import_engine() -> None:
    """Imports all that tasks need, while the driver is still planning, and holds Arrow to one thread."""
    import pyarrow as pa
    import pyarrow.parquet

    import marin_zephyr.formats.jsonl
    import marin_zephyr.tasks  # noqa: F401

    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)


def _run(blob: bytes, index: int, task_input: Any, *, memory: int, care: tuple[int, Any] | None = None) -> Any:
    from marin_zephyr.backends.care import Care
    from marin_zephyr.tasks import run_task

    careful = None if care is None else Care(*care)
    return run_task(load_spec(blob), index, task_input, memory=memory, care=careful)


def outcome(run: Callable[[], Any]) -> bytes:
    """What became of a task, pickled for the driver: ``("done", record)``, or ``("failed", error to raise there)``."""
    import cloudpickle

    from marin_zephyr.errors import UserCodeError, ZephyrError

    try:
        return pickle.dumps(("done", run()))
    except ZephyrError as e:
        error: Exception = e
        if e.__cause__ is not None:
            e.add_note(_trace(e.__cause__))
    except BaseException as e:  # also a panic of Polars, and what a function takes for the end of its program
        error = UserCodeError(f"{type(e).__name__}: {e}")
        error.add_note(_trace(e))
    try:
        return cloudpickle.dumps(("failed", error))
    except Exception:
        return pickle.dumps(("failed", UserCodeError(str(error))))


_loaded: tuple[bytes, Any] = (b"", None)


def load_spec(blob: bytes) -> Any:
    """The stage's spec; unpickled once for one bytes object, not once a task."""
    global _loaded
    if _loaded[0] is not blob:
        from marin_zephyr.errors import UserCodeError

        try:
            _loaded = (blob, pickle.loads(blob))  # noqa: S301  from our own driver
        except Exception as e:
            message = f"a worker cannot load the functions of this stage ({type(e).__name__}: {e})"
            raise UserCodeError(f"{message}; define them where a worker can import them") from e
    return _loaded[1]


def _trace(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))[-_MESSAGE_LIMIT:]
