"""Settings for the whole suite."""

from hypothesis import settings

# A busy machine is no failure: examples are bounded in number, and tests in time by pytest-timeout.
settings.register_profile("mailboat", deadline=None)
settings.load_profile("mailboat")
