"""Settings of all tests."""

import gc

from hypothesis import HealthCheck, settings

pytest_plugins = ["tests.support.budgets"]

# The duration of an example depends mostly on the machine: tests of speed measure processor time.
# Every run draws other examples: two runs are one of as many as usual.
settings.register_profile(
    "any machine",
    deadline=None,
    max_examples=50,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("any machine")


def pytest_collection_finish() -> None:
    """Look for garbage only in what the tests make, and less often: a tenth of their time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000)
