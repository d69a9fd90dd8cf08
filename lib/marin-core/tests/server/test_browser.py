"""The server's pages in a real browser: nobody else's script runs, logs follow, running runs keep up."""

import contextlib
import json
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from marin_core.records import Failure

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
websocket = pytest.importorskip("websocket")

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium here: scripts are seen to run in a browser only")

SCRIPT = "(window.pwned = (window.pwned || 0) + 1, document.title = 'pwned')"
ATTACK = (
    f"""</script></style></title></noscript></textarea></pre><img src=x onerror="{SCRIPT}">"""
    f""""'&lt;<script>{SCRIPT}</script><svg onload="{SCRIPT}"><a href="javascript:{SCRIPT}">"""
)


class Browser:
    """Chromium, spoken to over its DevTools protocol."""

    def __init__(self, profile: Path) -> None:
        command = [
            str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
            "--disable-background-networking", "--disable-component-update", "--disable-sync",
            f"--user-data-dir={profile}", "--remote-debugging-port=0", "--remote-allow-origins=*", "about:blank",
        ]  # fmt: skip
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert self._process.stderr is not None
        line = next(line for line in self._process.stderr if "DevTools listening on" in line)
        port = line.rpartition("ws://")[2].partition("/")[0]
        with urllib.request.urlopen(f"http://{port}/json", timeout=60) as answer:
            page = next(target for target in json.load(answer) if target["type"] == "page")
        self._socket = websocket.create_connection(page["webSocketDebuggerUrl"], timeout=120)
        self._number = 0
        self.complaints: list[str] = []
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        self._socket.send(json.dumps({"id": self._number, "method": method, "params": parameters}))
        return self._receive(lambda message: message.get("id") == self._number)["result"]

    def _receive(self, wanted: Any) -> dict[str, Any]:
        while True:
            message = json.loads(self._socket.recv())
            if message.get("method") == "Log.entryAdded":
                self.complaints.append(message["params"]["entry"]["text"])
            if message.get("method") == "Runtime.exceptionThrown":
                self.complaints.append(str(message["params"]["exceptionDetails"]))
            if wanted(message):
                return message

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)
        self._receive(lambda message: message.get("method") == "Page.loadEventFired")

    def value(self, expression: str) -> Any:
        result = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def wait_for(self, condition: str) -> None:
        """Until a condition on the page holds; the socket's timeout ends what never comes true."""
        self.value(
            "new Promise((done) => { const look = () => { let holds = false; try { holds = "
            f"{condition}; }} catch {{}} holds ? done() : setTimeout(look, 20); }}; look(); }})"
        )

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self._socket.close()
        self._process.kill()
        self._process.communicate()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with contextlib.closing(Browser(tmp_path_factory.mktemp("profile"))) as opened:
        yield opened


@pytest.fixture(scope="module")
def attacked(new_lab: Any, start: Any) -> tuple[Any, list[str]]:
    """A server on a prefix with an attack in every place that a script, a step or a log can fill, and its pages."""
    lab = new_lab()
    value = {ATTACK: ATTACK, "list": [{ATTACK: ATTACK}, {ATTACK: 1}], "bars": {ATTACK: 1.0, "b": 2.0}}
    failure = Failure(type=ATTACK, message=ATTACK, traceback=ATTACK)
    evil = 'evil"><img src=x onerror=pwned=1>'
    first = lab.node(ATTACK, address=f"{evil}/1", reason=ATTACK, version=ATTACK, doc=ATTACK, value=value, log=ATTACK)
    second = lab.node(
        "b", upstream=(first.address,), arguments={ATTACK: ATTACK}, outcome="failed", failure=failure, log=ATTACK
    )
    names = ("a.txt", "a.json", "a.jsonl", "a.csv", "a.html", "a.svg", "a.bin", f"{evil}.txt", "metrics.jsonl")
    contents = {
        "a.json": json.dumps({ATTACK: ATTACK}), "a.jsonl": json.dumps({ATTACK: ATTACK}) + "\n",
        "a.svg": f'<svg xmlns="http://www.w3.org/2000/svg" onload="{SCRIPT}"><script>{SCRIPT}</script></svg>',
        "a.bin": b"\0" + ATTACK.encode(), "metrics.jsonl": json.dumps({ATTACK: 1.0, "step": 0}) + "\n",
        "a.csv": '"' + ATTACK.replace('"', '""') + '"\n1\n',
    }  # fmt: skip
    for name in names:
        lab.output(first, name, contents.get(name, ATTACK))
    runs = [evil.replace("/", ""), "20260601"]
    for run_id in runs:
        environment = {ATTACK: ATTACK, "packages": {ATTACK: run_id}}
        told = {"script": ATTACK, "argv": (ATTACK, ATTACK), "git": {"commit": ATTACK, "branch": run_id}}
        targets = (first.address, second.address)
        lab.run(run_id, first, second, environment=environment, targets=targets, **told)
    lab.commit(first, code={ATTACK: ATTACK})
    for step in (first, second):
        lab.write(f"{step.address}/attempts/1/log.txt", ATTACK)
    running = lab.node("running", outcome="running")
    lab.attempt(running)
    lab.write(f"{running.address}/attempts/1/log.txt", f"{ATTACK}\n{ATTACK}")
    lab.write(f"runs/{ATTACK.replace('/', '')[:90]}.json", "{")
    server = start(lab.prefix)
    quoted = urllib.request.quote
    here = quoted(first.address)
    pages = [
        "/", f"/?q={quoted(ATTACK)}", "/steps", f"/steps?q={quoted(ATTACK)}", f"/steps/{here}", "/steps/b/0123456789ab",
        f"/attempts/1/{here}", "/attempts/1/b/0123456789ab", f"/attempts/1/{running.address}",
        *(f"/runs/{quoted(run_id)}" for run_id in runs), f"/diff?a={quoted(runs[0])}&b={runs[1]}",
        f"/runs/{quoted(ATTACK)}", f"/steps/{quoted(ATTACK)}", f"/{quoted(ATTACK)}",
        *(f"/files/{here}/attempts/1/out/{quoted(name)}" for name in names),
    ]  # fmt: skip
    return server, pages


@pytest.mark.parametrize("bypassed", [False, True], ids=["with the policy", "without the policy"])
def test_an_injected_script_does_not_run(attacked: Any, browser: Browser, bypassed: bool) -> None:
    server, pages = attacked
    browser.call("Page.setBypassCSP", enabled=bypassed)
    browser.complaints.clear()
    for target in pages:
        browser.open(server.url.rstrip("/") + target)
        if "/attempts/1/running" in target:
            browser.wait_for("document.querySelector('.follow').textContent.split('onerror').length >= 3")
        browser.value("document.querySelectorAll('details').forEach((each) => { each.open = true })")
        browser.wait_for("!Array.from(document.images).some((image) => !image.complete)")
        assert browser.value("window.pwned") is None, target
        assert browser.value("document.title") != "pwned", target
        injected = "document.querySelectorAll('[onerror], [onload], a[href^=javascript]').length"
        assert browser.value(injected) == 0, target
        assert browser.value("document.querySelectorAll('body > script').length") == 2, target
    assert not [text for text in browser.complaints if "404" not in text]


def test_the_probe_sees_a_script_that_does_run(attacked: Any, browser: Browser, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text(f"<body><p>{ATTACK}</p></body>")
    browser.open(f"file://{page}")
    browser.wait_for("window.pwned > 0")


def test_a_log_follows_in_the_browser_and_the_page_says_how_it_ended(lab: Any, start: Any, browser: Browser) -> None:
    step = lab.node("train", outcome="running")
    lab.attempt(step)
    log = lab.prefix / step.address / "attempts/1/log.txt"
    log.write_text("epoch 1\n")
    browser.open(f"{start(lab.prefix).url}attempts/1/{step.address}")
    browser.wait_for("document.querySelector('.follow').textContent === 'epoch 1\\n'")
    with log.open("a") as f:
        f.write("epoch 2\n 50%")
    browser.wait_for("document.querySelector('.follow').textContent === 'epoch 1\\nepoch 2\\n 50%'")
    with log.open("a") as f:
        f.write("\r100%\n")
    browser.wait_for("document.querySelector('.follow').textContent.endsWith('epoch 2\\n100%\\n')")
    lab.attempt(step, state="succeeded")
    browser.wait_for("document.querySelector('.state').textContent === 'succeeded'")
    assert browser.value("document.querySelector('.log').textContent") == "epoch 1\nepoch 2\n100%"


def test_a_running_run_keeps_up_and_keeps_open_what_was_open(lab: Any, start: Any, browser: Browser) -> None:
    first, second = lab.node("first"), lab.node("second", outcome="running", ended_at=None)
    lab.run("20260601", first, second, status="running", ended_at=None)
    browser.open(f"{start(lab.prefix).url}runs/20260601")
    browser.value("document.querySelector('#s0').open = true")
    assert browser.value("document.querySelector('#s1 .outcome').textContent") == "running"
    lab.run(
        "20260601", first, lab.node("second"), lab.node("third", outcome="running"), status="running", ended_at=None
    )
    browser.wait_for("document.querySelector('#s2 .outcome').textContent === 'running'")
    assert browser.value("document.querySelector('#s0').open") is True
    lab.run("20260601", first, lab.node("second"), lab.node("third"))
    browser.wait_for("document.querySelector('.status').textContent === 'succeeded'")
    browser.wait_for("document.querySelector('.live') === null")


def test_a_step_of_a_large_run_asks_the_server_when_it_is_opened(lab: Any, start: Any, browser: Browser) -> None:
    nodes = [lab.node("shard", address=f"shard/{i:012x}", doc=f"Number {i}") for i in range(700)]
    lab.run("20260601", *nodes, targets=())
    browser.complaints.clear()
    browser.open(f"{start(lab.prefix).url}runs/20260601#s650")
    browser.wait_for("document.querySelector('#s650 .doc').textContent === 'Number 650'")
    assert browser.value("document.querySelectorAll('.detail').length") == 1
    browser.wait_for("document.querySelectorAll('.steps > li').length === 700")
    assert browser.complaints == []
