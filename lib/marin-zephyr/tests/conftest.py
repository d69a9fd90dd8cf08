"""Property tests on machines that are busy with other things: how long an example takes says nothing."""

from hypothesis import HealthCheck, settings

settings.register_profile("busy", max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")
