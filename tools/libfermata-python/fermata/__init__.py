# SPDX-License-Identifier: MIT OR Apache-2.0
"""Jobs on accelerator cards that the kernel module fermata shares.

A Context is one open file of a card, with at most one job at a time. Its Arena is the memory that it shares with the engine: a buffer from
which numpy makes arrays without a copy. `help(fermata.Context)` describes the calls.
"""

import enum

from ._fermata import Arena, Context, JobError, Queue, __version__, devices

__all__ = ["Arena", "Context", "Event", "JobError", "Param", "Queue", "State", "__version__", "devices"]


class Event(enum.IntFlag):
    """Events that wait() can wait for."""

    DONE = 1  # the job finished or failed
    HELD = 2  # the job is off its slot until resume()
    EMPTY = 4  # the job is off its slot until ring(): its queue is empty
    COMPLETED = 8  # something in the queue of the job is complete, or may be


class State(enum.IntEnum):
    """State of a context and its job."""

    NEW = 0
    IDLE = 1
    QUEUED = 2
    RUNNING = 3
    HELD = 4
    DONE = 5
    FAILED = 6
    EMPTY = 7


class Param(enum.IntEnum):
    """Parameters of a context; fermata.h has their units and ranges."""

    TIMESLICE = 1
    PREEMPT_TIMEOUT = 2
    PRIORITY = 3
    WEIGHT = 4
    LATENCY_CRITICAL = 5
    CAP = 6
    SLOT_MASK = 8
    COOPERATIVE = 9
    ENABLED = 10
