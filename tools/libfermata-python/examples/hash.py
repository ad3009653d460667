# SPDX-License-Identifier: MIT OR Apache-2.0
"""hash.py WORD...: the SHA-256 of each word, each in a job of its own, all at once."""

import asyncio
import sys

import fermata
import numpy

DATA = 4096


async def sha256(word):
    with fermata.Context.open_engine("sha256") as context:
        arena = context.create_arena(2 * DATA)
        context.create_snapshot()
        # The array and the engine share the memory.
        memory = numpy.frombuffer(arena, dtype=numpy.uint8)
        memory[DATA : DATA + len(word)] = numpy.frombuffer(word, dtype=numpy.uint8)
        # The registers of the emulated card's engine (docs/emulated-card.md): data, their length,
        # where the digest goes.
        context.write_registers({0x30: arena.base + DATA, 0x38: len(word), 0x40: arena.base})
        context.start()
        await context.wait_async(fermata.Event.DONE)
        context.job_result()
        return memory[:32].tobytes().hex()


async def main(words):
    digests = await asyncio.gather(*(sha256(word.encode()[:DATA]) for word in words))
    for word, digest in zip(words, digests, strict=True):
        print(digest, word)


asyncio.run(main(sys.argv[1:] or ["abc"]))
