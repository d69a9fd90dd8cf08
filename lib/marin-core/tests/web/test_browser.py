"""The page in a real browser: its script works, and nobody else's runs."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from marin_core.records import Failure, NodeRecord, RunRecord
from marin_core.report import write_report

START = 1_780_000_000.0
ATTACK = (
    """</script></style></title></noscript><img src=x onerror="document.title='pwned'">"""
    """"'&lt;<script>document.title='pwned'</script>"""
)
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium here: scripts are seen to run in a browser only")


def node(name: str, **fields: Any) -> NodeRecord:
    defaults: dict[str, Any] = {
        "address": f"{name}/0123456789ab", "version": None, "upstream": (), "arguments": {}, "decision": "run",
        "reason": "no committed output", "outcome": "succeeded", "attempt": 1,
    }  # fmt: skip
    return NodeRecord(name=name, **{**defaults, **fields})


def run(*nodes: NodeRecord, **fields: Any) -> RunRecord:
    defaults: dict[str, Any] = {
        "run_id": "r", "script": "quickstart.py", "argv": ("quickstart.py",), "targets": (nodes[-1].address,),
        "status": "succeeded", "started_at": START, "ended_at": START + 10,
    }  # fmt: skip
    return RunRecord(nodes=nodes, **{**defaults, **fields})


def output(prefix: Path, step: NodeRecord, name: str, content: str) -> None:
    """One file of what the step committed."""
    path = prefix / step.address / "attempts" / str(step.attempt) / "out" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)


def metrics(count: int, name: str = "loss") -> str:
    return "".join(json.dumps({"step": i, name: 9 - i / count}) + "\n" for i in range(count))


def open_in_browser(page: Path, tmp_path: Path, *, fragment: str = "") -> tuple[str, str]:
    """The document after its scripts have run, and what the browser complained of on its console."""
    command = [
        str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-sync",
        f"--user-data-dir={tmp_path / 'profile'}", "--enable-logging=stderr", "--virtual-time-budget=20000",
        "--dump-dom", f"file://{page}{fragment}",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    console = "\n".join(line for line in done.stderr.splitlines() if "CONSOLE" in line)
    assert done.stdout.strip(), done.stderr
    return done.stdout, console


def with_probe(page: Path, script: str) -> Path:
    """A copy of the page that admits any script and runs one more at its end."""
    html = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page.read_text())
    probe = page.with_name("probe.html")
    probe.write_text(html.replace("</body>", f"<script>{script}</script></body>"))
    return probe


@pytest.mark.parametrize("protected", [True, False], ids=["with its policy", "without its policy"])
def test_an_injected_script_does_not_run(tmp_path: Path, protected: bool) -> None:
    value = {ATTACK: ATTACK, "list": [{ATTACK: ATTACK}, {ATTACK: 1}], "loss": {ATTACK: 1.0, "b": 2.0}}
    failure = Failure(type=ATTACK, message=ATTACK, traceback=ATTACK)
    first = node(ATTACK, address="a/1", reason=ATTACK, version=ATTACK, doc=ATTACK, value=value, log="log.txt")
    second = node("b", upstream=("a/1",), arguments={ATTACK: ATTACK}, outcome="failed", failure=failure)
    output(tmp_path, first, "notes.txt", ATTACK)
    output(tmp_path, first, "samples.json", json.dumps([{"prompt": ATTACK, "text": ATTACK}]))
    output(tmp_path, first, "a.svg", f'<svg xmlns="http://www.w3.org/2000/svg"><script>{ATTACK}</script></svg>')
    output(tmp_path, first, "metrics.jsonl", metrics(9, ATTACK))
    (tmp_path / "log.txt").write_text(ATTACK)
    script = {"run_id": ATTACK, "script": ATTACK, "argv": (ATTACK,), "environment": {ATTACK: ATTACK}}
    record = run(first, second, targets=("a/1", second.address), **script)
    page = tmp_path / "page.html"
    write_report(record, str(tmp_path), str(page))
    shown = page if protected else with_probe(page, "document.body.dataset.probed = 'yes'")
    document, console = open_in_browser(shown, tmp_path)
    title = re.search(r"<title>(.*?)</title>", document, flags=re.DOTALL)
    assert title is not None
    assert "·" in title[1]  # the page's own title, with the attack in it as text
    assert title[1] != "pwned"
    assert console == ""
    assert ('data-probed="yes"' in document) != protected


def test_a_link_opens_its_step_and_no_script_fails(tmp_path: Path) -> None:
    step = node("train")
    output(tmp_path, step, "metrics.jsonl", metrics(30))
    page = tmp_path / "page.html"
    write_report(run(step, node("evaluate", upstream=(step.address,))), str(tmp_path), str(page))
    document, console = open_in_browser(page, tmp_path, fragment="#s1")
    assert console == ""
    assert re.search(r'<details id="s1" open="">', document)
    assert not re.search(r'<details id="s0" open="">', document)


def test_pointer_keys_and_filter_do_what_they_say(tmp_path: Path) -> None:
    first = node("step-0")
    output(tmp_path, first, "metrics.jsonl", metrics(101))
    nodes = [first]
    for i in range(1, 30):
        nodes.append(node(f"step-{i}", upstream=(nodes[-1].address,) if i != 20 else ()))
    page = tmp_path / "page.html"
    write_report(run(*nodes), str(tmp_path), str(page))
    probe = """
    const seen = {};
    const plot = document.querySelector(".plot");
    const readout = plot.closest("figure").querySelector(".readout");
    const box = plot.getBoundingClientRect();
    plot.dispatchEvent(new PointerEvent("pointermove", { clientX: box.left + box.width / 2, bubbles: true }));
    seen.pointer = readout.textContent;
    plot.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowRight", bubbles: true }));
    seen.key = readout.textContent;
    plot.dispatchEvent(new PointerEvent("pointerleave"));
    seen.left = readout.textContent;
    document.querySelector('.box[data-index="3"]').dispatchEvent(new PointerEvent("pointerover", { bubbles: true }));
    seen.lit = Array.from(document.querySelectorAll(".box.lit"), (each) => each.dataset.index).sort().join(" ");
    const input = document.querySelector(".filter input");
    input.value = "STEP-2";
    input.dispatchEvent(new Event("input", { bubbles: true }));
    seen.rows = document.querySelectorAll(".steps > li:not([hidden])").length;
    seen.count = document.querySelector(".filter output").textContent;
    document.body.dataset.seen = JSON.stringify(seen);
    """
    document, console = open_in_browser(with_probe(page, probe), tmp_path)
    assert console == ""
    found = re.search(r'data-seen="([^"]*)"', document)
    assert found is not None
    assert json.loads(found[1].replace("&quot;", '"')) == {
        "pointer": "step 50: 8.50495",
        "key": "step 51: 8.49505",
        "left": "last 8.01",
        "lit": "0 1 2 3",
        "rows": 11,
        "count": "11 of 30 steps",
    }


def test_a_step_of_a_very_large_run_unfolds_when_it_is_opened(tmp_path: Path) -> None:
    nodes = [node("shard", address=f"shard/{i:012x}", doc=f"Number {i} {ATTACK}") for i in range(450)]
    page = tmp_path / "page.html"
    write_report(run(*nodes), str(tmp_path), str(page))
    document, console = open_in_browser(page, tmp_path, fragment="#s449")
    assert console == ""
    last = document[document.index('<details id="s449"') :]
    assert '<p class="doc">Number 449 &lt;/script' in last
    assert "Number 448" not in document


def test_a_table_sorts_by_a_heading_up_down_and_as_it_was_recorded(tmp_path: Path) -> None:
    rows = [{"lr": 0.1, "size": "b"}, {"lr": 10, "size": "a"}, {"size": "c"}, {"lr": 2, "size": "a"}]
    page = tmp_path / "page.html"
    write_report(run(node("summary", value=rows)), str(tmp_path), str(page))
    probe = """
    const table = document.querySelector(".sortable");
    const column = (at) => Array.from(table.tBodies[0].rows, (row) => row.cells[at].textContent).join(" ");
    const [lr, size] = table.querySelectorAll("th button");
    const seen = [column(0)];
    for (const button of [lr, lr, lr, size]) { button.click(); seen.push(column(0), button.parentElement.ariaSort); }
    document.body.dataset.seen = JSON.stringify(seen);
    """
    document, console = open_in_browser(with_probe(page, probe), tmp_path)
    assert console == ""
    found = re.search(r'data-seen="([^"]*)"', document)
    assert found is not None
    assert json.loads(found[1].replace("&quot;", '"')) == [
        "0.1 10.0  2.0", "0.1 2.0 10.0 ", "ascending", "10.0 2.0 0.1 ", "descending", "0.1 10.0  2.0", None,
        "10.0 2.0 0.1 ", "ascending",
    ]  # fmt: skip


def test_a_graph_wider_than_the_page_opens_at_what_failed(tmp_path: Path) -> None:
    nodes = [node(f"part-{i:02d}", outcome="failed" if i == 39 else "succeeded") for i in range(40)]
    page = tmp_path / "page.html"
    write_report(run(*nodes, status="failed"), str(tmp_path), str(page))
    probe = """
    const view = document.querySelector(".graph").getBoundingClientRect();
    const box = document.querySelector(".box.outcome-failed rect").getBoundingClientRect();
    document.body.dataset.seen = String(box.left >= view.left && box.right <= view.right);
    """
    document, console = open_in_browser(with_probe(page, probe), tmp_path)
    assert console == ""
    assert 'data-seen="true"' in document
