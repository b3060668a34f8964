#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause
# bed.sh CELLS TOPICS, bed.sh --rings: the tests of this folder on the test bed's device.
here=$(cd "$(dirname "$0")" && pwd)
export VKR_PROVIDER=verbs VKR_HOST=$BED_ADDR4 VKR_HOST6=$BED_ADDR6 VKR_BUILD=$BED_BUILD VKR_TIER=quick VKR_MATRIX=$BED_OUT/native-matrix
export PYTHONDONTWRITEBYTECODE=1
[ "$1" != --rings ] || exec /usr/bin/python3 "$here/test_rings.py"
VKR_CELLS=$1 VKR_TOPICS=$2 exec /usr/bin/python3 "$here/test_matrix.py"
