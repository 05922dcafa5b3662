/* The references that loaders are measured against: what the same work costs in plain C, in one thread. */
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

/* Copies the rows at `indices` of `rows` to `out`, one after another. */
void gather_rows(const uint8_t *rows, int64_t row_bytes, const int64_t *indices, int64_t n, uint8_t *out) {
    for (int64_t i = 0; i < n; i++) memcpy(out + i * row_bytes, rows + indices[i] * row_bytes, (size_t)row_bytes);
}

/* Reads the files at `indices` of `paths` to `out`, one after another. Returns how many had `row_bytes` bytes. */
int64_t read_files(const char *const *paths, int64_t row_bytes, const int64_t *indices, int64_t n, uint8_t *out) {
    int64_t good = 0;
    for (int64_t i = 0; i < n; i++) {
        int file = open(paths[indices[i]], O_RDONLY | O_CLOEXEC);
        if (file < 0) continue;
        good += read(file, out + i * row_bytes, (size_t)row_bytes) == row_bytes;
        close(file);
    }
    return good;
}
