"""Steps and runs, found as people name them."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from marin_core import StepRunner, lower
from marin_core.errors import PrefixError, UsageError
from marin_core.reading.catalogue import Catalogue

SOURCE = """
from marin_core import step

@step
def train(*, lr: float = 0.1) -> float:
    return lr
"""


@pytest.fixture
def addresses(prefix: str, module: Callable[[str], ModuleType]) -> list[str]:
    """Three steps of one name and one of another, each of its own run, oldest first."""
    train = module(SOURCE).train
    handles = [train(lr=0.1), train(lr=0.2), train(lr=0.3), train(lr=0.4, name="wiki/train")]
    return [StepRunner(prefix, launcher="inline").run(lower(h)).executed[0] for h in handles]


@pytest.fixture
def catalogue(prefix: str, addresses: list[str]) -> Catalogue:
    return Catalogue.of(prefix)


def test_a_name_means_the_newest_and_says_that_there_are_more(catalogue: Catalogue, addresses: list[str]) -> None:
    newest, remark = catalogue.find_step("train")
    assert newest == addresses[2]
    assert remark == f"train: the newest of 3 is meant, {newest}"
    assert catalogue.find_step("wiki/train") == (addresses[3], None)


def test_an_address_or_its_beginning_means_itself(catalogue: Catalogue, addresses: list[str]) -> None:
    for address in addresses:
        assert catalogue.find_step(address) == (address, None)
        assert catalogue.find_step(address[:-3]) == (address, None)
        assert catalogue.find_step(f"{address}/") == (address, None)


def test_what_is_not_there_is_answered_with_what_is_close(catalogue: Catalogue, addresses: list[str]) -> None:
    with pytest.raises(UsageError, match=r"trian: no step .*; did you mean train"):
        catalogue.find_step("trian")
    with pytest.raises(UsageError, match=r"xyzzy: no step .*; marin status lists them"):
        catalogue.find_step("xyzzy")


@pytest.mark.parametrize("text", ["../outside", "/etc", "train/../../outside", "runs", "runs/gc", "", "a\0b", "~"])
def test_nothing_outside_the_steps_is_ever_looked_at(catalogue: Catalogue, text: str, prefix: str) -> None:
    outside = Path(prefix).parent / "outside" / "0123"
    outside.mkdir(parents=True)
    (outside / "step.json").write_text("{}")
    assert catalogue.named(text) == []


def test_a_run_goes_by_its_id_a_unique_beginning_and_by_its_age(catalogue: Catalogue) -> None:
    ids = catalogue.run_ids
    assert len(ids) == 4
    assert {catalogue.find_run(i) for i in ids} == set(ids)
    assert catalogue.find_run(ids[1][:-1]) == ids[1]
    assert (catalogue.find_run("latest"), catalogue.find_run("latest~3")) == (ids[-1], ids[0])
    with pytest.raises(UsageError, match="there are 4 runs"):
        catalogue.find_run("latest~4")
    with pytest.raises(UsageError, match="4 ids begin so: "):
        catalogue.find_run(ids[0][:4])
    with pytest.raises(UsageError, match=f"did you mean .*{ids[0]}"):
        catalogue.find_run(f"x{ids[0]}")


def test_reading_makes_no_prefix(tmp_path: Path) -> None:
    with pytest.raises(PrefixError, match="does not exist"):
        Catalogue.of(str(tmp_path / "nowhere"))
    assert not (tmp_path / "nowhere").exists()
