"""Residue: what a body leaves behind in its process, and whether that process is as good as a fresh one for the next.

**The rule.** A worker is used again only if the body returned, and after it

- no thread, no child process, no open file and no exit handler of the body is left: with those, leaving the process is
  what ends and flushes them, so it is left;
- the working directory, environment variables, signal handlers and mask, timers, ``sys.argv``, ``sys.path``, standard
  streams, loggers, warning filters, umask and processor affinity are as before it, or could be put back. What changed
  while a module was imported for the first time is never put back, because that module may rely on it;
- user and group, priority and limits are as before it, which nothing could put back;
- resident memory is at most `MOST_MEMORY`.

What modules keep in their own globals stays, as it does between two calls of a function. So a step whose result hangs
on that is no function of its arguments, in any launcher.
"""

import atexit
import contextlib
import functools
import gc
import logging
import os
import resource
import signal
import sys
import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

MOST_MEMORY = 300_000_000
"""Resident bytes beyond which a process is not used again: what a body has piled up would be the next one's burden."""
_PR_SET_CHILD_SUBREAPER = 36
_TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)


@dataclass(frozen=True)
class _Aspect:
    """A part of the process's state that can be read and put back."""

    read: Callable[[], Any]
    restore: Callable[[Any], object]


def _restore_environment(before: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(before)


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _handlers() -> dict[int, Any]:
    return {n: signal.getsignal(n) for n in range(1, signal.NSIG)}


def _restore_handlers(before: dict[int, Any]) -> None:
    for number, handler in before.items():
        if signal.getsignal(number) is not handler:
            signal.signal(number, handler)


def _restore_path(before: tuple[list[str], ...]) -> None:
    sys.argv[:], sys.path[:] = before


def _logger_state(logger: logging.Logger) -> tuple[Any, ...]:
    return logger.level, tuple(logger.handlers), tuple(logger.filters), logger.propagate, logger.disabled


_UNTOUCHED = (logging.NOTSET, (), (), True, False)


def _loggers() -> dict[str | None, tuple[Any, ...]]:
    """The loggers that somebody has set up; None is the root, what is disabled for all, and
    the handler of those that have none."""
    named = ((n, _logger_state(x)) for n, x in logging.root.manager.loggerDict.items() if isinstance(x, logging.Logger))
    found: dict[str | None, tuple[Any, ...]] = {name: state for name, state in named if state != _UNTOUCHED}
    last = logging.lastResort
    form = (last, last.level, last.formatter) if last is not None else (None, 0, None)
    found[None] = (*_logger_state(logging.root), logging.root.manager.disable, *form)
    return found


def _restore_loggers(before: dict[str | None, tuple[Any, ...]]) -> None:
    for name in _loggers().keys() | before.keys():
        logger = logging.getLogger(name)
        level, handlers, filters, logger.propagate, logger.disabled, *disable = before.get(name, _UNTOUCHED)
        logger.setLevel(level)
        logger.handlers[:], logger.filters[:] = handlers, filters
        if disable:
            number, logging.lastResort, last_level, formatter = disable
            logging.disable(number)
            if logging.lastResort is not None:
                logging.lastResort.setLevel(last_level)
                logging.lastResort.setFormatter(formatter)


def _restore_filters(before: list[Any]) -> None:
    warnings.filters[:] = before  # type: ignore[index]
    warnings._filters_mutated()  # type: ignore[attr-defined]


def _restore_streams(before: tuple[Any, ...]) -> None:
    sys.stdin, sys.stdout, sys.stderr = before


def _aspects() -> dict[str, _Aspect]:
    return {
        "working directory": _Aspect(os.getcwd, os.chdir),
        "environment variables": _Aspect(lambda: dict(os.environ), _restore_environment),
        "umask": _Aspect(_umask, os.umask),
        "signal handlers": _Aspect(_handlers, _restore_handlers),
        "signal mask": _Aspect(
            lambda: signal.pthread_sigmask(signal.SIG_BLOCK, ()),
            lambda before: signal.pthread_sigmask(signal.SIG_SETMASK, before),
        ),
        "timers": _Aspect(
            lambda: [signal.getitimer(t) != (0.0, 0.0) for t in _TIMERS],
            lambda before: [signal.setitimer(t, 0) for t in _TIMERS],
        ),
        "sys.argv or sys.path": _Aspect(lambda: (list(sys.argv), list(sys.path)), _restore_path),
        "standard streams": _Aspect(lambda: (sys.stdin, sys.stdout, sys.stderr), _restore_streams),
        "loggers": _Aspect(_loggers, _restore_loggers),
        "warning filters": _Aspect(lambda: list(warnings.filters), _restore_filters),
        "recursion limit": _Aspect(sys.getrecursionlimit, sys.setrecursionlimit),
        **(
            {"processor affinity": _Aspect(lambda: os.sched_getaffinity(0), lambda b: os.sched_setaffinity(0, b))}
            if hasattr(os, "sched_getaffinity")
            else {}
        ),
    }


def _irrevocable() -> tuple[Any, ...]:
    """What a process cannot take back."""
    limits = [resource.getrlimit(getattr(resource, n)) for n in dir(resource) if n.startswith("RLIMIT_")]
    return os.getuid(), os.geteuid(), os.getgid(), os.getegid(), os.getpriority(os.PRIO_PROCESS, 0), limits


@dataclass
class Before:
    """The process as it stood before a body; made by the worker, which has only its main thread then."""

    aspects: dict[str, _Aspect] = field(default_factory=_aspects)
    state: dict[str, Any] = field(init=False)
    modules: set[str] = field(default_factory=lambda: set(sys.modules))
    irrevocable: tuple[Any, ...] = field(default_factory=_irrevocable)
    files: frozenset[int] = field(default_factory=lambda: _open_files())
    exit_handlers: int = field(default_factory=atexit._ncallbacks)  # type: ignore[attr-defined]

    def __post_init__(self) -> None:
        self.state = {name: aspect.read() for name, aspect in self.aspects.items()}

    def restore(self) -> str | None:
        """Puts back what a body changed.

        Returns:
            None if the process is as good as it was; else what stands against using it again.
        """
        try:
            return self._left_behind() or self._changed()
        except Exception as e:  # a body may have left anything, a logger without a level too
            return f"it cannot be told: {e}"

    def _left_behind(self) -> str | None:
        if threading.active_count() > 1:
            return "a thread is left"
        if atexit._ncallbacks() != self.exit_handlers:  # type: ignore[attr-defined]
            return "an exit handler is left"
        if _has_children():
            return "a child process is left"
        if _open_files() != self.files:
            gc.collect()  # a file in a reference cycle is nobody's any more
            if _open_files() != self.files:
                return "an open file is left"
        return "it has grown" if _resident_bytes() > MOST_MEMORY else None

    def _changed(self) -> str | None:
        if _irrevocable() != self.irrevocable:
            return "user, group, priority or limits changed"
        changed = [name for name, aspect in self.aspects.items() if self._differs(name, aspect)]
        if changed and not sys.modules.keys() <= self.modules:
            return f"{changed[0]} changed while modules were imported"
        for name in changed:
            aspect = self.aspects[name]
            with contextlib.suppress(Exception):
                aspect.restore(self.state[name])
            if self._differs(name, aspect):
                return f"{name} cannot be put back"
        return "a standard stream is closed" if sys.stdout.closed or sys.stderr.closed else None

    def _differs(self, name: str, aspect: _Aspect) -> bool:
        try:
            return aspect.read() != self.state[name]
        except OSError:  # the working directory is gone
            return True


def adopt_orphans() -> bool:
    """Makes this process the parent of all that its children leave behind, so that `Before.restore` can tell; False on
    a system without that, where a worker runs one body. See: prctl(2), PR_SET_CHILD_SUBREAPER."""
    if not sys.platform.startswith("linux"):
        return False
    return _libc().prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0


def flush_streams() -> None:
    """Writes out what Python and the C library still hold for descriptors 1 and 2."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    _libc().fflush(None)


@functools.cache
def _libc() -> Any:
    import ctypes

    return ctypes.CDLL(None)


def _has_children() -> bool:
    """Whether a child lives; those that have ended are reaped."""
    try:
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass
    except ChildProcessError:
        return False
    return True


def _open_files() -> frozenset[int]:
    descriptors = map(int, os.listdir("/dev/fd"))  # noqa: PTH208
    return frozenset(d for d in descriptors if _is_open(d))  # the listing's own is closed by now


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def _resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as f:  # noqa: PTH123
        return int(f.read().split()[1]) * resource.getpagesize()
