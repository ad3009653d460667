# SPDX-License-Identifier: MIT OR Apache-2.0
"""Jobs on accelerator cards that the kernel module fermata shares.

A Context is one open file of a card, with at most one job at a time. Its Arena is the memory that it shares with the engine, a buffer of
which numpy makes arrays without a copy. `help(fermata.Context)` describes the calls.
"""

from ._enums import Event, Param, State
from ._fermata import Arena, Context, JobError, Queue, __version__, devices

__all__ = ["Arena", "Context", "Event", "JobError", "Param", "Queue", "State", "__version__", "devices"]
