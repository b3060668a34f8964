# SPDX-License-Identifier: BSD-2-Clause
"""to_the_end.py PORT N: one connection after another, each read to its end."""
import os
import socket
import sys

for _ in range(int(sys.argv[2])):
    with socket.create_connection((os.environ['VKR_HOST'], int(sys.argv[1])), 10) as s:
        while s.recv(100):
            pass
