/* SPDX-License-Identifier: BSD-2-Clause */
/* libc's own functions for the files under test, which call them through vkr_real only. */
#include "libc_real.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

struct vkr_real vkr_real = {
    .socket = socket,
    .socketpair = socketpair,
    .bind = bind,
    .listen = listen,
    .connect = connect,
    .accept = accept,
    .accept4 = accept4,
    .close = close,
    .dup = dup,
    .dup2 = dup2,
    .dup3 = dup3,
    .fcntl = fcntl,
    .ioctl = ioctl,
    .shutdown = shutdown,
    .getsockname = getsockname,
    .getpeername = getpeername,
    .getsockopt = getsockopt,
    .setsockopt = setsockopt,
    .read = read,
    .readv = readv,
    .recv = recv,
    .recvfrom = recvfrom,
    .recvmsg = recvmsg,
    .write = write,
    .writev = writev,
    .send = send,
    .sendto = sendto,
    .sendmsg = sendmsg,
    .epoll_create1 = epoll_create1,
    .epoll_ctl = epoll_ctl,
    .epoll_wait = epoll_wait,
    .epoll_pwait = epoll_pwait,
    .poll = poll,
    .ppoll = ppoll,
    .pselect = pselect,
    .getrlimit = (int (*)(int, struct rlimit *))getrlimit,
    .setrlimit = (int (*)(int, const struct rlimit *))setrlimit,
    .sigaction = sigaction,
};
