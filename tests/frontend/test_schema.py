"""The JSON Schema files are what the tables say, and describe the examples."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from frame.frontend import schema
from frame.frontend.document import read_document
from tests.frontend.specs import EXAMPLES

VERSIONS = sorted(schema.ROOTS)
TYPES = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "integer": int,
    "number": (int, float),
    "null": type(None),
}


def fits(value: Any, rule: dict, root: dict) -> bool:
    """A small independent reader of the keywords that the files use."""
    if "$ref" in rule:
        return fits(value, root["$defs"][rule["$ref"].rpartition("/")[2]], root)
    if "anyOf" in rule and not any(fits(value, each, root) for each in rule["anyOf"]):
        return False
    if "oneOf" in rule and sum(fits(value, each, root) for each in rule["oneOf"]) != 1:
        return False
    if "const" in rule and value != rule["const"]:
        return False
    if "enum" in rule and value not in rule["enum"]:
        return False
    kind = rule.get("type")
    if kind and (
        not isinstance(value, TYPES[kind]) or isinstance(value, bool) != (kind == "boolean")
    ):
        return False
    if isinstance(value, dict):
        return _fits_object(value, rule, root)
    if isinstance(value, list):
        low, high = rule.get("minItems", 0), rule.get("maxItems", len(value))
        inside = all(fits(each, rule.get("items", {}), root) for each in value)
        return low <= len(value) <= high and inside
    if isinstance(value, str):
        good = re.search(rule.get("pattern", ""), value) is not None
        return good and len(value) >= rule.get("minLength", 0)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        low, high = rule.get("minimum", value), rule.get("maximum", value)
        above, below = rule.get("exclusiveMinimum"), rule.get("exclusiveMaximum")
        edges = (above is None or value > above) and (below is None or value < below)
        return low <= value <= high and edges
    return True


def _fits_object(value: dict, rule: dict, root: dict) -> bool:
    known, other = rule.get("properties", {}), rule.get("additionalProperties", True)
    if any(name not in value for name in rule.get("required", ())):
        return False
    for name, each in value.items():
        if name in known:
            if not fits(each, known[name], root):
                return False
        elif other is False or (isinstance(other, dict) and not fits(each, other, root)):
            return False
    return True


@pytest.mark.parametrize("version", VERSIONS)
def test_the_files_are_what_the_tables_say(version: int) -> None:
    found = schema.path_of(version).read_text("utf-8")
    assert found == schema.text_of(version), "run python -m frame.frontend.schema"


@pytest.mark.parametrize("version", VERSIONS)
def test_every_reference_is_defined(version: int) -> None:
    text = schema.text_of(version)
    defined = set(json.loads(text).get("$defs", {}))
    assert set(re.findall(r'"#/\$defs/(\w+)"', text)) == defined


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.json")), ids=lambda path: path.stem)
def test_the_schema_accepts_the_examples_and_no_other_key(path) -> None:
    document = dict(read_document(path))
    rule = schema.schema_of(document["schema_version"])
    assert fits(document, rule, rule)
    assert not fits({**document, "extra": 1}, rule, rule)
    assert not fits({**document, "layers": []}, rule, rule)
    assert not fits({**document, "training": {**document["training"], "seed": -1}}, rule, rule)
