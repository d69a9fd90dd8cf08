"""How long a browser takes to open a page, asked of the browser itself over the DevTools protocol.

    python bench/flows/browser.py page.html

The page is opened in a headless Chromium with an empty profile; the measure is its own ``loadEventEnd``, when the
document is parsed, styled and its scripts have run, and the memory of the page's script.
See: https://chromedevtools.github.io/devtools-protocol/
"""

import itertools
import json
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_LOADED = "JSON.stringify(performance.getEntriesByType('navigation')[0])"


def chromium() -> str | None:
    """The browser's program, if there is one."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def opened(page: Path, *, timeout_s: float = 60) -> dict[str, float]:
    """Seconds until the page's load event has ended, and until its document was parsed."""
    import websocket

    with _browser(timeout_s) as port:
        request = urllib.request.Request(f"http://127.0.0.1:{port}/json/new?about:blank", method="PUT")
        target = json.load(urllib.request.urlopen(request, timeout=timeout_s))
        socket = websocket.create_connection(
            target["webSocketDebuggerUrl"], timeout=timeout_s, suppress_origin=True, max_size=None
        )
        numbers = itertools.count(1)

        def ask(method: str, **parameters: Any) -> Any:
            number = next(numbers)
            socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
            return _wait(socket, lambda message: message.get("id") == number).get("result")

        ask("Page.enable")
        ask("Page.navigate", url=page.resolve().as_uri())
        _wait(socket, lambda message: message.get("method") == "Page.loadEventFired")
        timing: dict[str, float] = {"loadEventEnd": 0}
        while not timing["loadEventEnd"]:  # the event is told of before its listeners are through
            timing = json.loads(ask("Runtime.evaluate", expression=_LOADED)["result"]["value"])
        socket.close()
    return {"open": timing["loadEventEnd"] / 1e3, "parsed": timing["domInteractive"] / 1e3}


def _wait(socket: Any, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    while not wanted(message := json.loads(socket.recv())):
        pass
    return message


@contextmanager
def _browser(timeout_s: float) -> Generator[int]:
    """A browser with an empty profile, and the port where it listens."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [
            str(chromium()), "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-extensions",
            "--disable-background-networking", "--remote-debugging-port=0", f"--user-data-dir={profile}",
        ]  # fmt: skip
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            port, deadline = Path(profile) / "DevToolsActivePort", time.monotonic() + timeout_s
            while not (port.exists() and port.read_text().strip()):
                assert time.monotonic() < deadline, "the browser did not start"
                time.sleep(0.02)
            yield int(port.read_text().split()[0])
        finally:
            process.terminate()
            process.wait()


if __name__ == "__main__":
    if chromium() is None:
        sys.exit("there is no Chromium on the PATH")
    print(json.dumps(opened(Path(sys.argv[1]))))
