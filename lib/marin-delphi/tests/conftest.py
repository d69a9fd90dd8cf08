"""Settings of hypothesis for the whole suite."""

from hypothesis import settings

settings.register_profile("default", deadline=None)  # a deadline would assert a timing
settings.load_profile("default")
