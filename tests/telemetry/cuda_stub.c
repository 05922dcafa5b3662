/* A stand-in for libcuda.so.1, CUDA's driver: it tells which GPUs there are, and who asked under which mask.
 *
 * Two GPUs that do not exist, those of nvml_stub.c. As real ones do, they have another order here than in NVML: the
 * second is the faster one and comes first, unless CUDA_DEVICE_ORDER=PCI_BUS_ID. CUDA_VISIBLE_DEVICES renumbers them:
 * numbers and UUIDs, up to the first that names none. CUDA_STUB_MIG=1: the faster one is in MIG mode and shows a slice.
 * CUDA_STUB_VERSION=12020: the newest CUDA that it runs is 12.2; if not given, one newer than any.
 * CUDA_STUB_LOG names a file that gets a line for each function called from outside: "FUNCTION PID MASK".
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OK = 0, NO_DEVICE = 100, INVALID_DEVICE = 101, NOT_FOUND = 500 };

typedef struct { const char *uuid, *name; unsigned long long memory; } card_t;

static const card_t by_bus[2] = {
    {"GPU-11111111-2222-3333-4444-555555555555", "Stub GPU 0", 8ull << 30},
    {"GPU-aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee", "Stub GPU 1", 16ull << 30},
};
static const card_t slice = {"MIG-5115ce00-0000-0000-0000-000000000001", "Stub GPU 1 MIG 1g.5gb", 5ull << 30};
static const card_t *shown[2];
static int n_shown = -1; /* not asked yet: as in the real one, the first call settles it */

static const char *variable(const char *name) {
    const char *value = getenv(name);
    return value ? value : "";
}

static void told(const char *function) {
    FILE *log = getenv("CUDA_STUB_LOG") ? fopen(getenv("CUDA_STUB_LOG"), "a") : NULL;
    if (!log) return;
    fprintf(log, "%s %d %s\n", function, (int)getpid(), getenv("CUDA_VISIBLE_DEVICES") ? variable("CUDA_VISIBLE_DEVICES") : "-");
    fclose(log);
}

static void look(void) {
    int by_order = !strcmp(variable("CUDA_DEVICE_ORDER"), "PCI_BUS_ID"), mig = !strcmp(variable("CUDA_STUB_MIG"), "1");
    const card_t *all[2] = {&by_bus[by_order ? 0 : 1], &by_bus[by_order ? 1 : 0]};
    char mask[256], *entry, *rest = mask;
    n_shown = 0;
    for (int i = 0; i < 2; i++)
        if (mig && all[i] == &by_bus[1]) all[i] = &slice;
    if (!getenv("CUDA_VISIBLE_DEVICES")) {
        for (; n_shown < 2; n_shown++) shown[n_shown] = all[n_shown];
        return;
    }
    snprintf(mask, sizeof mask, "%s", variable("CUDA_VISIBLE_DEVICES"));
    while (n_shown < 2 && (entry = strsep(&rest, ","))) {
        const card_t *found = NULL;
        for (int i = 0; i < 2; i++) {
            int number = !strncmp(entry, "GPU-", 4) || !strncmp(entry, "MIG-", 4) ? -1 : atoi(entry);
            if (*entry && (number == i || !strncmp(all[i]->uuid, entry, strlen(entry)))) found = all[i];
        }
        if (!found) return;
        shown[n_shown++] = found;
    }
}

int cuInit(unsigned flags) {
    (void)flags;
    told("cuInit");
    if (n_shown < 0) look();
    return n_shown ? OK : NO_DEVICE;
}

int cuDriverGetVersion(int *version) {
    told("cuDriverGetVersion");
    *version = getenv("CUDA_STUB_VERSION") ? atoi(variable("CUDA_STUB_VERSION")) : 99990;
    return OK;
}

int cuDeviceGetCount(int *count) { *count = n_shown; return OK; }

int cuDeviceGet(int *device, int index) {
    *device = index;
    return index < n_shown ? OK : INVALID_DEVICE;
}

int cuDeviceGetName(char *name, int size, int device) {
    snprintf(name, (size_t)size, "%s", shown[device]->name);
    return OK;
}

int cuDeviceTotalMem_v2(size_t *bytes, int device) { *bytes = shown[device]->memory; return OK; }

int cuDeviceGetAttribute(int *value, int attribute, int device) { /* 75 and 76: compute capability 9.0, of the slow one 8.6 */
    int slow = shown[device] == &by_bus[0];
    *value = attribute == 75 ? (slow ? 8 : 9) : attribute == 76 ? (slow ? 6 : 0) : -1;
    return OK;
}

static int uuid_of(unsigned char *bytes, const char *text) {
    int at = 0;
    for (text += 4; *text && at < 16; text++)
        if (*text != '-') { sscanf(text, "%2hhx", &bytes[at++]); text++; }
    return OK;
}

int cuDeviceGetUuid(unsigned char *bytes, int device) { /* of a slice: the GPU's */
    return uuid_of(bytes, shown[device] == &slice ? by_bus[1].uuid : shown[device]->uuid);
}

int cuDeviceGetUuid_v2(unsigned char *bytes, int device) { return uuid_of(bytes, shown[device]->uuid); }

static int nothing(void) { return NOT_FOUND; } /* where PyTorch's CUDA runtime gives up */

int cuGetProcAddress_v2(const char *name, void **function, int version, unsigned long long flags, int *status);

int cuGetProcAddress(const char *name, void **function, int version, unsigned long long flags) {
    return cuGetProcAddress_v2(name, function, version, flags, NULL);
}

int cuGetProcAddress_v2(const char *name, void **function, int version, unsigned long long flags, int *status) {
    static const struct { const char *name; void *function; } known[] = {
        {"cuInit", (void *)cuInit}, {"cuDriverGetVersion", (void *)cuDriverGetVersion},
        {"cuGetProcAddress", (void *)cuGetProcAddress_v2}, {"cuDeviceGetCount", (void *)cuDeviceGetCount},
        {"cuDeviceGet", (void *)cuDeviceGet}, {"cuDeviceGetName", (void *)cuDeviceGetName},
        {"cuDeviceTotalMem", (void *)cuDeviceTotalMem_v2}, {"cuDeviceGetUuid", (void *)cuDeviceGetUuid_v2},
    };
    (void)version; (void)flags;
    *function = (void *)nothing;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(known[i].name, name)) *function = known[i].function;
    if (status) *status = 0;
    return OK;
}
