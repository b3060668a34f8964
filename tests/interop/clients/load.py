# SPDX-License-Identifier: BSD-2-Clause
"""load.py PORT SECONDS [PAUSE]: several connections write and read back; any wrong byte is fatal.

PAUSE: seconds between two batches of a connection, none by default.
"""
import hashlib
import os
import random
import sys
import threading
import time

import redis

PORT, SECONDS = int(sys.argv[1]), float(sys.argv[2])
PAUSE = float(sys.argv[3]) if len(sys.argv) > 3 else 0
failed, counts = [], []


def value(key, turn, size):
    unit = hashlib.sha256(f'{key}/{turn}'.encode()).digest()
    return (unit * (size // 32 + 1))[:size]


def worker(number):
    try:
        client = redis.Redis(os.environ['VKR_HOST'], PORT)
        rnd = random.Random(number)
        held, turn = {}, 0
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            pipe = client.pipeline(transaction=False)
            expected = []
            for _ in range(rnd.randrange(1, 30)):
                turn += 1
                key = f'load:{os.getpid()}:{number}:{rnd.randrange(200)}'
                if key in held and rnd.random() < 0.5:
                    pipe.get(key)
                    expected.append(value(key, *held[key]))
                else:
                    held[key] = (turn, rnd.choice((10, 100, 1000, 20000)))
                    pipe.set(key, value(key, *held[key]))
                    expected.append(True)
            got = pipe.execute()
            time.sleep(PAUSE)
            if got != expected:
                bad = next(i for i, (g, e) in enumerate(zip(got, expected)) if g != e)
                raise AssertionError(f'worker {number}: reply {bad} is {got[bad]!r:.80}, not {expected[bad]!r:.80}')
        for key, what in held.items():
            assert client.get(key) == value(key, *what), key
        counts.append(turn)
    except BaseException as e:  # noqa: every end of a worker but the normal one is a failure
        failed.append(f'{type(e).__name__}: {e}')


threads = [threading.Thread(target=worker, args=(i,)) for i in range(6)]
for t in threads:
    t.start()
for t in threads:
    t.join()
print(sum(counts), 'operations')
sys.exit('\n'.join(failed) if failed else 0)
