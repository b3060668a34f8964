# SPDX-License-Identifier: BSD-2-Clause
"""talk.py PORT: values around the ends of buffers, a pipeline and a large reply, by python3-redis; any wrong byte is fatal."""
import os
import random
import sys

import redis

client = redis.Redis(os.environ['VKR_HOST'], int(sys.argv[1]))
rnd = random.Random(1)
for size in (0, 1, 31, 1023, 32767, 32768, 65536, 1048575, 1048576, 1048577):
    value = rnd.randbytes(size)
    assert client.set('value', value)
    got = client.get('value')
    assert got == value, f'{size} bytes: {len(got)} came back, first difference at ' \
        f'{next((i for i, (a, b) in enumerate(zip(got, value)) if a != b), "the end")}'
pipe = client.pipeline(transaction=False)
for i in range(1000):
    pipe.set(f'key:{i}', str(i) * (i % 50))
    pipe.get(f'key:{i}')
out = pipe.execute()
assert out == [x for i in range(1000) for x in (True, (str(i) * (i % 50)).encode())]
items = [rnd.randbytes(5000) for _ in range(400)]
client.delete('list')
client.rpush('list', *items)
assert client.lrange('list', 0, -1) == items
print('ok')
