"""The times by which the seat and its pipeline go where nothing can be measured, in seconds."""

from __future__ import annotations

from typing import Final

LOOK_S: Final = 0.5
"""How often is looked for what nobody announces."""
ANSWER_S: Final = 1.0
"""An answer has come by then, and a word that still stands is no passing one."""
HEARD_S: Final = 4.0
"""By then all that are in touch have heard of what one of them has seen, and it has heard of
them."""
LOST_S: Final = 2 * HEARD_S
"""What shows no effect by then was lost, or comes to nothing."""
FORGET_S: Final = 30.0
"""What was seen so long ago says little of now."""
ASIDE_S: Final = 60.0
"""Who obstructs is set aside for so long the first time; it doubles with each later one."""
