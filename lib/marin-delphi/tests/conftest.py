"""Settings of hypothesis for the whole suite."""

from hypothesis import settings

settings.register_profile("marin", deadline=None)  # a deadline would assert a timing
settings.load_profile("marin")
