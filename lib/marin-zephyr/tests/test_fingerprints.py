"""What makes a stage run again, and what must not."""

import collections
import enum
import functools
import operator
import re
import subprocess
import sys
import textwrap
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marin_zephyr import col
from marin_zephyr.fingerprints import fingerprint
from marin_zephyr.reporting.labels import label

PLAIN = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(), st.binary()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=3)),
    max_leaves=8,
)


def function(source: str, **names: object):
    scope: dict[str, object] = {"__name__": "experiment", **names}
    exec(textwrap.dedent(source), scope)
    return scope["f"]


@given(value=PLAIN, other=PLAIN)
def test_plain_values_have_equal_fingerprints_exactly_when_they_are_equal(value, other):
    assert (fingerprint(value) == fingerprint(other)) == (repr(value) == repr(other))


BASE = "def f(row):\n    return row['n'] + 1"


@pytest.mark.parametrize(
    "source",
    [
        "def f(row):\n    # a comment\n\n    return row['n'] + 1",
        "\n\n\ndef f(row): return row['n'] + 1",
    ],
)
def test_comments_and_layout_do_not_count(source):
    assert fingerprint(function(source)) == fingerprint(function(BASE))


@pytest.mark.parametrize(
    "source",
    [
        "def f(row):\n    return row['n'] + 2",
        "def f(row):\n    return row['m'] + 1",
        "def f(row):\n    return row['n'] - 1",
        "def f(row, k=1):\n    return row['n'] + 1",
    ],
)
def test_code_constants_names_and_defaults_count(source):
    assert fingerprint(function(source)) != fingerprint(function(BASE))


def test_what_a_function_reaches_counts():
    source = "def g(n):\n    return n + {k}\n\ndef f(row):\n    return g(row['n'])"
    assert fingerprint(function(source.format(k=1))) != fingerprint(function(source.format(k=2)))
    uses = "def f(row):\n    return row['n'] + LIMIT"
    assert fingerprint(function(uses, LIMIT=1)) != fingerprint(function(uses, LIMIT=2))


def test_closures_partials_and_methods_count():
    def adder(k):
        return lambda row: row["n"] + k

    class Scale:
        def __init__(self, by):
            self.by = by

        def __call__(self, row):
            return row["n"] * self.by

    assert fingerprint(adder(1)) == fingerprint(adder(1)) != fingerprint(adder(2))
    assert fingerprint(partial(pow, 2)) == fingerprint(partial(pow, 2)) != fingerprint(partial(pow, 3))
    assert fingerprint(Scale(2)) == fingerprint(Scale(2)) != fingerprint(Scale(3))


def cached(k):
    return functools.cache(lambda x: x + k)


def cached_within(k):
    inner = functools.lru_cache(maxsize=3)(lambda x: x + k)
    return lambda x: inner(x)


def cached_method(k):
    class A:
        @functools.cache  # noqa: B019
        def go(self, x):
            return x + k

    return A().go


def wrapped(k):
    def decorated(fn):
        @functools.wraps(fn)
        def inner(x):
            return fn(x)

        return inner

    return decorated(lambda x: x + k)


def wrapping(k):
    @functools.wraps(abs)
    def inner(x):
        return abs(x) + k

    return inner


def dispatching(k):
    return functools.singledispatch(lambda x: x + k)


def dispatched(k):
    f = functools.singledispatch(lambda x: x)
    f.register(int, lambda x: x + k)
    return f


def dispatched_method(k):
    class A:
        @functools.singledispatchmethod
        def go(self, x):
            return x

        go.register(int, lambda self, x: x + k)

    return A().go


def bound(k):
    class A:
        def __init__(self):
            self.k = k

        def go(self, x):
            return x + self.k

    return A().go


def inherited(k):
    class A:
        def go(self, x):
            return x + k

    return type("B", (A,), {})().go


def of_a_class(k):
    class A:
        @classmethod
        def go(cls, x):
            return x + k

    return A.go


def by_a_property(k):
    class A:
        @property
        def k(self):
            return k

        def __call__(self, x):
            return x + self.k

    return A()


def in_slots(k):
    class A:
        __slots__ = ("__k",)

        def __init__(self):
            self.__k = k

        def __call__(self, x):
            return x + self.__k

    return A()


def by_a_metaclass(k):
    class Meta(type):
        def __call__(cls, x):
            return x + k

    return Meta("A", (), {})


def in_a_named_tuple(k):
    pair = collections.namedtuple("Pair", "k")(k)
    return lambda x: x + pair.k


def in_an_enum(k):
    numbers = enum.Enum("Numbers", {"K": k})
    return lambda x: x + numbers.K.value


def in_a_kind_of_dict(k):
    table = type("Table", (dict,), {})(k=k)
    return lambda x: x + table["k"]


def partial_method(k):
    class A:
        def go(self, k, x):
            return x + k

        run = functools.partialmethod(go, k)

    return A().run


BEHIND = [
    *(cached, cached_within, cached_method, wrapped, wrapping, dispatching, dispatched, dispatched_method, bound),
    *(inherited, of_a_class, by_a_property, in_slots, by_a_metaclass, in_a_named_tuple, in_an_enum),
    *(in_a_kind_of_dict, partial_method, operator.itemgetter, lambda k: operator.methodcaller("get", k)),
    *(lambda k: partial(partial(pow, k), 3), lambda k: functools.cmp_to_key(lambda a, b: k)),
]


@pytest.mark.parametrize("made", BEHIND)
def test_what_lies_behind_a_callable_counts(made):
    assert fingerprint(made(1)) == fingerprint(made(1)) != fingerprint(made(2))


def test_the_code_behind_a_cache_counts():
    source = "import functools\n@functools.cache\ndef f(x):\n    return x + {k}"
    assert fingerprint(function(source.format(k=1))) != fingerprint(function(source.format(k=2)))


def test_what_has_been_cached_does_not_count():
    f = cached(1)
    before = fingerprint(f)
    f(1)
    assert fingerprint(f) == before


def test_recursion_ends():
    def even(n):
        return n == 0 or odd(n - 1)

    def odd(n):
        return n != 0 and even(n - 1)

    assert fingerprint(even) == fingerprint(even) != fingerprint(odd)


def test_expressions_and_patterns_count():
    assert fingerprint(col("a") > 1) == fingerprint(col("a") > 1) != fingerprint(col("a") > 2)
    assert fingerprint(re.compile("a")) != fingerprint(re.compile("a", re.IGNORECASE))


def test_a_fingerprint_is_the_same_in_another_process():
    code = textwrap.dedent("""
        import json, re
        from marin_zephyr import col
        from marin_zephyr.fingerprints import fingerprint
        NAMES = {"b", "a", "c"}
        def f(row, *, k=frozenset("xyz")):
            return json.dumps([row["n"] in NAMES, re.sub("a", "b", row["t"]), [x for x in k]])
        print(fingerprint(f), fingerprint(col("a").str.len_bytes()))
    """)
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": seed}
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1


def test_labels_are_for_people():
    assert label(test_labels_are_for_people) == "test_labels_are_for_people"
    assert re.fullmatch(r"<lambda> at test_fingerprints\.py:\d+", label(lambda row: row))
    assert label(partial(pow, 2)) == "pow"


MODULE = "import {inner}\n\ndef f(row):\n    return {inner}.g(row)"
REACHED = {
    "a module's own imports": "import outer\nF = lambda row: outer.f(row)",
    "an import inside the function": "def F(row):\n    from inner import g\n    return g(row)",
    "a cached function": "import functools, inner\n@functools.cache\ndef h(row): return inner.g(row)\nF = h",
    "a function in an expression": "import inner\nfrom marin_zephyr import col\nF = col('x').map_elements(inner.g)",
}


@pytest.mark.parametrize("source", REACHED.values(), ids=REACHED)
def test_code_that_is_reached_by_whatever_way_counts(tmp_path, source):
    (tmp_path / "outer.py").write_text(MODULE.format(inner="inner"))
    (tmp_path / "main.py").write_text(
        f"from marin_zephyr.fingerprints import fingerprint\n{source}\nprint(fingerprint(F))"
    )

    def run(answer):
        (tmp_path / "inner.py").write_text(f"def g(row):\n    return {answer}")
        command = [sys.executable, "-B", str(tmp_path / "main.py")]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    first = run(1)
    assert run(1) == first
    assert run(2) != first


HELD = {
    "dict": "class D(dict): pass\nheld = D(a={n})",
    "list": "class D(list): pass\nheld = D([{n}])",
    "str": "class D(str): pass\nheld = D('{n}')",
    "tuple": "from typing import NamedTuple\nclass D(NamedTuple):\n    a: int\nheld = D({n})",
    "slots": "class D:\n    __slots__ = ('a',)\nheld = D()\nheld.a = {n}",
    "attribute of a function": "def held(row): return held.a\nheld.a = {n}",
    "constant of a class": "class held:\n    __version__ = {n}",
}


@pytest.mark.parametrize("source", HELD.values(), ids=HELD)
def test_what_an_object_of_the_callers_class_holds_counts(source):
    def made(n):
        return fingerprint(function(source.format(n=n) + "\ndef f(row): return held"))

    assert made(1) == made(1)
    assert made(1) != made(2)
