"""The page of a run: complete, self-contained, harmless, and there whatever is missing."""

import base64
import dataclasses
import json
import re
import zlib
from html.parser import HTMLParser
from importlib import resources
from pathlib import Path
from typing import Any

import fsspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from marin_core.records import Digests, Failure, NodeRecord, RunRecord
from marin_core.report import render_report, write_report

START = 1_780_000_000.0
ATTACK = (
    """</script></style></title></noscript><img src=x onerror="document.title='pwned'">"""
    """"'&lt;<script>document.title='pwned'</script>"""
)
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


class Page(HTMLParser):
    """A page as a parser sees it: its elements, and the text that is shown."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.html = html
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._open = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._open = tag

    def handle_data(self, data: str) -> None:
        if self._open not in ("style", "script"):
            self.text += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]

    @property
    def anchors(self) -> set[str | None]:
        return {attributes.get("id") for _, attributes in self.elements}


def digests(seed: str = "a") -> Digests:
    return Digests(recipe=seed * 64, code="b" * 64, environment="c" * 64, inputs="d" * 64)


def node(name: str, **fields: Any) -> NodeRecord:
    """A step that succeeded in two seconds, but for what `fields` says."""
    defaults: dict[str, Any] = {
        "address": f"{name}/0123456789ab",
        "version": None,
        "upstream": (),
        "arguments": {},
        "decision": "run",
        "reason": "no committed output",
        "outcome": "succeeded",
        "attempt": 1,
        "started_at": START,
        "ended_at": START + 2,
        "seconds": 2.0,
        "digests": digests(),
        "output_digest": "e" * 64,
    }
    return NodeRecord(name=name, **{**defaults, **fields})


def run(*nodes: NodeRecord, **fields: Any) -> RunRecord:
    defaults: dict[str, Any] = {
        "run_id": "20260601-120000-abcd",
        "script": "experiments/quickstart.py",
        "argv": ("experiments/quickstart.py", "--steps", "300"),
        "targets": tuple(n.address for n in nodes[-1:]),
        "status": "succeeded",
        "started_at": START,
        "ended_at": START + 10,
    }
    return RunRecord(nodes=nodes, **{**defaults, **fields})


def output(prefix: Path, step: NodeRecord, files: dict[str, bytes | str]) -> None:
    """What the step committed."""
    for name, content in files.items():
        path = prefix / step.address / "attempts" / str(step.attempt) / "out" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())


def metrics(count: int, **columns: Any) -> str:
    rows = [{"step": i, "loss": 9 - i / count, **{name: at(i) for name, at in columns.items()}} for i in range(count)]
    return "".join(json.dumps(row) + "\n" for row in rows)


def packed(page: Page, attribute: str) -> list[str]:
    """What a large run's page carries compressed, as its script reads it."""
    groups = [a[attribute] or "" for a in page.all("ol") if a.get(attribute)]
    return [text for group in groups for text in json.loads(zlib.decompress(base64.b64decode(group)))]


# What it shows


def test_header_says_what_ran_how_it_ended_and_how_long_it_took(tmp_path: Path) -> None:
    page = Page(render_report(run(node("a"), node("b", outcome="reused")), str(tmp_path)))
    for said in ("experiments/quickstart.py", "succeeded", "20260601-120000-abcd", "10.0 s", "1 succeeded, 1 reused"):
        assert said in page.text


def test_values_of_the_targets_are_the_headline(tmp_path: Path) -> None:
    value = {"loss": 4.11271, "bits_per_byte": {"model": 1.7342, "zstd -19": 2.0117}, "num_bytes": 561_872}
    page = Page(render_report(run(node("evaluate", value=value)), str(tmp_path)))
    results = page.text[page.text.index("Results") :]
    for said in ("4.113", "562 kB", "zstd -19", "1.734"):
        assert said in results


def test_many_targets_are_a_table_with_a_row_each(tmp_path: Path) -> None:
    nodes = [node("train", address=f"train/{i:012x}", value={"loss": i / 8}) for i in range(20)]
    html = render_report(run(*nodes, targets=tuple(n.address for n in nodes)), str(tmp_path))
    results = html[html.index('id="results"') : html.index('id="lineage"')]
    assert results.count("<tr>") == 21
    assert "2.375" in results


def test_every_step_has_a_line_with_reason_and_size_and_its_details_the_digests(tmp_path: Path) -> None:
    step = node("split", reason="code changed: helper hash", num_files=3, num_bytes=28_300_000, doc="Splits by hash.")
    page = Page(render_report(run(step), str(tmp_path)))
    for said in (
        "split",
        "code changed: helper hash",
        "28.3 MB",
        "3 files",
        "aaaaaaa",
        "eeeeeee",
        "Splits by hash.",
    ):
        assert said in page.text
    assert "a" * 64 in {button.get("data-full") for button in page.all("button")}


def test_lines_say_only_what_is_news(tmp_path: Path) -> None:
    first = node("a", decision="reuse", reason="up to date", outcome="reused")
    fresh, code = node("b"), node("c", reason="code changed: helper hash")
    blocked = node("d", decision="blocked", reason="blocked by c", outcome="blocked", attempt=None, digests=None)
    html = render_report(run(first, fresh, code, blocked, targets=()), str(tmp_path))
    lines = re.findall(r"<summary>(.*?)</summary>", html)
    assert [re.findall(r"</b>.*?<small>(.*?)</small>", line) for line in lines] == [
        [],
        [],
        ["code changed: helper hash"],
        ["blocked by c"],
    ]
    assert "a" * 7 not in "".join(lines)
    assert "blocked: blocked by" not in html


def test_all_of_a_targets_value_is_shown(tmp_path: Path) -> None:
    rows = [{"lr": 0.1, "loss": 2.0}, {"lr": 0.2, "loss": 1.5}]
    wide = {f"n{i}": i for i in range(12)}
    value = {"loss": 1.5, **wide, "rows": rows, "names": ["a", "b"], "best": {"lr": 0.2, "loss": 1.5}, "text": "w" * 99}
    html = render_report(run(node("summary", value=value)), str(tmp_path))
    results = Page(html[html.index('id="results"') : html.index('id="lineage"')])
    for said in ("rows", "names", "a, b", "best", "w" * 99, *(f"n{i}" for i in range(12))):
        assert said in results.text
    assert len([a for a in results.all("table") if "data" in (a.get("class") or "")]) == 1
    assert not [a for a in results.all("table") if a.get("class") == "bars"]


def test_a_list_of_objects_is_the_result_as_a_table(tmp_path: Path) -> None:
    value = [{"lr": 0.1, "loss": 2.0}, {"lr": 0.2, "loss": 1.5}]
    html = render_report(run(node("summary", value=value)), str(tmp_path))
    results = html[html.index('id="results"') : html.index('id="lineage"')]
    assert results.count("<tr>") == 3
    assert "shown with the step" not in html


def test_what_failed_says_where_its_log_is_and_ends_with_it(tmp_path: Path) -> None:
    failure = Failure(type="ValueError", message="NaN", traceback="Traceback: line 12")
    failed = node("train", outcome="failed", attempt=3, failure=failure, log="train/0123456789ab/attempts/3/log.txt")
    path = tmp_path / (failed.log or "")
    path.parent.mkdir(parents=True)
    path.write_text("".join(f"line {i}\n" for i in range(40)))
    html = render_report(run(failed, status="failed"), str(tmp_path))
    first = html[html.index('id="failures"') : html.index('id="lineage"')]
    assert "line 39" in first
    assert "line 20" not in first
    assert "failed at attempt 3" in first
    assert "marin logs train/0123456789ab --attempt 3" in first
    assert "train/0123456789ab/attempts/3/log.txt" in first


def test_a_fan_out_is_one_box_and_its_failed_member_another_where_the_view_opens(tmp_path: Path) -> None:
    data = node("data")
    trains = [
        node("train", address=f"train/{i}", upstream=(data.address,), outcome="failed" if i == 7 else "succeeded")
        for i in range(12)
    ]
    summary = node("summary", upstream=tuple(t.address for t in trains), outcome="blocked")
    html = render_report(run(data, *trains, summary, status="failed"), str(tmp_path))
    boxes = [a for a in Page(html).all("a") if (a.get("class") or "").startswith("box")]
    assert len(boxes) == 4
    assert ">train ×11<" in html
    assert [a["href"] for a in boxes if "data-focus" in a] == ["#s8"]
    assert html.count('class="edge"') == 4


def test_empty_facts_of_the_environment_are_left_out(tmp_path: Path) -> None:
    environment = {"python": "3.12.1", "accelerators": [], "lock_digest": ""}
    page = Page(render_report(run(node("a"), environment=environment), str(tmp_path)))
    assert "accelerators" not in page.text
    assert "lock digest" not in page.text


def test_an_output_that_was_collected_is_said_to_be(tmp_path: Path) -> None:
    step = node("train", log="train/0123456789ab/attempts/1/log.txt")
    (tmp_path / step.address).mkdir(parents=True)
    (tmp_path / step.address / "tombstone.json").write_text("{}")
    page = Page(render_report(run(step), str(tmp_path)))
    assert "collected since" in page.text
    assert "not found" not in page.text


def test_what_a_run_that_is_over_has_not_done_is_not_pending(tmp_path: Path) -> None:
    left = node("a", outcome="pending", attempt=None)
    assert "pending" not in Page(render_report(run(left, status="died"), str(tmp_path))).text
    assert "1 not run" in render_report(run(left, status="died"), str(tmp_path))
    assert "1 pending" in render_report(run(left, status="running", ended_at=None), str(tmp_path))


def test_a_sweep_of_many_is_overlaid_in_one_chart_a_column(tmp_path: Path) -> None:
    nodes = [node("train", address=f"train/{i:012x}") for i in range(12)]
    for step in nodes:
        output(tmp_path, step, {"metrics.jsonl": metrics(9)})
    page = Page(render_report(run(*nodes), str(tmp_path)))
    (plot,) = [a for a in page.all("svg") if a.get("class") == "plot"]
    assert len(json.loads(plot["data-series"] or "")) == 12


def test_curves_of_what_was_asked_for_are_drawn_however_many_stand_before_them(tmp_path: Path) -> None:
    trained = [node("train", address=f"train/{i:012x}") for i in range(30)]
    asked = node("compare", upstream=tuple(step.address for step in trained))
    for step in trained:
        output(tmp_path, step, {"metrics.jsonl": metrics(9)})
    output(tmp_path, asked, {f"{rule}/metrics.jsonl": metrics(9, spread=float) for rule in "ab"})
    page = Page(render_report(run(*trained, asked), str(tmp_path)))
    first, *others = [json.loads(a["data-series"] or "") for a in page.all("svg") if a.get("class") == "plot"]
    assert [series["label"] for series in first] == ["compare, a", "compare, b"]
    assert len(others[-1]) == 22  # 24 files at most, those two among them


def test_upstream_and_downstream_link_to_one_another(tmp_path: Path) -> None:
    first = node("first")
    second = node("second", upstream=(first.address,), arguments={"data": {"step": first.address}})
    page = Page(render_report(run(first, second), str(tmp_path)))
    links = [attributes.get("href") for attributes in page.all("a")]
    assert links.count("#s0") >= 3  # from the drawing, from `upstream` and from the argument
    assert {"s0", "s1"} <= page.anchors


def test_a_failed_step_is_told_first_with_its_traceback(tmp_path: Path) -> None:
    failure = Failure(type="ValueError", message="loss is NaN at step 171", traceback="Traceback: line 12")
    failed = node("train", outcome="failed", failure=failure)
    blocked = node(
        "evaluate", upstream=(failed.address,), outcome="blocked", decision="blocked", reason="blocked by train"
    )
    page = Page(render_report(run(failed, blocked, status="failed"), str(tmp_path)))
    assert page.html.index("loss is NaN at step 171") < page.html.index('id="lineage"')
    assert "Traceback: line 12" in page.text
    assert "1 step downstream did not run" in page.text


def test_every_metrics_file_is_drawn_and_those_of_a_sweep_are_overlaid(tmp_path: Path) -> None:
    nodes = [node("train", address=f"train/{i:012x}") for i in range(3)]
    for step in nodes:
        output(tmp_path, step, {"logs/metrics.jsonl": metrics(50, lr=lambda i: i * 1e-4)})
    page = Page(render_report(run(*nodes), str(tmp_path)))
    plots = [a for a in page.all("svg") if a.get("class") == "plot"]
    assert [len(json.loads(plot["data-series"] or "")) for plot in plots] == [3, 3]
    assert (plots[0]["aria-label"] or "").startswith("loss against step")


def test_a_long_run_is_thinned_to_two_thousand_points(tmp_path: Path) -> None:
    step = node("train")
    output(tmp_path, step, {"metrics.jsonl": metrics(20_000)})
    page = Page(render_report(run(step), str(tmp_path)))
    (plot,) = [a for a in page.all("svg") if a.get("class") == "plot"]
    (series,) = json.loads(plot["data-series"] or "")
    assert len(series["points"]) <= 2000
    assert series["points"][-1][0] == 19_999


def test_samples_texts_and_pictures_are_shown(tmp_path: Path) -> None:
    step = node("samples")
    samples = [{"prompt": "def f(", "text": "x): return x"}]
    files = {"samples.json": json.dumps(samples), "notes.md": "a remark", "plot.png": PNG, "plot.svg": "<svg/>"}
    output(tmp_path, step, files)
    page = Page(render_report(run(step), str(tmp_path)))
    assert "def f(x): return x" in page.text
    assert "a remark" in page.text
    assert [(i["src"] or "").partition(",")[0] for i in page.all("img")] == [
        "data:image/png;base64",
        "data:image/svg+xml;base64",
    ]


@pytest.mark.parametrize("num_targets", [1, 20])
def test_outputs_are_shown_once_whether_the_targets_are_few_or_many(tmp_path: Path, num_targets: int) -> None:
    nodes = [node("s", address=f"s/{i:012x}") for i in range(num_targets)]
    output(tmp_path, nodes[0], {"notes.txt": "a remark"})
    page = Page(render_report(run(*nodes, targets=tuple(n.address for n in nodes)), str(tmp_path)))
    assert page.text.count("a remark") == 1


def test_the_log_is_shown_from_its_end_as_a_terminal_leaves_it(tmp_path: Path) -> None:
    step = node("train", log="train/0123456789ab/attempts/1/log.txt")
    output(tmp_path, step, {})
    log = tmp_path / (step.log or "")
    log.parent.mkdir(parents=True)
    log.write_text("".join(f"line {i}\n" for i in range(500)) + "\x1b[32m 1%\r 50%\rdone 100%\x1b[0m\n")
    page = Page(render_report(run(step), str(tmp_path)))
    assert "line 499" in page.text
    assert "line 400" not in page.text
    assert "done 100%" in page.text
    assert "50%" not in page.text
    assert "[32m" not in page.text


def test_environment_names_command_commit_and_packages(tmp_path: Path) -> None:
    environment = {"python": "3.12.1", "memory_bytes": 16_500_000_000, "packages": {"numpy": "2.3.1"}}
    record = run(node("a"), environment=environment, git={"commit": "abc123", "branch": "main", "dirty": True})
    page = Page(render_report(record, str(tmp_path)))
    for said in ("--steps 300", "abc123", "uncommitted changes", "3.12.1", "16.5 GB", "numpy 2.3.1"):
        assert said in page.text


def test_ten_thousand_steps_are_listed_and_drawn_by_name(tmp_path: Path) -> None:
    nodes, previous = [], ()
    for i in range(10_000):
        failed = {"outcome": "failed"} if i == 705 else {}
        given = {"arguments": {"part": i}, "value": {"n": i}}
        nodes.append(node(f"shard-{i % 7}", address=f"shard/{i:012x}", upstream=previous, **given, **failed))
        previous = (nodes[-1].address,)
    html = render_report(run(*nodes), str(tmp_path))
    page = Page(html)
    rows = [*page.all("details"), *(None for text in packed(page, "data-rows") if "<details id=" in text)]
    assert len(rows) == 10_000
    assert "10,000 steps and 9,999 edges are too many to draw one by one" in html
    boxes = [(a["href"], a["class"]) for a in page.all("a") if (a.get("class") or "").startswith("box")]
    assert boxes[4:6] == [("#s4", "box outcome-succeeded"), ("#s705", "box outcome-failed")]
    assert len(boxes) == 7
    assert len(html) < 5_000_000
    assert len(page.elements) < 8_000


def test_details_of_a_large_run_are_packed_beside_their_lines(tmp_path: Path) -> None:
    nodes = [node("shard", address=f"shard/{i:012x}", doc=f"Number {i}") for i in range(450)]
    page = Page(render_report(run(*nodes), str(tmp_path)))
    details = packed(page, "data-details")
    assert len(details) == 450
    assert all(f"Number {i}</p>" in text for i, text in enumerate(details))
    assert "Number 7" not in page.text


def test_an_empty_run_has_a_page(tmp_path: Path) -> None:
    assert "The run has no steps" in render_report(run(), str(tmp_path))


# What it never does


def everywhere(text: str) -> RunRecord:
    """A run with `text` in every place that a script, a step or a log can fill."""
    failure = Failure(type=text, message=text, traceback=text)
    value = {text: text, "list": [{text: text}, {text: text}], "loss": {text: 1.0, text + "2": 2.0}}
    first = node(text or "a", address="a/1", reason=text, version=text, doc=text, value=value, log="a/1/log.txt")
    second = node("b", address="b/1", upstream=("a/1",), arguments={text: text}, outcome="failed", failure=failure)
    return run(
        first, second, run_id=text, script=text, argv=(text,), targets=("a/1", "b/1"),
        environment={text: text, "packages": {text: text}}, git={"commit": text, "branch": text},
    )  # fmt: skip


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.text(alphabet=st.characters(exclude_categories=())) | st.just(ATTACK))
def test_no_text_adds_an_element_or_an_attribute(tmp_path: Path, text: str) -> None:
    page = Page(render_report(everywhere(text), str(tmp_path)))
    tame = Page(render_report(everywhere("tame"), str(tmp_path)))
    assert {tag for tag, _ in page.elements} <= {tag for tag, _ in tame.elements} | {"pre", "span", "p"}
    assert len(page.all("script")) == 1
    assert len(page.all("style")) == 1
    assert not page.all("img")
    names = {name for _, attributes in page.elements for name in attributes}
    assert not {name for name in names if name.startswith("on") or name == "style"}
    page.html.encode("utf-8", errors="strict")


def test_the_page_needs_nothing_from_outside(tmp_path: Path) -> None:
    step = node("train")
    output(tmp_path, step, {"metrics.jsonl": metrics(10), "plot.png": PNG})
    page = Page(render_report(run(step), str(tmp_path)))
    assert not page.all("link")
    addresses = [a.get(name) for _, a in page.elements for name in ("src", "href") if a.get(name)]
    assert addresses
    assert all(address.startswith(("#", "data:image/")) for address in addresses if address)
    assert "http://" not in page.html.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in page.html
    (policy,) = [m["content"] or "" for m in page.all("meta") if m.get("http-equiv")]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy


def test_files_outside_the_prefix_are_not_shown(tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("the secret")
    (tmp_path / "out").mkdir()
    prefix = tmp_path / "prefix"
    step, escapes = node("a", log="../secret.txt"), node("b", address="../..", log=str(tmp_path / "secret.txt"))
    output(prefix, step, {"notes.txt": "a remark"})
    out = prefix / step.address / "attempts/1/out"
    (out / "link.txt").symlink_to(tmp_path / "secret.txt")
    (out / "folder").symlink_to(tmp_path)
    page = Page(render_report(run(escapes, step), str(prefix)))
    assert "the secret" not in page.text
    assert "a remark" in page.text
    assert "leads outside the prefix" in page.text


def test_an_uncommitted_output_is_not_shown(tmp_path: Path) -> None:
    step = node("train", outcome="failed")
    output(tmp_path, step, {"notes.txt": "half written", "metrics.jsonl": metrics(10)})
    page = Page(render_report(run(step), str(tmp_path)))
    assert "half written" not in page.text
    assert "curves" not in page.anchors


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"metrics.jsonl": '{"step": 0, "loss": 1}\n{"step": 1, "loss": 2}\n{"st'}, "skipped 1 line of metrics.jsonl"),
        ({"metrics.jsonl": ""}, "holds no numbers"),
        ({"metrics.jsonl": b"\xff\xfe\x00"}, "holds no numbers"),
        ({"samples.json": "{"}, "not readable as JSON"),
        ({"samples.json": "[1, 2]"}, "expected a list of"),
        ({"plot.png": "not a picture"}, "is not a PNG image"),
        ({"big.txt": "x" * 70_000}, "at most 64,000 are shown"),
    ],
)
def test_a_damaged_file_is_a_note_in_its_place(tmp_path: Path, files: dict[str, bytes | str], said: str) -> None:
    step = node("train", value={"loss": 1.25})
    output(tmp_path, step, files)
    page = Page(render_report(run(step), str(tmp_path)))
    assert said in page.text
    assert "1.25" in page.text


def test_missing_outputs_and_logs_are_notes(tmp_path: Path) -> None:
    page = Page(render_report(run(node("a", log="a/log.txt")), str(tmp_path / "nowhere")))
    assert "a/log.txt: not found" in page.text
    assert "out: not found" in page.text


def test_a_record_that_cannot_be_drawn_costs_only_the_section(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    broken = dataclasses.replace(node("a"), num_bytes="many", num_files=1)  # type: ignore[arg-type]
    page = Page(render_report(run(broken, environment={"python": "3.12.1"}), str(tmp_path)))
    assert "This section (steps) could not be drawn" in page.text
    assert "3.12.1" in page.text
    assert "section 'steps'" in caplog.text


# The file


def test_the_file_is_replaced_whole_and_its_path_returned(tmp_path: Path) -> None:
    target = tmp_path / "runs" / "r.html"
    assert write_report(run(node("a")), str(tmp_path), str(target)) == str(target)
    assert write_report(run(node("second")), str(tmp_path), str(target)) == str(target)
    assert "second" in target.read_text(encoding="utf-8")
    assert [p.name for p in target.parent.iterdir()] == ["r.html"]


def test_the_file_may_lie_in_a_store_that_is_not_a_disk(tmp_path: Path) -> None:
    assert write_report(run(node("a")), str(tmp_path), "memory://lab/runs/r.html") == "memory://lab/runs/r.html"
    assert b"</html>" in fsspec.filesystem("memory").cat_file("/lab/runs/r.html")


def test_an_unwritable_place_raises_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file, not a directory")
    with pytest.raises(OSError, match="runs"):
        write_report(run(node("a")), str(tmp_path), str(tmp_path / "runs" / "r.html"))
    assert [p.name for p in tmp_path.iterdir()] == ["runs"]


def test_text_keeps_its_contrast_in_both_colour_schemes() -> None:
    css = resources.files("marin_core.web").joinpath("page.css").read_text(encoding="utf-8")
    themes = re.findall(r":root \{(.*?)\}", css, flags=re.DOTALL)
    assert len(themes) == 2

    def luminance(colour: str) -> float:
        channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    for theme in themes:
        colours = dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", theme))
        for text in ("ink", "muted", "accent", "good", "reused", "bad", "warn"):
            for ground in ("paper", "wash"):
                dark, light = sorted([luminance(colours[text]), luminance(colours[ground])])
                assert (light + 0.05) / (dark + 0.05) >= 4.5, f"{text} on {ground}: {colours[text]} {colours[ground]}"
