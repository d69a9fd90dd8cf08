"""No test here is judged by its speed: machines are shared, and timings live in bench/."""

from hypothesis import settings

settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")
