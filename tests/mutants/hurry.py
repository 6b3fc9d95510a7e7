"""A plugin for pytest: Hypothesis only finds what fails, and does not make it shorter.

pytest-xdist is not loaded; its mark, which conftest.py gives, is known all the same.
"""

import pytest
from hypothesis import Phase, settings

settings.register_profile("hurry", derandomize=True, phases=(Phase.explicit, Phase.generate))
settings.load_profile("hurry")


def pytest_configure(config: pytest.Config) -> None:
    """Know the mark of pytest-xdist."""
    config.addinivalue_line("markers", "xdist_group(name): tests that go one after the other")
