"""The page of a run's routing, and the command that writes it."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from marin_train import cli
from marin_train.errors import ConfigError, MissingExtraError
from marin_train.routing_history import overflow, read_routing
from marin_train.routing_page import render_routing
from marin_train.tracking import read_metrics

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def page(mixture_run: Path) -> str:
    pytest.importorskip("plotly", reason="the extra report is not installed")
    return render_routing(read_routing(mixture_run))


@given(st.lists(st.integers(0, 50), min_size=1, max_size=12), st.sampled_from([1.0, 1.25, 2.0]))
def test_what_would_be_dropped_is_what_finds_no_room_one_route_after_the_other(
    load: list[int], capacity: float
) -> None:
    routes = [expert for expert, count in enumerate(load) for _ in range(count)]
    room = -(-capacity * len(routes) // len(load))
    taken, dropped = [0] * len(load), 0
    for expert in routes:
        dropped += taken[expert] >= room
        taken[expert] += taken[expert] < room
    assert overflow(np.array(load), capacity=capacity) == pytest.approx(dropped / max(1, len(routes)))


def test_the_summary_is_of_the_last_tenth_and_says_what_a_capacity_would_drop(mixture_run: Path) -> None:
    told = read_routing(mixture_run).summary()
    last = read_metrics(mixture_run / "metrics.jsonl")[-2:]
    assert (told["step"], told["over_steps"], told["layers"], told["balance"]) == (12, 2, 3, "quantile")
    assert told["max_vio"] == pytest.approx(np.mean([row["routing/max_vio"] for row in last]))
    load = np.array(read_metrics(mixture_run / "routing.jsonl")[-1]["load"])
    assert told["would_drop_at_1.25"] == pytest.approx((np.maximum(load - 20, 0).sum(axis=1) / 128).mean())


def test_a_run_that_goes_on_is_shown_as_far_as_its_rows(mixture_run: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(mixture_run, tmp_path / "run"))
    rows = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(rows[:9]) + rows[9][:40])
    (run / "summary.json").unlink()
    history = read_routing(run)
    assert (history.summary()["step"], history.load_steps) == (9, [1, 5])


def test_what_holds_no_routing_is_refused_by_name(finished_run: Path, mixture_run: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="dense model"):
        read_routing(finished_run)
    with pytest.raises(ConfigError, match="holds no run"):
        read_routing(tmp_path)
    shutil.copy(mixture_run / "run.json", tmp_path)
    with pytest.raises(ConfigError, match="no step yet"):
        read_routing(tmp_path)


def test_the_page_needs_plotly_and_says_how_to_get_it(mixture_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plotly", None)
    monkeypatch.setitem(sys.modules, "plotly.io", None)
    with pytest.raises(MissingExtraError, match="pip install plotly"):
        render_routing(read_routing(mixture_run))


def test_the_command_writes_the_page_and_ends_with_its_path(
    page: str, mixture_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "new" / "page.html"
    cli.main(["routing", str(mixture_run), "--out", str(out)])
    told = capsys.readouterr().out.splitlines()
    assert told[-1] == str(out)
    assert "MaxVio" in told[1]
    assert out.read_text().count("<section>") == page.count("<section>") == 8
    cli.main(["routing", str(mixture_run), "--out", str(out), "--json"])
    assert json.loads(capsys.readouterr().out) == read_routing(mixture_run).summary() | {"page": str(out)}


def test_the_name_of_a_run_is_text_in_its_page(page: str, mixture_run: Path, tmp_path: Path) -> None:
    run = shutil.copytree(mixture_run, tmp_path / "<img src=x onerror=alert(1)>")
    assert "<img src=x" not in render_routing(read_routing(run))


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium here")
def test_a_browser_draws_every_figure_and_asks_nobody(page: str, tmp_path: Path) -> None:
    """The page's own policy admits no request, so that a figure which needed one would not be drawn."""
    assert "default-src 'none'" in page
    (tmp_path / "page.html").write_text(page)
    command = [
        str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-sync",
        f"--user-data-dir={tmp_path / 'profile'}", "--enable-logging=stderr", "--virtual-time-budget=20000",
        "--dump-dom", f"file://{tmp_path / 'page.html'}",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert "CONSOLE" not in done.stderr
    assert done.stdout.count('class="plot-container') == 8
    assert set(re.findall(r"step (\d+)</text>", done.stdout)) == {"12"}
