"""How long the random histories are looked for: the same ones every time, or new ones for long."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

MORE = int(os.environ.get("ISWITCH_FUZZ_EXAMPLES", "0"))  # `make fuzz` sets it

FUZZ = settings(
    deadline=None,
    derandomize=not MORE,
    max_examples=MORE or 100,
    stateful_step_count=40,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    print_blob=True,
)
