# SPDX-License-Identifier: GPL-2.0
"""python_module.py NUMBER: TAP points, from NUMBER on, of the Python module on /dev/fermata0, which has a counter_up, a sha256 and a
queue."""

import asyncio
import contextlib
import errno
import gc
import hashlib
import logging
import mmap
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
import traceback
import weakref
from pathlib import Path

import fermata
import numpy
from fermata import Event, Param, State

CARD = "/dev/fermata0"
PAGE = 4096
UNBIND = Path("/sys/bus/pci/drivers/fermata/unbind")
HEADER = Path("/fermata/uapi/fermata.h").read_text()


@contextlib.contextmanager
def raises(kind, words="", number=None):
    try:
        yield
    except kind as error:
        assert words in str(error), error
        assert number is None or error.errno == number, error
        return
    raise AssertionError(f"no {kind.__name__}")


def tenant(engine):
    context = fermata.Context(CARD)
    context.setup(engine)
    arena = context.create_arena(2 * PAGE)
    assert context.create_snapshot() % PAGE == 0
    return context, arena


def counting(count=0):
    """Return a context whose job counts; 0: endlessly."""
    context, arena = tenant("counter_up")
    context.write_registers({0x30: count, 0x38: 0, 0x40: arena.base})
    return context, arena


def hashing(word=b"abc"):
    context, arena = tenant("sha256")
    memory = numpy.frombuffer(arena, dtype=numpy.uint8)
    memory[PAGE : PAGE + len(word)] = numpy.frombuffer(word, dtype=numpy.uint8)
    context.write_registers([(0x30, arena.base + PAGE), (0x38, len(word)), (0x40, arena.base)])
    context.declare_results([0x38, 0x58, 0x60, 0x68, 0x70])
    return context, memory


def until_on_a_slot(context, slices=0):
    while context.status().slices <= slices:
        time.sleep(0.001)


def after(seconds, call, *arguments):
    timer = threading.Timer(seconds, call, arguments)
    timer.start()
    return timer


def test_arrays_share_the_memory_of_an_arena():
    context, arena = tenant("sha256")
    words = numpy.frombuffer(arena, dtype=numpy.uint64)
    assert len(arena) == 2 * PAGE and words.nbytes == 2 * PAGE and not words.any()
    assert words.flags.writeable and words.ctypes.data == arena.base
    words[3] = 77
    other = memoryview(arena)
    assert not other.readonly and other[24] == 77
    other[32:40] = (5).to_bytes(8, "little")
    assert words[4] == 5


def test_arena_stays_mapped_while_views_live():
    context, arena = tenant("sha256")
    words = numpy.frombuffer(arena, dtype=numpy.uint64)
    with raises(BufferError, "views of the arena live"):
        arena.close()
    gone = weakref.finalize(context, lambda: None)
    context.close()
    base = arena.base
    del context, arena
    gc.collect()
    assert not gone.alive
    words[:] = 1
    assert int(words.sum()) == 1024 and f"{base:x}-" in Path("/proc/self/maps").read_text()
    del words
    gc.collect()
    assert f"{base:x}-" not in Path("/proc/self/maps").read_text()


def test_closed_arena_gives_no_views():
    context, arena = tenant("sha256")
    with arena:
        memoryview(arena).release()
    with raises(ValueError, "the arena is closed"):
        memoryview(arena)
    with raises(ValueError, "the arena is closed"):
        numpy.frombuffer(arena, dtype=numpy.uint8)
    arena.close()


def test_jobs_have_results_in_memory_and_registers():
    context, memory = hashing(b"some words")
    wanted = hashlib.sha256(b"some words").digest()
    with raises(FileNotFoundError):
        context.job_result()
    for number in 1, 2:
        memory[:32] = 0
        assert context.start() == number
        assert context.wait() == Event.DONE
        context.job_result()
        assert memory[:32].tobytes() == wanted
    length, *words = context.read_registers([0x38, 0x58, 0x60, 0x68, 0x70])
    assert length == 10 and numpy.array(words, dtype="<u8").tobytes() == wanted
    status = context.status()
    assert status.state is State.DONE and status.finished == 2 and status.slot is None


def test_waits_have_timeouts():
    context, arena = counting()
    with raises(FileNotFoundError, "wait for the job"):
        context.wait()
    context.start()
    with raises(TimeoutError):
        context.wait(timeout=0)
    begin = time.monotonic()
    with raises(TimeoutError, number=errno.ETIMEDOUT):
        context.wait(Event.DONE | Event.HELD, timeout=0.05)
    assert time.monotonic() - begin >= 0.05
    for wrong in -1, float("nan"), 1e300:
        with raises(ValueError, "is no time"):
            context.wait(timeout=wrong)
    with raises(OSError, "busy (wait for the end of the job", errno.EBUSY):
        context.start()


def test_other_threads_run_during_a_wait():
    context, arena = counting()
    context.start()
    timer = after(0.1, lambda: context.preempt(hold=True))
    assert context.wait(Event.HELD) == Event.HELD
    timer.join()


def test_control_c_ends_a_wait():
    context, arena = counting()
    context.start()
    with raises(KeyboardInterrupt):
        timer = after(0.2, signal.pthread_kill, threading.get_ident(), signal.SIGINT)
        context.wait()
    timer.join()


def test_other_signals_do_not_end_a_wait():
    context, arena = counting()
    context.start()
    handled = []
    signal.signal(signal.SIGALRM, lambda number, frame: handled.append(number))
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    timer = after(0.4, lambda: context.preempt(hold=True))
    assert context.wait(Event.HELD) == Event.HELD
    timer.join()
    assert handled == [signal.SIGALRM]


def test_descriptor_can_be_polled():
    context, memory = hashing()
    poll = select.poll()
    poll.register(context, select.POLLIN)
    assert poll.poll(0) == []
    context.start()
    assert poll.poll() == [(context.fileno(), select.POLLIN)]
    with os.fdopen(os.eventfd(0), "rb") as file:
        context.set_eventfd(file.fileno(), Event.DONE)
        context.start()
        assert os.eventfd_read(file.fileno()) == 1
        context.set_eventfd(-1, 0)
    with raises(OSError, number=errno.EINVAL):
        context.set_eventfd(context.fileno(), Event.DONE)


def test_coroutines_wait_for_many_jobs():
    async def one(word):
        context, memory = hashing(word)
        os.set_blocking(context.fileno(), word != b"word 0")
        context.start()
        assert await context.wait_async() == Event.DONE
        context.job_result()
        assert memory[:32].tobytes() == hashlib.sha256(word).digest()

    async def main():
        await asyncio.gather(*(one(b"word %d" % number) for number in range(8)))

    asyncio.run(main())


def test_event_loop_goes_on_during_a_wait():
    async def main():
        context, arena = counting()
        context.start()
        wait = asyncio.create_task(context.wait_async(Event.HELD))
        await asyncio.sleep(0.05)
        assert not wait.done()
        context.preempt(hold=True)
        assert await wait == Event.HELD

    asyncio.run(main())


def test_coroutines_wait_for_different_events_of_one_context():
    async def main():
        context, arena = counting()
        context.start()
        done, held = (asyncio.create_task(context.wait_async(event)) for event in (Event.DONE, Event.HELD))
        both = asyncio.create_task(context.wait_async(Event.DONE | Event.HELD))
        await asyncio.sleep(0.05)
        context.preempt(hold=True)
        assert await held == Event.HELD and await both == Event.HELD and not done.done()
        done.cancel()
        with raises(asyncio.CancelledError):
            await done

    asyncio.run(main())


def test_timeouts_of_asyncio_leave_nothing_behind():
    descriptors = len(os.listdir("/proc/self/fd"))

    async def main():
        context, arena = counting()
        context.start()
        for _ in range(3):
            with raises(TimeoutError):
                async with asyncio.timeout(0.02):
                    await context.wait_async()
            assert not fermata._aio._watches
        context.close()

    asyncio.run(main())
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_closing_wakes_coroutines():
    async def main():
        context, arena = counting()
        context.start()
        waits = [asyncio.create_task(context.wait_async()) for _ in range(2)]
        await asyncio.sleep(0.05)
        await asyncio.to_thread(context.close)
        for wait in waits:
            with raises(ValueError, "the context is closed"):
                await wait

    asyncio.run(main())
    assert not fermata._aio._watches


def test_one_event_loop_at_a_time():
    async def main(context):
        wait = asyncio.create_task(context.wait_async())
        await asyncio.sleep(0.05)
        with raises(RuntimeError, "another event loop"):
            await asyncio.to_thread(asyncio.run, context.wait_async())
        context.preempt(hold=True)
        wait.cancel()
        with raises(asyncio.CancelledError):
            await wait

    context, arena = counting()
    context.start()
    asyncio.run(main(context))
    context.resume()
    with raises(TimeoutError):
        asyncio.run(asyncio.wait_for(context.wait_async(), 0.05))


def test_jobs_are_preempted_held_and_resumed():
    context, arena = counting()
    with raises(FileNotFoundError):
        context.preempt()
    context.start(held=True)
    assert context.status().state is State.HELD
    with raises(OSError, number=errno.ENODATA):
        context.read_snapshot()
    context.resume()
    until_on_a_slot(context)
    with raises(OSError, number=errno.EBUSY):
        context.read_snapshot()
    context.preempt()
    context.preempt(hold=True)
    context.wait(Event.HELD)
    slices = context.status().slices
    hold = context.hold()
    context.resume()
    assert context.status().state is State.HELD
    os.close(hold)
    until_on_a_slot(context, slices)


def test_a_job_goes_on_in_memory_of_a_numpy_array():
    context, arena = counting(6000000)
    context.start()
    until_on_a_slot(context)
    context.preempt(hold=True)
    context.wait(Event.HELD)
    state = context.read_snapshot()
    assert len(state) == context.status().snapshot_length
    with fermata.Context(CARD) as other:
        other.setup("434f554e-5445-5255-0000-000000000007")
        memory = numpy.frombuffer(mmap.mmap(-1, PAGE), dtype=numpy.uint64)
        assert other.use_memory(memory, arena.base) == arena.base
        other.create_snapshot()
        with raises(OSError, number=errno.ENODATA):
            other.start(saved=True)
        other.write_snapshot(state)
        other.write_registers({0x30: 6000000, 0x38: 0, 0x40: arena.base})
        other.start(saved=True)
        other.wait()
        other.job_result()
        assert memory[0] == 6000000


def test_memory_of_the_program_is_kept_until_the_engine_has_left_it():
    context = fermata.Context(CARD)
    context.setup("counter_up")
    memory = mmap.mmap(-1, PAGE)
    assert context.use_memory(memory) == numpy.frombuffer(memory, dtype=numpy.uint8).ctypes.data
    context.create_snapshot()
    context.write_registers({0x30: 0, 0x38: 0, 0x40: context.status().device_base})
    context.start()
    until_on_a_slot(context)
    gc.collect()
    with raises(BufferError):
        memory.close()
    context.close()
    memory.close()


def test_memory_that_cannot_be_an_arena_is_refused():
    with fermata.Context(CARD) as context:
        context.setup("sha256")
        with raises(BufferError, "read-only"):
            context.use_memory(bytes(PAGE))
        memory = numpy.frombuffer(mmap.mmap(-1, 4 * PAGE), dtype=numpy.uint8)
        with raises(BufferError, "not contiguous"):
            context.use_memory(memory.reshape(4, PAGE)[:, : PAGE // 2])
        with raises(ValueError, "multiples of 4096"):
            context.use_memory(memory[8 : 8 + PAGE])
        with raises(ValueError, "multiples of 4096"):
            context.use_memory(memory[: PAGE + 8])
        with raises(TypeError):
            context.use_memory(17)
        with raises(OSError, number=errno.EINVAL):
            context.use_memory(memory, base=8)
        context.use_memory(memory)
        with raises(FileExistsError):
            context.use_memory(memory)


def test_contexts_share_memory():
    context, memory = hashing()
    with fermata.Context(CARD) as other:
        other.setup("counter_up")
        with other.share_arena(context, PAGE, PAGE) as arena:
            with memoryview(arena) as view:
                assert bytes(view[:3]) == b"abc"


def test_a_job_that_leaves_its_arena_fails():
    context, memory = hashing()
    beyond = context.status().device_base + 16 * PAGE
    context.write_registers({0x30: beyond})
    context.start()
    context.wait()
    with raises(fermata.JobError, "the engine read at 0x", errno.EFAULT):
        context.job_result()
    status = context.status()
    assert status.state is State.FAILED and beyond <= status.fault_addr < beyond + PAGE


def test_errors_are_those_of_python():
    with raises(FileNotFoundError, "/dev/fermata99: open the card: there is no such thing ("):
        fermata.Context("/dev/fermata99")
    with raises(OSError, "give the descriptor of an open /dev/fermata", errno.ENOTTY):
        fermata.Context("/dev/null").setup("sha256")
    with raises(ValueError, "sha257"):
        fermata.Context.open_engine("sha257")
    with raises(FileNotFoundError):
        fermata.Context.open_engine("membench")
    context = fermata.Context(Path(CARD))
    with raises(OSError, "no engine is chosen", errno.ENXIO):
        context.start()
    context.setup("sha256")
    with raises(OSError, number=errno.EINVAL):
        context.create_arena(PAGE + 1)
    with raises(OverflowError):
        context.create_arena(-1)
    with raises(TypeError):
        context.write_registers("abc")
    with raises(OSError, number=errno.EINVAL):
        context.write_registers({8: 1})
    context.close()
    context.close()
    assert repr(context) == "<fermata.Context on /dev/fermata0, closed>"
    with raises(ValueError, "the context is closed"):
        context.status()
    child = os.fork()
    if child == 0:
        os.setgroups([])
        os.setresgid(2000, 2000, 2000)
        os.setresuid(2000, 2000, 2000)
        with raises(PermissionError, "be a member of the group fermata"):
            fermata.Context(CARD)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


def test_parameters_reservations_hints_and_gangs():
    context, arena = counting()
    context.set_param(Param.WEIGHT, 77)
    assert context.param(Param.WEIGHT) == 77
    with raises(OSError, number=errno.ERANGE):
        context.set_param(Param.WEIGHT, 1000000)
    with raises(ValueError, "there is no parameter 7"):
        context.param(7)
    context.reserve(0.001, 0.01, 0.02)
    with raises(OSError, "reserve time: busy", errno.EBUSY):
        context.reserve(0.019, 0.02, 0.02)
    with raises(OSError, number=errno.ERANGE):
        context.reserve(0.001, 0.03, 0.02)
    context.reserve(0, 0, 0)
    context.hint(0.1)
    context.hint(None)
    other, memory = hashing()
    other.join_gang(context.status().context)
    other.join_gang(0)


def test_constants_are_those_of_the_header():
    def constants(kind):
        found = re.findall(rf"#define FERMATA_{kind}_(\w+)\s+(\(1U << \d+\)|\d+) ", HEADER)
        return {name: eval(value.replace("U", "")) for name, value in found}

    for kind, enumeration in (("EVENT", Event), ("STATE", State), ("PARAM", Param)):
        assert constants(kind) == {member.name: member.value for member in enumeration}, kind


def test_jobs_are_posted_to_a_queue_and_reaped():
    def reap(count):
        """Return jobs by number, which may become complete in any order."""
        jobs, happened = {}, 0
        while len(jobs) < count:
            if job := queue.reap():
                assert job.tag == 10 * job.number, job
                jobs[job.number] = job
            else:
                assert not happened & Event.DONE, jobs
                happened = context.wait(Event.COMPLETED | Event.DONE)
        return jobs

    context, arena = tenant("queue")
    assert fermata.Queue.length(8) == 8 * 96 + 128
    for offset, entries in ((0, 6), (8, 8), (2 * PAGE - 64, 8)):
        with raises(ValueError, f"{entries} entries at offset {offset}: entries is a power of two"):
            fermata.Queue(arena, offset, entries)
    queue = fermata.Queue(arena, 0, 8)
    context.write_registers([*queue.registers, (queue.COALESCE_COUNT, 1)])
    memory, at = numpy.frombuffer(arena, dtype=numpy.uint8), arena.base + PAGE
    memory[PAGE : PAGE + 9] = list(b"123456789")
    assert queue.reap() is None
    for number in range(7):
        assert queue.copy(at, at + 64 * (number + 1), 9, tag=10 * number) == number
    with raises(BlockingIOError, "the queue is full", errno.EAGAIN):
        queue.end()
    assert queue.outstanding == 7
    context.start()
    jobs = reap(7)
    assert [jobs[number].error for number in range(7)] == [0] * 7
    assert memory[PAGE + 448 : PAGE + 457].tobytes() == b"123456789"
    context.wait(Event.EMPTY)
    queue.fill(at + 512, 12, 0x0807060504030201, tag=70)
    queue.crc32c(at, 9, tag=80)
    queue.sha256(at, 9, at + 1024, tag=90)
    queue.copy(at, at, 1 << 62, tag=100)
    assert queue.needs_doorbell
    context.ring()
    jobs = reap(4)
    assert jobs[7].result == 0 and memory[PAGE + 512 : PAGE + 524].tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4]
    assert jobs[8].result == 0xE3069283
    assert jobs[9].error == 0 and memory[PAGE + 1024 : PAGE + 1056].tobytes() == hashlib.sha256(b"123456789").digest()
    assert jobs[10].error == errno.EINVAL
    queue.end(tag=110)
    if queue.needs_doorbell:
        # The engine may have found the end before it left.
        with contextlib.suppress(FileNotFoundError):
            context.ring()
    assert reap(1)[11].error == 0
    context.wait()
    context.job_result()
    assert (queue.completed, queue.outstanding) == (12, 0)
    # The memory stays as long as the queue exists.
    del memory
    arena.close()
    context.close()
    assert queue.completed == 12
    with raises(ValueError, "the arena is closed"):
        fermata.Queue(arena, 0, 8)


def test_structures_have_the_members_of_the_header():
    def members(name):
        body = re.search(rf"struct fermata_{name} {{(.*?)}};", HEADER, re.S).group(1)
        return set(re.findall(r"(\w+);", body)) - {"size"}

    context, arena = counting()
    assert set(vars(context.status())) == members("status") - {"flags"}
    assert set(vars(context.card_info())) == members("card_info") - {"flags"}
    slots = [context.slot_info(slot) for slot in range(context.card_info().slots)]
    assert set(vars(slots[0])) == members("slot_info") - {"afu_id_lo", "afu_id_hi"} | {"uuid", "engine"}
    assert [slot.engine for slot in slots] == ["counter_up", "sha256", "queue"]
    assert fermata.devices() == [Path(CARD)], fermata.devices()
    with fermata.Context(CARD) as other:
        assert other.setup("sha256") == other.status().context != context.status().context


def forks(name):
    command = [sys.executable, "-X", "dev", "-W", "ignore::DeprecationWarning", Path(__file__).with_name("python_fork.py"), name]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_forked_child_destroys_its_objects_at_its_end():
    forks("objects")


def test_a_forked_child_leaves_its_parents_job_on_its_slot():
    forks("own_memory")


def test_a_forked_child_leaves_coroutines_of_its_parent_waiting():
    forks("coroutine")


def test_each_start_method_of_multiprocessing():
    assert set(forks("processes").split()) == {"fork", "spawn", "forkserver"}


def test_a_card_that_goes_ends_waits():
    async def main(context):
        wait = asyncio.create_task(context.wait_async())
        await asyncio.sleep(0.05)
        pci = Path("/sys/class/fermata/fermata0/device").resolve().name
        await asyncio.to_thread(UNBIND.write_text, pci)
        with raises(OSError, "the card is gone (close the context", errno.ENODEV):
            await wait

    context, arena = counting()
    context.start()
    asyncio.run(main(context))
    with raises(OSError, number=errno.ENODEV):
        context.wait(timeout=0)


def main():
    # How long a step of a coroutine takes depends on the machine.
    logging.getLogger("asyncio").setLevel(logging.ERROR)
    number = int(sys.argv[1])
    failed = False
    for name, test in list(globals().items()):
        if not name.startswith("test_"):
            continue
        what = name.removeprefix("test_").replace("_", " ")
        try:
            test()
            print(f"ok {number} {what}", flush=True)
        except BaseException:
            failed = True
            print("".join(f"# {line}\n" for line in traceback.format_exc().splitlines()) + f"not ok {number} {what}", flush=True)
        gc.collect()
        number += 1
    sys.exit(failed)


if __name__ == "__main__":
    main()
