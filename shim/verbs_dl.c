/* SPDX-License-Identifier: BSD-2-Clause */
#include "verbs_dl.h"

#include "log.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

/* The headers wrap some names in macros; the table is looked up by string. */
#define SOFT_LIBRARY "libvkrdma-soft.so"

struct vkr_verbs vkr_verbs;

/* IBVERBS_1.0 and 1.1 differ in their structs, and a plain dlsym() may choose either; 1.1 is the headers' ABI. */
static void *find(void *handle, const char *name)
{
	void *p = dlvsym(handle, name, "IBVERBS_1.1");

	return p ? p : dlsym(handle, name);
}

static int fill(void *ibv, void *rdma, const char **reason)
{
#define VKR_VERBS_FIND(lib, name, result, args)                                                                        \
	vkr_verbs.lib##_##name = (result(*) args)find(lib, #lib "_" #name);                                            \
	if (!vkr_verbs.lib##_##name) {                                                                                 \
		vkr_warn("the RDMA libraries are too old: %s is missing", #lib "_" #name);                             \
		*reason = "the installed RDMA libraries are too old";                                                  \
		return -ENOSYS;                                                                                        \
	}
	VKR_VERBS_CALLS(VKR_VERBS_FIND)
#undef VKR_VERBS_FIND
	return 0;
}

/* The build and the installation leave softverbs beside this library; else the loader's search path decides. */
static void *open_soft(void)
{
	char path[4096];
	const char *slash;
	Dl_info info;
	void *handle;
	int n;

	if (dladdr(&vkr_verbs, &info) && info.dli_fname) {
		slash = strrchr(info.dli_fname, '/');
		if (slash) {
			n = snprintf(path, sizeof(path), "%.*s/%s", (int)(slash - info.dli_fname), info.dli_fname,
				     SOFT_LIBRARY);
			if (n > 0 && (size_t)n < sizeof(path)) {
				handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
				if (handle)
					return handle;
				vkr_debug("%s", dlerror());
			}
		}
	}
	return dlopen(SOFT_LIBRARY, RTLD_NOW | RTLD_LOCAL);
}

static int open_soft_provider(const char **reason)
{
	const struct vkr_soft_api *(*entry)(void);
	void *handle = open_soft();
	int ret;

	if (!handle) {
		*reason = "VKRDMA_PROVIDER=soft, but " SOFT_LIBRARY " is not beside libvkrdma.so";
		return -ENOENT;
	}
	ret = fill(handle, handle, reason);
	if (ret)
		return ret;
	entry = (const struct vkr_soft_api *(*)(void))dlsym(handle, "vkr_soft_api");
	vkr_verbs.soft = entry ? entry() : NULL;
	if (!vkr_verbs.soft || vkr_verbs.soft->abi != VKR_SOFT_ABI) {
		*reason = SOFT_LIBRARY " is of another version";
		return -ENOSYS;
	}
	vkr_store(&vkr_verbs.cancels, vkr_verbs.soft->cancels());
	return 0;
}

int vkr_verbs_open(bool soft, const char **reason)
{
	struct ibv_device **list;
	void *ibv, *rdma;
	int ret, n = 0;

	if (soft)
		return open_soft_provider(reason);
	ibv = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
	rdma = ibv ? dlopen("librdmacm.so.1", RTLD_NOW | RTLD_LOCAL) : NULL;
	if (!rdma) {
		*reason = ibv ? "librdmacm is not installed" : "libibverbs is not installed";
		return -ENOENT;
	}
	ret = fill(ibv, rdma, reason);
	if (ret)
		return ret;
	vkr_store(&vkr_verbs.cancels, true);
	/* Before the first registration; arenas carry MADV_DONTFORK themselves, this covers the providers' own queues.
	 */
	if (vkr_verbs.ibv_fork_init())
		vkr_debug("ibv_fork_init failed");
	list = vkr_verbs.ibv_get_device_list(&n);
	if (list)
		vkr_verbs.ibv_free_device_list(list);
	if (n <= 0) {
		*reason = "this machine has no RDMA device";
		return -ENODEV;
	}
	return 0;
}
