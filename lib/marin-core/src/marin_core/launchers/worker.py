"""The worker: reads a request, runs a body, leaves a result. Run as a file, so that it needs no import path of its own.

A worker that was given a channel says when a body has ended and it is as good as new (see `residue`), and gets the next
one, over a socket: the paths of a request and of a log. Any other worker ends with its body.

Order matters. The watchdog is forked first, while there is one thread and nothing is loaded. Then the driver's
``sys.path`` replaces this process's. Then the step's module is imported; a script is loaded as ``__mp_main__``, the
name under which multiprocessing's children know a main script, so its ``if __name__ == "__main__"`` does not run
again.

Before a worker ends it kills whatever its body has started and left behind, in whatever session, so that an output is
at rest when it is looked at. Only the process that was given a request answers it: one that a body has forked and that
returns from the body as well is ended there.

Whatever the body does, the result file says it: the value as JSON, or the exception. No result file means that the
process was killed or left by ``os._exit``.
"""

import atexit
import errno
import importlib
import json
import logging
import os
import pickle
import signal
import sys
import traceback
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypedDict

SCRIPT_MODULE = "__mp_main__"
_TRACEBACK_LINES = 60
_LONGEST_LINE, _LONGEST_MESSAGE = 2000, 4000
"""Characters of a traceback's line and of a message that a record has room for; the log has all of them."""
_DEEPEST = 100
"""How deep a value may be nested."""
DONE = b"."
"""What a worker says when it is ready for another body."""
_TERMINATED = 143
"""What a worker exits with that was asked to end."""
END = b"\0"
"""What ends each of the two paths that it is told then."""


class Request(TypedDict):
    """What a worker needs to run one body. A plain dict when pickled, so that reading it imports nothing."""

    module: str
    function: str
    script: str | None
    """The driver's script, when the module or a class among the arguments is only to be found there."""
    arguments: bytes
    """Pickled on its own: it needs the step's module first."""
    sys_path: tuple[str, ...]
    result: str
    name: str
    sources: dict[str, tuple[int, int, str]]
    """Modification time (ns), size and sha256 of each source file that the step may load, as the plan has seen them."""


def load_script(path: str) -> Any:
    """Runs a script file as a module that is not ``__main__``, and stands it in for ``__main__`` (for unpickling)."""
    import types

    module = types.ModuleType(SCRIPT_MODULE)
    module.__file__ = path
    sys.modules[SCRIPT_MODULE] = sys.modules["__main__"] = module
    with open(path, "rb") as f:  # noqa: PTH123  pathlib is not loaded yet
        exec(compile(f.read(), path, "exec"), module.__dict__)  # noqa: S102  the user's own script
    return module


def execute(
    request_path: str, *, handle_interrupts: bool = True, limited: AbstractContextManager[None] | None = None
) -> int:
    """Runs the body of a request file and writes its result file.

    Args:
        request_path: the pickled request.
        handle_interrupts: False lets KeyboardInterrupt through, for a body in the driver's own process.
        limited: entered around the body; what it raises is the body's failure.

    Returns:
        0 if the body returned, 1 if it raised.
    """
    own = os.getpid()
    with open(request_path, "rb") as f:  # noqa: PTH123
        request: Request = pickle.load(f)  # noqa: S301  written by the driver
    _sources.clear()
    _changed.clear()
    _sources.update(request["sources"])
    try:
        function = _function(request)
        arguments = pickle.loads(request["arguments"])  # noqa: S301  written by the driver
        _check_loaded()
        with limited or nullcontext():
            value = function(**arguments)
        _leave_unless(own)
        _check_loaded()
        value = plain(value, where=f"{request['name']} returned", places=_places(arguments.values()))
        result = {"ok": True, "value": value}
        text = json.dumps(result, allow_nan=False)
    except KeyboardInterrupt as e:
        _leave_unless(own, e)
        if not handle_interrupts:
            raise
        text = json.dumps(
            {"ok": False, "failure": {"type": "KeyboardInterrupt", "message": "interrupted", "traceback": ""}}
        )
    except BaseException as e:
        _leave_unless(own, e)
        if isinstance(e, SystemExit) and (not handle_interrupts or e.code != _TERMINATED):
            e = RuntimeError(f"the body called sys.exit({e.code!r})").with_traceback(e.__traceback__)
        text = json.dumps({"ok": False, "failure": _failure(e)}, allow_nan=False)
    _write(request["result"], text)
    return 0 if text.startswith('{"ok": true') else 1


class SourceChanged(Exception):  # noqa: N818  the name that the failure has
    """A module was loaded from a source that the plan has not seen."""

    exit_code = 1


_sources: dict[str, tuple[int, int, str]] = {}
"""`Request.sources` of the body that runs."""
_changed: list[str] = []
"""Those that were loaded as something else."""


def _watch_loading() -> None:
    """Looks at every source in the moment in which it is run as a module. Later edits do not change what is loaded."""

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "exec" and (path := getattr(arguments[0], "co_filename", None)) in _sources:
            try:
                same = _is_as_planned(path)
            except OSError:
                same = False
            if not same:
                _changed.append(path)

    sys.addaudithook(hook)


def _is_as_planned(path: str) -> bool:
    """Whether a source has its stamp still, or at least its text: another host has a checkout of its own."""
    *stamp, text = _sources[path]
    found = os.stat(path)  # noqa: PTH116
    if [found.st_mtime_ns, found.st_size] == stamp:
        return True
    import hashlib

    with open(path, "rb") as f:  # noqa: PTH123
        return hashlib.sha256(f.read()).hexdigest() == text


def _check_loaded() -> None:
    if _changed:
        raise SourceChanged(f"{_changed[0]} was edited before the body had loaded it; run the command again")


def _leave_unless(own: int, error: BaseException | None = None) -> None:
    """Ends a process that a body has forked and that came out of the body: what the body leaves is told by the process
    that was given the request, and by no other."""
    if os.getpid() == own:
        return
    code = 1
    try:
        if error is None or isinstance(error, SystemExit):
            code = error.code if error is not None and isinstance(error.code, int) else 0
            if error is None:
                told = f"a process that the body forked (pid {os.getpid()}) returned from it; its value is dropped\n"
                sys.stdout.write(told)
        else:
            traceback.print_exception(error)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    finally:
        os._exit(code & 0xFF)


def _function(request: Request) -> Callable[..., Any]:
    script = request["script"]
    if script is not None and getattr(sys.modules.get("__main__"), "__file__", None) != script:
        load_script(script)
    function = getattr(importlib.import_module(request["module"]), request["function"])
    return getattr(function, "function", function)


def _failure(e: BaseException) -> dict[str, Any]:
    lines = traceback.format_exception(e)
    here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120
    if len(_said(e)) > _LONGEST_MESSAGE:
        sys.stderr.write(f"{_said(e)}\n")
    text = "".join(line for line in lines if not line.lstrip().startswith(f'File "{here}'))
    code, message = getattr(e, "exit_code", None), _said(e)
    if _is_full(e):
        place = getattr(e, "filename", None) or "its output"
        code, message = 2, f"no space left on the device for {place}; free some, or choose another prefix"
    return {
        "type": type(e).__name__,
        "message": _cut(message, _LONGEST_MESSAGE),
        "traceback": "\n".join(_cut(x, _LONGEST_LINE) for x in text.rstrip("\n").splitlines()[-_TRACEBACK_LINES:]),
        "exit_code": code if isinstance(code, int) and not isinstance(code, bool) else None,
        "mro": [_dotted(kind) for kind in type(e).__mro__ if issubclass(kind, BaseException)],
    }


def _said(e: BaseException) -> str:
    try:
        return str(e)
    except Exception as other:
        return f"<its __str__ raised {type(other).__name__}>"


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}... ({len(text) - most} characters more in the log)"


def _dotted(kind: type) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _is_full(e: BaseException) -> bool:
    """Whether a disk is full: libraries that write by other means than Python's raise errors of their own for it."""
    full, said = (errno.ENOSPC, errno.EDQUOT), _said(e).lower()
    return (isinstance(e, OSError) and e.errno in full) or any(os.strerror(n).lower() in said for n in full)


def _places(arguments: Iterable[Any]) -> tuple[str, ...]:
    """The directories among a body's arguments."""
    from marin_core.handles import Input, Out, Work

    flat = [a for value in arguments for a in (value if isinstance(value, list | tuple) else (value,))]
    return tuple(getattr(a, "staging", "") or a.url for a in flat if isinstance(a, Input | Out | Work))


def plain(value: Any, *, where: str, places: tuple[str, ...] = (), depth: int = _DEEPEST) -> Any:
    """A body's value as strict JSON: dataclasses become objects, tuples lists, paths text, array scalars numbers, enums
    their value, and floats that are not finite their names. `results` reads them back.

    Args:
        value: what the body returned.
        where: what it is, for the error message.
        places: the body's directories. A path in one is refused: it lies elsewhere once the prefix has moved or another
            attempt has been made.
        depth: how many levels it may have.

    Raises:
        TypeError: a part has no JSON form; names the path to it.
        ValueError: it is nested more than a hundred deep, which not every reader of a record could follow.
    """
    import dataclasses
    import enum

    from marin_core.handles import Input, Out, Work
    from marin_core.records import finite

    if value is None or isinstance(value, bool | str) or type(value) is int:
        return value

    def part(inner: Any, name: str) -> Any:
        return plain(inner, where=name, places=places, depth=depth - 1)

    if depth < 0:
        raise ValueError(f"{where}: nested more than {_DEEPEST} deep; return it flatter, or write it to Out")
    if isinstance(value, dict):
        for k in value:
            if not isinstance(k, str):
                raise TypeError(f"{where}: the key {k!r} is a {type(k).__name__}; a recorded value has text keys only")
        # As they will be read back: the order of keys is no part of a value.
        return {k: part(v, f"{where}[{k!r}]") for k, v in sorted(value.items())}
    if isinstance(value, list | tuple):
        return [part(v, f"{where}[{i}]") for i, v in enumerate(value)]
    if isinstance(value, os.PathLike | Input | Out | Work):
        path = os.fspath(value) if isinstance(value, os.PathLike) else None
        if path is None or any(path == place or path.startswith(f"{place}/") for place in places):
            what = f"the path {path}" if path is not None else f"its {type(value).__name__}"
            raise TypeError(
                f"{where} {what}, which moves with the prefix; return a name within Out, as text: a step whose "
                "parameter is annotated Input gets the directory"
            )
        return path
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        return {name: part(v, f"{where}.{name}") for name, v in parts.items()}
    if isinstance(value, enum.Enum):
        return part(value.value, where)
    if isinstance(value, int):
        return int(value)
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        return part(value.item(), where)
    if isinstance(value, float):
        return finite(float(value))
    raise TypeError(
        f"{where} a {type(value).__name__}, which has no JSON form; return plain values, write files to Out"
    )


def _write(path: str, text: str) -> None:
    temporary = f"{path}.tmp"
    with open(temporary, "w", encoding="utf-8") as f:  # noqa: PTH123
        f.write(text)
    os.replace(temporary, path)  # noqa: PTH105


def _inherited(variable: str) -> int | None:
    """The descriptor that an environment variable names; the body's own children get neither."""
    number = os.environ.pop(variable, None)
    if number is not None:
        os.set_inheritable(int(number), False)
    return int(number) if number is not None else None


def _fork_watchdog(lifeline: int) -> None:
    """A process that holds nothing but the lifeline and kills this one, its group and what left the group when it
    breaks. It is no child of this one, which can then tell whether a body has left any."""
    worker, child = os.getpid(), os.fork()
    if child:
        os.close(lifeline)
        os.waitpid(child, 0)
    elif os.fork():
        os._exit(0)
    else:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        os.closerange(3, lifeline)
        os.closerange(lifeline + 1, 256)
        os.read(lifeline, 1)
        try:  # the group's number is nobody else's as long as this process is in it
            os.kill(worker, signal.SIGSTOP)
            sys.path.append(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120
            importlib.import_module("descendants").kill_descendants(worker)
        finally:
            os.killpg(0, signal.SIGKILL)


def speak_last(form: str) -> None:
    """Has loggers heard on stderr that nobody has given a handler, from the level on that they have. The root logger
    stays as it is, so that a body's or a script's own ``logging.basicConfig`` takes effect."""
    if logging.lastResort is not None:
        logging.lastResort.setLevel(logging.NOTSET)
        logging.lastResort.setFormatter(logging.Formatter(form))


def _write_to(log: str) -> None:
    """Stands a log in for standard output and error."""
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    os.close(descriptor)


def _serve(channel: int, request_path: str, *, reusable: bool) -> int:
    """Runs body after body as long as this process is as good as new."""
    import contextvars

    from marin_core.launchers import residue

    while True:
        before = residue.Before()
        code = contextvars.copy_context().run(execute, request_path)
        if code != 0 or not reusable or before.restore() is not None:
            return code
        residue.flush_streams()
        _write_to(os.devnull)
        os.write(channel, DONE)
        message = b""
        while not message.endswith(END):
            message += (part := os.read(channel, 1 << 16))
            if not part:
                return 0
        request_path, log, _ = map(os.fsdecode, message.split(END))
        _write_to(log)


def main() -> int:
    """Entry point of the worker process."""
    lifeline, channel = _inherited("MARIN_LIFELINE"), _inherited("MARIN_CHANNEL")
    if lifeline is not None:
        _fork_watchdog(lifeline)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(_TERMINATED))
    request_path = sys.argv[1]
    with open(request_path, "rb") as f:  # noqa: PTH123
        request = pickle.load(f)  # noqa: S301
    sys.path[:] = request["sys_path"]
    sys.argv = [request["script"] or request["module"]]
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    # The log's last line is what a run shows of this step; which loggers speak at INFO is the step's own choice.
    speak_last("%(message)s")
    _watch_loading()
    from marin_core.launchers import descendants, residue

    adopts = residue.adopt_orphans()
    # The first to be registered is the last to be called: what a body does at its exit is done by then.
    atexit.register(descendants.kill_own, os.getpid())
    return execute(request_path) if channel is None else _serve(channel, request_path, reusable=adopts)


if __name__ == "__main__":
    sys.exit(main())
