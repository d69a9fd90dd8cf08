"""Residue: what a body leaves behind in its process, and whether that process is as good as a fresh one for the next.

**The rule.** A worker is used again only if the body returned, and after it

- no thread, no child process, no open file and no exit handler of the body is left: with those, leaving the process is
  what ends and flushes them, so it is left;
- the working directory, environment variables, signal handlers and mask, timers, ``sys.argv``, ``sys.path``, standard
  streams, loggers, warnings, umask, processor affinity, locale, garbage collection, tracing, hooks and the
  interpreter's settings are as before it, or could be put back. What changed while a module was imported for the first
  time is never put back, because that module may rely on it; import hooks that came with one stay;
- user and group, priority, limits, standard input and builtins are as before it, which nothing could put back;
- resident memory is at most `MOST_MEMORY`.

The global generators of `random` and NumPy are seeded from the system after every body, as in a fresh process.

What modules keep in their own globals or caches stays, and which are loaded, as it does between two calls of a
function. So a step whose result hangs on that is no function of its arguments, in any launcher.
"""

import _locale
import atexit
import builtins
import contextlib
import faulthandler
import functools
import gc
import logging
import os
import resource
import signal
import sys
import threading
import time
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
    of_modules: bool = False
    """Whether modules may add to it when they are imported, and it is no matter of the body's then."""


def _environment() -> tuple[dict[str, str], list[bytes]]:
    """The variables as Python knows them, and as its children would get them: ``os.putenv`` tells Python nothing."""
    import ctypes

    listed = ctypes.POINTER(ctypes.c_char_p).in_dll(_libc(), "environ")
    found: list[bytes] = []
    while listed and (entry := listed[len(found)]) is not None:
        found.append(entry)
    return dict(os.environ), sorted(found)


def _restore_environment(before: tuple[dict[str, str], list[bytes]]) -> None:
    for entry in _environment()[1]:
        os.unsetenv(entry.partition(b"=")[0])
    for entry in before[1]:
        name, _, value = entry.partition(b"=")
        os.putenv(name, value)
    os.environ.clear()
    os.environ.update(before[0])
    time.tzset()


def _restore_collector(before: tuple[Any, ...]) -> None:
    enabled, thresholds, debug, callbacks = before
    (gc.enable if enabled else gc.disable)()
    gc.set_threshold(*thresholds)
    gc.set_debug(debug)
    gc.callbacks[:] = callbacks


def _tracing() -> tuple[Any, ...]:
    return sys.gettrace(), sys.getprofile(), threading.gettrace(), threading.getprofile()


def _restore_tracing(before: tuple[Any, ...]) -> None:
    for put, value in zip(
        (sys.settrace, sys.setprofile, threading.settrace, threading.setprofile), before, strict=True
    ):
        put(value)


def _hooks() -> tuple[Any, ...]:
    return sys.excepthook, sys.unraisablehook, sys.displayhook, sys.breakpointhook, threading.excepthook


def _restore_hooks(before: tuple[Any, ...]) -> None:
    sys.excepthook, sys.unraisablehook, sys.displayhook, sys.breakpointhook, threading.excepthook = before


def _restore_import_hooks(before: tuple[list[Any], ...]) -> None:
    sys.meta_path[:], sys.path_hooks[:] = before
    sys.path_importer_cache.clear()


def _settings() -> tuple[Any, ...]:
    return (
        sys.getrecursionlimit(),
        sys.get_int_max_str_digits(),
        sys.getswitchinterval(),
        sys.dont_write_bytecode,
        threading.stack_size(),
        faulthandler.is_enabled(),
    )


def _restore_settings(before: tuple[Any, ...]) -> None:
    recursion, digits, interval, sys.dont_write_bytecode, stack, faults = before
    sys.setrecursionlimit(recursion)
    sys.set_int_max_str_digits(digits)
    sys.setswitchinterval(interval)
    threading.stack_size(stack)
    (faulthandler.enable if faults else faulthandler.disable)()


def _defaults() -> tuple[Any, Any]:
    """Those of `socket` and `tempfile`, where they are loaded; a directory that was found by the rule is none."""
    sockets, files = sys.modules.get("socket"), sys.modules.get("tempfile")
    place = files.tempdir if files is not None else None
    if files is not None and place is not None and place == files._candidate_tempdir_list()[0]:
        place = None
    return sockets.getdefaulttimeout() if sockets is not None else None, place


def _restore_defaults(before: tuple[Any, Any]) -> None:
    if "socket" in sys.modules:
        sys.modules["socket"].setdefaulttimeout(before[0])
    if "tempfile" in sys.modules:
        sys.modules["tempfile"].tempdir = before[1]  # type: ignore[attr-defined]


def _reseed() -> None:
    """A fresh process would have seeds of its own."""
    for name in ("random", "numpy.random"):
        if name in sys.modules:
            sys.modules[name].seed()


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
    handlers = tuple((h, h.level, h.formatter, tuple(h.filters), getattr(h, "stream", None)) for h in logger.handlers)
    return logger.level, handlers, tuple(logger.filters), logger.propagate, logger.disabled


_UNTOUCHED = (logging.NOTSET, (), (), True, False)
_WARNED = "_warnings_showwarning"
"""Of `logging`: what ``captureWarnings`` has set aside."""


def _loggers() -> dict[str | None, tuple[Any, ...]]:
    """The loggers that somebody has set up; None is the root, what is disabled for all, and
    the handler of those that have none."""
    named = ((n, _logger_state(x)) for n, x in logging.root.manager.loggerDict.items() if isinstance(x, logging.Logger))
    found: dict[str | None, tuple[Any, ...]] = {name: state for name, state in named if state != _UNTOUCHED}
    last = logging.lastResort
    form = (last, last.level, last.formatter) if last is not None else (None, 0, None)
    general = logging.getLoggerClass(), logging.getLogRecordFactory(), getattr(logging, _WARNED, None), form
    found[None] = (*_logger_state(logging.root), (logging.root.manager.disable, *general))
    return found


def _restore_loggers(before: dict[str | None, tuple[Any, ...]]) -> None:
    for name in _loggers().keys() | before.keys():
        logger = logging.getLogger(name)
        level, handlers, filters, logger.propagate, logger.disabled, *general = before.get(name, _UNTOUCHED)
        logger.setLevel(level)
        logger.handlers[:], logger.filters[:] = [h for h, *_ in handlers], filters
        for handler, level_of, handler.formatter, filters_of, stream in handlers:
            handler.level, handler.filters[:] = level_of, filters_of
            if stream is not None:
                handler.stream = stream
        for disabled, kind, factory, warned, (last, last_level, formatter) in general:
            logging.disable(disabled)
            logging.setLoggerClass(kind)
            logging.setLogRecordFactory(factory)
            setattr(logging, _WARNED, warned)
            logging.lastResort = last
            if last is not None:
                last.setLevel(last_level)
                last.setFormatter(formatter)


def _warnings() -> tuple[Any, ...]:
    return list(warnings.filters), warnings.showwarning, warnings.formatwarning


def _restore_warnings(before: tuple[Any, ...]) -> None:
    warnings.filters[:], warnings.showwarning, warnings.formatwarning = before  # type: ignore[index]
    warnings._filters_mutated()  # type: ignore[attr-defined]


_MODES = ("encoding", "errors", "line_buffering", "write_through")


def _streams() -> list[tuple[Any, ...]]:
    return [(s, [getattr(s, mode, None) for mode in _MODES]) for s in (sys.stdin, sys.stdout, sys.stderr)]


def _restore_streams(before: list[tuple[Any, ...]]) -> None:
    sys.stdin, sys.stdout, sys.stderr = (stream for stream, _ in before)
    for stream, modes in before:
        if stream is not None and [getattr(stream, mode, None) for mode in _MODES] != modes:
            stream.reconfigure(**dict(zip(_MODES, modes, strict=True)))


def _aspects() -> dict[str, _Aspect]:
    return {
        "working directory": _Aspect(os.getcwd, os.chdir),
        "environment variables": _Aspect(_environment, _restore_environment),
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
        "standard streams": _Aspect(_streams, _restore_streams),
        "loggers": _Aspect(_loggers, _restore_loggers),
        "warnings": _Aspect(_warnings, _restore_warnings),
        "locale": _Aspect(
            lambda: _locale.setlocale(_locale.LC_ALL, None), lambda before: _locale.setlocale(_locale.LC_ALL, before)
        ),
        "garbage collection": _Aspect(
            lambda: (gc.isenabled(), gc.get_threshold(), gc.get_debug(), list(gc.callbacks)), _restore_collector
        ),
        "tracing": _Aspect(_tracing, _restore_tracing),
        "hooks": _Aspect(_hooks, _restore_hooks),
        "import hooks": _Aspect(
            lambda: (list(sys.meta_path), list(sys.path_hooks)), _restore_import_hooks, of_modules=True
        ),
        "interpreter settings": _Aspect(_settings, _restore_settings),
        "timeout of sockets or directory for temporary files": _Aspect(_defaults, _restore_defaults),
        **(
            {"processor affinity": _Aspect(lambda: os.sched_getaffinity(0), lambda b: os.sched_setaffinity(0, b))}
            if hasattr(os, "sched_getaffinity")
            else {}
        ),
    }


def _irrevocable() -> tuple[Any, ...]:
    """What a process cannot take back."""
    limits = [resource.getrlimit(getattr(resource, n)) for n in dir(resource) if n.startswith("RLIMIT_")]
    owner = os.getuid(), os.geteuid(), os.getgid(), os.getegid(), os.getpriority(os.PRIO_PROCESS, 0)
    source = os.fstat(0)
    return owner, limits, (source.st_dev, source.st_ino), dict(vars(builtins))


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
            faulthandler.cancel_dump_traceback_later()
            _reseed()
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
            return "user, group, priority, limits, standard input or builtins changed"
        changed = [name for name, aspect in self.aspects.items() if self._differs(name, aspect)]
        if changed and not sys.modules.keys() <= self.modules:
            changed = [name for name in changed if not (self.aspects[name].of_modules and self._came_with_modules())]
            if changed:
                return f"{changed[0]} changed while modules were imported"
        for name in changed:
            aspect = self.aspects[name]
            with contextlib.suppress(Exception):
                aspect.restore(self.state[name])
            if self._differs(name, aspect):
                return f"{name} cannot be put back"
        return "a standard stream is closed" if sys.stdout.closed or sys.stderr.closed else None

    def _came_with_modules(self) -> bool:
        """Whether all import hooks that are new are of modules that are new."""
        before = [hook for hooks in self.state["import hooks"] for hook in hooks]
        new = [hook for hook in (*sys.meta_path, *sys.path_hooks) if hook not in before]
        return all(getattr(hook, "__module__", "builtins") not in self.modules for hook in new)

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
