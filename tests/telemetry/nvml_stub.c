/* A stand-in for libnvidia-ml.so.1: the functions that vitprof calls, for two GPUs that do not exist.
 *
 * What it answers stands in the file that the environment variable NVML_STUB names, read at every call so that a test
 * can change it in the middle of a run. One "key value" a line, all of them integers:
 *   init 9             code that nvmlInit returns             e.nvmlDeviceGetName 3   code that one function returns
 *   count 1            number of GPUs (2 if not given)        device 15               code that all device calls return
 *   lost_after 7       device calls until the GPU is lost     pid.0 1234 / mem.0 4096 process on each GPU; mem -1: unknown
 *   util.1 55          a figure of GPU 1: util, total, reserved, used, power, limit, clock, temp, pcie,
 *                                                     energy (in NVML's units)
 *   gpm.1 1            GPU 1 has GPM counters; counter.1 30 is what both count: SM activity is its change from one sample
 *                      to the next, SM occupancy a tenth of that; metric 4 is the code that each metric has
 *   mig 1              GPU 1 is in MIG mode and has one slice, whose figures are .2; what is the card's it does not answer
 * Built with -DOLD_DRIVER it lacks functions, as an old driver does. nvml_stub_calls tells how often one was called.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OK = 0, INVALID = 2, NOT_FOUND = 6, NOT_SUPPORTED = 3, TOO_SMALL = 7, LOST = 15, WRONG_VERSION = 25, NAMES = 64 };

typedef struct { int index; const char *uuid; } gpu_t;
typedef struct { unsigned gpu, memory; } rates_t;
typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory_v2_t;
typedef struct { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; } process_t;

typedef struct { long long counter; } sample_t;
typedef struct { unsigned version, supported; } support_t;
typedef struct { unsigned id; int code; double value; const char *names[3]; } metric_t;
typedef struct { unsigned version, count; sample_t *before, *after; metric_t metrics[]; } metrics_t;

static gpu_t gpus[3] = {
    {0, "GPU-11111111-2222-3333-4444-555555555555"}, {1, "GPU-aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee"},
    {2, "MIG-5115ce00-0000-0000-0000-000000000001"},
};
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
#define NOT_OF_A_SLICE do { if (gpu->index == 2) return NOT_SUPPORTED; } while (0)

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
    for (int i = 0; i < 2 + (get("mig", 0) != 0); i++)
        if (!strcmp(uuid, gpus[i].uuid)) { *gpu = &gpus[i]; return OK; }
    return NOT_FOUND;
}

int nvmlDeviceGetName(gpu_t *gpu, char *text, unsigned size) {
    DEVICE_CALL;
    snprintf(text, size, get("bad_name", 0) ? "\xff\xfe" : gpu->index == 2 ? "Stub GPU 1 MIG 1g.5gb" : "Stub GPU %d", gpu->index);
    return OK;
}

int nvmlDeviceGetUUID(gpu_t *gpu, char *text, unsigned size) {
    DEVICE_CALL;
    snprintf(text, size, "%s", gpu->uuid);
    return OK;
}

int nvmlDeviceGetUtilizationRates(gpu_t *gpu, rates_t *rates) {
    DEVICE_CALL;
    NOT_OF_A_SLICE;
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
    NOT_OF_A_SLICE;
    *mhz = type == 1 ? (unsigned)figure(gpu, "clock", 0) : 1; /* 1: NVML_CLOCK_SM */
    return OK;
}

int nvmlDeviceGetTemperature(gpu_t *gpu, unsigned sensor, unsigned *celsius) {
    DEVICE_CALL;
    NOT_OF_A_SLICE;
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
static int has_mig(const gpu_t *gpu) { return gpu->index == 1 && get("mig", 0); }

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
    NOT_OF_A_SLICE;
    *milliwatts = (unsigned)figure(gpu, "power", 0);
    return OK;
}

int nvmlDeviceGetTotalEnergyConsumption(gpu_t *gpu, unsigned long long *millijoules) {
    DEVICE_CALL;
    NOT_OF_A_SLICE;
    *millijoules = (unsigned long long)figure(gpu, "energy", 0);
    return OK;
}

int nvmlDeviceGetEnforcedPowerLimit(gpu_t *gpu, unsigned *milliwatts) {
    DEVICE_CALL;
    NOT_OF_A_SLICE;
    *milliwatts = (unsigned)figure(gpu, "limit", 300000);
    return OK;
}

int nvmlDeviceGetPcieThroughput(gpu_t *gpu, unsigned counter, unsigned *kilobytes_per_s) {
    DEVICE_CALL;
    NOT_OF_A_SLICE;
    *kilobytes_per_s = counter == 1 ? (unsigned)figure(gpu, "pcie", 0) : 7; /* 1: NVML_PCIE_UTIL_RX_BYTES */
    return OK;
}

int nvmlDeviceGetMigMode(gpu_t *gpu, unsigned *now, unsigned *pending) {
    DEVICE_CALL;
    if (!has_mig(gpu)) return NOT_SUPPORTED;
    *now = *pending = 1;
    return OK;
}

int nvmlDeviceGetMaxMigDeviceCount(gpu_t *gpu, unsigned *count) {
    DEVICE_CALL;
    *count = has_mig(gpu) ? 7 : 0;
    return OK;
}

int nvmlDeviceGetMigDeviceHandleByIndex(gpu_t *gpu, unsigned index, gpu_t **slice) {
    DEVICE_CALL;
    if (!has_mig(gpu) || index != 3) return NOT_FOUND; /* places need not be used from the first on */
    *slice = &gpus[2];
    return OK;
}

int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(gpu_t *gpu, gpu_t **card) {
    DEVICE_CALL;
    *card = &gpus[1];
    return gpu->index == 2 ? OK : INVALID;
}

int nvmlDeviceGetGpuInstanceId(gpu_t *gpu, unsigned *instance) {
    DEVICE_CALL;
    *instance = 9;
    return gpu->index == 2 ? OK : INVALID;
}

int nvmlGpmQueryDeviceSupport(gpu_t *gpu, support_t *support) {
    DEVICE_CALL;
    support->supported = figure(gpu, "gpm", 0) != 0;
    return OK;
}

int nvmlGpmSampleAlloc(sample_t **sample) {
    *sample = calloc(1, sizeof **sample);
    return begin(__func__);
}

int nvmlGpmSampleFree(sample_t *sample) {
    free(sample);
    return begin(__func__);
}

int nvmlGpmSampleGet(gpu_t *gpu, sample_t *sample) {
    DEVICE_CALL;
    sample->counter = figure(gpu, "counter", 0);
    return OK;
}

int nvmlGpmMigSampleGet(gpu_t *gpu, unsigned instance, sample_t *sample) {
    DEVICE_CALL;
    if (gpu->index != 1 || instance != 9) return INVALID;
    sample->counter = figure(&gpus[2], "counter", 0);
    return OK;
}

int nvmlGpmMetricsGet(metrics_t *asked) {
    if (asked->version != 1) return WRONG_VERSION;
    for (unsigned i = 0; i < asked->count; i++) {
        double change = (double)(asked->after->counter - asked->before->counter);
        asked->metrics[i].code = (int)get("metric", OK);
        asked->metrics[i].value = asked->metrics[i].id == 2 ? change : asked->metrics[i].id == 3 ? change / 10 : -1;
    }
    return begin(__func__);
}
#endif
