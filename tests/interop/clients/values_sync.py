# SPDX-License-Identifier: BSD-2-Clause
"""values_sync.py PORT SIZE...: each value goes to the server and comes back intact, by python3-redis."""
import hashlib
import os
import sys

import redis

client = redis.Redis(os.environ['VKR_HOST'], int(sys.argv[1]))
for size in map(int, sys.argv[2:]):
    value = (hashlib.sha512(b'%d' % size).digest() * (size // 64 + 1))[:size]
    assert client.set(f'sync:{size}', value)
    got = client.get(f'sync:{size}')
    assert got == value, f'{size}: {len(got)} bytes came back, differing'
    assert client.strlen(f'sync:{size}') == size
    print(size, 'ok')
