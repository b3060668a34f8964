/* SPDX-License-Identifier: BSD-2-Clause */
/* argv[1] reads of one byte: test_intercept.py counts the instructions. */
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	int fd = open("/dev/zero", O_RDONLY), n = argc > 1 ? atoi(argv[1]) : 0;
	char c;

	for (int i = 0; i < n; i++)
		if (read(fd, &c, 1) != 1)
			return 1;
	return 0;
}
