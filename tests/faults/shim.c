/* Faults of a disk and a clock for one process, as the file SHIM_CONTROL says, which is mapped:
 * five signed 64-bit numbers in the order of `struct control`. Only files below SHIM_FOLDER. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

struct control {
    int64_t wall_shift_ns;
    int64_t write_errno;
    int64_t sync_errno;
    int64_t sync_delay_ns;
    int64_t failures;
};

static volatile struct control *control;
static const char *folder;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("SHIM_CONTROL");
    folder = getenv("SHIM_FOLDER");
    if (!path || !folder)
        return;
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return;
    void *found = mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (found != MAP_FAILED)
        control = found;
}

static int fails(int fd, int64_t number) {
    char link[64], path[4096];
    if (!number)
        return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size < 0)
        return 0;
    path[size] = 0;
    if (strncmp(path, folder, strlen(folder)))
        return 0;
    __atomic_add_fetch(&control->failures, 1, __ATOMIC_RELAXED);
    errno = (int)number;
    return 1;
}

#define REAL(name) __typeof__(name) *real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
    REAL(pwrite);
    return control && fails(fd, control->write_errno) ? -1 : real(fd, data, size, at);
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    REAL(pwrite64);
    return control && fails(fd, control->write_errno) ? -1 : real(fd, data, size, at);
}

ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t at) {
    REAL(pwritev);
    return control && fails(fd, control->write_errno) ? -1 : real(fd, parts, count, at);
}

ssize_t pwritev64(int fd, const struct iovec *parts, int count, off64_t at) {
    REAL(pwritev64);
    return control && fails(fd, control->write_errno) ? -1 : real(fd, parts, count, at);
}

static void dawdle(void) {
    if (control && control->sync_delay_ns) {
        struct timespec delay = {control->sync_delay_ns / 1000000000,
                                 control->sync_delay_ns % 1000000000};
        nanosleep(&delay, NULL);
    }
}

int fdatasync(int fd) {
    REAL(fdatasync);
    dawdle();
    return control && fails(fd, control->sync_errno) ? -1 : real(fd);
}

int fsync(int fd) {
    REAL(fsync);
    dawdle();
    return control && fails(fd, control->sync_errno) ? -1 : real(fd);
}

static void shift(struct timespec *at) {
    int64_t nanoseconds = at->tv_sec * 1000000000LL + at->tv_nsec + control->wall_shift_ns;
    at->tv_sec = nanoseconds / 1000000000;
    at->tv_nsec = nanoseconds % 1000000000;
}

int clock_gettime(clockid_t clock, struct timespec *at) {
    REAL(clock_gettime);
    int result = real(clock, at);
    if (!result && control && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        shift(at);
    return result;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    struct timespec exact;
    (void)zone;
    int result = clock_gettime(CLOCK_REALTIME, &exact);
    at->tv_sec = exact.tv_sec;
    at->tv_usec = exact.tv_nsec / 1000;
    return result;
}

time_t time(time_t *to) {
    struct timespec at;
    clock_gettime(CLOCK_REALTIME, &at);
    if (to)
        *to = at.tv_sec;
    return at.tv_sec;
}
