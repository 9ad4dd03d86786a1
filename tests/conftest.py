"""Settings of all tests."""

from hypothesis import HealthCheck, settings

# The duration of an example depends mostly on the machine: tests of speed measure processor time.
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")
