"""The exception that ends a history whose switches or workers break a promise."""


class Violation(Exception):
    """A promise was broken: `kind` says which, the message how."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind
