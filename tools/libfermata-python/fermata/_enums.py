# SPDX-License-Identifier: MIT OR Apache-2.0
"""Constants of fermata.h."""

import enum


class Event(enum.IntFlag):
    """What wait() can wait for."""

    DONE = 1  # the job finished or failed
    HELD = 2  # the job is off its slot until resume()
    EMPTY = 4  # the job is off its slot until ring(): its queue is empty
    COMPLETED = 8  # something in the queue of the job is complete, or may be


class State(enum.IntEnum):
    """What a job is doing."""

    NEW = 0
    IDLE = 1
    QUEUED = 2
    RUNNING = 3
    HELD = 4
    DONE = 5
    FAILED = 6
    EMPTY = 7


class Param(enum.IntEnum):
    """Parameters of a context; fermata.h has units and ranges."""

    TIMESLICE = 1
    PREEMPT_TIMEOUT = 2
    PRIORITY = 3
    WEIGHT = 4
    LATENCY_CRITICAL = 5
    CAP = 6
    SLOT_MASK = 8
    COOPERATIVE = 9
    ENABLED = 10
