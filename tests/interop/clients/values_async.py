# SPDX-License-Identifier: BSD-2-Clause
"""values_async.py PORT SIZE...: the same through asyncio, several tasks at a time."""
import asyncio
import hashlib
import os
import sys

import redis.asyncio as redis


async def one(client, size, turn):
    value = (hashlib.sha512(b'%d.%d' % (size, turn)).digest() * (size // 64 + 1))[:size]
    key = f'async:{size}:{turn}'
    assert await client.set(key, value)
    got = await client.get(key)
    assert got == value, f'{size}: {len(got)} bytes came back, differing'
    await client.delete(key)


async def main():
    client = redis.Redis(host=os.environ['VKR_HOST'], port=int(sys.argv[1]))
    for size in map(int, sys.argv[2:]):
        await asyncio.gather(*(one(client, size, turn) for turn in range(1 if size > 4 << 20 else 8)))
        print(size, 'ok')
    await client.close()


asyncio.run(main())
