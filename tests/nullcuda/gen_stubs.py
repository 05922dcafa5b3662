"""Writes stubs.c: an entry point that only says "not supported" for every function of the headers that no object has.

    gen_stubs.py STUBS.C NM-OUTPUT PATTERN:CODE:HEADER...

PATTERN is the start of the functions' names, CODE what such a function returns."""

import re
import sys

out, listing, *headers = sys.argv[1:]
with open(listing) as file:
    taken = {line.split()[-1] for line in file if line.strip()}
lines = [
    '#include "core.h"',
    "#define STUB(name, code) "
    '__attribute__((section("nc_stubs"))) int name(void) { return nc_unsupported(#name, code); }',
]
for header in headers:
    pattern, code, path = header.split(":", 2)
    with open(path, errors="replace") as file:
        text = re.sub(r"/\*.*?\*/", " ", file.read(), flags=re.S)
    called = rf"\b({pattern}[A-Z]\w*)\s*\("
    renamed = rf"#\s*define\s+\w+\s+(?:__CUDA_API_\w+\()?({pattern}[A-Z]\w*)\b"
    for name in sorted({*re.findall(called, text), *re.findall(renamed, text)} - taken):
        if not name.endswith(("_st", "_t")):
            taken.add(name)
            lines.append(f"STUB({name}, {code})")
with open(out, "w") as file:
    file.write("\n".join(lines) + "\n")
