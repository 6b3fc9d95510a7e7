"""A plugin for pytest: Hypothesis only finds what fails, and does not make it shorter."""

from hypothesis import Phase, settings

settings.register_profile("hurry", derandomize=True, phases=(Phase.explicit, Phase.generate))
settings.load_profile("hurry")
