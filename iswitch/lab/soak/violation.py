"""The exception that ends a history whose switches or workers break a promise."""


class Violation(Exception):
    """A promise was broken: `kind` names the promise; the message says how it was broken."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind
