"""The slots through which a worker sends its rounds: docs/protocol.md, "Slots" and "Pools"."""

from __future__ import annotations

from iswitch.core.format.wire import ROUND_MASK, round_distance


class Slots:
    """How many slots each round has, as far as this worker knows; 0: one for each segment.

    The number of a round is decided when it begins. The switch may tell another one for later
    rounds.

    Attributes:
        of_round: slots of the round begun last.
    """

    def __init__(self) -> None:
        self.of_round = 0
        self._before = 0  # of the round before that
        self._next = 0  # of later rounds, until the switch tells another number
        self._told: tuple[int, int] | None = None  # a round, and the slots of those after it
        self._begun: int | None = None  # the newest round begun
        self.asked: int | None = None  # the newest request for a number; no earlier one counts

    def agree(self, slots: int) -> None:
        """Take the number that the switch names when this worker joins."""
        self.of_round = self._before = self._next = slots

    @property
    def largest(self) -> int:
        """Return the most slots of a round that may still need some, as a Join names them."""
        return max(self.of_round, self._before, self._next)

    def come_back(self) -> None:
        """Forget what a switch has told, since another may have come in its place."""
        self._told = self.asked = None

    def begin(self, round_: int) -> None:
        """Decide the number of a round that begins, or begins again."""
        if self._begun is not None and round_distance(round_, self._begun) <= 0:
            return
        self._begun, self._before = round_, self.of_round
        if self._told is not None and round_distance(round_, self._told[0]) > 0:
            self._next, self._told = self._told[1], None
        self.of_round = self._next

    def begun(self, round_: int) -> int:
        """Return the newest round begun; `round_` is that at which this worker stands."""
        return (round_ - 1) & ROUND_MASK if self._begun is None else self._begun

    @property
    def keeps(self) -> int:
        """Return the most slots that rounds use which are begun before the next answer."""
        return max(self._next, self._told[1] if self._told is not None else 0)

    def answered(self, request: int, round_: int, slots: int) -> bool:
        """Take the answer; return whether to ask again, to show that rounds keep to fewer.

        Args:
            request: the number of the request.
            round_: the number told is that of rounds after this one, or if smaller, of all that
                begin now.
            slots: the number told; 0: none.
        """
        if request != self.asked or not slots:
            return False
        keeps = self.keeps
        self._next = min(self._next, slots)
        self._told = round_, slots
        return slots < keeps
