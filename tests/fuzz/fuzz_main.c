/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Runs a fuzz target without libFuzzer: each seed as it is, then seeds changed by a generator that is the same in every
 * run. An input that aborts is left in crash.bin.
 *
 *   fuzz_X [-n CHANGES] [-s SEED]   the run that ctest makes
 *   fuzz_X FILE...                  these inputs only
 *   fuzz_X -w FOLDER                writes the seeds, as a corpus for libFuzzer
 */
#include "fuzz.h"

#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

static uint64_t state;
static uint8_t input[FUZZ_MAX];
static size_t input_size;

/* xorshift64* */
static uint32_t rnd(uint32_t below)
{
	state ^= state >> 12;
	state ^= state << 25;
	state ^= state >> 27;
	return (uint32_t)((state * UINT64_C(2685821657736338717)) >> 32) % below;
}

static void save_input(int sig)
{
	int fd = open("crash.bin", O_WRONLY | O_CREAT | O_TRUNC, 0644);

	if (fd >= 0 && write(fd, input, input_size) == (ssize_t)input_size)
		close(fd);
	signal(sig, SIG_DFL);
	raise(sig);
}

/* An exact copy on the heap, so that a sanitizer sees reads beyond it. */
static void run_input(void)
{
	uint8_t *copy = malloc(input_size ? input_size : 1);

	if (!copy)
		abort();
	memcpy(copy, input, input_size);
	LLVMFuzzerTestOneInput(copy, input_size);
	free(copy);
}

static void change_once(void)
{
	static const uint8_t values[] = {0, 1, 2, 0x7f, 0x80, 0xff, 0xfe, 16, 32, 64};
	static const char text[] = "0123456789,:/-*![].%kmg \tabcf";
	size_t at = input_size ? rnd((uint32_t)input_size) : 0;
	size_t n = input_size - at ? 1 + rnd((uint32_t)(input_size - at)) : 0;

	switch (rnd(8)) {
	case 0:
		if (input_size)
			input[at] ^= (uint8_t)(1u << rnd(8));
		break;
	case 1:
		if (input_size)
			input[at] = values[rnd(sizeof(values))];
		break;
	case 2:
		if (input_size)
			input[at] = (uint8_t)text[rnd(sizeof(text) - 1)];
		break;
	case 3: /* cut the end */
		input_size = at;
		break;
	case 4: /* cut the middle */
		memmove(input + at, input + at + n, input_size - at - n);
		input_size -= n;
		break;
	case 5: /* double a part */
		n = n < FUZZ_MAX - input_size ? n : FUZZ_MAX - input_size;
		memmove(input + at + n, input + at, input_size - at);
		input_size += n;
		break;
	case 6: /* insert a character */
		if (input_size < FUZZ_MAX) {
			memmove(input + at + 1, input + at, input_size - at);
			input[at] = (uint8_t)text[rnd(sizeof(text) - 1)];
			input_size++;
		}
		break;
	default: /* an extreme word */
		if (input_size >= 4)
			memset(input + rnd((uint32_t)input_size - 3), rnd(2) ? 0xff : 0, 4);
	}
}

static int run_files(char **files)
{
	for (; *files; files++) {
		FILE *f = fopen(*files, "rb");

		if (!f) {
			perror(*files);
			return 2;
		}
		input_size = fread(input, 1, sizeof(input), f);
		fclose(f);
		run_input();
	}
	return 0;
}

static int write_seeds(const char *folder, unsigned seeds)
{
	char path[4096];
	unsigned i;
	FILE *f;

	for (i = 0; i < seeds; i++) {
		snprintf(path, sizeof(path), "%s/seed-%u", folder, i);
		input_size = fuzz_seed(i, input);
		f = fopen(path, "wb");
		if (!f || fwrite(input, 1, input_size, f) != input_size || fclose(f) != 0) {
			perror(path);
			return 2;
		}
	}
	return 0;
}

int main(int argc, char **argv)
{
	unsigned long changes = 1000, i;
	unsigned seeds, k;
	int c;

	signal(SIGABRT, save_input);
	signal(SIGSEGV, save_input);
	state = 42;
	for (seeds = 0; fuzz_seed(seeds, input); seeds++)
		;
	while ((c = getopt(argc, argv, "n:s:w:")) != -1) {
		if (c == 'n')
			changes = strtoul(optarg, NULL, 10);
		else if (c == 's')
			state = strtoull(optarg, NULL, 10) * 2 + 1;
		else if (c == 'w')
			return write_seeds(optarg, seeds);
		else
			return 2;
	}
	if (optind < argc)
		return run_files(argv + optind);
	for (k = 0; k < seeds; k++) {
		input_size = fuzz_seed(k, input);
		run_input();
	}
	for (i = 0; i < changes; i++) {
		input_size = fuzz_seed(rnd(seeds), input);
		for (k = 1 + rnd(6); k > 0; k--)
			change_once();
		run_input();
	}
	printf("%u seeds, %lu changed inputs\n", seeds, changes);
	return 0;
}
