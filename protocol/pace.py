"""The times by which the protocol goes where nothing can be measured, in seconds.

They stand for people's patience, home lines and machines that are busy. Whatever waits for the same
kind of thing waits as long, in every machine.
"""

from typing import Final

LOOK_S: Final = 0.5
"""How often is looked for what nobody announces."""
TICK_S: Final = 1.0
"""How often who is there says so, and is looked for."""
ANSWER_S: Final = TICK_S
"""An answer has come by then, and a word that still stands is no passing one."""
HEARD_S: Final = 4.0
"""By then all that are in touch have heard of what one of them has seen, and it has heard of
them."""
LOST_S: Final = 2 * HEARD_S
"""What shows no effect by then was lost, or comes to nothing."""
FORGET_S: Final = 30.0
"""What was seen so long ago says little of now."""
ASIDE_S: Final = 60.0
"""Who obstructs, or is of no use, is left aside for so long the first time; what nobody asks for is
kept, and what changes slowly is not said anew, for so long."""
SETTLED_S: Final = 300.0
"""What has been so for so long is no passing state."""
RENEWALS: Final = 3
"""So often in its life is said anew what still holds: two of these may be lost."""
SAVE_S: Final = 180.0
"""The state of a stage is on disk by then, or a copy of it elsewhere."""
LONG_S: Final = 3600.0
"""What was seen so long ago says nothing of now."""
FETCH_S: Final = 600.0
"""The state of a stage has come by then over a home's line, or that line is too slow for it."""
