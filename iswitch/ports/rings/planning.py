"""How packets reach a set of receivers: as a group, singly, or by the port of all others."""

from __future__ import annotations

from typing import NamedTuple

from iswitch.core.format.packets import Address

from .members import Group, Member


class Plan(NamedTuple):
    """How packets reach a set of receivers.

    Attributes:
        group: gets them once for all its members; None: nobody does.
        singly: workers that get them alone.
        others: receivers without rings.
        former: groups with packets under way; a worker that was in one gets no other until then.
    """

    group: Group | None
    singly: tuple[Member, ...]
    others: tuple[Address, ...]
    former: tuple[Group, ...] = ()

    def is_over(self) -> bool:
        """Return whether another plan is due.

        Its group has been left, or a worker has caught up, or nothing is under way any more.
        """
        if self.former:
            return not any(group.down.under_way for group in self.former)
        left = self.group is not None and self.group.is_left
        return left or any(member.lags and member.catches_up() for member in self.singly)


def is_part(members: tuple[Member, ...]) -> bool:
    """Return whether these are a part of a group: a group of their own would end that one."""
    group = members[0].group()
    if group is None or any(member.is_gone for member in group.heirs):
        return False
    return {*members} < {*group.heirs}
