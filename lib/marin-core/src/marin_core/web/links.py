"""Where the pages of `marin serve` lie: the one list of its addresses.

A page in a file of its own links only within itself; these links exist where a server answers them. Everything that
comes from a record is percent-encoded, slashes of an address apart, so that no name leads anywhere else.
"""

from urllib.parse import quote, urlencode

RUNS = "/"
STEPS = "/steps"
DIFF = "/diff"


def run_url(run_id: str) -> str:
    """The page of a run."""
    return f"/runs/{quote(run_id, safe='')}"


def fold_url(run_id: str, index: int) -> str:
    """What the line of a step in a large run unfolds to."""
    return f"{run_url(run_id)}/steps/{index}"


def state_url(run_id: str) -> str:
    """A word that changes when the run's record does."""
    return f"{run_url(run_id)}/state"


def step_url(address: str) -> str:
    """The page of a step's committed output."""
    return f"/steps/{quote(address)}"


def attempt_url(address: str, number: int) -> str:
    """The page of one attempt."""
    return f"/attempts/{number}/{quote(address)}"


def events_url(address: str, number: int, *, offset: int) -> str:
    """The growing log of an attempt as server-sent events, from a position in bytes."""
    return f"/logs/{number}/{quote(address)}?{urlencode({'offset': offset})}"


def file_url(path: str) -> str:
    """The preview of a file, by its path under the prefix."""
    return f"/files/{quote(path)}"


def download_url(path: str) -> str:
    """A file as it is, to be saved."""
    return f"/download/{quote(path)}"


def image_url(path: str) -> str:
    """A picture, to be shown by an ``img`` element."""
    return f"/images/{quote(path)}"


def diff_url(a: str, b: str) -> str:
    """What differs between two runs."""
    return f"{DIFF}?{urlencode({'a': a, 'b': b})}"


def search_url(page: str, *, query: str, number: int, state: str = "") -> str:
    """A listing, filtered, at one of its pages."""
    wanted = {
        name: value for name, value in (("q", query), ("state", state), ("page", number if number > 1 else "")) if value
    }
    return f"{page}?{urlencode(wanted)}" if wanted else page
