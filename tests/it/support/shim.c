// A library between klad and the kernel for files that end in ".log" or ".jnl": RocksDB's write-ahead log and fjall's
// journal. It holds, delays or fails their syncs, and delays or fails their writes. The file "mode" in $KLAD_TEST_SHIM
// selects the action at each call. It appends a byte to the file "syncs" for each sync. Other modes hold the syncs of
// tables (".sst") and of unfinished checkpoints. See shim.rs.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

typedef int (*sync_fn)(int);
typedef ssize_t (*write_fn)(int, const void *, size_t);
typedef ssize_t (*pwrite_fn)(int, const void *, size_t, off_t);

static ssize_t real_write(int fd, const void *bytes, size_t count) {
    static write_fn real;
    if (!real) real = (write_fn)dlsym(RTLD_NEXT, "write");
    return real(fd, bytes, count);
}

static ssize_t path_of(int fd, char *path, size_t size) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, size - 1);
    path[length < 0 ? 0 : length] = 0;
    return length;
}

static int ends_in(int fd, const char *ending) {
    char path[4096];
    ssize_t length = path_of(fd, path, sizeof path);
    if (length < 4) return 0;
    return memcmp(path + length - 4, ending, 4) == 0;
}

static int is_log(int fd) { return ends_in(fd, ".log") || ends_in(fd, ".jnl"); }

static int is_unfinished_checkpoint(int fd) {
    char path[4096];
    return path_of(fd, path, sizeof path) > 0 && strstr(path, "/.partial-") != NULL;
}

static int mode_is(const char *wanted) {
    const char *directory = getenv("KLAD_TEST_SHIM");
    if (!directory) return 0;
    char path[4096], mode[32];
    snprintf(path, sizeof path, "%s/mode", directory);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    ssize_t length = read(fd, mode, sizeof mode - 1);
    close(fd);
    if (length < 0) return 0;
    mode[length] = 0;
    return strcmp(mode, wanted) == 0;
}

static void tell_held(void) {
    char path[4096];
    snprintf(path, sizeof path, "%s/held", getenv("KLAD_TEST_SHIM"));
    int fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    if (fd >= 0) close(fd);
}

static void tell_synced(void) {
    char path[4096];
    snprintf(path, sizeof path, "%s/syncs", getenv("KLAD_TEST_SHIM"));
    int fd = open(path, O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0600);
    if (fd < 0) return;
    if (real_write(fd, ".", 1) != 1) perror("shim");
    close(fd);
}

static int sync_through(const char *name, int fd) {
    sync_fn real = (sync_fn)dlsym(RTLD_NEXT, name);
    if (ends_in(fd, ".sst")) {
        struct timespec pause = {0, 1000000};
        while (mode_is("hold-tables")) nanosleep(&pause, NULL);
    }
    if (mode_is("hold-checkpoint") && is_unfinished_checkpoint(fd)) {
        tell_held();
        struct timespec pause = {0, 1000000};
        while (mode_is("hold-checkpoint")) nanosleep(&pause, NULL);
    }
    if (is_log(fd)) {
        tell_synced();
        if (mode_is("slow")) {
            struct timespec pause = {0, 5000000};
            nanosleep(&pause, NULL);
        }
        if (mode_is("hold")) {
            tell_held();
            struct timespec pause = {0, 1000000};
            while (mode_is("hold")) nanosleep(&pause, NULL);
        }
        if (mode_is("fail-sync") || mode_is("slow-write-fail-sync")) {
            errno = EIO;
            return -1;
        }
    }
    return real(fd);
}

int fdatasync(int fd) { return sync_through("fdatasync", fd); }

int fsync(int fd) { return sync_through("fsync", fd); }

ssize_t write(int fd, const void *bytes, size_t count) {
    if (is_log(fd) && (mode_is("slow-write") || mode_is("slow-write-fail-sync"))) {
        struct timespec pause = {0, 300000000};
        nanosleep(&pause, NULL);
    }
    if (is_log(fd) && mode_is("fail-write")) {
        errno = EIO;
        return -1;
    }
    if (is_log(fd) && mode_is("full-disk")) {
        // Like a disk that becomes full during the write.
        if (count > 1) return real_write(fd, bytes, count / 2);
        errno = ENOSPC;
        return -1;
    }
    return real_write(fd, bytes, count);
}

ssize_t pwrite(int fd, const void *bytes, size_t count, off_t offset) {
    pwrite_fn real = (pwrite_fn)dlsym(RTLD_NEXT, "pwrite");
    if (is_log(fd) && mode_is("fail-write")) {
        errno = EIO;
        return -1;
    }
    return real(fd, bytes, count, offset);
}
