# SPDX-License-Identifier: BSD-2-Clause
"""kernel_payload.py BZIMAGE OUT: the ELF kernel inside an x86 boot image, found by the boot protocol's header."""
import gzip
import lzma
import struct
import subprocess
import sys

with open(sys.argv[1], 'rb') as f:
    image = f.read()
if image[0x202:0x206] != b'HdrS':
    sys.exit('not a boot image')
sectors = image[0x1f1] or 4
offset, length = struct.unpack_from('<II', image, 0x248)
start = (sectors + 1) * 512 + offset
data = image[start:start + length - 4]  # the last four bytes are the unpacked size
if data[:6] == b'\xfd7zXZ\0':
    kernel = lzma.LZMADecompressor().decompress(data)
elif data[:2] == b'\x1f\x8b':
    kernel = gzip.decompress(data)
elif data[:4] == b'\x28\xb5\x2f\xfd':
    kernel = subprocess.run(['zstd', '-dcq'], input=data, stdout=subprocess.PIPE, check=False).stdout
else:
    sys.exit(f'packed in a way that is not known here: {data[:6]!r}')
if kernel[:4] != b'\x7fELF':
    sys.exit('what is inside is no ELF file')
with open(sys.argv[2], 'wb') as f:
    f.write(kernel)
