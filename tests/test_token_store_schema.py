"""The JSON Schema of a store's manifest, as it stands in the documentation, against manifests that zephyr writes."""

import json
from pathlib import Path

import pytest

from marin_zephyr.tokens import byte_tokenizer, tokenize

jsonschema = pytest.importorskip("jsonschema", reason="comes with moto's server")
SCHEMA = Path(__file__).parents[1] / "docs" / "reference" / "token-store.schema.json"


@pytest.fixture(scope="module")
def manifest(tmp_path_factory) -> dict:
    """Of a store with all that a manifest can tell: parts, an empty row, a refused one."""
    directory = tmp_path_factory.mktemp("schema")
    rows = [json.dumps({"text": text}) for text in ("one", "two", "", "three")]
    (directory / "in.jsonl").write_text("\n".join([*rows, "no JSON"]) + "\n")
    tokenize(
        directory / "in.jsonl",
        directory / "out",
        tokenizer=byte_tokenizer(),
        part_tokens=4,
        on_error="quarantine",
    )
    return json.loads((directory / "out" / "manifest.json").read_bytes())


@pytest.fixture(scope="module")
def validator() -> "jsonschema.Draft202012Validator":
    schema = json.loads(SCHEMA.read_bytes())
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def test_a_manifest_fits_the_schema(manifest: dict, validator):
    assert list(validator.iter_errors(manifest)) == []
    assert len(manifest["parts"]) == 3
    assert manifest["lineage"]["rejects"]["counts"]


def test_the_schema_knows_every_field(manifest: dict, validator):
    """A field that zephyr adds has to be told in the documentation."""
    properties = validator.schema["properties"]
    assert set(manifest) == set(properties)
    assert set(manifest["lineage"]) <= set(properties["lineage"]["properties"])


@pytest.mark.parametrize("field", ["schema_version", "tokenizer", "vocab_size", "dtype", "special_ids", "parts"])
def test_a_manifest_without_a_field_does_not_fit(manifest: dict, validator, field: str):
    assert not validator.is_valid({key: value for key, value in manifest.items() if key != field})


@pytest.mark.parametrize(
    "change", [{"dtype": "int64"}, {"num_tokens": -1}, {"digest": "short"}, {"parts": [{}]}, {"colour": "green"}]
)
def test_a_manifest_with_a_wrong_field_does_not_fit(manifest: dict, validator, change: dict):
    assert not validator.is_valid(manifest | change)
