/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Programs that a preloaded library does not reach: the loader ignores LD_PRELOAD for those that gain rights, static
 * ones have no loader, and Go programs make their own system calls.
 */
#include "run.h"

#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#define MAX_HEADERS  64
#define MAX_SCRIPTS  4 /* the kernel's own limit is near */
#define NOTES_SIZE   4096
#define SCRIPT_BLANK " \t\n"

static bool is_program(const char *path)
{
	struct stat st;

	return stat(path, &st) == 0 && S_ISREG(st.st_mode) && access(path, X_OK) == 0;
}

/* What execvp would run. */
static bool find_program(const char *name, char path[PATH_MAX])
{
	const char *dirs = getenv("PATH"), *end;
	int n;

	if (strchr(name, '/')) {
		n = snprintf(path, PATH_MAX, "%s", name);
		return n < PATH_MAX && is_program(path);
	}
	for (dirs = dirs ? dirs : "/bin:/usr/bin";; dirs = end + 1) {
		end = strchrnul(dirs, ':');
		n = snprintf(path, PATH_MAX, "%.*s%s%s", (int)(end - dirs), dirs, end > dirs ? "/" : "", name);
		if (n < PATH_MAX && is_program(path))
			return true;
		if (!*end)
			return false;
	}
}

/* A program that is given rights by its file runs in the loader's secure mode. */
static bool gains_rights(int fd, const struct stat *st)
{
	if ((st->st_mode & S_ISUID) && st->st_uid != getuid())
		return true;
	if ((st->st_mode & S_ISGID) && st->st_gid != getgid())
		return true;
	return getuid() != 0 && fgetxattr(fd, "security.capability", NULL, 0) > 0;
}

/* Go's linker leaves a note of its own. */
static bool has_go_note(int fd, const ElfW(Phdr) * ph)
{
	char notes[NOTES_SIZE];
	ssize_t n = pread(fd, notes, vkr_min((size_t)ph->p_filesz, sizeof(notes)), (off_t)ph->p_offset);
	size_t at = 0, size = n > 0 ? (size_t)n : 0;
	ElfW(Nhdr) nh;

	while (size - at >= sizeof(nh)) {
		memcpy(&nh, notes + at, sizeof(nh));
		at += sizeof(nh);
		if (nh.n_namesz == 4 && size - at >= 4 && memcmp(notes + at, "Go\0\0", 4) == 0)
			return true;
		if (nh.n_namesz > size - at || nh.n_descsz > size - at - nh.n_namesz)
			break;
		at += (nh.n_namesz + 3u) & ~3u;
		at += (nh.n_descsz + 3u) & ~3u;
		if (at > size)
			break;
	}
	return false;
}

static bool elf_objections(int fd, const ElfW(Ehdr) * eh, char *why, size_t size)
{
	ElfW(Phdr) ph;
	bool loader = false, go = false;
	unsigned i;

	if (eh->e_ident[EI_CLASS] != (sizeof(void *) == 8 ? ELFCLASS64 : ELFCLASS32)) {
		snprintf(why, size, "is a %d-bit program", sizeof(void *) == 8 ? 32 : 64);
		return true;
	}
	for (i = 0; i < eh->e_phnum && i < MAX_HEADERS; i++) {
		if (pread(fd, &ph, sizeof(ph), (off_t)(eh->e_phoff + i * sizeof(ph))) != sizeof(ph))
			break;
		loader |= ph.p_type == PT_INTERP;
		go |= ph.p_type == PT_NOTE && has_go_note(fd, &ph);
	}
	if (go)
		snprintf(why, size, "is a Go program, which makes its system calls itself");
	else if (!loader)
		snprintf(why, size, "is linked statically");
	return go || !loader;
}

/* The interpreter of a script: the word after #!. */
static bool script_interpreter(char *head, char path[PATH_MAX])
{
	char *word = strtok(head + 2, SCRIPT_BLANK);

	return word && snprintf(path, PATH_MAX, "%s", word) < PATH_MAX;
}

/* 1: objections; 0: none; -1: a script, `path` is its interpreter now. */
static int file_objections(char path[PATH_MAX], char *why, size_t size)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	union {
		ElfW(Ehdr) elf;
		char text[256];
	} head;
	struct stat st;
	ssize_t n;
	int rc = 0;

	if (fd < 0)
		return 0;
	memset(&head, 0, sizeof(head));
	n = read(fd, &head, sizeof(head) - 1);
	if (n >= 2 && memcmp(head.text, "#!", 2) == 0) {
		rc = script_interpreter(head.text, path) ? -1 : 0;
	} else if (fstat(fd, &st) == 0 && gains_rights(fd, &st)) {
		snprintf(why, size, "runs with rights of its own (setuid, setgid or capabilities)");
		rc = 1;
	} else if (n >= (ssize_t)sizeof(head.elf) && memcmp(head.text, ELFMAG, SELFMAG) == 0) {
		rc = elf_objections(fd, &head.elf, why, size);
	}
	close(fd);
	return rc;
}

bool run_program_objections(const char *program, char *why, size_t size)
{
	char path[PATH_MAX];
	int rc = -1, i;

	if (!find_program(program, path))
		return false;
	for (i = 0; i < MAX_SCRIPTS && rc < 0; i++)
		rc = file_objections(path, why, size);
	return rc > 0;
}
