"""Names of hosts, as people write them."""

from __future__ import annotations


def as_ascii(name: str) -> str:
    """Write the name of a host, or its address, in ASCII, as the domain name system takes it.

    Raises:
        ValueError: no host can have that name.
    """
    try:
        if "\0" in name:
            raise UnicodeError
        return name.encode("idna").decode()
    except UnicodeError:  # whose words are those of the codec
        raise ValueError(
            "no host can have that name; between two dots of one are 1 to 63 letters, digits or "
            "hyphens"
        ) from None
