"""JSON Schema files for editors, made of the tables that check: `python -m frame.frontend.schema`.

They say what a table says: keys, kinds, ranges. What joins several fields only the program checks.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from frame.frontend import version0, version1
from frame.frontend.catalogue import INITIALISER_ENTRY, NESTED_LAYER
from frame.frontend.kinds import Named, Record

FOLDER = Path(__file__).parent / "schemas"
DIALECT = "https://json-schema.org/draft/2020-12/schema"

ROOTS: Mapping[int, Record] = {0: version0.ROOT, 1: version1.ROOT}

# What a schema writes once, by version.
SHARED: Mapping[int, tuple[Named, ...]] = {
    0: (),
    1: (*version1.SHARED, NESTED_LAYER, INITIALISER_ENTRY),
}


def schema_of(version: int) -> dict[str, Any]:
    """Return the JSON Schema of a version."""
    shared = {each.name: each.make().schema() for each in SHARED[version]}
    made = {
        "$schema": DIALECT,
        "title": f"frame model spec, schema version {version}",
        **ROOTS[version].schema(),
    }
    return made | ({"$defs": shared} if shared else {})


def text_of(version: int) -> str:
    """Return the text of the schema file of a version."""
    return json.dumps(schema_of(version), indent=1, ensure_ascii=False) + "\n"


def path_of(version: int) -> Path:
    """Return where the schema file of a version is."""
    return FOLDER / f"spec-{version}.json"


def write_all(folder: Path = FOLDER) -> None:
    """Write the schema files of all versions."""
    for version in ROOTS:
        (folder / f"spec-{version}.json").write_text(text_of(version), "utf-8")


if __name__ == "__main__":
    write_all()
