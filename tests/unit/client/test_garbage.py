"""What is imported for good is no garbage."""

import gc

from client.garbage import uncollected


def test_the_collector_rests_meanwhile_and_passes_over_it_afterwards() -> None:
    gc.unfreeze()
    with uncollected():
        assert not gc.isenabled()
    assert gc.isenabled()
    assert gc.get_freeze_count()
    gc.unfreeze()
