"""Warm workers: used again when they are as good as new, and never otherwise."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from marin_core import StepRunner, lower, run
from marin_core.launchers import Job
from marin_core.launchers.process import ProcessLauncher

FLOW = """
    import atexit, faulthandler, gc, locale, logging, os, random, signal, socket, subprocess, sys, tempfile, threading
    import time, warnings
    from pathlib import Path
    from marin_core import Out, Resources, step

    kept = []

    def leave(what, out):
        if what == "thread":
            threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
        if what == "child":
            kept.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]))
        if what == "orphan":
            subprocess.run(["sh", "-c", "sleep 600 & echo $! > %s/pid" % out.local()], check=True)
        if what == "open file":
            kept.append((out / "late.txt").open("w"))
            kept[-1].write("all of it")
        if what == "exit handler":
            atexit.register((out / "late.txt").write_text, "all of it")
        if what == "directory":
            os.chdir(tempfile.mkdtemp())
            os.rmdir(os.getcwd())
        if what == "priority":
            os.nice(1)
        if what == "memory":
            kept.append(b"x" * 400_000_000)
        if what == "closed stream":
            sys.stdout.close()
        if what == "builtin":
            __builtins__["left"] = 1
        if what == "import":
            os.environ["LEFT"] = "1"
            import xml.dom.minidom
        if what == "restorable":
            os.environ["LEFT"] = "1"
            os.environ.pop("HOME", None)
            os.chdir("/")
            os.umask(0)
            sys.argv.append("left")
            sys.path.insert(0, "/left")
            sys.stdout = sys.stderr
            signal.signal(signal.SIGUSR1, signal.SIG_IGN)
            signal.setitimer(signal.ITIMER_REAL, 3600)
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
            logging.basicConfig(level=logging.INFO)
            before_handlers = [logging.lastResort]
            logging.getLogger("left").setLevel(logging.DEBUG)
            logging.disable(logging.ERROR)
            warnings.simplefilter("error")
            warnings.showwarning = print
            os.putenv("PUT", "1")
            os.environ["TZ"] = "Asia/Tokyo"
            time.tzset()
            random.seed(1)
            locale.setlocale(locale.LC_ALL, "C.UTF-8")
            gc.disable()
            sys.settrace(lambda *_: None)
            sys.excepthook = print
            sys.meta_path.append(object)
            sys.path_hooks.append(object)
            sys.set_int_max_str_digits(0)
            sys.setswitchinterval(1)
            threading.stack_size(1 << 20)
            faulthandler.enable()
            socket.setdefaulttimeout(3)
            tempfile.tempdir = "/left"
            sys.__stdout__.reconfigure(encoding="ascii", errors="replace")
            logging.setLoggerClass(type("Left", (logging.Logger,), {}))
            handler = before_handlers[0]
            handler.setLevel(50)
            handler.setFormatter(logging.Formatter("left %(message)s"))

    def state():
        return {
            "variables": [os.environ.get("LEFT"), "HOME" in os.environ],
            "directory": os.getcwd(),
            "umask": os.umask(0o022),
            "argv": list(sys.argv),
            "path": list(sys.path),
            "stdout": sys.stdout is not sys.stderr,
            "handler": str(signal.getsignal(signal.SIGUSR1)),
            "timer": signal.getitimer(signal.ITIMER_REAL)[0],
            "mask": len(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
            "loggers": [len(logging.root.handlers), logging.getLogger("left").level, logging.root.manager.disable],
            "warnings": [len(warnings.filters), warnings.showwarning is print],
            "put": subprocess.run(["sh", "-c", "echo $PUT"], capture_output=True, text=True).stdout,
            "zone": time.strftime("%Z", time.localtime(0)),
            "locale": locale.setlocale(locale.LC_ALL),
            "collector": gc.isenabled(),
            "traced": [sys.gettrace() is None, sys.excepthook is print],
            "import": [len(sys.meta_path), len(sys.path_hooks)],
            "settings": [sys.get_int_max_str_digits(), sys.getswitchinterval(), threading.stack_size()],
            "faults": faulthandler.is_enabled(),
            "defaults": [socket.getdefaulttimeout(), tempfile.gettempdir()],
            "encoding": [sys.stdout.encoding, sys.stdout.errors],
            "logging": [logging.getLoggerClass().__name__, logging.lastResort.level],
            "format": logging.lastResort.formatter._fmt,
        }

    @step
    def first(out: Out, *, what: str = "", after: object = None) -> dict:
        before = {"pid": os.getpid(), "state": state()}
        print("first", flush=True)
        leave(what, out)
        return before

    @step
    def then(before: dict, *, tag: str = "") -> dict:
        print("then", tag)
        return {"pid": os.getpid(), "state": state()}

    @step(resources=Resources(accelerators="gpu:1"))
    def trained(before: dict) -> dict:
        return {"pid": os.getpid(), "devices": os.environ["CUDA_VISIBLE_DEVICES"]}
"""


@pytest.fixture
def flow(module: Callable[[str], ModuleType]) -> ModuleType:
    return module(FLOW)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def gone(*pids: int) -> None:
    """Waits until the processes are gone; the suite's own timeout ends the test if they stay."""
    while any(map(alive, pids)):
        threading.Event().wait(0.01)


def test_a_body_that_leaves_nothing_behind_hands_its_process_on(flow: ModuleType, prefix: str) -> None:
    one = flow.first()
    report = run(three := flow.then(flow.then(one), tag="b"), prefix=prefix)
    pids = {n.value["pid"] for n in report.record.nodes}
    assert len(pids) == 1
    assert os.getpid() not in pids
    assert (Path(prefix) / report.node(one).address / "attempts/1/log.txt").read_text() == "first\n"
    assert (Path(prefix) / report.node(three).address / "attempts/1/log.txt").read_text() == "then b\n"


SEEDED = """
    import random
    from marin_core import step

    @step
    def drawn(*, number: int, numpy: bool, after: object = None) -> float:
        if numpy:
            from numpy import random as generator
        else:
            generator = random
        found = float(generator.random())
        generator.seed(7)
        return found
"""


@pytest.mark.parametrize("numpy", [False, True])
def test_a_seed_is_no_later_bodys(module: Any, prefix: str, numpy: bool) -> None:
    if numpy:
        pytest.importorskip("numpy")
    flow, handle = module(SEEDED), None
    for number in range(3):
        handle = flow.drawn(number=number, numpy=numpy, after=handle)
    drawn = [n.value for n in run(handle, prefix=prefix).record.nodes]
    assert len(set(drawn)) == 3


LEFT = ["thread", "child", "orphan", "open file", "exit handler", "directory", "priority", "memory", "builtin"]


@pytest.mark.parametrize("what", [*LEFT, "closed stream", "import"])
def test_what_cannot_be_undone_ends_the_worker(flow: ModuleType, prefix: str, what: str) -> None:
    one = flow.first(what=what)
    report = run(two := flow.then(one), prefix=prefix)
    assert report.ok
    assert report.value(one)["pid"] != report.value(two)["pid"]
    assert report.value(one)["state"] == report.value(two)["state"]
    gone(report.value(one)["pid"])


@pytest.mark.parametrize("what", ["open file", "exit handler"])
def test_what_is_written_as_the_process_ends_is_in_the_output(flow: ModuleType, prefix: str, what: str) -> None:
    report = run(one := flow.first(what=what), prefix=prefix)
    assert report.node(one).num_files == 1
    assert (report.path(one) / "late.txt").read_text() == "all of it"


def test_what_a_body_started_dies_with_it(flow: ModuleType, prefix: str) -> None:
    report = run(one := flow.first(what="orphan"), prefix=prefix)
    gone(int((report.path(one) / "pid").read_text()))


LEAVING = """
    import os, subprocess, sys, time
    from pathlib import Path
    from marin_core import Out, step

    LATE = "import pathlib, sys, time; pathlib.Path(sys.argv[1], 'on').touch(); time.sleep(600)"

    @step
    def forks(out: Out, *, how: str) -> str:
        if os.fork() == 0:
            if how == "raises":
                raise ValueError("in the child")
            if how == "exits":
                sys.exit(0)
            return "child"
        os.wait()
        (out / "file").write_text("whole")
        return "parent"

    @step
    def leaves(out: Out, *, fails: bool = False) -> int:
        child = subprocess.Popen([sys.executable, "-c", LATE, str(out.local())], start_new_session=True)
        while not (out / "on").exists():
            time.sleep(0.01)
        if fails:
            raise ValueError(child.pid)
        return child.pid

    @step
    def unwatched(out: Out) -> int:
        child = subprocess.Popen([sys.executable, "-c", LATE, str(out.local())])
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = stat.read_text().rpartition(")")[2].split()
            except OSError:
                continue
            pid = int(stat.parent.name)
            if int(fields[2]) == os.getpgid(0) and pid not in (os.getpid(), child.pid):
                os.kill(pid, 9)
        (out / "pid").write_text(str(child.pid))
        os._exit(3)
"""


@pytest.mark.parametrize("how", ["returns", "raises", "exits"])
def test_a_forked_child_that_comes_out_of_the_body_says_nothing_of_it(module: Any, prefix: str, how: str) -> None:
    report = run(one := module(LEAVING).forks(how=how), prefix=prefix)
    assert report.value(one) == "parent"
    assert (report.path(one) / "file").read_text() == "whole"
    log = (Path(prefix) / report.node(one).log).read_text()
    assert {"returns": "returned from it; its value is dropped", "raises": "in the child", "exits": ""}[how] in log


def test_no_process_outlives_a_step_in_a_session_of_its_own(module: Any, prefix: str) -> None:
    flow = module(LEAVING)
    report = run(one := flow.leaves(), prefix=prefix)
    assert not alive(report.value(one))
    failure = run(two := flow.leaves(fails=True), prefix=prefix).node(two).failure
    assert failure is not None
    assert not alive(int(failure.message))


DRIVEN = (
    LEAVING
    + """
    @step
    def stays(out: Out) -> int:
        (out / "pid").write_text(str(leaves.function(out)))
        Path(sys.argv[0]).with_name("told").touch()
        time.sleep(600)

    if __name__ == "__main__":
        from marin_core import run
        run(stays(), prefix=sys.argv[1])
"""
)


REPLACING = """
    import os, shutil, tempfile
    from marin_core import Out, step

    @step
    def replaces(out: Out, *, by: str) -> int:
        path = out.local()
        os.rmdir(path)
        if by == "a file":
            path.write_text("x")
        if by == "a link":
            path.symlink_to(tempfile.mkdtemp())
"""


@pytest.mark.parametrize("by", ["a file", "a link", "nothing"])
def test_an_output_that_is_no_directory_is_refused(module: Any, prefix: str, by: str) -> None:
    report = run(one := module(REPLACING).replaces(by=by), prefix=prefix)
    failure = report.node(one).failure
    assert failure is not None
    if by != "nothing":
        assert "replaced its output directory" in failure.message


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_session_of_its_own_ends_with_the_driver(tmp_path: Path, prefix: str, how: signal.Signals) -> None:
    (script := tmp_path / "driven.py").write_text(textwrap.dedent(DRIVEN))
    driver = subprocess.Popen([sys.executable, script, prefix], stderr=subprocess.DEVNULL)
    while not (tmp_path / "told").exists():
        threading.Event().wait(0.01)
    driver.send_signal(how)
    driver.wait()
    gone(int(next(Path(prefix).glob("**/pid")).read_text()))


FAILING = """
    import sys
    from marin_core import step

    class Mute(Exception):
        def __str__(self):
            raise ValueError("no")

    @step
    def deep(*, levels: int) -> object:
        value = 1
        for _ in range(levels):
            value = [value]
        return value

    @step
    def read(value: object) -> int:
        return 1

    @step
    def fails(*, how: str) -> None:
        if how == "exit":
            sys.exit(0)
        raise Mute if how == "mute" else ValueError("x" * 1_000_000)
"""


def test_a_value_that_no_reader_could_follow_is_refused_where_it_is_returned(module: Any, prefix: str) -> None:
    flow = module(FAILING)
    failure = run(one := flow.deep(levels=900), prefix=prefix).node(one).failure
    assert failure is not None
    assert failure.message.startswith("deep returned[0][0]")
    assert "nested more than 100 deep" in failure.message
    assert run(flow.read(flow.deep(levels=100)), prefix=prefix).ok


@pytest.mark.parametrize(
    ("how", "message"),
    [("exit", "the body called sys.exit(0)"), ("mute", "<its __str__ raised ValueError>"), ("long", "xxxx")],
)
def test_what_an_exception_says_fits_into_a_record(module: Any, prefix: str, how: str, message: str) -> None:
    report = run(one := module(FAILING).fails(how=how), prefix=prefix)
    failure = report.node(one).failure
    assert failure is not None
    assert failure.message.startswith(message)
    assert len(failure.message) + len(failure.traceback) < 10_000
    if how == "long":
        assert "x" * 1_000_000 in (Path(prefix) / report.node(one).log).read_text()


def test_a_group_whose_watchdog_is_dead_is_cleared_away(module: Any, prefix: str) -> None:
    run(module(LEAVING).unwatched(), prefix=prefix)
    gone(int(next(Path(prefix).glob("**/pid")).read_text()))


def test_what_can_be_undone_is_undone(flow: ModuleType, prefix: str) -> None:
    one = flow.first(what="restorable", after=flow.first(name="imports"))
    report = run(two := flow.then(one), prefix=prefix)
    assert report.value(one)["pid"] == report.value(two)["pid"]
    assert report.value(one)["state"] == report.value(two)["state"]


def test_a_body_that_needs_a_device_has_a_process_for_itself(flow: ModuleType, prefix: str) -> None:
    one = flow.first()
    report = run(flow.then(two := flow.trained(one), tag="after"), prefix=prefix, slots={"gpu": 1})
    pids = [n.value["pid"] for n in report.record.nodes]
    assert pids[1] not in (pids[0], pids[2])
    assert report.value(two)["devices"] in os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")


SOURCE = """
    import os
    from pathlib import Path
    from marin_core import step

    @step
    def edit(*, then: str = "") -> int:
        import {helper}
        path = Path({helper}.__file__)
        text = path.read_text()
        if then == "touch":
            path.write_text(text + "# touched")
        if then == "other and back":
            path.write_text("def number(): return 2 + 2")
            os.utime(path, (0, 0))
            import importlib
            importlib.reload({helper})
            path.write_text(text)
        if then == "other":
            path.write_text("def number(): return 3 + 3")
        if then == "other stamp":
            os.utime(path, (0, 0))
            import importlib
            importlib.reload({helper})
        return os.getpid()

    @step
    def use(before: int) -> list:
        from {helper} import number
        return [os.getpid(), number()]
"""


@pytest.mark.parametrize("then", ["", "touch"])
def test_a_worker_never_runs_another_code_than_the_plan_has_seen(module: Any, prefix: str, then: str) -> None:
    helper = module("def number(): return 1 + 1")
    flow = module(SOURCE.replace("{helper}", helper.__name__))
    one = flow.edit(then=then)
    report = run(two := flow.use(one), prefix=prefix)
    pid, number = report.value(two)
    assert number == 2
    assert (pid == report.value(one)) == (then == "")


def test_code_that_is_edited_before_a_body_loads_it_counts_for_nothing(module: Any, prefix: str) -> None:
    helper = module("def number(): return 1 + 1")
    flow = module(SOURCE.replace("{helper}", helper.__name__))
    report = run(one := flow.edit(then="other and back"), prefix=prefix)
    failure = report.node(one).failure
    assert failure is not None
    assert failure.type == "SourceChanged"
    assert f"{helper.__name__}.py was edited before the body had loaded it" in failure.message


def test_a_source_of_another_stamp_and_the_same_text_is_what_was_planned(module: Any, prefix: str) -> None:
    helper = module("def number(): return 1 + 1")
    flow = module(SOURCE.replace("{helper}", helper.__name__))
    assert run(flow.edit(then="other stamp"), prefix=prefix).ok


def test_a_body_that_has_loaded_its_code_does_not_mind_later_edits(module: Any, prefix: str) -> None:
    helper = module("def number(): return 1 + 1")
    flow = module(SOURCE.replace("{helper}", helper.__name__))
    report = run(one := flow.edit(then="other"), prefix=prefix)
    assert report.ok
    (planned,) = lower(one).plan(prefix)
    assert planned.reason.startswith(f"code changed: helper {helper.__name__}:number")


def test_code_that_was_edited_before_a_body_starts_is_not_run(module: Any, prefix: str) -> None:
    helper = module("def number(): return 1 + 1")
    editing = module("""
        from pathlib import Path
        from marin_core import step

        @step
        def edit(*, path: str) -> int:
            return Path(path).write_text("def number(): return 3 + 3")
    """)
    flow = module(SOURCE.replace("{helper}", helper.__name__))
    report = run(two := flow.use(editing.edit(path=str(helper.__file__))), prefix=prefix)
    failure = report.node(two).failure
    assert failure is not None
    assert failure.type == "SourceChanged"
    assert "after the plan was made" in failure.message


def open_descriptors() -> set[str]:
    return {path.name for path in Path("/proc/self/fd").iterdir()}


def test_a_run_leaves_neither_processes_nor_descriptors_nor_threads(flow: ModuleType, prefix: str) -> None:
    descriptors, threads = open_descriptors(), threading.active_count()
    runner = StepRunner(prefix)
    for tag in "ab":
        report = runner.run(lower([flow.then(flow.first(what=""), tag=tag), flow.first(what="child", name=tag)]))
        assert report.ok
        gone(*(n.value["pid"] for n in report.record.nodes))
    assert open_descriptors() == descriptors
    assert threading.active_count() == threads


def test_a_launcher_that_was_given_stays_open_until_its_owner_closes_it(flow: ModuleType, prefix: str) -> None:
    with ProcessLauncher() as launcher:
        pid = run(flow.first(), prefix=prefix, launcher=launcher).record.nodes[0].value["pid"]
        assert alive(pid)
        second = run(flow.then(flow.first()), prefix=prefix, launcher=launcher)
        assert second.value("then")["pid"] != pid
        gone(pid)
    gone(second.value("then")["pid"])


LIBRARY = textwrap.dedent("""
    import os, sys, threading
    from marin_core import run, step

    @step
    def pid(*, number: int = 0) -> int:
        return os.getpid()

    @step
    def more(x: int) -> int:
        return os.getpid()

    if __name__ == "__main__":
        def twice():
            for number in range(2):
                report = run(more(pid(number=number)), prefix=sys.argv[1])
                found.append([report.ok, len({n.value for n in report.record.nodes})])
        found = []
        thread = threading.Thread(target=twice)
        thread.start()
        thread.join()
        os.write(int(sys.argv[2]), repr(found).encode())
""")


def test_a_run_in_a_thread_of_a_process_without_standard_streams(tmp_path: Path) -> None:
    script = tmp_path / "library.py"
    script.write_text(LIBRARY)
    read_end, write_end = os.pipe()
    command = f'exec "{sys.executable}" "{script}" "{tmp_path}/prefix" {write_end} <&- >&- 2>&-'
    process = subprocess.Popen(["sh", "-c", command], pass_fds=(write_end,))
    os.close(write_end)
    with os.fdopen(read_end) as answer:
        assert answer.read() == "[[True, 1], [True, 1]]"
    assert process.wait() == 0


def test_a_body_that_could_not_be_started_is_not_waited_for(tmp_path: Path) -> None:
    with ProcessLauncher() as launcher:
        job = Job(name="a", request=str(tmp_path / "request"), log=str(tmp_path / "log"), python="/nowhere/python")
        with pytest.raises(FileNotFoundError):
            launcher.launch(job, notify=lambda _: None)
        assert launcher.poll("a") is None
