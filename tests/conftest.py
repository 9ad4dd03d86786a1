"""What holds for all tests."""

from hypothesis import HealthCheck, settings

# How long an example takes says more of the machine than of what is tested: where something must be
# quick, a test measures processor time.
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")
