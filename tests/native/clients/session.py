# SPDX-License-Identifier: BSD-2-Clause
"""session.py PORT: one python3-redis connection that obeys lines on stdin, one answer a line.

ping; get KEY (answers length and SHA-256); again (PING until a new connection works, at most 20 s); quit.
"""
import hashlib
import os
import sys
import time

import redis

client = redis.Redis(os.environ['VKR_HOST'], int(sys.argv[1]), socket_timeout=20)


def again():
    deadline = time.monotonic() + 20
    while True:
        try:
            return client.ping()
        except (redis.ConnectionError, redis.TimeoutError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


for line in sys.stdin:
    word, *args = line.split()
    if word == 'quit':
        break
    if word == 'get':
        value = client.get(args[0])
        print(len(value), hashlib.sha256(value).hexdigest(), flush=True)
    elif word == 'blpop':
        print('blocked', flush=True)
        client.blpop(args[0], 0)
    else:
        assert client.ping() if word == 'ping' else again()
        print('PONG', flush=True)
