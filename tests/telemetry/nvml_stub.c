/* A stand-in for libnvidia-ml.so.1: the functions that vitprof calls, for two GPUs that do not exist.
 *
 * What it answers stands in the file that the environment variable NVML_STUB names, read at every call so that a test
 * can change it in the middle of a run. One "key value" a line, all of them integers:
 *   init 9             code that nvmlInit returns             e.nvmlDeviceGetName 3   code that one function returns
 *   count 1            number of GPUs (2 if not given)        device 15               code that all device calls return
 *   lost_after 7       device calls until the GPU is lost     pid.0 1234 / mem.0 4096 process on each GPU; mem -1: unknown
 *   util.1 55          a figure of GPU 1: util, total, reserved, used, power, limit, clock, temp, pcie (in NVML's units)
 * Built with -DOLD_DRIVER it lacks functions, as an old driver does. nvml_stub_calls tells how often one was called.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OK = 0, INVALID = 2, NOT_FOUND = 6, TOO_SMALL = 7, LOST = 15, WRONG_VERSION = 25, NAMES = 64 };

typedef struct { int index; const char *uuid; } gpu_t;
typedef struct { unsigned gpu, memory; } rates_t;
typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory_v2_t;
typedef struct { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; } process_t;

static gpu_t gpus[2] = {{0, "GPU-11111111-2222-3333-4444-555555555555"}, {1, "GPU-aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee"}};
static struct { char name[64]; int calls; } counted[NAMES];
static long device_calls;

static int has(const char *wanted, long long *value) {
    const char *path = getenv("NVML_STUB");
    FILE *file = path ? fopen(path, "r") : NULL;
    char key[64];
    long long read;
    int found = 0;
    while (file && !found && fscanf(file, "%63s %lld", key, &read) == 2)
        if (!strcmp(key, wanted)) { *value = read; found = 1; }
    if (file) fclose(file);
    return found;
}

static long long get(const char *key, long long otherwise) {
    has(key, &otherwise);
    return otherwise;
}

static long long figure(const gpu_t *gpu, const char *name, long long otherwise) {
    char key[64];
    snprintf(key, sizeof key, "%s.%d", name, gpu->index);
    return get(key, otherwise);
}

int nvml_stub_calls(const char *name) { /* "device": all device calls */
    if (!strcmp(name, "device")) return (int)device_calls;
    for (int i = 0; i < NAMES && counted[i].calls; i++)
        if (!strcmp(counted[i].name, name)) return counted[i].calls;
    return 0;
}

static int begin(const char *name) {
    char key[80];
    int i = 0;
    while (i < NAMES - 1 && counted[i].calls && strcmp(counted[i].name, name)) i++;
    snprintf(counted[i].name, sizeof counted[i].name, "%s", name);
    counted[i].calls++;
    snprintf(key, sizeof key, "e.%s", name);
    return (int)get(key, OK);
}

static int begin_device(const char *name) {
    int own = begin(name);
    int all = ++device_calls > get("lost_after", 1L << 40) ? LOST : (int)get("device", OK);
    return all ? all : own;
}

#define DEVICE_CALL do { int code = begin_device(__func__); if (code) return code; } while (0)

int nvmlInitWithFlags(unsigned flags) { (void)flags; begin(__func__); return (int)get("init", OK); }
int nvmlShutdown(void) { return begin(__func__); }
const char *nvmlErrorString(int code) { (void)code; return "stub error"; }

int nvmlSystemGetDriverVersion(char *text, unsigned size) {
    snprintf(text, size, "999.01");
    return begin(__func__);
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    *count = (unsigned)get("count", 2);
    return begin(__func__);
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, gpu_t **gpu) {
    DEVICE_CALL;
    if (index >= 2) return INVALID;
    *gpu = &gpus[index];
    return OK;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, gpu_t **gpu) {
    DEVICE_CALL;
    for (int i = 0; i < 2; i++)
        if (!strcmp(uuid, gpus[i].uuid)) { *gpu = &gpus[i]; return OK; }
    return NOT_FOUND;
}

int nvmlDeviceGetName(gpu_t *gpu, char *text, unsigned size) {
    DEVICE_CALL;
    snprintf(text, size, get("bad_name", 0) ? "\xff\xfe" : "Stub GPU %d", gpu->index);
    return OK;
}

int nvmlDeviceGetUUID(gpu_t *gpu, char *text, unsigned size) {
    DEVICE_CALL;
    snprintf(text, size, "%s", gpu->uuid);
    return OK;
}

int nvmlDeviceGetUtilizationRates(gpu_t *gpu, rates_t *rates) {
    DEVICE_CALL;
    rates->gpu = (unsigned)figure(gpu, "util", 0);
    rates->memory = 99; /* not the figure asked for */
    return OK;
}

int nvmlDeviceGetMemoryInfo(gpu_t *gpu, memory_t *memory) {
    DEVICE_CALL;
    memory->total = (unsigned long long)figure(gpu, "total", 1LL << 30);
    memory->used = (unsigned long long)(figure(gpu, "used", 0) + figure(gpu, "reserved", 0));
    memory->free = memory->total - memory->used;
    return OK;
}

int nvmlDeviceGetClockInfo(gpu_t *gpu, unsigned type, unsigned *mhz) {
    DEVICE_CALL;
    *mhz = type == 1 ? (unsigned)figure(gpu, "clock", 0) : 1; /* 1: NVML_CLOCK_SM */
    return OK;
}

int nvmlDeviceGetTemperature(gpu_t *gpu, unsigned sensor, unsigned *celsius) {
    DEVICE_CALL;
    if (sensor) return INVALID;
    *celsius = (unsigned)figure(gpu, "temp", 0);
    return OK;
}

int nvmlDeviceGetComputeRunningProcesses_v3(gpu_t *gpu, unsigned *count, process_t *processes) {
    long long pid = figure(gpu, "pid", 0);
    DEVICE_CALL;
    if (!pid) { *count = 0; return OK; }
    if (!processes || *count < 2) { *count = 2; return TOO_SMALL; }
    *count = 2;
    processes[0] = (process_t){1, 1000, 0, 0}; /* somebody else's */
    processes[1] = (process_t){(unsigned)pid, (unsigned long long)figure(gpu, "mem", 0), 0, 0};
    return OK;
}

#ifndef OLD_DRIVER
int nvmlDeviceGetMemoryInfo_v2(gpu_t *gpu, memory_v2_t *memory) {
    DEVICE_CALL;
    if (memory->version != (sizeof(memory_v2_t) | 2u << 24)) return WRONG_VERSION;
    memory->total = (unsigned long long)figure(gpu, "total", 1LL << 30);
    memory->reserved = (unsigned long long)figure(gpu, "reserved", 0);
    memory->used = (unsigned long long)figure(gpu, "used", 0);
    memory->free = memory->total - memory->used - memory->reserved;
    return OK;
}

int nvmlDeviceGetPowerUsage(gpu_t *gpu, unsigned *milliwatts) {
    DEVICE_CALL;
    *milliwatts = (unsigned)figure(gpu, "power", 0);
    return OK;
}

int nvmlDeviceGetEnforcedPowerLimit(gpu_t *gpu, unsigned *milliwatts) {
    DEVICE_CALL;
    *milliwatts = (unsigned)figure(gpu, "limit", 300000);
    return OK;
}

int nvmlDeviceGetPcieThroughput(gpu_t *gpu, unsigned counter, unsigned *kilobytes_per_s) {
    DEVICE_CALL;
    *kilobytes_per_s = counter == 1 ? (unsigned)figure(gpu, "pcie", 0) : 7; /* 1: NVML_PCIE_UTIL_RX_BYTES */
    return OK;
}
#endif
