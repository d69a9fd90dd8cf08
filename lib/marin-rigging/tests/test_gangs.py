"""A rank's environment, and the account of a gang's end."""

from hypothesis import given
from hypothesis import strategies as st

from marin_rigging.gangs import GangExit, RankExit, rank_environment

PLACE = {
    "MARIN_JOB",
    "MARIN_ATTEMPT",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "JAX_COORDINATOR_ADDRESS",
    "JAX_COORDINATOR_PORT",
    "JAX_NUM_PROCESSES",
    "JAX_PROCESS_ID",
}
NAMES = st.sampled_from([*sorted(PLACE), "MEGASCALE_SLICE_ID", "JAX_COORDINATOR_BIND_ADDRESS", "PATH", "LR"])


def environment(base: dict[str, str], extra: dict[str, str] | None = None) -> dict[str, str]:
    return rank_environment(
        base,
        job="hello-1",
        rank=5,
        world_size=8,
        local_rank=1,
        local_world_size=4,
        attempt=2,
        coordinator="10.0.0.1:8482",
        extra=extra,
    )


def test_a_rank_knows_its_place() -> None:
    place = environment({})
    assert {name: place[name] for name in PLACE} == {
        "MARIN_JOB": "hello-1",
        "MARIN_ATTEMPT": "2",
        "RANK": "5",
        "WORLD_SIZE": "8",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "4",
        "JAX_COORDINATOR_ADDRESS": "10.0.0.1:8482",
        "JAX_COORDINATOR_PORT": "8482",
        "JAX_NUM_PROCESSES": "8",
        "JAX_PROCESS_ID": "5",
    }


@given(st.dictionaries(NAMES, st.text()), st.dictionaries(NAMES, st.text()))
def test_nothing_inherited_or_asked_for_changes_a_rank_s_place(base: dict[str, str], extra: dict[str, str]) -> None:
    place = environment(base, extra)
    assert {name: place[name] for name in PLACE} == {name: environment({})[name] for name in PLACE}


@given(st.dictionaries(NAMES, st.text()))
def test_coordinates_of_another_gang_are_dropped_and_the_rest_is_kept(base: dict[str, str]) -> None:
    place = environment(base)
    assert not any(name.startswith("MEGASCALE_") for name in place)
    assert "JAX_COORDINATOR_BIND_ADDRESS" not in place
    assert all(place[name] == base[name] for name in ("PATH", "LR") if name in base)


def test_a_job_s_own_variables_win_over_inherited_ones() -> None:
    place = environment({"LR": "1", "PYTHONUNBUFFERED": "0"}, {"LR": "2"})
    assert (place["LR"], place["PYTHONUNBUFFERED"]) == ("2", "0")


def test_the_account_says_who_failed_first_and_how() -> None:
    done = RankExit(rank=0, returncode=0, cause="own", seconds=1.0)
    killed = RankExit(rank=1, returncode=-9, cause="own", seconds=2.0)
    ended = RankExit(rank=2, returncode=-15, cause="gang", seconds=2.1)
    account = GangExit(exits=(done, killed, ended), first_failure=killed, stopped=False)
    assert account.describe() == "rank 1 was killed by SIGKILL after 2.0 s; ended with it: 2"
    assert (account.ok, account.state) == (False, "failed")


def test_the_account_names_every_rank_that_failed_by_itself() -> None:
    exits = (
        RankExit(rank=0, returncode=5, cause="own", seconds=1.1),
        RankExit(rank=1, returncode=3, cause="own", seconds=1.0),
    )
    account = GangExit(exits=exits, first_failure=exits[1], stopped=False)
    assert account.describe() == "rank 1 exited with 3 after 1.0 s; rank 0 exited with 5 after 1.1 s"


def test_a_failure_before_a_stop_is_a_failure() -> None:
    failed = RankExit(rank=0, returncode=3, cause="own", seconds=1.0)
    ended = RankExit(rank=0, returncode=0, cause="gang", seconds=1.0)
    assert GangExit(exits=(failed,), first_failure=failed, stopped=True).state == "failed"
    assert GangExit(exits=(ended,), first_failure=None, stopped=True).state == "stopped"
    assert failed.describe() == "rank 0 exited with 3 after 1.0 s"


def test_a_signal_without_a_name_is_described_by_number() -> None:
    lost = RankExit(rank=0, returncode=-99, cause="own", seconds=1.0)
    assert lost.describe() == "rank 0 was killed by signal 99 after 1.0 s"
