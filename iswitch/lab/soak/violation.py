"""What a history ends with when a promise is broken."""


class Violation(Exception):
    """A promise was broken: `kind` says which, the message how."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind
