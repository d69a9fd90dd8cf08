"""Threads that do not hold up the end of a process.

Python waits at exit for the threads of a `ThreadPoolExecutor`, and for all that was ever asked of them. A run that was
interrupted would so hash and upload to the end what nobody will commit, or wait for a store that does not answer.
"""

import contextlib
import functools
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from types import TracebackType
from typing import Any


class DaemonExecutor(Executor):
    """Runs tasks in daemon threads. Left by an interrupt it waits for none, otherwise for all.

    Args:
        most: threads; each starts when a task is given while there are fewer.
        name: what they are called.
    """

    def __init__(self, most: int, *, name: str) -> None:
        self._most, self._name = most, name
        self._tasks: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []

    def submit[**P, T](self, task: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Has a task run; for one thread to call."""
        future: Future[T] = Future()
        self._tasks.put((future, functools.partial(task, *args, **kwargs)))
        if len(self._threads) < self._most:
            name = f"{self._name}-{len(self._threads)}"
            self._threads.append(threading.Thread(target=self._work, name=name, daemon=True))
            self._threads[-1].start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Takes no more tasks."""
        with contextlib.suppress(queue.Empty):
            while cancel_futures:
                if (task := self._tasks.get_nowait()) is not None:
                    task[0].cancel()
        for _ in self._threads:
            self._tasks.put(None)
        for thread in self._threads if wait else ():
            thread.join()

    def __exit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> None:
        interrupted = exc_type is not None and not issubclass(exc_type, Exception)
        self.shutdown(wait=not interrupted, cancel_futures=interrupted)

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            future, call = task
            if not future.set_running_or_notify_cancel():
                continue
            try:
                result = call()
            except BaseException as e:
                future.set_exception(e)
            else:
                future.set_result(result)
            del future, call, task
