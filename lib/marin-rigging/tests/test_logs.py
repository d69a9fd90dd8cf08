"""Following logs while they are written."""

import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from marin_rigging.logs import Follower


@given(
    st.lists(st.tuples(st.integers(0, 1), st.binary(max_size=20).map(lambda b: b.replace(b"x", b"\n"))), max_size=20)
)
def test_however_a_log_grows_its_lines_are_the_same(writes: list[tuple[int, bytes]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        logs = [Path(directory) / "a", Path(directory) / "b"]
        follower = Follower(logs)
        followed: list[tuple[int, str]] = []
        for rank, data in writes:
            with logs[rank].open("ab") as log:
                log.write(data)
            followed += follower.lines()
        followed += follower.lines(last=True)
        for rank, log in enumerate(logs):
            whole = log.read_bytes() if log.exists() else b""
            expected = whole.removesuffix(b"\n").split(b"\n") if whole else []
            assert [line for r, line in followed if r == rank] == [e.decode("utf-8", "replace") for e in expected]


def test_an_unfinished_line_waits_for_its_end(tmp_path: Path) -> None:
    log = tmp_path / "rank-0.log"
    follower = Follower([log])
    assert list(follower.lines()) == []
    log.write_text("one\ntw")
    assert list(follower.lines()) == [(0, "one")]
    log.write_text("one\ntwo")
    assert list(follower.lines()) == []
    assert list(follower.lines(last=True)) == [(0, "two")]
    assert list(follower.lines(last=True)) == []
