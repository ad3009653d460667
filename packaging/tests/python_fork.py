# SPDX-License-Identifier: GPL-2.0
"""python_fork.py NAME: a parent with objects of the Python module, whose children inherit, use and destroy them."""

import asyncio
import atexit
import contextlib
import ctypes
import gc
import hashlib
import mmap
import multiprocessing
import os
import sys

import fermata
import numpy
from fermata import Event

CARD = "/dev/fermata0"
PAGE = 4096


def counting():
    """Return a context whose job counts endlessly, and its arena."""
    context = fermata.Context(CARD)
    context.setup("counter_up")
    arena = context.create_arena(2 * PAGE)
    context.create_snapshot()
    context.write_registers({0x30: 0, 0x38: 0, 0x40: arena.base})
    context.start()
    return context, arena


def hash_of(word):
    with fermata.Context.open_engine("sha256") as context:
        arena = context.create_arena(2 * PAGE)
        context.create_snapshot()
        memory = numpy.frombuffer(arena, dtype=numpy.uint8)
        memory[PAGE : PAGE + len(word)] = list(word)
        context.write_registers({0x30: arena.base + PAGE, 0x38: len(word), 0x40: arena.base})
        context.start()
        context.wait()
        return memory[:32].tobytes()


def hashes(word):
    assert hash_of(word) == hashlib.sha256(word).digest()
    gc.collect()


def goes_on(context):
    with contextlib.suppress(TimeoutError):
        raise AssertionError(context.wait(Event.DONE | Event.HELD, timeout=0.05))
    assert not context.status().preemptions


def child(run):
    """Run in a child, which ends as programs do: with atexit and the end of all objects."""
    pid = os.fork()
    if pid:
        assert os.waitpid(pid, 0)[1] == 0
    else:
        run()
        sys.exit()
    return pid


def refused(call, *arguments):
    with contextlib.suppress(ValueError):
        raise AssertionError(call(*arguments))


def objects():
    context, arena = counting()
    queue = fermata.Queue(arena, PAGE, 4)
    view = numpy.frombuffer(arena, dtype=numpy.uint8)
    kept = [context, arena, queue, view]
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p

    def run():
        nonlocal context, arena, queue, view
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x100000  # MAP_FIXED_NOREPLACE
        at = libc.mmap(ctypes.c_void_p(arena.base), ctypes.c_size_t(2 * PAGE), 3, flags, -1, ctypes.c_long(0))
        assert at == arena.base, at
        refused(memoryview, arena)
        refused(fermata.Queue, arena, 0, 2)
        refused(queue.reap)
        refused(queue.end)
        refused(lambda: queue.completed)
        context.close()
        del kept[:], context, arena, queue, view
        gc.collect()
        ctypes.memset(at, 7, 2 * PAGE)
        hashes(b"child")

    child(run)
    goes_on(context)
    view[0] = 1


def own_memory():
    """The arena is the program's own memory, which a context keeps until its job is off its slot."""
    for flags in (mmap.MAP_SHARED, mmap.MAP_PRIVATE):
        memory = mmap.mmap(-1, 2 * PAGE, flags=flags | mmap.MAP_ANONYMOUS)
        context = fermata.Context(CARD)
        context.setup("counter_up")
        base = context.use_memory(memory)
        context.create_snapshot()
        context.write_registers({0x30: 0, 0x38: 0, 0x40: base})
        context.start()
        atexit.register(gc.collect)
        child(lambda: None)
        child(context.close)  # noqa: B023
        goes_on(context)


def coroutine():
    """A child ends a coroutine that waits in the event loop of its parent."""

    async def main():
        context, arena = counting()
        wait = asyncio.create_task(context.wait_async(Event.HELD))
        await asyncio.sleep(0.05)
        pid = os.fork()
        if not pid:
            wait.get_coro().close()
            gc.collect()
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        context.preempt(hold=True)
        async with asyncio.timeout(20):
            assert await wait == Event.HELD

    asyncio.run(main())


def processes():
    """Start methods of multiprocessing. A child's arguments are pickled, which contexts refuse."""
    context, arena = counting()
    view = numpy.frombuffer(arena, dtype=numpy.uint8)
    for method in multiprocessing.get_all_start_methods():
        methods = multiprocessing.get_context(method)
        process = methods.Process(target=hashes, args=(method.encode(),))
        process.start()
        process.join()
        assert process.exitcode == 0, (method, process.exitcode)
        with methods.Pool(2) as pool:
            assert pool.map(hash_of, [b"a", b"b"]) == [hashlib.sha256(word).digest() for word in (b"a", b"b")]
        goes_on(context)
        print(method)
    view[0] = 1


if __name__ == "__main__":
    {"objects": objects, "own_memory": own_memory, "coroutine": coroutine, "processes": processes}[sys.argv[1]]()
