"""The pages: what each says, and what it says of records and files that are missing, damaged or odd."""

import json
import re
from dataclasses import asdict, replace
from typing import Any

import pytest

from marin_core.leases import Lease
from marin_core.processes import Process, this_host
from marin_core.records import Failure

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

RUN, OTHER = "20260601-120000-aaaaaa", "20260602-120000-bbbbbb"


@pytest.fixture(scope="module")
def lab(new_lab: Any) -> Any:
    """Two runs of a pipeline, the second with another learning rate and a step that fails; and what is damaged."""
    lab = new_lab()
    data = lab.node("data", value={"documents": 7})
    lab.output(data, "rows.jsonl", "".join(json.dumps({"id": i, "text": "<i>a</i>"}) + "\n" for i in range(80)))
    lab.output(data, "plot.png", b"\x89PNG\r\n\x1a\n")
    lab.output(data, "plot.svg", "<svg/>")
    lab.output(data, "part.bin", bytes(range(256)) * 8)
    train = lab.node(
        "train", upstream=(data.address,), arguments={"lr": 0.5, "data": {"step": data.address}}, seconds=2.0
    )
    lab.output(train, "metrics.jsonl", '{"step": 0, "loss": 3.0}\n{"step": 1, "loss": 2.0}\n')
    packages = {"packages": {"numpy": "2.3.1", "jax": "0.8.0"}}
    lab.run(RUN, data, train, environment=packages)
    lab.write(f"{train.address}/attempts/1/log.txt", "\x1b[31mepoch 1\x1b[0m\n 10%\r100%\n")
    failure = Failure(type="ValueError", message="loss is NaN", traceback="Traceback: line 12")
    again = lab.node(
        "train",
        address="train/ffffffffffff",
        upstream=(data.address,),
        arguments={"lr": 0.25, "data": {"step": data.address}},
        outcome="failed",
        failure=failure,
        reason="recipe is new: lr: 0.5 -> 0.25",
    )
    packages = {"packages": {"numpy": "2.4.0", "jax": "0.8.0"}}
    reused = lab.node("data", outcome="reused", decision="reuse", reason="up to date", value={"documents": 7})
    lab.run(OTHER, reused, again, status="failed", environment=packages)
    return lab


@pytest.fixture(scope="module")
def server(lab: Any, start: Any) -> Any:
    """The server on it."""
    return start(lab.prefix)


def text_of(html: str) -> str:
    """What is shown, roughly: the page without its style, scripts and tags."""
    body = re.sub(r"<(style|script)>.*?</\1>", "", html, flags=re.DOTALL)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", body))


def said(server: Any, target: str, status: int = 200) -> str:
    answer = server.get(target)
    assert answer.status == status, answer.text
    return text_of(answer.text)


def test_runs_are_listed_the_newest_first(server: Any) -> None:
    shown = said(server, "/")
    assert shown.index(OTHER) < shown.index(RUN)
    for each in ("failed", "succeeded", "quickstart.py", "--steps 300", "10.0 s", "1 reused, 1 failed", "2 runs"):
        assert each in shown


@pytest.mark.parametrize(("query", "listed"), [("FAILED", [OTHER]), ("0601 quickstart", [RUN]), ("nothing", [])])
def test_runs_are_filtered_by_every_word(server: Any, query: str, listed: list[str]) -> None:
    shown = server.get(f"/?q={query.replace(' ', '+')}").text
    assert [run for run in (OTHER, RUN) if f'href="/runs/{run}"' in shown] == listed
    assert f"{len(listed)} of 2 runs" in shown


def test_listings_are_paged(new_lab: Any, start: Any) -> None:
    lab = new_lab()
    for i in range(60):
        lab.run(f"20260601-1200{i:02d}-aaaaaa", lab.node("shard", address=f"shard/{i:012x}"))
    server = start(lab.prefix)
    assert "20260601-120059" in said(server, "/")
    assert "20260601-120009" not in said(server, "/")
    assert "20260601-120009" in said(server, "/?page=2")
    assert "page 2 of 2" in said(server, "/steps?page=2&q=shard")
    assert said(server, "/?page=99").count("20260601") == 0
    assert "20260601-120059" in said(server, "/?page=-1")


def test_a_run_is_its_report_with_links_to_the_other_pages(server: Any) -> None:
    html = server.get(f"/runs/{OTHER}").text
    assert "loss is NaN" in text_of(html)
    for link in ("/steps/train/ffffffffffff", "/attempts/1/train/ffffffffffff", "#s1"):
        assert f'href="{link}"' in html


def test_steps_are_listed_with_their_state_and_found_by_a_part_of_their_address(server: Any) -> None:
    shown = said(server, "/steps")
    assert shown.index("data/0123456789ab committed") < shown.index("train/ffffffffffff failed")
    assert "train/0123456789ab" not in said(server, "/steps?q=ffff")


def test_steps_are_listed_by_their_arguments_and_found_by_those_and_by_their_state(server: Any) -> None:
    shown = said(server, "/steps")
    assert "train lr=0.5 train/0123456789ab committed" in shown
    assert "train lr=0.25 train/ffffffffffff failed ValueError: loss is NaN" in shown
    assert "committed documents 7" in shown
    found = said(server, "/steps?q=train+lr=0.25")
    assert "1 of 2 steps" in found or "1 of 3 steps" in found
    failed = server.get("/steps?state=failed").text
    assert "train/ffffffffffff" in failed
    assert "data/0123456789ab" not in failed
    assert 'value="failed" selected' in failed
    assert "No step is listed" in said(server, "/steps?state=corrupt")
    assert "train/ffffffffffff" in said(server, "/steps?state=nonsense")


def test_a_failed_step_shows_its_traceback_arguments_and_upstream_at_once(server: Any) -> None:
    html = server.get("/steps/train/ffffffffffff").text
    shown = text_of(html)
    assert (
        shown.index("Traceback: line 12")
        < shown.index("Arguments data")
        < shown.index("lr 0.25")
        < shown.index("Attempts")
    )
    assert html.count('href="/steps/data/0123456789ab"') == 2  # the argument, and what it was made from


def test_a_step_that_was_collected_is_told_as_it_was(new_lab: Any, start: Any) -> None:
    lab = new_lab()
    step = lab.node("train", value={"loss": 1.5})
    lab.run("20260601", step)
    pointer = lab.prefix / step.address / "step.json"
    stone = {"schema": 1, "step": json.loads(pointer.read_text()), "collected_at": 1_780_000_000.0, "reason": "old"}
    lab.write(f"{step.address}/tombstone.json", json.dumps(stone))
    pointer.unlink()
    server = start(lab.prefix)
    assert 'class="state outcome-collected"' in server.get("/steps").text
    assert "collected by gc" in said(server, "/steps")
    shown = said(server, f"/steps/{step.address}")
    for each in ("collected", "was committed", "loss 1.5", "lr 0.5"):
        assert each in shown


def test_code_that_differs_is_named_by_unit_kind_and_the_steps_that_reach_it(new_lab: Any, start: Any) -> None:
    lab = new_lab()
    before = [lab.node("train", address=f"train/{i}", arguments={"i": i}) for i in range(5)]
    lab.run("20260601", *before)
    digests = replace(before[0].digests, code="9" * 64)
    why = "code changed: constant flow:SCALE, helper flow:clean (new); code of the environment"
    lab.run("20260602", *(replace(n, digests=digests, reason=why, decision="run") for n in before))
    server = start(lab.prefix)
    shown = said(server, "/diff?a=20260601&b=20260602")
    assert "constant flow:SCALE changed train i=0, train i=1, train i=2 and 2 more" in shown
    assert "helper flow:clean new train i=0" in shown
    assert "bbbbbbbbbbbb" not in shown


def test_a_value_that_one_run_lacks_is_one_difference_and_changed_inputs_are_named(new_lab: Any, start: Any) -> None:
    lab = new_lab()
    data, rows = lab.node("data"), [{"loss": i / 2} for i in range(50)]
    train = lab.node("train", upstream=(data.address,), outcome="failed")
    lab.run("20260601", data, train)
    inputs = replace(data.digests, inputs="8" * 64)
    made = replace(train, outcome="succeeded", value={"best": 1.5, "rows": rows}, digests=inputs)
    lab.run("20260602", replace(data, output_digest="7" * 64), made)
    shown = said(start(lab.prefix), "/diff?a=20260601&b=20260602")
    assert "train value – best 1.5" in shown
    assert "rows[0]" not in shown
    assert "train data eeeeeeeeeeee 777777777777" in shown


def test_differences_are_in_the_order_that_a_person_asks_and_decisions_are_folded(server: Any) -> None:
    html = server.get(f"/diff?a={RUN}&b={OTHER}").text
    titles = [html.index(f">{title}") for title in ("Config<", "Environment<", "Command<", "Decisions (")]
    assert titles == sorted(titles)
    assert '<details class="folded"><summary>Decisions (' in html


def test_a_step_shows_its_record_attempts_and_lineage(server: Any) -> None:
    html = server.get("/steps/train/0123456789ab").text
    shown = text_of(html)
    for each in ("committed", "lr 0.5", "flow:f", "111111111111", "metrics.jsonl", "no committed output", "made from"):
        assert each in shown
    assert 'href="/steps/data/0123456789ab"' in html
    below = server.get("/steps/data/0123456789ab").text
    assert below.index("went into") < below.index('href="/steps/train/ffffffffffff"')
    assert below.index("went into") < below.index('href="/steps/train/0123456789ab"')


def test_an_attempt_shows_its_failure_and_its_log_as_a_terminal_leaves_it(server: Any) -> None:
    failed = said(server, "/attempts/1/train/ffffffffffff")
    assert "Traceback: line 12" in failed
    assert "There is no log" in failed
    log = said(server, "/attempts/1/train/0123456789ab")
    assert "epoch 1 100% " in log
    assert "10%" not in log.replace("100%", "")


@pytest.mark.parametrize(
    ("name", "shown"),
    [("rows.jsonl", "The first 50 rows of 80."), ("part.bin", "Not text; its first 512 of 2,048 bytes.")],
)
def test_a_file_is_previewed(server: Any, name: str, shown: str) -> None:
    page = said(server, f"/files/data/0123456789ab/attempts/1/out/{name}")
    assert shown in page
    assert "data/0123456789ab, attempt 1" in page


def test_a_picture_is_shown_by_an_element_that_loads_it(server: Any) -> None:
    path = "data/0123456789ab/attempts/1/out/plot.png"
    assert f'<img src="/images/{path}"' in server.get(f"/files/{path}").text
    picture = server.get(f"/images/{path}")
    assert picture.headers["content-type"] == "image/png"
    assert "sandbox" in picture.headers["content-security-policy"]
    assert "content-disposition" not in picture.headers
    assert server.get("/images/data/0123456789ab/attempts/1/out/part.bin").status == 404


def test_a_drawing_opened_by_itself_is_saved_and_not_shown(server: Any) -> None:
    drawing = server.get("/images/data/0123456789ab/attempts/1/out/plot.svg")
    assert drawing.headers["content-type"].startswith("image/svg+xml")
    assert drawing.headers["content-disposition"].startswith("attachment")
    assert "sandbox" in drawing.headers["content-security-policy"]


@pytest.mark.parametrize(
    ("header", "status", "first", "stop"),
    [
        (None, 200, 0, 2048),
        ("bytes=0-9", 206, 0, 10),
        ("bytes=2000-", 206, 2000, 2048),
        ("bytes=-5", 206, 2043, 2048),
        ("bytes=10-99999", 206, 10, 2048),
        ("bytes=0-1,4-5", 200, 0, 2048),
        ("lines=1-2", 200, 0, 2048),
    ],
)
def test_a_file_is_downloaded_whole_or_in_part(
    server: Any, header: str | None, status: int, first: int, stop: int
) -> None:
    wanted = {} if header is None else {"Range": header}
    answer = server.get("/download/data/0123456789ab/attempts/1/out/part.bin", **wanted)
    assert answer.status == status
    assert answer.body == (bytes(range(256)) * 8)[first:stop]
    assert answer.headers["content-disposition"] == "attachment; filename*=UTF-8''part.bin"
    assert answer.headers["content-type"] == "application/octet-stream"
    if status == 206:
        assert answer.headers["content-range"] == f"bytes {first}-{stop - 1}/2048"


@pytest.mark.parametrize("header", ["bytes=2048-", "bytes=9999-10000", "bytes=-0"])
def test_a_range_outside_the_file_is_refused(server: Any, header: str) -> None:
    answer = server.get("/download/data/0123456789ab/attempts/1/out/part.bin", Range=header)
    assert answer.status == 416
    assert answer.headers["content-range"] == "bytes */2048"


def test_two_runs_are_compared_in_every_respect(server: Any) -> None:
    shown = said(server, f"/diff?a={RUN}&b={OTHER}")
    for each in (
        "status succeeded failed",
        "data decision run: no committed output reuse: up to date",
        "train lr 0.5 0.25 -50%",
        "numpy 2.3.1 2.4.0",
    ):
        assert each in shown, (each, shown)
    assert "jax" not in shown
    assert "These two runs do not differ" in said(server, f"/diff?a={RUN}&b={RUN}")
    assert "Compare" in said(server, "/diff")


@pytest.mark.parametrize(
    "target",
    [
        "/runs/nothing",
        "/runs/nothing/state",
        f"/runs/{RUN}/steps/2",
        "/steps/nothing",
        "/attempts/9/data/0123456789ab",
        "/files/data/0123456789ab/attempts/1/out/no.txt",
        "/download/data/0123456789ab/attempts/1/out/no.txt",
        "/diff?a=nothing&b=nothing",
        "/nowhere",
    ],
)
def test_what_is_not_there_is_404(server: Any, target: str) -> None:
    assert server.get(target).status == 404


DAMAGE = {
    "truncated": '{"schema": 1, "run_id"',
    "empty": "",
    "not an object": "[]",
    "newer": '{"schema": 99}',
    "lacks fields": '{"schema": 1}',
    "binary": "\x00\x01",
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_damaged_records_are_entries_that_say_so(new_lab: Any, start: Any, damage: str) -> None:
    lab = new_lab()
    good, bad = lab.node("good"), lab.node("bad")
    lab.run("20260601", good, bad)
    lab.write("runs/20260602.json", damage)
    for name in ("step.json", "attempts/1/attempt.json"):
        lab.write(f"{bad.address}/{name}", damage)
    server = start(lab.prefix)
    word = "newer" if "99" in damage else "corrupt"
    assert "20260601 20260602" not in said(server, "/")
    assert f"20260602 {word} " in said(server, "/")
    assert "quickstart.py" in said(server, "/")
    assert f"bad/0123456789ab {word} " in said(server, "/steps")
    for target in (
        "/runs/20260602",
        "/steps/bad/0123456789ab",
        "/attempts/1/bad/0123456789ab",
        "/diff?a=20260601&b=20260602",
    ):
        assert word in said(server, target).lower(), target
    assert "good/0123456789ab committed" in said(server, "/steps")


def test_records_of_the_right_names_and_the_wrong_kinds_are_corrupt(new_lab: Any, start: Any) -> None:
    lab = new_lab()
    step = lab.node("good")
    record = lab.run("20260601", step)
    for name in ("started_at", "nodes", "argv", "environment", "script", "status", "targets", "git"):
        data = json.loads((lab.prefix / "runs/20260601.json").read_text()) | {name: 7 if name != "started_at" else "x"}
        lab.write(f"runs/odd-{name}.json", json.dumps(data))
    odd = json.loads((lab.prefix / step.address / "step.json").read_text())
    for name, value in odd.items():
        if name not in ("schema", "value"):
            wrong = 7 if not isinstance(value, int | float) else "x"
            lab.write(f"odd-{name}/1/step.json", json.dumps(odd | {name: wrong}))
    server = start(lab.prefix)
    assert record.run_id in said(server, "/")
    assert "good/0123456789ab committed" in said(server, "/steps")
    for path in (lab.prefix / "runs").glob("odd-*.json"):
        for target in (f"/runs/{path.stem}", f"/diff?a=20260601&b={path.stem}"):
            assert "corrupt" in said(server, target).lower(), target
    for path in lab.prefix.glob("odd-*/1"):
        assert "corrupt" in said(server, f"/steps/{path.relative_to(lab.prefix)}"), path
    assert server.get("/runs/20260601").status == 200
    server.process.terminate()
    assert server.process.communicate(timeout=60)[1] == ""  # no traceback


def test_what_a_dead_driver_left_is_said_to_have_died_and_asked_for_no_more(
    new_lab: Any, start: Any, python: Any
) -> None:
    lab = new_lab()
    gone = Process(pid=int(python("-c", "import os; print(os.getpid())").stdout), started=1)
    step = lab.node("train", outcome="running", ended_at=None)
    driver = {"host": this_host(), **asdict(gone)}
    lab.run("20260601", step, status="running", ended_at=None, driver=driver)
    lease = Lease(epoch=1, nonce="n", host=this_host(), holder=gone, run_id="20260601")
    lab.write(f"{step.address}/lease.json", json.dumps(asdict(lease)))
    lab.run("20260602", step, status="running", ended_at=None, driver={"host": "another", **asdict(gone)})
    lab.write(f"{step.address}/lease.json", json.dumps(asdict(lease)))
    lab.write("runs/gc/lease.json", "{}")
    server = start(lab.prefix)
    assert "died" in said(server, "/")
    page = server.get("/runs/20260601").text
    assert "died" in text_of(page)
    assert "data-state" not in page
    assert 'data-state="/runs/20260602/state"' in server.get("/runs/20260602").text
    assert server.get("/runs/20260601/state").text.endswith("-died")
    attempt = server.get(f"/attempts/1/{step.address}").text
    assert "died" in text_of(attempt)
    assert "data-events" not in attempt
    listed = said(server, "/steps")
    assert "train/0123456789ab failed its driver died" in listed
    assert "1 step" in listed


def test_a_large_run_is_served_in_lines_whose_details_are_asked_for(new_lab: Any, start: Any) -> None:
    lab = new_lab()
    key = f"shard/{449:012x}/attempts/1/log.txt"
    nodes = [lab.node("shard", address=f"shard/{i:012x}", doc=f"Number {i}.", log=key) for i in range(450)]
    lab.run("20260601", *nodes, targets=())
    lab.write(key, "a line of the last")
    server = start(lab.prefix)
    page = server.get("/runs/20260601").text
    assert 'data-source="/runs/20260601/steps/299"' in page
    assert "data-details" not in page
    assert "Number 449." not in page
    detail = said(server, "/runs/20260601/steps/449")
    assert "Number 449." in detail
    assert "a line of the last" in detail


def test_an_empty_prefix_has_pages(new_lab: Any, start: Any) -> None:
    server = start(new_lab().prefix)
    assert "No run is listed" in said(server, "/")
    assert "No step is listed" in said(server, "/steps")
    assert said(server, "/diff")
