"""What a fleet may be."""

import pytest

from marin_rigging import Fleet, Job, Pool
from marin_rigging.errors import SpecError

HERE = Pool(name="here", ranks=4)
HELLO = Job(name="hello", pool="here", command=("echo", "hello"))


def test_a_pool_has_one_rank_for_each_machine_unless_it_says_otherwise() -> None:
    assert Pool(name="a", type="v5p-64").num_ranks == 8
    assert Pool(name="a", type="cpu").num_ranks == 1
    assert Pool(name="a", type="v5p-64", ranks=2).num_ranks == 2


def test_the_only_pool_and_job_need_no_name() -> None:
    fleet = Fleet(name="f", pools=(HERE,), jobs=(HELLO,))
    assert fleet.pool() is HERE
    assert fleet.job() is HELLO
    assert fleet.pool("here") is HERE


def test_one_of_several_must_be_named() -> None:
    fleet = Fleet(name="f", pools=(HERE, Pool(name="there")))
    with pytest.raises(SpecError, match=r"has 2 pools \(here, there\); say which with --pool"):
        fleet.pool()
    with pytest.raises(SpecError, match="pool 'nowhere' is not in the fleet; it has here, there"):
        fleet.pool("nowhere")
    with pytest.raises(SpecError, match=r"has 0 jobs \(none\)"):
        fleet.job()


@pytest.mark.parametrize("name", ["", "Upper", "under_score", "-a", "a-", "a" * 41, "a/b", "a\n"])
def test_a_name_that_cannot_be_a_directory_or_a_label_is_refused(name: str) -> None:
    with pytest.raises(SpecError, match="must be 1 to 40 lower-case letters"):
        Pool(name=name)


def test_what_does_not_make_sense_is_refused() -> None:
    with pytest.raises(SpecError, match="provider='moon' is not one of local"):
        Pool(name="a", provider="moon")
    with pytest.raises(SpecError, match="the nearest are v5p-32 and v5p-64"):
        Pool(name="a", type="v5p-48")
    with pytest.raises(SpecError, match="ranks=0 must be at least 1"):
        Pool(name="a", ranks=0)
    with pytest.raises(SpecError, match="command is empty"):
        Job(name="a", pool="here", command=())
    with pytest.raises(SpecError, match="env has '1A'"):
        Job(name="a", pool="here", command=("x",), env={"1A": ""})
    with pytest.raises(SpecError, match="pools is empty"):
        Fleet(name="f", pools=())
    with pytest.raises(SpecError, match="pools has the name 'here' twice"):
        Fleet(name="f", pools=(HERE, HERE))
    with pytest.raises(SpecError, match="job 'hello' wants pool 'here', pools are there"):
        Fleet(name="f", pools=(Pool(name="there"),), jobs=(HELLO,))
