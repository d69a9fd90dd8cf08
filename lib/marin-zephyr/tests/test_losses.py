"""What a user deletes, cuts or renames between two runs is made again, and nothing else is."""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from marin_zephyr import Dataset, Session, agg
from marin_zephyr.errors import OutputError
from marin_zephyr.session import RunReport

KINDS = {
    "map": lambda rows: rows.map(lambda row: {**row, "k": 1}),
    "distinct": lambda rows: rows.distinct(on="n"),
    "group_by": lambda rows: rows.group_by("n").agg(num=agg.count()),
}


class Place:
    """A dataset's input, its output and its work directory."""

    def __init__(self, root: Path, kind: str) -> None:
        self.out, self.work, self._kind = root / "out", root / "work", kind
        self._raw = root / "raw"
        self._raw.mkdir()
        for i in range(3):
            lines = [json.dumps({"n": j % 5, "t": f"{i}-{j}"}) for j in range(10)]
            (self._raw / f"{i}.jsonl").write_text("\n".join([*lines, "bad", ""]))

    def run(self) -> RunReport:
        dataset = KINDS[self._kind](Dataset.from_files(self._raw, on_error="quarantine", shard_bytes=1))
        with Session(backend="inline", work_dir=self.work) as session:
            return session.run(dataset.write_jsonl(self.out))

    def files(self) -> dict[str, str]:
        found = [path for path in self.out.rglob("*") if path.is_file()]
        return {str(path.relative_to(self.out)): hashlib.sha256(path.read_bytes()).hexdigest() for path in found}


def cut_a_reject(place: Place) -> None:
    next((place.out / "rejects").iterdir()).write_text("cut")


def empty_the_work_directory(place: Place) -> None:
    """Manifests stay, what they speak of goes."""
    for path in place.work.rglob("*.blocks"):
        path.unlink()
    (place.out / "part-00000.jsonl").unlink()


LOSSES: dict[str, Callable[[Place], None]] = {
    "rejects": lambda place: shutil.rmtree(place.out / "rejects"),
    "one of the rejects": lambda place: next((place.out / "rejects").iterdir()).unlink(),
    "half of a reject": cut_a_reject,
    "a part": lambda place: (place.out / "part-00000.jsonl").unlink(),
    "the output": lambda place: shutil.rmtree(place.out),
    "work and output": lambda place: [shutil.rmtree(path, ignore_errors=True) for path in (place.out, place.work)],
    "the rows between stages": empty_the_work_directory,
}


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return Place(tmp_path, request.param)


@pytest.mark.parametrize("loss", LOSSES)
def test_what_is_lost_is_made_again_alike(place: Place, loss: str) -> None:
    counters, whole = place.run().counters, place.files()
    LOSSES[loss](place)
    again = place.run()
    assert (again.counters, place.files()) == (counters, whole)
    assert again.executed
    assert len(again.rejects) == 3


def test_nothing_runs_for_a_work_directory_that_is_gone(place: Place) -> None:
    place.run()
    whole = place.files()
    shutil.rmtree(place.work, ignore_errors=True)
    again = place.run()
    assert (again.executed, place.files()) == (0, whole)


def test_a_renamed_output_is_a_dataset_still_and_is_made_anew_where_it_was(place: Place, tmp_path: Path) -> None:
    rows_out, whole = place.run().counters["rows_out"], place.files()
    place.out.rename(tmp_path / "elsewhere")
    assert place.run().executed
    assert place.files() == whole
    with Session(backend="inline") as session:
        assert session.count(Dataset.from_files(tmp_path / "elsewhere")) == rows_out
    shutil.rmtree(place.out)
    (tmp_path / "elsewhere").rename(place.out)
    assert place.run().executed == 0


def test_parts_without_their_manifest_are_no_ones_to_overwrite(place: Place) -> None:
    place.run()
    (place.out / "_manifest.json").unlink()
    with pytest.raises(OutputError, match="which zephyr did not write"):
        place.run()


def test_a_session_that_lost_its_temporary_directory_makes_another(tmp_path: Path) -> None:
    rows = Dataset.from_rows([{"n": n % 3} for n in range(9)], num_shards=2).distinct(on="n")
    with Session(backend="inline") as session:
        assert session.count(rows) == 3
        shutil.rmtree(session._work_dir())
        assert [row["n"] for row in session.rows(rows)] == [0, 1, 2]
