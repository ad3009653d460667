# SPDX-License-Identifier: MIT OR Apache-2.0
"""Waits of coroutines: a context has one eventfd, which the event loop watches while coroutines wait for the context."""

import asyncio
import contextlib
import os
import threading
import weakref

from . import Event
from ._fermata import process

_watches = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def _begin_child():
    # The parent's event loop has the watches. Another thread may have had the lock.
    global _watches, _lock
    _watches, _lock = weakref.WeakKeyDictionary(), threading.Lock()


os.register_at_fork(after_in_child=_begin_child)


class _Watch:
    def __init__(self, loop):
        self.process = process()
        self.loop = loop
        self.waiters = {}
        self.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        loop.add_reader(self.fd, self.ready)

    def ready(self):
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.fd)
        self.wake()

    def wake(self):
        for changed in self.waiters:
            changed.set()

    def events(self):
        wanted = Event(0)
        for events in self.waiters.values():
            wanted |= events
        return wanted

    def end(self):
        self.loop.remove_reader(self.fd)
        os.close(self.fd)


def _watch(context, loop):
    with _lock:
        watch = _watches.get(context)
        if watch is None:
            watch = _watches[context] = _Watch(loop)
        elif watch.loop is not loop:
            raise RuntimeError("coroutines of another event loop wait for this context: wait in one loop at a time")
    return watch


def _leave(context, watch, changed):
    del watch.waiters[changed]
    if watch.process != process():
        return  # a child ends a coroutine of its parent, whose context and loop go on
    # The card may be gone, or the context closed.
    with contextlib.suppress(OSError, ValueError):
        if watch.waiters:
            context.set_eventfd(watch.fd, watch.events())
        else:
            context.set_eventfd(-1, 0)
    if not watch.waiters:
        with _lock:
            del _watches[context]
        watch.end()


async def wait(context, events):
    """Wait until one of `events` holds, and return those that hold."""
    watch = _watch(context, asyncio.get_running_loop())
    changed = asyncio.Event()
    watch.waiters[changed] = Event(events)
    try:
        context.set_eventfd(watch.fd, watch.events())
        while True:
            changed.clear()
            # BlockingIOError: the descriptor does not block.
            with contextlib.suppress(TimeoutError, BlockingIOError):
                return context.wait(events, timeout=0)
            await changed.wait()
    finally:
        _leave(context, watch, changed)


def closed(context):
    """Wake the coroutines that wait for a closed context: their next call raises an error."""
    with _lock:
        watch = _watches.get(context)
    if watch is not None:
        with contextlib.suppress(RuntimeError):  # the loop is closed too
            watch.loop.call_soon_threadsafe(watch.wake)
