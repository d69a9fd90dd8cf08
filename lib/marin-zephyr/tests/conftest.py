"""Property tests on machines that are busy with other things: how long an example takes says nothing."""

import signal

from hypothesis import HealthCheck, settings

settings.register_profile("default", max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("default")
# What nox asks for by its name draws the same examples every time, and no more of them.
settings.register_profile("ci", settings.get_profile("ci"), max_examples=50)

# Started in the background of a shell, this process ignores interrupts, and so would those that the tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)
