"""Which names an array may have in a weight file, the same for every format."""

from __future__ import annotations

from frame.core.errors import InvalidArgumentError

MAX_NAME = 1024
METADATA = "__metadata__"
DTYPES = "__dtypes__"
RESERVED = frozenset({METADATA, DTYPES})


def check_name(name: object) -> str:
    """Return the name.

    Raises:
        InvalidArgumentError: it is empty, longer than 1024 characters, has a character that can't
            be printed, or is one of the names that the formats use themselves.
    """
    good = isinstance(name, str) and 0 < len(name) <= MAX_NAME and name.isprintable()
    if not good or name in RESERVED:
        raise InvalidArgumentError(
            f"expected an array name of 1 to {MAX_NAME} printable characters other than "
            f"{' and '.join(sorted(RESERVED))}, received {name!r:.200}"
        )
    return str(name)
