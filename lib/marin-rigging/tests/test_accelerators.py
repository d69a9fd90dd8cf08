"""Accelerator types against published tables, and the arithmetic that holds for all of them."""

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marin_rigging import catalog
from marin_rigging.accelerators import FAMILIES, GIB, Accelerator, Family, parse
from marin_rigging.errors import AcceleratorError

TPU_FAMILIES = [name for name, family in FAMILIES.items() if family.kind == "tpu"]


@pytest.mark.parametrize(
    ("name", "chips", "vms", "topology"),
    [
        # Google's tables of slice shapes for v4, v5e, v5p and v6e.
        ("v4-8", 4, 1, "2x2x1"),
        ("v4-64", 32, 8, "2x4x4"),
        ("v4-512", 256, 64, "4x8x8"),
        ("v4-4096", 2048, 512, "8x16x16"),
        ("v5litepod-1", 1, 1, "1x1"),
        ("v5litepod-8", 8, 1, "2x4"),
        ("v5litepod-16", 16, 4, "4x4"),
        ("v5litepod-128", 128, 32, "8x16"),
        ("v5p-16", 8, 2, "2x2x2"),
        ("v5p-32", 16, 4, "2x2x4"),
        ("v5p-128", 64, 16, "4x4x4"),
        ("v5p-640", 320, 80, "4x4x20"),
        ("v5p-2048", 1024, 256, "8x8x16"),
        ("v5p-11264", 5632, 1408, "8x16x44"),
        ("v5p-12288", 6144, 1536, "16x16x24"),
        ("v6e-4", 4, 1, "2x2"),
        ("v6e-8", 8, 1, "2x4"),
        ("v6e-256", 256, 64, "16x16"),
        ("tpu7x-8", 4, 1, "2x2x1"),
        ("h100-8", 8, 1, None),
        ("h100-64", 64, 8, None),
        ("gb200-8", 8, 2, None),
        ("cpu", 1, 1, None),
    ],
)
def test_published_types(name: str, chips: int, vms: int, topology: str | None) -> None:
    a = parse(name)
    assert (a.name, a.num_chips, a.num_vms, a.topology) == (name, chips, vms, topology)


def test_v5p_has_the_published_number_of_types() -> None:
    # Parts of a cube, then 96 cubes less the six primes from 67 on, whose only box would be too long.
    assert len(catalog("v5p")) == 4 + 96 - 6


def test_peaks_and_memory_are_those_of_all_chips() -> None:
    a = parse("v5p-64")
    assert (a.bf16_tflops, a.memory_bytes) == (32 * 459, 32 * 95 * GIB)
    assert (parse("cpu").bf16_tflops, parse("cpu").memory_bytes) == (None, None)


def test_tpu7x_is_not_on_the_cloud_tpu_api() -> None:
    services = {name: FAMILIES[name].service for name in TPU_FAMILIES}
    assert services.pop("tpu7x") == "gke"
    assert set(services.values()) == {"cloud-tpu"}
    assert all(FAMILIES[name].runtime_image for name in services)


@pytest.mark.parametrize("a", catalog(), ids=lambda a: a.name)
def test_every_type_adds_up(a: Accelerator) -> None:
    assert parse(a.name) == a
    assert a.num_vms * a.chips_per_vm == a.num_chips
    if a.topology is not None:
        assert math.prod(map(int, a.topology.split("x"))) == a.num_chips


@given(st.sampled_from([f for f in FAMILIES.values() if f.kind != "cpu"]), st.integers(0, 20_000))
def test_an_impossible_size_names_its_possible_neighbours(family: Family, size: int) -> None:
    whole_vms = range(family.chips_per_vm, 30_000, family.chips_per_vm) if family.kind == "gpu" else ()
    possible = {*family.sizes, *whole_vms}
    name = f"{family.name}-{size}"
    if size in possible:
        assert parse(name).name == name
        return
    neighbours = [
        max((n for n in possible if n < size), default=None),
        min((n for n in possible if n > size), default=None),
    ]
    named = " and ".join(f"{family.name}-{n}" for n in neighbours if n is not None)
    with pytest.raises(AcceleratorError, match=rf"{name}' does not exist; the nearest (is|are) {named}$"):
        parse(name)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("v5p-48", "'v5p-48' does not exist; the nearest are v5p-32 and v5p-64"),
        ("v6e-512", "'v6e-512' does not exist; the nearest is v6e-256"),
        ("h100-12", "'h100-12' does not exist; the nearest are h100-8 and h100-16"),
        ("v5p", "'v5p' lacks a size: write v5p-N, N counting cores, such as v5p-8"),
        ("v5lite-8", "'v5lite-8' is unknown; did you mean 'v5litepod'?"),
        ("abacus-8", "'abacus-8' is unknown; families are v4, v5litepod"),
        ("v5p--8", "'v5p--8' is unknown; did you mean 'v5p'?"),
        ("", "'' is unknown"),
    ],
)
def test_a_wrong_name_is_refused_with_the_right_one(name: str, message: str) -> None:
    with pytest.raises(AcceleratorError, match=re.escape(message)):
        parse(name)


def test_names_are_read_in_any_case_and_by_their_aliases() -> None:
    assert parse("V5P-64") == parse("v5p-64")
    assert parse("v5e-16").name == "v5litepod-16"


def test_catalog_of_nothing_family_and_type() -> None:
    assert {a.family.name for a in catalog()} == set(FAMILIES)
    assert [a.name for a in catalog("v5e")] == [f"v5litepod-{n}" for n in (1, 4, 8, 16, 32, 64, 128, 256)]
    assert catalog("v6e-16") == (parse("v6e-16"),)
